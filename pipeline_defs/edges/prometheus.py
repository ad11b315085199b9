"""Prometheus' text format, through its own client: printed once, or served over HTTP, with pages for people beside it.

What is counted, and what pages show, is decided elsewhere. Invariant: every answer is made anew, and the metrics are never
read twice at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import unquote

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
def serve(
    host: str, port: int, read: Read, pages: Mapping[str, Callable[[], str]] = MappingProxyType({})
) -> Iterator[int]:
    """Answers scrapes at `host:port` while the context is open; gives the port, which is a free one where 0 is asked.

    Under each path of `pages` stands a page of HTML, made anew each time it is asked for.
    """
    try:
        server, thread = start_http_server(port, host, _registry(read))
    except OSError as error:
        raise Refused(
            f"cannot listen on {host}:{port}: {error.strerror or error}; nothing was started; give another "
            "`--listen [HOST:]PORT`"
        ) from error
    server.set_app(_with_pages(server.get_app(), pages))
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _with_pages(metrics: Any, pages: Mapping[str, Callable[[], str]]) -> Any:
    """Is a WSGI application that answers with a page where one is asked for, else with the metrics."""

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        make = pages.get(unquote(environ["PATH_INFO"]))
        if make is None:
            return metrics(environ, start_response)
        body = make().encode()
        start_response("200 OK", [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]

    return answer


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
