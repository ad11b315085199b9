"""What failed since one last looked, from Dagster's runs: a line for a run, and at most one a minute for a topic.

Reads Dagster only. Invariant: no failure is passed over; those within a topic's minute are counted in its next line.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus, RunsFilter

from ..orchestration.runs.projection import is_run_of, read_reason
from ..topics import Topic

PAUSE = timedelta(minutes=1)
_OVERLAP = timedelta(minutes=1)  # a run's row may become visible later than its time says


class FailedSince:
    """Reads which runs of some topics failed since a moment, and says each once."""

    def __init__(self, topics: Sequence[Topic], instance: dg.DagsterInstance, since: datetime) -> None:
        self._topics, self._instance, self._since, self._from = topics, instance, since, since
        self._seen: set[str] = set()
        self._untold: dict[str, list[DagsterRun]] = {}
        self._told_at: dict[str, datetime] = {}

    def read(self, now: datetime) -> list[str]:
        """Return the lines that are due: of each topic with failed runs the first one's reason, and how many more there are."""
        found = RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=self._from)
        for record in reversed(self._instance.get_run_records(found)):
            run, updated = record.dagster_run, record.update_timestamp.replace(tzinfo=UTC)
            topic = next((each.name for each in self._topics if _is_of(run, each)), None)
            if topic is not None and run.run_id not in self._seen:
                self._untold.setdefault(topic, []).append(run)
            self._seen.add(run.run_id)
            self._from = max(self._from, min(updated - _OVERLAP, now))
        due = [name for name in self._untold if now - self._told_at.get(name, now - PAUSE) >= PAUSE]
        self._told_at |= dict.fromkeys(due, now)
        return [self._line(name, self._untold.pop(name)) for name in due]

    def _line(self, topic: str, runs: Sequence[DagsterRun]) -> str:
        lines = read_reason(self._instance, runs[0].run_id).strip().splitlines()
        ranges = [line.strip().removeprefix("- ") for line in lines if line.startswith("  - ")]  # below how many failed
        reason = ranges[0] if ranges else lines[0]
        more = f" (and {len(runs) - 1} more failed)" if len(runs) > 1 else ""
        return f"run {runs[0].run_id[:8]} of {topic} failed{more}: {reason}"


def _is_of(run: DagsterRun, topic: Topic) -> bool:
    duties = (topic.landing, topic.decoding, topic.upserting)
    return any(is_run_of(run, duty) for duty in duties)
