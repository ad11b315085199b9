"""Which due days to ask Dagster for now, and in which runs: few of them, since each starts a process and a Spark session.

Derived from what is due and what runs hold and have tried; never remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from .calendar import days_between, distance
from .dispatch import NEVER_TRIED, Tried

GAP_DAYS = 31
DAYS_PER_RUN = 366


@dataclass(frozen=True, slots=True)
class DayRequest:
    """Is one run to ask for: the days that it is for; it covers those between them too, and leaves alone what is not due."""

    days: tuple[str, ...]
    attempt: int
    last_ended_ms: int = 0

    def run_key(self, topic: str, since_ms: int) -> str:
        """Is the same for each tick that asks for the same; Dagster drops a run key that it has seen, for ever.

        So it says too when the newest of the documents was written that made the days due.
        """
        stretch = f"{self.days[0]}..{self.days[-1]}:{len(self.days)}"
        return f"days:{topic}:{stretch}:attempt{self.attempt}:{max(since_ms, self.last_ended_ms)}"


def plan_day_requests(
    due: Collection[str],
    held: AbstractSet[str],
    tried: Mapping[str, Tried],
    now_ms: int,
    *,
    gap_days: int = GAP_DAYS,
    days_per_run: int = DAYS_PER_RUN,
) -> list[DayRequest]:
    """Splits what is due and not in back-off into runs; neighbours may have some days between them that are not due.

    A run never spans a day that another run holds, nor one that is due and in back-off: it would fail with that, again. A day
    that has failed is asked for with none that has not.
    """
    asked = sorted(day for day in due if day not in held and tried.get(day, NEVER_TRIED).is_due(now_ms))
    apart = held | (set(due) - set(asked))
    runs: list[list[str]] = []
    for day in asked:
        last = runs[-1] if runs else None
        if (
            last is not None
            and distance(last[-1], day) <= gap_days
            and distance(last[0], day) < days_per_run
            and apart.isdisjoint(days_between(last[-1], day))
            and bool(tried.get(last[-1], NEVER_TRIED).attempts) == bool(tried.get(day, NEVER_TRIED).attempts)
        ):
            last.append(day)
        else:
            runs.append([day])
    return [_request(tuple(days), tried) for days in runs]


def _request(days: tuple[str, ...], tried: Mapping[str, Tried]) -> DayRequest:
    history = [tried.get(day, NEVER_TRIED) for day in days]
    return DayRequest(days, 1 + max(each.attempts for each in history), max(each.last_ended_ms for each in history))
