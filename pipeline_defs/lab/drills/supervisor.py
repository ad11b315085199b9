"""Runs a system to its end, undisturbed: started again when it fails, as a supervisor would, and given up in time."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import stamina

from ...core.errors import OffsetlakeError
from ...core.steps import no_step
from .systems import System

STARTS = 5
END_SECONDS = 600
AGAIN_SECONDS = 5


class DoesNotEnd(OffsetlakeError):
    """An undisturbed system was still at it after all the time that it was given."""


def run_to_end(system: System) -> None:
    """Run a system in this process, with the Spark session that there is; raise `DoesNotEnd` after `END_SECONDS`."""
    with _bounded() as is_over:

        def is_worth_a_start(error: BaseException) -> bool:  # Ctrl-C and SIGTERM come here too
            return isinstance(error, Exception) and not is_over()

        for attempt in stamina.retry_context(on=is_worth_a_start, attempts=STARTS, timeout=None, wait_initial=1.0):
            with attempt:
                system.run(no_step)


@contextmanager
def _bounded() -> Iterator[Callable[[], bool]]:
    """Raise in what runs inside, again and again, for what runs inside may take the first for a failure of its own."""
    over = False

    def give_up(*_: object) -> None:
        nonlocal over
        over = True
        raise DoesNotEnd(f"an undisturbed run was not at its end after {END_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, END_SECONDS, AGAIN_SECONDS)
    try:
        yield lambda: over
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
