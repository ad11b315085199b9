"""The metrics server answers what it has, to who asks for this machine, and no stranger can hold it up."""

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from unittest.mock import Mock

import pytest

from pipeline_defs.adapters.system import http_pages
from pipeline_defs.adapters.system.http_pages import CONNECTIONS, HTML, Page, serve_pages
from pipeline_defs.adapters.telemetry.prometheus import CONTENT_TYPE, family, metrics_text
from pipeline_defs.core.errors import BrokenPlanLog

Ask = Callable[..., tuple[int, str]]
PAGES: dict[str, Page] = {
    "/metrics": (CONTENT_TYPE, lambda: metrics_text([family("up", "is it", (), {(): 1})])),
    "/map/orders": (HTML, lambda: "<title>orders</title>"),
    "/map/damaged": (HTML, Mock(side_effect=BrokenPlanLog("the plan log of topic damaged does not tile"))),
    "/map/large": (HTML, lambda: "x" * 50_000_000),
    "/map/wrong": (HTML, lambda: "" + str({}["ours"])),
}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server that waits half a second for a request to be whole."""
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(http_pages, "PATIENCE_SECONDS", 0.5)
        with serve_pages("127.0.0.1", 0, PAGES, names=["metrics.example.org"]) as port:
            yield port


@pytest.fixture
def ask(port: int) -> Ask:
    def ask(path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    return ask


def test_known_paths_are_answered_and_others_are_not_there(ask: Ask) -> None:
    assert ask()[0] == 200 and "up 1.0" in ask()[1]
    assert ask("/map/orders") == (200, "<title>orders</title>")
    for path in ("/", "/nope", "/map/nope", "/map/", "/metrics/", "/map/orders%2f", "/favicon.ico"):
        status, text = ask(path)
        assert status == 404 and "expected one of /map/damaged, /map/large, /map/orders, /map/wrong, /metrics" in text, path
    assert ask("/map/damaged") == (503, "broken_plan_log: the plan log of topic damaged does not tile\n")
    assert ask("/map/orders")[0] == 200, "a damaged topic takes no other page away"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"])
@pytest.mark.parametrize("path", ["/metrics", "/map/orders"])
def test_nothing_but_get_is_taken(ask: Ask, path: str, method: str) -> None:
    assert ask(path, method)[0] == 405


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1234", "127.0.0.1:9308", "10.1.2.3", "[::1]:80", "metrics.example.org", "localhost."]
)
def test_our_own_names_are_answered(ask: Ask, host: str) -> None:
    assert ask(Host=host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9308", "", "localhost.evil.example", "127.0.0.1.evil", "a:b:c"])
def test_a_name_that_somebody_elses_dns_gave_us_is_refused(ask: Ask, host: str) -> None:
    """A web page that a browser on this machine shows could otherwise read everything: DNS rebinding."""
    status, text = ask(Host=host)
    assert status == 421 and "OFFSETLAKE_PAGES_URL" in text and "up 1.0" not in text


def test_a_second_host_is_looked_at_too(port: int) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.putrequest("GET", "/metrics", skip_host=True)
        for host in ("localhost", "evil.example"):
            connection.putheader("Host", host)
        connection.endheaders()
        assert connection.getresponse().status == 421


def test_idle_connections_are_few_threads_and_are_ended(port: int, ask: Ask, capfd: pytest.CaptureFixture[str]) -> None:
    """300 sockets that say nothing, some a byte now and then: threads are bounded, and soon somebody is answered again."""
    before = threading.active_count()
    with ExitStack() as opened:
        idle = [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(300)]
        assert threading.active_count() - before <= CONNECTIONS
        deadline, answer = time.monotonic() + 60, 0
        while answer != 200:
            assert time.monotonic() < deadline, "nobody is answered any more"
            for each in idle[:CONNECTIONS]:
                with suppress(OSError):
                    each.sendall(b"G")  # so that no single read is ever late
            with suppress(OSError, http.client.HTTPException):
                answer, _ = ask()
        assert threading.active_count() - before <= CONNECTIONS
    assert capfd.readouterr().err == ""


def await_all_answered() -> None:
    for each in threading.enumerate():
        if "process_request" in each.name:
            each.join(60)
            assert not each.is_alive(), "somebody is still being answered"


@pytest.mark.parametrize("resets", [True, False])
def test_an_unread_page_is_nobodys_traceback(port: int, ask: Ask, capfd: pytest.CaptureFixture[str], *, resets: bool) -> None:
    """I13: one goes away in the middle of the page, the other stays and reads nothing."""
    await_all_answered()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /map/large HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert client.recv(100), "the answer has begun"
        if resets:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        await_all_answered()
    assert capfd.readouterr().err == ""
    assert ask("/map/wrong")[0] == 500
    await_all_answered()
    assert "KeyError: 'ours'" in capfd.readouterr().err, "the control: our own faults are printed"
