"""Stillness: which job is stopped, and when; Spark itself is in `integration/test_formats.py`."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pipeline_defs.adapters.spark import stillness as stillness_module
from pipeline_defs.adapters.spark.stillness import STOP_SECONDS, Stillness


class Clock:
    """Seconds that pass when they are told to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stillness_module, "time", clock)
    return clock


def finished(*tasks: int) -> list[Any]:
    """What Spark says of a job's stages."""
    return [SimpleNamespace(num_completed_tasks=each) for each in tasks]


def test_a_job_that_comes_further_is_never_stopped(clock: Clock) -> None:
    session = Mock()
    with Stillness(session, 600).noted() as still:
        for tasks in range(100):
            clock.now += 599
            still(finished(tasks, 1))
            assert not still.is_over()
    session.interruptTag.assert_not_called()


def test_one_that_says_the_same_is_stopped_once_and_has_a_minute_to_end(clock: Clock) -> None:
    """Other jobs of the session, which another thread asks for, are none of its progress."""
    session = Mock()
    with Stillness(session, 600).noted() as still:
        still(finished(7))
        clock.now += 599
        still(finished(7))
        other = threading.Thread(target=still, args=(finished(8),))
        other.start()
        other.join()
        assert not still.is_over() and not still.is_stopped
        clock.now += 1
        assert not still.is_over() and still.is_stopped
        session.interruptTag.assert_called_once_with(session.addTag.call_args.args[0])
        still(finished(8))
        clock.now += STOP_SECONDS - 1
        assert not still.is_over()
        clock.now += 1
        assert still.is_over()
    session.interruptTag.assert_called_once()
    session.removeTag.assert_called_once()
    session.removeProgressHandler.assert_called_once_with(still)
