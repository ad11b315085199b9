"""Visits to many topics: those of a cluster one after the other, clusters side by side, each seen at a glance.

A silent cluster keeps others waiting once; then a thread asks it until it answers. Invariant: whatever is wrong with one topic,
file or broker, each other topic is visited.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TypeVar

from ...adapters.kafka.kafka import PATIENCE_SECONDS
from ...core.errors import BrokerRefuses, BrokerUnavailable, OffsetlakeError, TopicsFailed, as_ours
from ...resources import Adapters
from ...topics import Topic

T = TypeVar("T")


class SilentCluster:
    """A cluster that does not answer: its last `error`, and a thread that asks it, so that nobody else has to wait for it."""

    def __init__(self, error: BrokerUnavailable, ask: Callable[[], None]) -> None:
        self.error = error
        self._ask = ask
        self._thread: threading.Thread | None = None
        self._has_answered = False

    def is_over(self) -> bool:
        """Return whether the cluster has answered since; if not, ask it in a thread, unless one is asking already."""
        if not self._has_answered and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._listen, name="offsetlake-silent-cluster", daemon=True)
            self._thread.start()
        return self._has_answered

    def _listen(self) -> None:
        try:
            self._ask()
        except BrokerUnavailable as error:
            if not isinstance(error, BrokerRefuses):
                self.error = error
                return
        except OffsetlakeError:  # it answers, and each topic says what
            pass
        self._has_answered = True


def refuse_silent(topic: Topic, adapters: Adapters) -> None:
    """Raise `BrokerUnavailable` at once where the topic's cluster was silent, and has not answered since."""
    servers = adapters.bootstrap_servers(topic)
    cluster: SilentCluster | None = adapters.silent_clusters.get(servers)
    if cluster is None:
        return
    if not cluster.is_over():
        raise cluster.error
    adapters.silent_clusters.pop(servers, None)


def note_silence(topic: Topic, error: BrokerUnavailable, adapters: Adapters) -> None:
    """Note that the topic's cluster has not answered in time."""

    def ask() -> None:
        with closing(adapters.open_kafka(topic)) as kafka:
            kafka.check_answers()

    adapters.silent_clusters.setdefault(adapters.bootstrap_servers(topic), SilentCluster(error, ask))


def visit_topics(
    topics: Sequence[Topic], adapters: Adapters, visit: Callable[[Topic], T], failed: Callable[[Topic, OffsetlakeError], T]
) -> list[T]:
    """Visit each topic, and return what was found, in the order of the topics; `failed` is called where that raises."""
    clusters: dict[str, list[Topic]] = {}
    for topic in topics:
        try:
            servers = adapters.bootstrap_servers(topic)
        except OffsetlakeError:  # of the address, which each topic says of itself
            servers = ""
        clusters.setdefault(servers, []).append(topic)
    with ThreadPoolExecutor(max(1, len(clusters))) as pool:
        visited = pool.map(lambda of_cluster: _visit_cluster(of_cluster, adapters, visit, failed), clusters.values())
        found = {name: each for of_cluster in visited for name, each in of_cluster.items()}
    return [found[topic.name] for topic in topics]


def do_for_each(topics: Sequence[Topic], adapters: Adapters, do: Callable[[Topic], object]) -> None:
    """Do something for each topic, whatever fails; raise `TopicsFailed` with what did, once the others are done.

    What was read of the lake for one topic is dropped before the next: it may be a whole history.
    """
    failures = []
    for topic in topics:
        try:
            do(topic)
        except Exception as error:  # noqa: BLE001 (told by its type: another topic is not to pay for it)
            failures.append(f"{topic.name}: {as_ours(error, f'topic {topic.name}')}")
        adapters.forget_lake()
    if failures:
        raise TopicsFailed(f"it failed for {len(failures)} of {len(topics)} topics; the others are done", failures)


def _visit_cluster(
    topics: Sequence[Topic], adapters: Adapters, visit: Callable[[Topic], T], failed: Callable[[Topic, OffsetlakeError], T]
) -> dict[str, T]:
    """Visit the topics of a cluster; once it has kept one of them waiting in vain, the others do not wait for it again.

    The cause may be of that topic alone: next time it is among the last, which are given up once one of them waits in vain.
    """
    found: dict[str, T] = {}
    with ExitStack() as opened:
        silent: OffsetlakeError | None = None
        try:
            refuse_silent(topics[0], adapters)
            opened.enter_context(adapters.kafka(topics[0]).glancing([topic.name for topic in topics]))
        except BrokerUnavailable as unavailable:
            silent = unavailable
            note_silence(topics[0], unavailable, adapters)
        except OffsetlakeError:  # of the address, which each topic says of itself
            pass
        slow, has_waited = [*adapters.slow_topics], False
        for topic in sorted(topics, key=lambda each: slow.index(each.name) if each.name in slow else -1):
            known = silent or (adapters.slow_topics.get(topic.name) if has_waited else None)
            if known is not None:
                found[topic.name] = failed(topic, known)
                continue
            began = time.monotonic()
            adapters.slow_topics.pop(topic.name, None)
            try:
                found[topic.name] = visit(topic)
            except Exception as error:  # noqa: BLE001 (told by its type: another topic is not to pay for it)
                told = as_ours(error, f"topic {topic.name}")
                if time.monotonic() - began > PATIENCE_SECONDS:
                    adapters.slow_topics[topic.name], has_waited = told, True
                    silent = error if isinstance(error, BrokerUnavailable) else None
                found[topic.name] = failed(topic, told)
    return found
