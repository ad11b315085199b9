"""What the runs of a duty came to, for each range, day or update that they covered: from Dagster's database alone.

A tick's run carries how often its ranges had failed before, so that only the last run of a range needs to be found.
Invariant: what has failed is not forgotten for what else has failed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus, RunsFilter

from .core.dispatch import NEVER_TRIED, Tried, failures_before
from .core.offsets import OffsetRange
from .projection import FAILED, RANGE_END, RANGE_START, Order, covered_ranges, find_places, parsed
from .topics import FAILED_BEFORE_TAG, Duty

RUNS_PER_PAGE = 200
MOST_RUNS = 5_000  # looked at by a tick, and only where something older than the newest page is still pending
Key = TypeVar("Key", bound=object)


def read_tried(
    instance: dg.DagsterInstance, duty: Duty, order: Order, pending: Mapping[OffsetRange, int] | None = None
) -> dict[OffsetRange, Tried]:
    """Read of each range how the runs ended that covered it; of `pending` ones, by when they were planned, far enough back."""
    places = find_places(order)
    return read_tried_by(instance, duty, lambda run: covered_ranges(run, order, places), pending)


def read_tried_by(
    instance: dg.DagsterInstance,
    duty: Duty,
    covered: Callable[[DagsterRun], Iterable[Key]],
    pending: Mapping[Key, int] | None = None,
) -> dict[Key, Tried]:
    """Read how the runs ended of each thing that `covered` says a run was for: failures count until one succeeds."""
    found: dict[Key, _History] = {}
    waiting = dict(pending or {})
    for page in _read_pages(instance, duty):
        for ended_ms, run in sorted(page, key=lambda each: each[0], reverse=True):
            said = run.tags.get(FAILED_BEFORE_TAG)
            before = failures_before(said) if said is not None else None
            for key in covered(run):
                name = key.key if isinstance(key, OffsetRange) else str(key)
                known = None if before is None else before.get(name, NEVER_TRIED)
                found.setdefault(key, _History()).add(run, ended_ms, known)
        oldest_ms = min(ended_ms for ended_ms, _ in page)
        waiting = {
            key: since_ms
            for key, since_ms in waiting.items()
            if since_ms < oldest_ms and not (key in found and found[key].is_known)
        }
        if not waiting:
            break
    return {key: history.tried for key, history in found.items()}


def read_ends_of_runs(instance: dg.DagsterInstance, duty: Duty) -> set[OffsetRange]:
    """Read the first and last range of each recent range run: without them nobody could tell what it covered."""
    recent = [run for page, _ in zip(_read_pages(instance, duty), range(3), strict=False) for _, run in page]
    ends = (parsed(run.tags[name]) for run in recent for name in (RANGE_START, RANGE_END) if name in run.tags)
    return {offsets for offsets in ends if offsets is not None}


@dataclass(slots=True)
class _History:
    """What runs came to that covered one thing, put together from the newest to the oldest."""

    failures: list[tuple[str, int]] = field(default_factory=list)
    before: Tried = NEVER_TRIED
    is_known: bool = False

    def add(self, run: DagsterRun, ended_ms: int, before: Tried | None) -> None:
        """Add the next older run; nothing counts that is older than a success, or than a run that says what was before it."""
        if self.is_known:
            return
        if run.status not in FAILED:
            self.before, self.is_known = Tried(0, ended_ms), True
            return
        self.failures.append((run.run_id, ended_ms))
        if before is not None:
            self.before, self.is_known = before, True

    @property
    def tried(self) -> Tried:
        tried = self.before
        for run_id, ended_ms in reversed(self.failures):
            tried = tried.then_failed(run_id, ended_ms)
        return tried


def _read_pages(instance: dg.DagsterInstance, duty: Duty) -> Iterator[list[tuple[int, DagsterRun]]]:
    """Read the runs of a duty that have ended, and when (ms since 1970), from the newest on."""
    ended = RunsFilter(tags=duty.tags, statuses=[*FAILED, DagsterRunStatus.SUCCESS])
    cursor: str | None = None
    for _ in range(MOST_RUNS // RUNS_PER_PAGE):
        records = instance.get_run_records(ended, limit=RUNS_PER_PAGE, cursor=cursor)
        if not records:
            return
        yield [
            (int((record.end_time or record.update_timestamp.timestamp()) * 1000), record.dagster_run)
            for record in records
        ]
        if len(records) < RUNS_PER_PAGE:
            return
        cursor = records[-1].dagster_run.run_id
