"""What failed since one last looked, from Dagster's runs: at most one line a minute for a topic.

Reads Dagster only. Invariant: no failure is passed over; those within a topic's minute are counted in its next line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus, RunsFilter

from ..orchestration.runs.projection import is_run_of, read_reason
from ..topics import LAND_PENDING, Topic

PAUSE = timedelta(minutes=1)
_ENDED = "its process was told to end; what it left undone is asked for again"
_WORDS = {  # in place of Dagster's own, which say nothing of what comes next
    "DagsterExecutionInterruptedError": _ENDED,
    "Execution was interrupted unexpectedly": _ENDED,
    "marked as failed from outside": "its process was killed; what it left undone is asked for again",
}
_OVERLAP = timedelta(minutes=1)  # a run's row may become visible later than its time says


@dataclass(frozen=True, slots=True)
class _Failure:
    run_id: str
    reason: str


class FailedSince:
    """Reads which runs of some topics failed since a moment, and says each once."""

    def __init__(self, topics: Sequence[Topic], instance: dg.DagsterInstance, since: datetime) -> None:
        self._topics, self._instance, self._from = topics, instance, since
        self._seen: set[str] = set()
        self._untold: dict[str, list[_Failure]] = {}
        self._told_at: dict[str, datetime] = {}

    def read(self, now: datetime) -> list[str]:
        """Return the lines that are due: of each topic that failed the first reason, and how many more there are."""
        found = RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=self._from)
        for record in reversed(self._instance.get_run_records(found)):
            run, updated = record.dagster_run, record.update_timestamp.replace(tzinfo=UTC)
            if run.run_id not in self._seen:
                for name, reason in self._reasons_of(run):
                    self._untold.setdefault(name, []).append(_Failure(run.run_id, reason))
            self._seen.add(run.run_id)
            self._from = max(self._from, min(updated - _OVERLAP, now))
        due = [name for name in self._untold if now - self._told_at.get(name, now - PAUSE) >= PAUSE]
        self._told_at |= dict.fromkeys(due, now)
        return [_line(name, self._untold.pop(name)) for name in due]

    def _reasons_of(self, run: DagsterRun) -> list[tuple[str, str]]:
        """Read why a run failed, by topic; a run of all topics may say it of none, and is told by its job's name then."""
        topic = next((each.name for each in self._topics if _is_of(run, each)), None)
        if topic is None and run.job_name != LAND_PENDING:
            return []
        lines = read_reason(self._instance, run.run_id).strip().splitlines()
        listed = [line.strip().removeprefix("- ") for line in lines if line.startswith("  - ")]  # below how many failed
        reasons = [next((_WORDS[said] for said in _WORDS if said in each), each) for each in listed or lines[:1]]
        if topic is not None:
            return [(topic, reasons[0])]
        return [(self._topic_in(reason) or LAND_PENDING, reason) for reason in reasons]

    def _topic_in(self, reason: str) -> str | None:
        names = (each.name for each in self._topics)
        return next((name for name in names if f"range {name}/" in reason or reason.startswith(f"topic {name}:")), None)


def _line(name: str, failures: Sequence[_Failure]) -> str:
    first, *others = failures
    more = f" (and {len(others)} more failed)" if others else ""
    return f"run {first.run_id[:8]} of {name} failed{more}: {first.reason.removeprefix(f'topic {name}: ')}"


def _is_of(run: DagsterRun, topic: Topic) -> bool:
    duties = (topic.landing, topic.decoding, topic.upserting)
    return any(is_run_of(run, duty) for duty in duties)
