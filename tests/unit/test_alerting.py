"""Alert URLs are secrets: whatever goes wrong with one, only its place, scheme and host are said."""

import logging
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from pipeline_defs.adapters.telemetry import alerting
from pipeline_defs.adapters.telemetry.alerting import send_alert
from pipeline_defs.core.errors import BadSetting
from pipeline_defs.settings import read_settings
from tests.support.registry import Answering, recording, serving


def test_who_refuses_is_named_without_its_secrets(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Login, path, header and query are secrets; the control is that the receiver was asked with them."""
    caplog.set_level(logging.DEBUG)
    with recording("/HUSHPATH/x?q=HUSHQUERY", 500) as (host, told):
        url = f"json://HUSHUSER:HUSHPASS@{host}/HUSHPATH/x?+X-Token=HUSHHEADER&:key=HUSHBODY&-q=HUSHQUERY"
        undelivered = send_alert("title", {url: "body"})
        assert send_alert("title", {url: ""}) == {} and len(told) == 1, "nothing to tell"
    assert undelivered == {url: "alert URL 1 of 1 (json://127.0.0.1)"}
    assert "HUSH" not in caplog.text + "".join(capfd.readouterr()) + str([*undelivered.values()])


UNKNOWN = ["HUSHTOKEN", "nosuch://HUSHHOST/HUSHPATH", "slack://HUSH", "json://", "https://u:HUSH@[bad/HUSH", "HUSH://x"]


@pytest.mark.parametrize("url", UNKNOWN)
def test_a_url_that_nobody_knows_is_refused_when_settings_are_read_without_its_secrets(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody waits for the first alert to hear that it reaches no one."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(BadSetting, match="of its 2 URLs Apprise does not know number 2") as caught:
        read_settings({"OFFSETLAKE_ALERT_URLS": f"json://127.0.0.1/ok {url}"}, tmp_path)
    assert "OFFSETLAKE_ALERT_URLS cannot be used" in str(caught.value)
    assert "hush" not in (caplog.text + "".join(capfd.readouterr()) + str(caught.value)).lower()


def test_urls_that_apprise_knows_are_taken(tmp_path: Path) -> None:
    """The control; a trouble with the network is nothing that settings can tell."""
    urls = "json://127.0.0.1:1/x mailto://u:p@example.org"
    assert read_settings({"OFFSETLAKE_ALERT_URLS": urls}, tmp_path).alert_urls == tuple(urls.split())
    assert read_settings({"OFFSETLAKE_ALERT_URLS": ""}, tmp_path).alert_urls == ()


@pytest.mark.parametrize("url", UNKNOWN)
def test_a_url_that_nobody_knows_keeps_no_other_receiver_from_being_told(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with recording("/hook", 500) as (host, told):
        undelivered = [*send_alert("title", {url: "body", f"json://{host}/hook": "body"}).values()]
    assert len(told) == 1, "who can be told is told"
    assert undelivered == ["alert URL 1 of 2 (none that Apprise knows)", "alert URL 2 of 2 (json://127.0.0.1)"]
    assert "hush" not in ("".join(capfd.readouterr()) + str(undelivered)).lower()


def test_a_token_in_the_place_of_a_host_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slack's and Telegram's URLs have a secret where others have a host."""
    import requests

    monkeypatch.setattr(requests, "post", Mock(side_effect=requests.ConnectionError("nothing leaves this machine")))
    urls = ["slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", "tgram://123456789:AABBCC_ddeeffgghh/12315544/"]
    undelivered = send_alert("title", dict.fromkeys(urls, "body"))
    assert [*undelivered.values()] == ["alert URL 1 of 2 (slack://...)", "alert URL 2 of 2 (tgram://...)"]


def test_a_receiver_that_is_slow_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are told at once, and nobody waits for longer than a sensor may; the slow one is named."""
    goes_on, reached = threading.Event(), threading.Event()

    class Slow(Answering):
        def do_POST(self) -> None:  # noqa: N802 (as http.server names it)
            if self.path == "/slow":
                goes_on.wait(60)
            else:
                reached.set()
            self.answer(200)

    monkeypatch.setattr(alerting, "SEND_SECONDS", 1.0)
    with serving(Slow) as port:
        slow, quick = f"json://127.0.0.1:{port}/slow?rto=65", f"json://127.0.0.1:{port}/quick"
        undelivered = send_alert("title", {slow: "body", quick: "body"})
        goes_on.set()
    assert reached.is_set() and [*undelivered] == [slow], "the control: the quick one has it"
