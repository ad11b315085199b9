"""Alert URLs are secrets: whatever goes wrong with one, only its place, scheme and host are said."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pipeline_defs.core.errors import BadSetting
from pipeline_defs.edges.alerting import send_alert


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[str]]]:
    """A receiver that takes no message, and the paths it was asked for."""
    asked: list[str] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_a_receiver_that_refuses_is_named_without_its_secrets(
    refusing: tuple[str, list[str]], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Login, path, header and query are secrets; the control is that the receiver was asked with them."""
    host, asked = refusing
    caplog.set_level(logging.DEBUG)
    url = f"json://HUSHUSER:HUSHPASS@{host}/HUSHPATH/x?+X-Token=HUSHHEADER&:key=HUSHBODY&-q=HUSHQUERY"
    undelivered = send_alert([url], "title", "body")
    assert asked and "HUSHPATH" in asked[0]
    assert undelivered == ["alert URL 1 of 1 (json://127.0.0.1)"]
    printed = capfd.readouterr()
    assert "HUSH" not in caplog.text + printed.out + printed.err + str(undelivered)


@pytest.mark.parametrize(
    "url",
    ["HUSHTOKEN", "nosuch://HUSHHOST/HUSHPATH", "slack://HUSH", "json://", "https://u:HUSH@[bad/HUSH", "HUSH://x"],
)
def test_a_url_that_nobody_knows_is_refused_without_its_secrets(
    url: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(
        BadSetting, match="alert URL 1 of 1 in OFFSETLAKE_ALERT_URLS is none that Apprise knows"
    ) as caught:
        send_alert([url], "title", "body")
    printed = capfd.readouterr()
    assert "hush" not in (caplog.text + printed.out + printed.err + str(caught.value)).lower()


def test_a_token_in_the_place_of_a_host_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slack's and Telegram's URLs have a secret where others have a host."""
    import requests

    def refuse(*_: object, **__: object) -> None:
        raise requests.ConnectionError("nothing leaves this machine")

    monkeypatch.setattr(requests, "post", refuse)
    urls = ["slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", "tgram://123456789:AABBCC_ddeeffgghh/12315544/"]
    said = send_alert(urls, "title", "body")
    assert said == ["alert URL 1 of 2 (slack://...)", "alert URL 2 of 2 (tgram://...)"]
