"""Prometheus' text format, through its own client: as text, or as an application that answers scrapes.

What is counted is decided elsewhere. Invariant: every answer is made anew, and the metrics are never
read twice at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its samples by label values; a counter's name ends with `_total`."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Mapping[tuple[str, ...], float]
    kind: Literal["gauge", "counter"] = "gauge"


Read = Callable[[], Iterable[Family]]


def metrics_text(families: Iterable[Family]) -> str:
    """Return the text that Prometheus reads."""
    listed = list(families)
    return generate_latest(_registry(lambda: listed)).decode()


def metrics_application(read: Read) -> Any:
    """Return the WSGI application that answers scrapes with what `read` reads."""
    return make_wsgi_app(_registry(read))


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
