"""Prometheus' text format, through its own client.

What is counted is decided elsewhere, and read before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from ...core.log.latency import Histogram

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its samples by label values; a counter's name ends with `_total`."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Mapping[tuple[str, ...], float]
    kind: Literal["gauge", "counter"] = "gauge"


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """One metric that is a histogram by label values."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Mapping[tuple[str, ...], Histogram]


def metrics_text(families: Iterable[Family | HistogramFamily]) -> str:
    """Return the text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry).decode()


class _Families(Collector):
    def __init__(self, families: Iterable[Family | HistogramFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        for family in self._families:
            if isinstance(family, HistogramFamily):
                yield _histogram(family)
                continue
            make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = make(family.name, family.help, labels=family.labels)
            for labels, value in family.samples.items():
                metric.add_metric(labels, value)
            yield metric


def _histogram(family: HistogramFamily) -> HistogramMetricFamily:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    for labels, found in family.samples.items():
        bounds = ("+Inf" if bound == inf else str(bound) for bound in found.bounds)
        metric.add_metric(labels, [*zip(bounds, found.counts, strict=True)], found.seconds)
    return metric
