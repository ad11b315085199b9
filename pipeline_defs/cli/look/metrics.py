"""`offsetlake metrics`: where topics stand, for Prometheus; printed, or served over HTTP."""

import signal
import threading
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

import click

from ...adapters.system.http_pages import HTML, Page, serve_pages
from ...adapters.telemetry.prometheus import CONTENT_TYPE, metrics_text
from ...core.errors import LakeUnavailable
from ...core.setting_values import is_this_machine
from ...operate.metrics import read_metrics
from ...operate.status import find_instance
from ...orchestration.home.dagster_home import open_instance
from ...orchestration.map.page import page, read_picture
from ...resources import Adapters
from ...topics import Topic
from ..show import choose_topics, open_adapters, optional_topic_argument, print_broken
from ..terminal import ERRORS, OUT

LOOPBACK = "127.0.0.1"


class Address(click.ParamType[tuple[str, int]]):
    """`[HOST:]PORT`; without a host, loopback."""

    name = "[HOST:]PORT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Read host and port; refuse what is neither."""
        host, colon, port = str(value).rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65_535 or (colon and not host):
            self.fail(f"expected [HOST:]PORT with a port from 0 to 65535, found {value!r}", param, ctx)
        return host.strip("[]") or LOOPBACK, int(port)


@click.command()
@optional_topic_argument
@click.option(
    "--listen", type=Address(), help="Answer over HTTP until Ctrl-C, with a map per topic; on loopback, where no HOST is given."
)
def metrics(topic: str | None, listen: tuple[str, int] | None) -> None:
    """Print metrics of TOPIC, or of all topics, in Prometheus' text format, or serve them.

    Names are those of kafka_exporter where it has one (kafka_consumergroup_lag and such), else offsetlake_*. Who asks by
    a name instead of an IP address must ask by localhost, by HOST, or by the name in OFFSETLAKE_PAGES_URL.

    \b
    Examples:
      offsetlake metrics flights
      offsetlake metrics --listen 9308
      offsetlake metrics --listen 0.0.0.0:9308
    """
    adapters, files = open_adapters(), choose_topics(topic)
    topics = [*files.topics.values()]
    print_broken(files.broken)
    pages: dict[str, Page] = {f"/map/{each.name}": (HTML, partial(_draw_map, each, adapters)) for each in topics}
    reading = threading.Lock()  # nothing is gained by reading it all twice at a time

    def read() -> str:
        with reading, find_instance(adapters.settings.dagster_home) as instance:  # each time: the home may be made later
            if files.patterns:
                with suppress(LakeUnavailable):  # each topic's metrics tell it
                    topics.extend(files.find_new({*adapters.lake.planned_topics()} - {topic.name for topic in topics}))
                pages.update({f"/map/{each.name}": (HTML, partial(_draw_map, each, adapters)) for each in topics})
            return metrics_text(read_metrics(topics, adapters, instance, files.broken))

    if listen is None:
        click.echo(read(), nl=False)
        if files.broken:
            raise SystemExit(1)
        return
    host, port = listen
    pages["/metrics"] = CONTENT_TYPE, read
    named = urlsplit(adapters.settings.pages_url or "").hostname
    with serve_pages(host, port, pages, names=[named] if named else []) as at:
        url = f"http://{f'[{host}]' if ':' in host else host}:{at}"
        OUT.print(f"metrics at {url}/metrics, maps at {url}/map/TOPIC; Ctrl-C ends", soft_wrap=True)
        if not is_this_machine(host):
            ERRORS.print(f"open to whoever reaches {host}: there is no password; topic names and offsets can be read")
        _wait_for_the_end()


def _draw_map(topic: Topic, adapters: Adapters) -> str:
    with open_instance(adapters.settings.dagster_home) as instance:
        picture, remark = read_picture(topic, adapters, instance)
    return page(picture, adapters.now_ms(), remark)


def _wait_for_the_end() -> None:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
