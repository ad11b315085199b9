"""What does not answer is not asked again for a while: whoever else needs it in this process does not wait for it too."""

from __future__ import annotations

import time

OUTAGE_SECONDS = 60.0


class Outage:
    """What is known in a process of somebody outside who has failed."""

    def __init__(self) -> None:
        self._reason, self._until = "", 0.0

    @property
    def reason(self) -> str:
        """Why it failed lately; empty where it did not."""
        return self._reason if time.monotonic() < self._until else ""

    def note(self, reason: str) -> None:
        """Note a failure."""
        self._reason, self._until = reason, time.monotonic() + OUTAGE_SECONDS
