"""What waits and for what, in words: which run blocks pending ranges and since when, how old an uncut tail is.

The sensor's tick, the progress check and `status` say the same. Invariant: as long as something waits, there is a text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from .core.active import ActiveRun, Block, State
from .core.dispatch import Tried
from .core.offsets import OffsetRange
from .moments import duration_text, time_text

SHOWN_RUNS = 4
_SINCE = {
    State.NOT_STARTED: "created",
    State.QUEUED: "queued",
    State.STARTING: "starting",
    State.STARTED: "started",
    State.CANCELING: "being cancelled",
}


def block_text(block: Block, slots: int) -> str:
    """Return what blocks pending ranges, and since when."""
    state = {State.STARTED: "at work", State.CANCELING: "being cancelled"}.get(block.run.state, _SINCE[block.run.state])
    text = f"run {block.run.run_id[:8]} of {block.run.job} is {state} since {time_text(block.run.since_ms)}"
    others = _runs_text(block.others)
    return (
        text
        + {
            "nothing landed": " and has landed nothing yet",
            "start": "",
            "daemon": ": Dagster's daemon, which would start it, is silent; start Dagster (`dagster dev`)",
            "slots": f": {len(block.others)} of {slots} run slots are taken by {others}",
            "queue": f": its turn comes after {others}" if others else "",
        }[block.why]
    )


def backing_off_text(pending: Collection[OffsetRange], tried: Mapping[OffsetRange, Tried], now_ms: int) -> str | None:
    """Return when the next of the ranges that have failed is tried again; none where one may be asked for now."""
    waits = [tried[offsets].due_in_seconds(now_ms) if offsets in tried else 0.0 for offsets in pending]
    if not waits or min(waits) <= 0:
        return None
    return f"each has failed, and the first is tried again in {duration_text(min(waits))}"


def tail_text(records: int, oldest_ms: int | None, max_age_seconds: float, now_ms: int) -> str:
    """Return how long records that no range has yet have waited, and at what age their range is cut."""
    age = "" if oldest_ms is None else f"the oldest for {duration_text(max(0.0, (now_ms - oldest_ms) / 1000))}, "
    verb = "records wait" if records != 1 else "record waits"
    return f"{records:,} {verb} for a full range, {age}cut at {duration_text(max_age_seconds)}"


def _runs_text(runs: Iterable[ActiveRun]) -> str:
    listed = list(runs)
    texts = [
        f"run {run.run_id[:8]} of {run.job} ({_SINCE[run.state]} since {time_text(run.since_ms)})"
        for run in listed[:SHOWN_RUNS]
    ]
    more = [f"{len(listed) - SHOWN_RUNS} more"] if len(listed) > SHOWN_RUNS else []
    return ", ".join([*texts, *more])
