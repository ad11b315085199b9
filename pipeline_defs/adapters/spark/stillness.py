"""Whether a job is stuck: how long it has finished no task. A stuck one is stopped, since others wait for its slot."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo


class Stillness:
    """When a job last finished a task, as Spark says every few seconds; `is_over` once that is too long ago.

    Of a server that says nothing of its jobs, as somebody else's may be set, nothing is known. The thread's jobs have a tag by
    which Spark can be asked to stop them.
    """

    def __init__(self, session: SparkSession, seconds: float) -> None:
        self.tag = uuid.uuid4().hex
        self.is_over = False
        self._session, self._seconds = session, seconds
        self._thread = threading.get_ident()
        self._finished, self._is_told = 0, False
        self._until = time.monotonic() + seconds

    def __call__(self, stages: Iterable[StageInfo] | None, **_: object) -> None:
        """Take note of what Spark says of the job's stages."""
        finished = sum(stage.num_completed_tasks for stage in stages or ())
        is_ours = threading.get_ident() == self._thread  # threads share sessions
        self._is_told |= is_ours
        if is_ours and finished != self._finished:
            self._finished, self._until = finished, time.monotonic() + self._seconds

    def look(self) -> bool:
        """Return whether it is over, from now on for good."""
        self.is_over |= self._is_told and time.monotonic() >= self._until
        return self.is_over

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Take note of what this thread asks of the session meanwhile."""
        own: Any = self._session
        own.registerProgressHandler(self)
        own.addTag(self.tag)
        try:
            yield
        finally:
            own.removeTag(self.tag)
            own.removeProgressHandler(self)
