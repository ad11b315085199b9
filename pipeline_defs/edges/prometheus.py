"""Prometheus' text format, through its own client.

What is counted is decided elsewhere, and read before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

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
    """One histogram by label values: of each the upper bounds of its buckets, how many are within each, and the sum of all."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Mapping[tuple[str, ...], tuple[Sequence[float], Sequence[int], float]]


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
    for labels, (bounds, counts, total) in family.samples.items():
        buckets = [("+Inf" if bound == inf else str(bound), count) for bound, count in zip(bounds, counts, strict=True)]
        metric.add_metric(labels, buckets, total)
    return metric
