"""A job that finishes no task for long, such as one whose function waits for ever: Spark is asked to stop it."""

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

STOP_SECONDS = 60.0  # a worker of Python is ended some seconds after its task is


class Stillness:
    """When a job last finished a task, as Spark says every few seconds; `is_stopped` where it was asked to stop the job."""

    def __init__(self, session: SparkSession, seconds: float) -> None:
        self._session, self._seconds = session, seconds
        self._tag = uuid.uuid4().hex
        self._thread = threading.get_ident()
        self._finished = 0
        self._until = time.monotonic() + seconds
        self.is_stopped = False

    def __call__(self, stages: Iterable[StageInfo] | None, **_: object) -> None:
        """Take note of what Spark says of the job's stages."""
        finished = sum(stage.num_completed_tasks for stage in stages or ())
        is_ours = threading.get_ident() == self._thread  # threads share sessions
        if is_ours and finished != self._finished and not self.is_stopped:
            self._finished, self._until = finished, time.monotonic() + self._seconds

    def is_over(self) -> bool:
        """Ask Spark to stop the job where it has been still for too long; return whether a minute more has not ended it."""
        if time.monotonic() < self._until:
            return False
        if self.is_stopped:
            return True
        self.is_stopped, self._until = True, time.monotonic() + STOP_SECONDS
        self._session.interruptTag(self._tag)
        return False

    @contextmanager
    def noted(self) -> Iterator[Stillness]:
        """Take note of what this thread asks of the session meanwhile."""
        own: Any = self._session
        own.registerProgressHandler(self)
        own.addTag(self._tag)
        try:
            yield self
        finally:
            own.removeTag(self._tag)
            own.removeProgressHandler(self)
