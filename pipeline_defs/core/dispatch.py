"""Dispatch: which planned ranges to ask Dagster for now, and in which runs.

Derived from the log and from what runs hold and have tried; never remembered. Invariant: a range that is not landed
is asked for again, later each time, and never skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from .offsets import OffsetRange

BACKOFF_FIRST_SECONDS = 10
BACKOFF_LAST_SECONDS = 600
STALLED_AFTER_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Tried:
    """Is how often in a row runs that covered a range have failed, and when the last one ended, well or not.

    Times are ms since 1970; the run is the last one that failed.
    """

    attempts: int
    last_ended_ms: int
    first_failed_ms: int = 0
    failed_run: str = ""

    def then_failed(self, run_id: str, ended_ms: int) -> Tried:
        """Return this and one more failure after it."""
        return Tried(self.attempts + 1, ended_ms, self.first_failed_ms or ended_ms, run_id)

    @property
    def is_stalled(self) -> bool:
        """Says whether a person should look: it is still tried again."""
        return self.attempts >= STALLED_AFTER_ATTEMPTS

    def is_due(self, now_ms: int) -> bool:
        """Says whether the back-off is over: 10 s, doubled after each failure, at most 10 minutes.

        An end in the future is of another clock: what it is ahead is waited for too, but never more than a back-off.
        """
        return self.due_in_seconds(now_ms) <= 0

    def due_in_seconds(self, now_ms: int) -> float:
        """Return for how long the back-off still lasts; 0 where it is over."""
        if self.attempts == 0:
            return 0.0
        wait: int = min(BACKOFF_FIRST_SECONDS * 2 ** (self.attempts - 1), BACKOFF_LAST_SECONDS)
        return max(0.0, wait - abs(now_ms - self.last_ended_ms) / 1000)


NEVER_TRIED = Tried(0, 0)


def failures_before(text: str) -> dict[str, Tried]:
    """Read the text of `Request.failed_before`: by key how often a range had failed in a row, and since when."""
    found: dict[str, Tried] = {}
    for each in text.split():
        key, _, counted = each.partition("=")
        attempts, _, first_ms = counted.partition("@")
        if attempts.isdecimal() and first_ms.isdecimal():
            found[key] = Tried(int(attempts), 0, int(first_ms))
    return found


@dataclass(frozen=True, slots=True)
class Request:
    """Is one run to ask for: ranges that are neighbours in Dagster's insertion order."""

    ranges: tuple[OffsetRange, ...]
    attempt: int
    last_ended_ms: int = 0
    tried: tuple[Tried, ...] = ()

    @property
    def failed_before(self) -> str:
        """How often its ranges have failed in a row, and since when, as text that its run carries."""
        known = zip(self.ranges, self.tried, strict=False)
        failed = [f"{offsets.key}={each.attempts}@{each.first_failed_ms}" for offsets, each in known if each.attempts]
        return " ".join(failed) or "none"

    @property
    def keys(self) -> list[str]:
        """Are the keys of its ranges."""
        return [offsets.key for offsets in self.ranges]

    def run_key(self, topic: str, planned_at_ms: int = 0) -> str:
        """Is unique to topic, ranges and attempt, and the same for each tick that asks for the same.

        Dagster drops a run key it has seen, for ever. So the key also says when the ranges were planned and when a run
        last ended with them: a lake begun anew, or a range that is pending again, is not taken for the old one.
        """
        since_ms = max(planned_at_ms, self.last_ended_ms)
        stretch = f"{self.ranges[0].key}..{self.ranges[-1].key}"
        return f"{topic}:{stretch}:{len(self.ranges)}:attempt{self.attempt}:{since_ms}"


def plan_requests(
    order: Sequence[OffsetRange | None],
    pending: AbstractSet[OffsetRange],
    held: AbstractSet[OffsetRange],
    tried: Mapping[OffsetRange, Tried],
    now_ms: int,
    *,
    ranges_per_run: int,
) -> list[Request]:
    """Splits what is due into runs; `order` is every key in Dagster's insertion order, landed ones included.

    None stands for a key that is no range: people can type any text. Dagster's range runs cover everything between two
    keys, so a run never spans a key that is not its own.
    """
    requests: list[Request] = []
    stretch: list[OffsetRange] = []

    def history(offsets: OffsetRange) -> Tried:
        return tried.get(offsets, NEVER_TRIED)

    def close() -> None:
        if stretch:
            attempt = 1 + max(history(offsets).attempts for offsets in stretch)
            last_ended_ms = max(history(offsets).last_ended_ms for offsets in stretch)
            requests.append(Request(tuple(stretch), attempt, last_ended_ms, tuple(map(history, stretch))))
            stretch.clear()

    for offsets in order:
        if offsets is None or offsets in held or offsets not in pending or not history(offsets).is_due(now_ms):
            close()
            continue
        if len(stretch) == ranges_per_run:
            close()
        stretch.append(offsets)
    close()
    return requests
