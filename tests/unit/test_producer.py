"""What a producer may ask of the broker at once, what it must not, and what becomes of a file that it cannot read."""

from __future__ import annotations

import gzip
import random
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import MessageSizeTooLargeError
from kafka.future import Future

from pipeline_defs.adapters.kafka import producer
from pipeline_defs.adapters.kafka.producer import Guarantees
from pipeline_defs.core.errors import BadSetting, Refused
from tests.support import strategies  # noqa: F401  -- its profile: a fixed seed, more with HUNT


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        ({}, ("all", True, None)),
        ({"acks": "1"}, (1, False, None)),
        ({"acks": "0"}, (0, False, None)),
        ({"enable_idempotence": False}, ("all", False, None)),
        ({"transactional_id": "t", "records_per_transaction": 5}, ("all", True, "t")),
    ],
)
def test_what_is_asked_for_is_what_kafka_python_is_told(asked: dict[str, Any], config: tuple[Any, ...]) -> None:
    told = Guarantees(**asked).config()
    assert (told["acks"], told["enable_idempotence"], told["transactional_id"]) == config


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"acks": "1", "enable_idempotence": True}, ["idempotence needs acks=all, found acks=1"]),
        ({"acks": "0", "enable_idempotence": True}, ["idempotence needs acks=all, found acks=0"]),
        ({"acks": "1", "transactional_id": "t"}, ["a transactional id needs acks=all, found acks=1"]),
        ({"enable_idempotence": False, "transactional_id": "t"}, ["a transactional id needs idempotence"]),
        ({"records_per_transaction": 5}, ["records per transaction need a transactional id"]),
        (
            {"acks": "0", "enable_idempotence": False, "transactional_id": "t"},
            ["a transactional id needs acks=all, found acks=0", "a transactional id needs idempotence"],
        ),
    ],
)
def test_contradictions_are_refused_all_at_once(asked: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(BadSetting, match="these producer options contradict each other") as caught:
        Guarantees(**asked)
    assert all(each in str(caught.value) for each in words)


class FakeProducer:
    """kafka-python's producer without a broker: it acknowledges what it is given when it is closed."""

    def __init__(self, **_: object) -> None:
        self.waiting: list[Future] = []

    def send(self, *_: object, **record: Any) -> Future:
        self.waiting.append(Future())
        SENT.append((record["key"], record["value"]))
        return self.waiting[-1]

    def flush(self) -> None:
        """Wait for nothing."""

    def close(self) -> None:
        for each in self.waiting:
            each.success(None)


SENT: list[tuple[bytes | None, bytes]] = []


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    SENT.clear()
    monkeypatch.setattr(producer, "KafkaProducer", FakeProducer)


GOOD = b'{"id": 1, "at": 1700000000000}'
BAD_LINES = {
    "not an object": b"[1]",
    "a number": b"7",
    "not JSON": b"{",
    "bad UTF-8": b'{"id": "\xff\xfe"}',
    "too deep": b'{"id": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "no field": b'{"at": 1}',
    "1e400 as timestamp": b'{"id": 1, "at": 1e400}',
    "text as timestamp": b'{"id": 1, "at": "HUSH"}',
    "negative timestamp": b'{"id": 1, "at": -1}',
    "beyond int64": b'{"id": 1, "at": 9223372036854775808}',
    "true as timestamp": b'{"id": 1, "at": true}',
    "NaN": b'{"id": NaN, "at": 1}',
    "Infinity": b'{"id": 1, "at": -Infinity}',
    "digits": b'{"id": ' + b"9" * 5000 + b', "at": 1}',
    "NUL": b"\x00",
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": '{"id": 1, "at": 1}'.encode("utf-16"),
}


@pytest.mark.parametrize("what", BAD_LINES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_line_that_is_no_record_is_one_error_with_number_and_what_was_sent(what: str, tmp_path: Path, packed: bool) -> None:
    file = tmp_path / ("records.jsonl.gz" if packed else "records.jsonl")
    data = b"\n".join([GOOD, b"", GOOD, BAD_LINES[what], GOOD])
    file.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(Refused, match=rf"{file.name}:4 is not a record to produce") as caught:
        producer.produce("nowhere", "t", producer.read_jsonl(file, "id", "at"))
    assert "2 records before it sent, 2 of them acknowledged; nothing behind it was sent" in str(caught.value)
    assert SENT == [(b"1", GOOD)] * 2
    assert "HUSH" not in str(caught.value) and len(str(caught.value)) < 500
    assert not re.search(r"codec|set_int_max|recursion", str(caught.value)), "no advice on Python"


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "LONGEST_LINE", len(GOOD) + 1)
    file = tmp_path / "records.jsonl"
    file.write_bytes(GOOD + b"\n" + GOOD + GOOD)
    with pytest.raises(Refused, match=rf"behind line 1: the next one has more than {len(GOOD) + 1} bytes"):
        producer.produce("nowhere", "t", producer.read_jsonl(file, "id"))
    assert len(SENT) == 1


def test_a_record_that_no_request_takes_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(FakeProducer):
        config: ClassVar = {"max_request_size": 10}

        def send(self, *_: object, **record: Any) -> Future:
            if len(record["value"]) > 10:
                raise MessageSizeTooLargeError("with what it holds: HUSH")
            return super().send(**record)

    monkeypatch.setattr(producer, "KafkaProducer", Small)
    with pytest.raises(Refused, match=r"record 2 has 11 bytes, expected at most 10 .*1 record before it sent") as caught:
        producer.produce("nowhere", "t", [producer.Record(None, b"x"), producer.Record(None, b"HUSH" + b"x" * 7)])
    assert "HUSH" not in str(caught.value)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_gzip_is_one_error_that_says_how_far_it_came(kept: float, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl.gz"
    lines = [b'{"id": %d, "pad": "%s"}' % (n, random.Random(n).randbytes(50).hex().encode()) for n in range(5000)]
    data = gzip.compress(b"\n".join(lines))
    file.write_bytes(data[: round(kept * len(data))] or b"no gzip")
    with pytest.raises(Refused, match=r"records\.jsonl\.gz cannot be read behind line \d+: ") as caught:
        producer.produce("nowhere", "t", producer.read_jsonl(file, "id"))
    assert f"{len(SENT):,} records before it sent" in str(caught.value)
    assert [value for _, value in SENT] == lines[: len(SENT)]


def test_raw_lines_are_produced_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "poison.txt"
    file.write_bytes(b"k1\t{\nno key\n\tempty key\n\xff\xfe\t\x00\x01\n\nk\t\nk\ta\tb\r\n")
    producer.produce("nowhere", "t", producer.read_raw(file))
    assert SENT == [
        (b"k1", b"{"),
        (None, b"no key"),
        (b"", b"empty key"),
        (b"\xff\xfe", b"\x00\x01"),
        (None, b""),
        (b"k", b""),
        (b"k", b"a\tb\r"),
    ]
    SENT.clear()
    file.write_bytes(b"a,b\tc")
    producer.produce("nowhere", "t", producer.read_raw(file, b","))
    producer.produce("nowhere", "t", producer.read_raw(file, b""))
    assert SENT == [(b"a", b"b\tc"), (None, b"a,b\tc")]


@given(data=st.binary(max_size=200) | st.lists(st.sampled_from([*BAD_LINES.values(), GOOD])).map(b"\n".join))
def test_no_file_is_a_traceback(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever a file holds is produced, or refused in one error; raw, all of it is produced."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("records.jsonl", "records.jsonl.gz"):
        file = folder / name
        file.write_bytes(data)
        with suppress(Refused):
            producer.produce("nowhere", "t", producer.read_jsonl(file, "id", "at"))
    SENT.clear()
    producer.produce("nowhere", "t", producer.read_raw(folder / "records.jsonl", b""))
    assert len(SENT) == len(data.split(b"\n")) - (not data or data.endswith(b"\n"))


def test_keys_that_are_no_text_are_json(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text('{"id": "a"}\n{"id": 7}\n{"id": null}\n{"id": true}\n{"id": {"x": [1]}}\n{"id": "\\ud800"}\n')
    producer.produce("nowhere", "t", producer.read_jsonl(file, "id"))
    assert [key for key, _ in SENT] == [b"a", b"7", None, b"true", b'{"x": [1]}', b"\xed\xa0\x80"]
