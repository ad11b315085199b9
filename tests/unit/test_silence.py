"""Who says nothing, a cluster, a receiver or a job of Spark: how long it is waited for; and alert URLs, which are secrets."""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from pipeline_defs.adapters.spark import spark_liveness
from pipeline_defs.adapters.spark.spark_liveness import Stillness
from pipeline_defs.adapters.system import outage
from pipeline_defs.adapters.system.outage import Outage
from pipeline_defs.adapters.telemetry import alerting, openlineage
from pipeline_defs.adapters.telemetry.alerting import send_alert
from pipeline_defs.adapters.telemetry.openlineage import Sender
from pipeline_defs.core.errors import BadSetting, BrokerRefuses, BrokerUnavailable, OffsetlakeError, StaleAnswer
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.orchestration.pulse import pulse
from pipeline_defs.orchestration.pulse.topic_discovery import plan_new_topics
from pipeline_defs.orchestration.runs import visiting
from pipeline_defs.orchestration.runs.visiting import visit_topics
from pipeline_defs.settings import read_settings
from pipeline_defs.topics import Topic
from tests.support.registry import Answering, recording, serving

SILENT, HEALTHY = (Topic(name, Policy(), bootstrap_servers=f"{name}:9092") for name in ("silent", "healthy"))


class Clusters:
    """Two clusters as a tick sees them; `answers` says what becomes of each question that a thread puts to the silent one."""

    def __init__(self) -> None:
        self.answers: SimpleQueue[OffsetlakeError | None] = SimpleQueue()
        self.waited, self.asked, self.is_silent = 0, 0, True
        self.silent_clusters: dict[str, Any] = {}
        self.slow_topics: dict[str, OffsetlakeError] = {}

    def bootstrap_servers(self, topic: Topic) -> str:
        assert topic.bootstrap_servers is not None
        return topic.bootstrap_servers

    @contextmanager
    def _glancing(self, topic: Topic) -> Iterator[None]:
        if topic is SILENT:
            self.waited += 1
            if self.is_silent:
                raise BrokerUnavailable("nobody there", bootstrap_servers="silent:9092")
        yield

    def kafka(self, topic: Topic) -> Any:
        return SimpleNamespace(glancing=lambda _: self._glancing(topic))

    def open_kafka(self, topic: Topic) -> Any:
        assert topic is SILENT
        return SimpleNamespace(check_answers=self._check, list_topics=self._list, close=lambda: None)

    def _check(self) -> None:
        self.asked += 1
        if (answer := self.answers.get()) is not None:
            raise answer

    def _list(self) -> list[str]:
        self.waited += 1
        raise BrokerUnavailable("nobody there", bootstrap_servers="silent:9092")

    def visit(self) -> dict[str, str]:
        adapters: Any = self
        found = visit_topics([SILENT, HEALTHY], adapters, lambda _: "visited", lambda _, error: str(error).split("\n")[0])
        return dict(zip(("silent", "healthy"), found, strict=True))

    def end_question(self, answer: OffsetlakeError | None) -> None:
        self.answers.put(answer)
        self.silent_clusters["silent:9092"]._thread.join()


@pytest.mark.parametrize("answer", [None, BrokerRefuses("no login")], ids=["lets us in", "says why not"])
def test_a_silent_cluster_keeps_others_waiting_once(answer: OffsetlakeError | None) -> None:
    """[R-30] A thread asks it, one question after the other, and ticks go on without it until it answers."""
    clusters = Clusters()
    for _ in range(3):
        assert clusters.visit() == {"silent": "nobody there", "healthy": "visited"}
    assert (clusters.waited, clusters.asked) == (1, 1), "the fault, and one question that is still open"
    clusters.end_question(BrokerUnavailable("still nobody", bootstrap_servers="silent:9092"))
    for _ in range(2):
        assert clusters.visit() == {"silent": "still nobody", "healthy": "visited"}
    assert (clusters.waited, clusters.asked) == (1, 2)
    clusters.is_silent = False
    clusters.end_question(answer)
    assert clusters.visit() == {"silent": "visited", "healthy": "visited"}
    assert clusters.waited == 2 and clusters.silent_clusters == {}
    clusters.is_silent = True
    assert clusters.visit()["silent"] == "nobody there" and clusters.waited == 3, "the control: it is believed again"


@pytest.mark.parametrize("error", [StaleAnswer("slow"), BrokerUnavailable("slow", bootstrap_servers="silent:9092")])
def test_of_topics_that_hold_a_look_up_each_look_awaits_one(error: OffsetlakeError, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] In turns, and after all others: Dagster ends a tick after a minute."""
    now, adapters, visited = [0.0], cast("Any", Clusters()), list[str]()
    monkeypatch.setattr(visiting, "time", Mock(monotonic=lambda: now[0]))
    topics = [Topic(name, Policy(), bootstrap_servers="silent:9092") for name in "abcd"]
    slow = {"a", "b", "c"}

    def visit(topic: Topic) -> str:
        visited.append(topic.name)
        if topic.name in slow:
            now[0] += 20
            raise error
        return "visited"

    def look() -> list[str]:
        visited.clear()
        found = visit_topics(topics, adapters, visit, lambda _, error: str(error).split("\n")[0])
        assert found[:3] == [*("slow" if name in slow else "visited" for name in "abc")]
        return [*visited]

    for _ in range(3):
        look()
    assert sorted(look() for _ in range(3)) == [["d", name] for name in "abc"]
    slow.clear()
    assert look()[0] == "d" and look() == [*"abcd"], "the control"


def test_no_topic_is_left_out_however_slow_ticks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] Each is planned, and its derived tables are looked at, as often as any other."""
    clock, planned, derived = [1.0], Counter[str](), Counter[str]()

    def spend(seen: Counter[str], topic: Topic, found: object) -> Any:
        clock[0] += 2
        seen[topic.name] += 1
        return found

    monkeypatch.setattr(pulse, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(pulse, "run_tick", lambda topic, *_: spend(planned, topic, pulse.Tick((), 0, 0, (), ())))
    monkeypatch.setattr(pulse, "run_derive_tick", lambda topic, *_: spend(derived, topic, pulse.DerivedTick()))
    monkeypatch.setattr(pulse, "read_known", lambda *_: SimpleNamespace(began=clock[0], tries={}))
    monkeypatch.setattr(pulse, "visit_topics", lambda topics, _, visit, __: [*map(visit, topics)])
    for name in ("open_pools", "failures_of"):
        monkeypatch.setattr(pulse, name, lambda *_: 0)
    topics: Any = [SimpleNamespace(name=str(number), decode=True, latest=None, duties=()) for number in range(30)]
    adapters: Any = SimpleNamespace(planned_at={}, derived_at={}, now_ms=lambda: 0)
    for _ in range(20):
        ticks = pulse.tick_topics(topics, Mock(), adapters)
        assert any(each.is_late for each in ticks) and [each.topic for each in ticks] == topics
    for seen in (planned, derived):
        assert len(seen) == 30 and max(seen.values()) - min(seen.values()) <= 1


def test_a_pattern_whose_cluster_is_silent_keeps_ticks_waiting_once() -> None:
    """[R-98] Nor does a look for new topics wait for it again."""
    clusters: Any = Clusters()
    clusters.lake = SimpleNamespace(planned_topics=list)
    pattern = SimpleNamespace(template=SILENT, pattern="s.*", folder=Path("silent"))
    files: Any = SimpleNamespace(patterns=[pattern], names=[])
    for _ in range(3):
        (failure,) = plan_new_topics(files, clusters)
        assert "nobody there" in failure and failure.startswith("topics s.* of silent/defs.yaml: ")
    assert (clusters.waited, clusters.asked) == (1, 1)
    clusters.end_question(None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass when they are told to."""
    now = [0.0]
    for module in (spark_liveness, outage):
        monkeypatch.setattr(module, "time", Mock(monotonic=lambda: now[0]))
    return now


def test_a_receiver_that_failed_is_asked_again_only_after_a_while(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-31] The control is a run that knows of no failure."""
    emit = Mock(side_effect=OSError("refused"))
    monkeypatch.setattr(openlineage, "table_events", lambda _: ["an event"])
    monkeypatch.setattr("openlineage.client.OpenLineageClient", lambda: Mock(emit=emit))

    def told_to(receiver: Outage) -> tuple[int, str]:
        sender = Sender(receiver)
        some: Any = "a table"
        sender.tell(some)
        unsent = sender.finish()
        assert unsent is not None and unsent[0] == 1
        return emit.call_count, unsent[1]

    down = Outage()
    assert [told_to(down) for _ in range(3)] == [(1, "OSError: refused")] * 3
    assert told_to(Outage())[0] == 2, "the control"
    clock[0] += outage.OUTAGE_SECONDS
    assert told_to(down)[0] == 3
    assert Sender(down).finish() is None, "who has nothing to tell"


def finished(*tasks: int) -> list[Any]:
    """What Spark says of a job's stages."""
    return [SimpleNamespace(num_completed_tasks=each) for each in tasks]


def test_only_a_job_that_says_the_same_for_so_long_is_over_and_that_for_good(clock: list[float]) -> None:
    """One that says nothing may be healthy, as `spark.connect.progress.reportInterval` of somebody else's may have it.

    Other jobs of the session, which another thread asks for, are none of its progress.
    """
    session = Mock()
    with (still := Stillness(Mock(), 600)).noted():
        clock[0] += 10_000
        assert not still.look(), "it has said nothing yet"
        still(finished(0))
        assert still.look(), "the control"
    with (still := Stillness(session, 600)).noted():
        for tasks in range(100):
            still(finished(tasks, 1))
            clock[0] += 599
            assert not still.look(), "it comes further"
        still(finished(99, 1))
        other = threading.Thread(target=still, args=(finished(100, 1),))
        other.start()
        other.join()
        assert not still.look()
        clock[0] += 1
        assert still.look()
        still(finished(100, 1))
        assert still.look() and still.is_over
    session.addTag.assert_called_once_with(still.tag)
    session.removeTag.assert_called_once_with(still.tag)
    session.removeProgressHandler.assert_called_once_with(still)


def test_who_refuses_is_named_without_its_secrets(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Login, path, header and query are secrets; the control is that the receiver was asked with them."""
    caplog.set_level(logging.DEBUG)
    with recording("/HUSHPATH/x?q=HUSHQUERY", 500) as (host, told):
        url = f"json://HUSHUSER:HUSHPASS@{host}/HUSHPATH/x?+X-Token=HUSHHEADER&:key=HUSHBODY&-q=HUSHQUERY"
        undelivered = send_alert("title", {url: "body"})
        assert send_alert("title", {url: ""}) == {} and len(told) == 1, "nothing to tell"
        for body in ("over: it is back", "over: it is back\nand another trouble"):
            send_alert("title", {url: body})
    assert [each["type"] for each in told] == ["failure", "success", "failure"], "which services that page people go by"
    assert undelivered == {url: "alert URL 1 of 1 (json://127.0.0.1)"}
    assert "HUSH" not in caplog.text + "".join(capfd.readouterr()) + str([*undelivered.values()])


UNKNOWN = ["HUSHTOKEN", "nosuch://HUSHHOST/HUSHPATH", "slack://HUSH", "json://", "https://u:HUSH@[bad/HUSH", "HUSH://x"]


@pytest.mark.parametrize("url", UNKNOWN)
def test_a_url_that_nobody_knows_is_refused_and_named_without_its_secrets(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """When settings are read, so that nobody waits for the first alert to hear that it reaches no one.

    Where it is told all the same, it keeps no other receiver from being told.
    """
    caplog.set_level(logging.DEBUG)
    with pytest.raises(BadSetting, match="of its 2 URLs Apprise does not know number 2") as caught:
        read_settings({"OFFSETLAKE_ALERT_URLS": f"json://127.0.0.1/ok {url}"}, tmp_path)
    assert "OFFSETLAKE_ALERT_URLS cannot be used" in str(caught.value)
    with recording("/hook", 500) as (host, told):
        undelivered = [*send_alert("title", {url: "body", f"json://{host}/hook": "body"}).values()]
    assert len(told) == 1, "who can be told is told"
    assert undelivered == ["alert URL 1 of 2 (none that Apprise knows)", "alert URL 2 of 2 (json://127.0.0.1)"]
    assert "hush" not in f"{caplog.text}{capfd.readouterr()}{caught.value}{undelivered}".lower()
    for known in ("json://127.0.0.1:1/x mailto://u:p@example.org", ""):
        assert read_settings({"OFFSETLAKE_ALERT_URLS": known}, tmp_path).alert_urls == tuple(known.split()), "the control"


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
