"""Prometheus' text format, through its own client.

What is counted is decided elsewhere, and read before.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from ...core.log.latency import BOUNDS_SECONDS, Histogram

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
Metric = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def family(name: str, text: str, labels: Sequence[str], samples: Mapping[tuple[str, ...], float]) -> Metric:
    """Return one metric with its samples by label values: a counter if its name ends with `_total`, else a gauge."""
    metric = (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(name, text, labels=labels)
    for values, value in samples.items():
        metric.add_metric(values, value)
    return metric


def histogram(name: str, text: str, labels: Sequence[str], samples: Mapping[tuple[str, ...], Histogram]) -> Metric:
    """Return one metric that is a histogram by label values."""
    metric = HistogramMetricFamily(name, text, labels=labels)
    for values, found in samples.items():
        bounds = ("+Inf" if bound == inf else str(bound) for bound in BOUNDS_SECONDS)
        metric.add_metric(values, [*zip(bounds, found.counts, strict=True)], found.seconds)
    return metric


def metrics_text(metrics: Iterable[Metric]) -> str:
    """Return the text that Prometheus reads."""
    return generate_latest(_Metrics(metrics)).decode()


class _Metrics(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
