"""Limits on waiting for a server: a question ends in time, and after a failure the process asks no more for a minute."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

OUTAGE_SECONDS = 60.0
Result = TypeVar("Result")


def ask_within(seconds: float, ask: Callable[[], Result]) -> Result:
    """Return the answer; raise `TimeoutError` if it takes longer, and leave the asking thread behind.

    For clients whose time-out is for each part of an answer, which may trickle for ever.
    """
    future = Future[Result]()

    def run() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:  # noqa: BLE001 (raised to whoever waits)
            future.set_exception(error)

    Thread(target=run, name="offsetlake-asks", daemon=True).start()
    return future.result(seconds)


class Outage:
    """What a process knows of the last failure of a server outside."""

    def __init__(self) -> None:
        self._reason, self._until = "", 0.0

    @property
    def reason(self) -> str:
        """Why it failed lately; empty if it did not."""
        return self._reason if time.monotonic() < self._until else ""

    def note(self, reason: str) -> None:
        """Note a failure."""
        self._reason, self._until = reason, time.monotonic() + OUTAGE_SECONDS
