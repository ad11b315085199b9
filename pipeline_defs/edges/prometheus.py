"""Prometheus' text format, through its own client: printed once, or served over HTTP.

What is counted is decided elsewhere. Invariant: every answer is read anew, and two are never read at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ..core.errors import Refused


@dataclass(frozen=True, slots=True)
class Family:
    """Is one metric with its samples by label values; a counter's name ends with `_total`."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Mapping[tuple[str, ...], float]
    kind: Literal["gauge", "counter"] = "gauge"


Read = Callable[[], Iterable[Family]]


def metrics_text(families: Iterable[Family]) -> str:
    """Is the text that Prometheus reads."""
    listed = list(families)
    return generate_latest(_registry(lambda: listed)).decode()


@contextmanager
def serve(host: str, port: int, read: Read) -> Iterator[int]:
    """Answers scrapes at `host:port` while the context is open; gives the port, which is a free one where 0 is asked."""
    try:
        server, thread = start_http_server(port, host, _registry(read))
    except OSError as error:
        raise Refused(
            f"cannot listen on {host}:{port}: {error.strerror or error}; nothing was started; give another "
            "`--listen [HOST:]PORT`"
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Families(Collector):
    def __init__(self, read: Read) -> None:
        self._read = read
        self._lock = threading.Lock()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        with self._lock:
            families = list(self._read())
        for family in families:
            make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = make(family.name, family.help, labels=family.labels)
            for labels, value in family.samples.items():
                metric.add_metric(labels, value)
            yield metric


def _registry(read: Read) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_describing_nothing(_Families(read)))
    return registry


def _describing_nothing(collector: Collector) -> Collector:
    # registering would otherwise read everything once, to learn the names
    collector.describe = list  # type: ignore[attr-defined]
    return collector
