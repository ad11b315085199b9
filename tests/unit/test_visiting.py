"""A cluster that hangs beside one that answers: it keeps nobody waiting twice, and is visited again once it answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_defs.core.errors import BrokerRefuses, BrokerUnavailable, OffsetlakeError
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.orchestration.pulse.topic_discovery import plan_new_topics
from pipeline_defs.orchestration.runs.visiting import visit_topics
from pipeline_defs.topics import Topic

SILENT, HEALTHY = (Topic(name, Policy(), bootstrap_servers=f"{name}:9092") for name in ("silent", "healthy"))


class Clusters:
    """Two clusters as a tick sees them; `answers` says what becomes of each question that a thread puts to the silent one."""

    def __init__(self) -> None:
        self.answers: SimpleQueue[OffsetlakeError | None] = SimpleQueue()
        self.waited, self.asked, self.is_silent = 0, 0, True
        self.silent_clusters: dict[str, Any] = {}
        self.slow_topics: set[str] = set()

    def bootstrap_servers(self, topic: Topic) -> str:
        assert topic.bootstrap_servers is not None
        return topic.bootstrap_servers

    @contextmanager
    def _glancing(self, topic: Topic) -> Iterator[None]:
        if topic is SILENT:
            self.waited += 1
            if self.is_silent:
                raise BrokerUnavailable("nobody there", bootstrap_servers="silent:9092")
        yield

    def kafka(self, topic: Topic) -> Any:
        return SimpleNamespace(glancing=lambda _: self._glancing(topic))

    def open_kafka(self, topic: Topic) -> Any:
        assert topic is SILENT
        return SimpleNamespace(check_answers=self._check, list_topics=self._list, close=lambda: None)

    def _check(self) -> None:
        self.asked += 1
        if (answer := self.answers.get()) is not None:
            raise answer

    def _list(self) -> list[str]:
        self.waited += 1
        raise BrokerUnavailable("nobody there", bootstrap_servers="silent:9092")

    def visit(self) -> dict[str, str]:
        edges: Any = self
        found = visit_topics([SILENT, HEALTHY], edges, lambda _: "visited", lambda _, error: str(error).split("\n")[0])
        return dict(zip(("silent", "healthy"), found, strict=True))

    def end_question(self, answer: OffsetlakeError | None) -> None:
        self.answers.put(answer)
        self.silent_clusters["silent:9092"]._thread.join()


@pytest.mark.parametrize("answer", [None, BrokerRefuses("no login")], ids=["lets us in", "says why not"])
def test_a_silent_cluster_keeps_others_waiting_once(answer: OffsetlakeError | None) -> None:
    """[R-30] A thread asks it, one question after the other, and ticks go on without it until it answers."""
    clusters = Clusters()
    for _ in range(3):
        assert clusters.visit() == {"silent": "nobody there", "healthy": "visited"}
    assert (clusters.waited, clusters.asked) == (1, 1), "the fault, and one question that is still open"
    clusters.end_question(BrokerUnavailable("still nobody", bootstrap_servers="silent:9092"))
    for _ in range(2):
        assert clusters.visit() == {"silent": "still nobody", "healthy": "visited"}
    assert (clusters.waited, clusters.asked) == (1, 2)
    clusters.is_silent = False
    clusters.end_question(answer)
    assert clusters.visit() == {"silent": "visited", "healthy": "visited"}
    assert clusters.waited == 2 and clusters.silent_clusters == {}
    clusters.is_silent = True
    assert clusters.visit()["silent"] == "nobody there" and clusters.waited == 3, "the control: it is believed again"


def test_a_pattern_whose_cluster_is_silent_keeps_ticks_waiting_once() -> None:
    """[R-98] Nor does a look for new topics wait for it again."""
    clusters: Any = Clusters()
    clusters.lake = SimpleNamespace(planned_topics=list)
    pattern = SimpleNamespace(template=SILENT, pattern="s.*", folder=Path("silent"))
    files: Any = SimpleNamespace(patterns=[pattern], names=[])
    for _ in range(3):
        (failure,) = plan_new_topics(files, clusters)
        assert "nobody there" in failure and failure.startswith("topics s.* of silent/defs.yaml: ")
    assert (clusters.waited, clusters.asked) == (1, 1)
    clusters.end_question(None)
