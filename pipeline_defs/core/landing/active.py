"""Active runs of Dagster: which of them keep what waits from being done, and what they wait for themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class RunState(StrEnum):
    """The status of a run that has not ended, in Dagster's words."""

    NOT_STARTED = "NOT_STARTED"
    QUEUED = "QUEUED"
    STARTING = "STARTING"
    STARTED = "STARTED"
    CANCELING = "CANCELING"


WITH_SLOT = {RunState.STARTING, RunState.STARTED, RunState.CANCELING}


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A run that has not ended, and since when it is in its state (ms since 1970).

    `is_own` holds for a run that does the work that is looked at.
    """

    run_id: str
    job: str
    state: RunState
    since_ms: int
    is_own: bool


@dataclass(frozen=True, slots=True)
class Block:
    """What keeps pending work from being done: the run that should do it, and in `why` what that waits for.

    `others` are the runs that hold the slots it waits for.
    """

    run: ActiveRun
    why: Literal["daemon", "slots", "queue", "start", "nothing done"]
    others: tuple[ActiveRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Turns:
    """The runs of an instance that have not ended, seen from one kind of work.

    `slots` is how many runs the instance executes at once, negative where there is no limit.
    """

    runs: Sequence[ActiveRun] = ()
    slots: int = -1
    is_daemon_silent: bool = False

    def find_block(self, last_done_ms: int | None) -> Block | None:
        """Find what blocks the work that own runs are there for; none where there is no such run, or one of them gets on.

        `last_done_ms` is when something of this work was last done.
        """
        own = [run for run in self.runs if run.is_own]
        started = [run for run in own if run.state in {RunState.STARTED, RunState.CANCELING}]
        if started:
            since_ms = min(run.since_ms for run in started)
            gets_on = last_done_ms is not None and last_done_ms >= since_ms
            return None if gets_on else Block(started[0], "nothing done")
        starting = [run for run in own if run.state is RunState.STARTING]
        if starting:
            return Block(starting[0], "start")
        if not own:
            return None
        taken = tuple(run for run in self.runs if run.state in WITH_SLOT)
        if self.is_daemon_silent:
            return Block(own[0], "daemon")
        return Block(own[0], "slots" if 0 <= self.slots <= len(taken) else "queue", taken)
