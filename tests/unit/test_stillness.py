"""Stillness: which job is stopped, and when; Spark itself is in `integration/test_formats.py`."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pipeline_defs.adapters.spark import stillness
from pipeline_defs.adapters.spark.stillness import Stillness


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass when they are told to."""
    now = [0.0]
    monkeypatch.setattr(stillness, "time", Mock(monotonic=lambda: now[0]))
    return now


def finished(*tasks: int) -> list[Any]:
    """What Spark says of a job's stages."""
    return [SimpleNamespace(num_completed_tasks=each) for each in tasks]


def test_a_job_that_comes_further_is_never_over(clock: list[float]) -> None:
    with (still := Stillness(Mock(), 600)).noted():
        for tasks in range(100):
            clock[0] += 599
            still(finished(tasks, 1))
            assert not still.look()


def test_one_that_says_the_same_is_over_for_good(clock: list[float]) -> None:
    """Other jobs of the session, which another thread asks for, are none of its progress."""
    session = Mock()
    with (still := Stillness(session, 600)).noted():
        still(finished(7))
        clock[0] += 599
        still(finished(7))
        other = threading.Thread(target=still, args=(finished(8),))
        other.start()
        other.join()
        assert not still.look()
        clock[0] += 1
        assert still.look()
        still(finished(8))
        assert still.look() and still.is_over
    session.addTag.assert_called_once_with(still.tag)
    session.removeTag.assert_called_once_with(still.tag)
    session.removeProgressHandler.assert_called_once_with(still)


@pytest.mark.parametrize("is_told", [False, True], ids=["that says nothing", "the control"])
def test_of_a_server_that_says_nothing_of_its_jobs_none_is_over(clock: list[float], *, is_told: bool) -> None:
    """As `spark.connect.progress.reportInterval` of somebody else's may have it: its jobs may all be healthy."""
    with (still := Stillness(Mock(), 600)).noted():
        if is_told:
            still(finished(0))
        clock[0] += 10_000
        assert still.look() == is_told
