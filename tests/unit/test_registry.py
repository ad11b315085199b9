"""A Schema Registry that is none, or answers what none should: one clear error each; its login is never shown."""

import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest

from pipeline_defs.adapters.kafka import schema_registry
from pipeline_defs.adapters.kafka.schema_registry import Registry, connect, without_login
from pipeline_defs.adapters.system import outage
from pipeline_defs.core.errors import BadSetting, RegistryUnavailable, UnknownSubject, UnusableSchema
from pipeline_defs.core.login.client_properties import ANYBODY, RegistryLogin
from pipeline_defs.orchestration.assets.derived_config import SideConfig
from tests.support.registry import NOT_THERE, Answer, FakeRegistry, fake_registry

HTML = b"<html><body>It works! " + b"x" * 100_000 + b"</body></html>"


@pytest.fixture(scope="module")
def server() -> Iterator[FakeRegistry]:
    with fake_registry() as running:
        yield running


@pytest.fixture
def fake(server: FakeRegistry) -> FakeRegistry:
    server.answers.clear()
    server.asked.clear()
    return server


def test_only_the_registrys_own_words_say_that_there_is_no_such_schema(fake: FakeRegistry) -> None:
    """A 404 of a proxy, of another server or of a wrong path is no answer: records would be set aside for it."""
    registry = Registry(fake.url)
    assert registry.read_schema(7) is None, "the control"
    for page in (
        Answer(HTML, 404, "text/html"),
        *(Answer(body, 404) for body in (b"", {}, [], 5)),
        Answer({"error_code": 404, "message": "HTTP 404 Not Found"}, 404),
        Answer({"error_code": 40403, "message": "Schema not found"}, 400),
        Answer({"status": 404, "error": "Not Found", "path": "/schemas/ids/7"}, 404, "application/json"),
    ):
        fake.answers["*"] = page
        with pytest.raises(RegistryUnavailable) as caught:
            registry.read_schema(7)
        said, url = caught.value.message, fake.url
        assert said.startswith(f"registry {url} answers {url}/schemas/ids/7 with {page.status}, {page.kind}, expected")
        assert caught.value.retriable and len(said) < 600 and "<" not in said
    fake.answers["*"] = Answer(NOT_THERE, 404)
    assert registry.read_schema(7) is None


GOOD = {"schema": '"string"', "schemaType": "AVRO", "id": 7, "subject": "s", "version": 1}
STRANGE: list[Any] = [
    *(HTML, b"", b"[]", b"null", b"5", b'"text"', b"{", b"\xff\xfe", b"[" * 100_000, b"{}"),
    *(GOOD | {"schema": each} for each in (None, 5, {}, [])),
    *(GOOD | {"schemaType": each} for each in (5, {}, ["AVRO"])),
    *(GOOD | {"references": each} for each in (5, "x", ["x"], [5])),
    *(GOOD | {"metadata": 5}, GOOD | {"ruleSet": "x"}),
]


@pytest.mark.parametrize("body", STRANGE, ids=[str(at) for at in range(len(STRANGE))])
def test_an_answer_that_is_no_schema_is_one_error_and_is_asked_for_again(fake: FakeRegistry, body: Any) -> None:
    """200 and a page, a list, parts of other types: what was asked, what came; once the registry is mended, it is read."""
    registry = Registry(fake.url)
    for path, read in (
        ("/schemas/ids/7", lambda: registry.read_schema(7)),
        ("/subjects/s/versions/latest", lambda: registry.read_latest("s")),
    ):
        fake.answers[path] = Answer(body, kind="text/html")
        with pytest.raises(RegistryUnavailable, match="with 200, text/html, expected what a Schema Registry answers") as caught:
            read()
        assert len(caught.value.message) < 600
        fake.answers[path] = Answer(GOOD)
        mended = read()
        assert mended is not None and mended.text == '"string"'


@pytest.mark.parametrize("number", [None, "7", 7.5])
def test_a_version_without_an_id_is_no_version(fake: FakeRegistry, number: Any) -> None:
    fake.answers["*"] = Answer(GOOD | {"id": number})
    with pytest.raises(RegistryUnavailable, match="it has no schema"):
        Registry(fake.url).read_latest("s")


def test_a_redirect_is_not_followed_and_says_where_it_leads(fake: FakeRegistry) -> None:
    fake.answers["*"] = Answer(HTML, 302, "text/html", {"Location": "https://user:hush@elsewhere/login?x=1"})
    with pytest.raises(RegistryUnavailable, match="with 302, text/html, to https://elsewhere/login, ") as caught:
        Registry(fake.url).read_schema(7)
    assert "hush" not in str(caught.value)
    assert fake.asked == ["/schemas/ids/7"]


def test_an_address_is_shown_without_its_login(fake: FakeRegistry) -> None:
    assert without_login("http://user:hush@host:1/x?y") == "http://host:1/x"
    assert without_login("http://host/x") == "http://host/x"
    fake.answers["*"] = Answer(HTML)
    with pytest.raises(RegistryUnavailable) as caught:
        Registry(fake.url.replace("//", "//user:hush@")).read_schema(7)
    assert "hush" not in str(caught.value) and fake.url in str(caught.value)
    fake.answers["*"] = Answer({"error_code": 500, "message": "you said Basic hush"}, 500)  # a proxy that quotes what it got
    with pytest.raises(RegistryUnavailable, match=r"answers .* with 500") as caught:
        Registry(fake.url).read_schema(7)
    assert "hush" not in "".join(traceback.format_exception(caught.value)), "Dagster shows an error's cause"


def test_an_answer_without_end_is_not_read_to_its_end(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few packed bytes may be gigabytes; the control is one of the same kind within the limit."""
    fake.answers["*"] = Answer(GOOD)
    assert Registry(fake.url).read_schema(7) is not None
    monkeypatch.setattr(schema_registry, "MOST_BYTES", 10)
    with pytest.raises(RegistryUnavailable, match="what a Schema Registry answers: it is longer than 10 bytes"):
        Registry(fake.url).read_schema(7)


def reference(name: str, subject: str, version: int = 1) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": version}


def test_references_are_asked_for_once_however_often_they_are_named(fake: FakeRegistry) -> None:
    """24 levels that each name the next one twice are 16 million answers."""
    for at in range(24):
        twice = [reference(f"l{at + 1}", f"l{at + 1}"), reference(f"m{at + 1}", f"l{at + 1}")]
        fake.put_version(f"l{at}", 1, at, "{}", references=twice)
    fake.put_version("l24", 1, 24, '"end"')
    fake.put(7, "{}", references=[reference("l0", "l0")])
    found = Registry(fake.url).read_schema(7)
    assert found is not None and found.references["m24"] == '"end"'
    assert len(fake.asked) == 26


def test_a_reference_that_leads_nowhere_to_two_texts_or_to_itself_is_one_error(fake: FakeRegistry) -> None:
    fake.put(7, "{}", references=[reference("gone", "gone", 3)])
    with pytest.raises(UnknownSubject, match=r"has no version 3 of subject gone, to which schema 7 .* refers as gone"):
        Registry(fake.url).read_schema(7)
    fake.put_version("a", 1, 1, "1", references=[reference("same", "b", 1)])
    fake.put_version("b", 1, 2, "2")
    fake.put_version("b", 2, 3, "3")
    fake.put(8, "{}", references=[reference("a", "a"), reference("same", "b", 2)])
    with pytest.raises(UnusableSchema, match="what it refers to has two schemas called same"):
        Registry(fake.url).read_schema(8)
    fake.put_version("b", 1, 2, "{}", references=[reference("a", "a")])
    fake.put_version("a", 1, 1, "{}", references=[reference("b", "b")])
    with pytest.raises(UnusableSchema, match=r"schema 8 of .* cannot be used: version 1 of subject a refers to itself"):
        Registry(fake.url).read_schema(8)


SECRET, HOST = "hush-4711", "registry.example:8081"
LOGIN = RegistryLogin(f"reader:{SECRET}")


@pytest.mark.parametrize(
    "place", ["http://reader:{}@{}", "https://reader:{}@{}", "http://{1}/?token={0}", "http://{1}/#token={0}"]
)
def test_a_login_or_a_token_in_the_address_is_refused_and_not_shown(tmp_path: Path, place: str) -> None:
    """I12: the address stands in errors, in documents of the lake and in Dagster."""
    login = r"`decode.value` .* has a login in it, expected the address alone"
    said = login if "@" in place else r"`registry` address 1: it has \? or # in it \(what follows is not shown\)"
    url = place.format(SECRET, HOST)
    with pytest.raises(BadSetting, match=said) as caught:
        SideConfig(format="avro", registry=url).as_side("value", tmp_path)
    assert SECRET not in str(caught.value) + repr(caught.value.fields)
    right = f"{url.partition(':')[0]}://{HOST}"
    assert SideConfig(format="avro", registry=right).as_side("value", tmp_path).registry == right, "the control"


def test_a_subject_that_is_named_after_a_record_needs_its_name(tmp_path: Path) -> None:
    """What records of a range happen to be would else decide by what all are read."""
    more = {"format": "avro", "registry": "https://registry.example", "subject": "topic_record_name"}
    with pytest.raises(BadSetting, match=r"`subject: topic_record_name` has no record's name, expected `message` beside it"):
        SideConfig(**more).as_side("value", tmp_path)
    for named in ({"message": "shop.Order"}, {"inline_schema": '"string"'}):
        assert SideConfig(**more, **named).as_side("value", tmp_path).subject == "topic_record_name", "the control"


@pytest.mark.parametrize("url", ["http://registry.example:8081", "http://10.0.0.7", "https://a,http://registry.example"])
def test_a_login_is_not_sent_in_the_clear_to_another_machine(url: str) -> None:
    """I12: whoever is on the way would read it; the error comes before anything is sent."""
    with pytest.raises(BadSetting, match=r"is asked over plain http, .* expected https://") as caught:
        connect(url, LOGIN)
    assert SECRET not in str(caught.value)
    assert connect(url, ANYBODY).url == url, "the control: nobody logs in"
    for right in ("https://registry.example", "http://localhost:8081", "http://127.0.0.1:1", "http://[::1]:1"):
        assert connect(right, LOGIN).url == right, "the control: over TLS, or to this machine"


@pytest.mark.parametrize("how", ["timed out", "TimeoutError"])
def test_a_silent_registry_is_waited_for_once(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """[R-30] Topics that have it keep the others of a run waiting for one time-out, and it is asked again after a while.

    One whose answer trickles in is waited for no longer.
    """
    registry, clock = Registry(fake.url), [1000.0]
    monkeypatch.setattr(outage, "time", Mock(monotonic=lambda: clock[0]))
    never = threading.Event()
    silent = Mock(side_effect=httpx2.ReadTimeout("timed out") if how == "timed out" else lambda _: never.wait())
    with monkeypatch.context() as patched:
        patched.setattr(registry._client, "get_schema", silent)
        patched.setattr(schema_registry, "MOST_SECONDS", 0.5)
        for _ in range(3):
            with pytest.raises(RegistryUnavailable, match=f"does not answer, within 3 tries of 10 seconds, .* in all: {how}"):
                registry.read_schema(7)
    never.set()
    assert silent.call_count == 1
    clock[0] += outage.OUTAGE_SECONDS
    assert registry.read_schema(7) is None, "the control: it answers again"
