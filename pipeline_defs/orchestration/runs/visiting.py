"""Many topics looked at one after the other: clusters side by side, each seen at a glance, a silent one asked once.

Invariant: whatever is wrong with one topic, file or broker, each other topic is visited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

from ...adapters.kafka.kafka import PATIENCE_SECONDS
from ...core.errors import BrokerUnavailable, OffsetlakeError, TopicsFailed, as_ours
from ...resources import Edges
from ...topics import Topic

T = TypeVar("T")


def visit_topics(
    topics: Sequence[Topic],
    edges: Edges,
    visit: Callable[[Topic], T],
    failed: Callable[[Topic, OffsetlakeError], T],
) -> list[T]:
    """Visit each topic, and return what was found, in the order of the topics; `failed` is called where that raises."""
    clusters: dict[str, list[Topic]] = {}
    for topic in topics:
        clusters.setdefault(topic.bootstrap_servers or "", []).append(topic)
    with ThreadPoolExecutor(max(1, len(clusters))) as pool:
        visited = pool.map(lambda of_cluster: _visit_cluster(of_cluster, edges, visit, failed), clusters.values())
        found = {name: each for of_cluster in visited for name, each in of_cluster.items()}
    return [found[topic.name] for topic in topics]


def failure_text(name: str, error: Exception, what: str) -> str:
    """Return what failed of a topic, or of topics, in words; what we did not foresee by its type, and of `what` it was."""
    return f"{name}: {as_ours(error, what)}"


def do_for_each(topics: Sequence[Topic], edges: Edges, do: Callable[[Topic], object]) -> None:
    """Do something for each topic, whatever fails; raise `TopicsFailed` with what did, once the others are done.

    What was read of the lake for one is let go of before the next: it may be a whole history.
    """
    failures = []
    for topic in topics:
        try:
            do(topic)
        except Exception as error:  # noqa: BLE001 (told by its type: another topic is not to pay for it)
            failures.append(failure_text(topic.name, error, f"topic {topic.name}"))
        edges.forget_lake()
    if failures:
        raise TopicsFailed(f"it failed for {len(failures)} of {len(topics)} topics; the others are done", failures)


def _visit_cluster(
    topics: Sequence[Topic],
    edges: Edges,
    visit: Callable[[Topic], T],
    failed: Callable[[Topic, OffsetlakeError], T],
) -> dict[str, T]:
    """Visit the topics of a cluster; once it has kept one of them waiting in vain, the others do not wait for it again.

    Who was kept waiting is the last one next time: it may be of that topic alone.
    """
    found: dict[str, T] = {}
    with ExitStack() as opened:
        silent: OffsetlakeError | None = None
        try:
            opened.enter_context(edges.kafka(topics[0]).glancing([topic.name for topic in topics]))
        except BrokerUnavailable as unavailable:
            silent = unavailable
        except OffsetlakeError:  # of the address, which each topic says of itself
            pass
        for topic in sorted(topics, key=lambda each: each.name in edges.slow_topics):
            if silent is not None:
                found[topic.name] = failed(topic, silent)
                continue
            began = time.monotonic()
            try:
                found[topic.name] = visit(topic)
                edges.slow_topics.discard(topic.name)
            except Exception as error:  # noqa: BLE001 (told by its type: another topic is not to pay for it)
                if isinstance(error, BrokerUnavailable) and time.monotonic() - began > PATIENCE_SECONDS:
                    silent = error
                    edges.slow_topics.add(topic.name)
                found[topic.name] = failed(topic, as_ours(error, f"topic {topic.name}"))
    return found
