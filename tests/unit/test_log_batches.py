"""Record batches as brokers send them, in every format that Kafka ever had: what evidence reads of each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c
from kafka.errors import CorruptRecordError
from kafka.record.memory_records import MemoryRecordsBuilder

from pipeline_defs.adapters.kafka.kafka_log import RecordBatch, has_untellable, read_batches, read_records
from pipeline_defs.core.errors import Unavailable
from pipeline_defs.core.log.holes import SpanKind

NONE, GZIP, SNAPPY, ZSTD = 0, 1, 2, 4


def records(magic: int, compression: int, offset: int, count: int, *, leave_out: int = 0) -> bytes:
    """Return what a broker holds of `count` records from an offset on, without some of them from the second on."""
    builder = MemoryRecordsBuilder(magic, compression, 1 << 20, offset=offset)
    for n in range(count):
        if n and leave_out:
            builder.skip(leave_out)
            leave_out = 0
        builder.append(1000 + n, b"k", b"v%d" % n)
    builder.close()
    return bytes(builder.buffer())


class Bytes(str):
    """A header's key that is no text: Kafka takes any bytes."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        return b"\xff\xfe"


def strange(compression: int, timestamp_ms: int = 1000) -> bytearray:
    """Return a batch of two records, at offsets 0 and 1, whose headers' keys are no text."""
    builder = MemoryRecordsBuilder(2, compression, 1 << 20)
    for _ in range(2):
        builder.append(timestamp_ms, b"k", b"v", headers=[(Bytes("x"), b"1"), ("y", None)])
    builder.close()
    return bytearray(builder.buffer())


def read(data: bytes, end: int) -> list[RecordBatch]:
    answers: Any = iter([SimpleNamespace(records=each, aborted_transactions=None) for each in (data, b"")])
    return list(read_batches(lambda _: next(answers), 0, end))


@pytest.mark.parametrize("compression", [NONE, GZIP], ids=["plain", "gzip"])
@pytest.mark.parametrize("magic", [0, 1])
def test_records_of_before_kafka_0_11_are_read_as_what_they_are(magic: int, compression: int) -> None:
    """[R-28] I19: old segments of a topic have message sets without a header that counts; their records are looked at."""
    batches = read(records(magic, compression, 5, 3), 8)
    offsets = [offset for batch in batches for offset in batch.span.offsets or ()]
    assert offsets == [5, 6, 7]
    assert {batch.span.kind for batch in batches} == {SpanKind.DATA}
    assert (batches[0].span.start, batches[-1].span.end) == (5, 8)
    assert batches[0].first_timestamp_ms == (None if magic == 0 else 1000)
    assert [batch.look_into() for batch in batches] == [batch.span for batch in batches]


def test_an_old_set_that_cannot_be_decompressed_is_one_clear_error() -> None:
    """I19: nobody says what it holds, so nothing is decided of its range."""
    plain = bytearray(records(1, NONE, 5, 1))
    plain[17] |= SNAPPY  # what the attributes say it is compressed by
    with pytest.raises(Unavailable, match="message format 1 behind offset 5 cannot be read"):
        read(bytes(plain), 6)


@pytest.mark.parametrize("compression", [NONE, GZIP, ZSTD], ids=["plain", "gzip", "zstd"])
def test_which_records_a_batch_has_is_read_where_it_is_asked_for(compression: int) -> None:
    """[R-28] The header counts them; compaction leaves gaps, which only the records tell."""
    (batch,) = read(records(2, compression, 5, 3, leave_out=4), 12)
    assert (batch.span.start, batch.span.end, batch.span.records, batch.span.offsets) == (0, 12, 3, None)
    assert batch.look_into().offsets == (5, 10, 11)


@pytest.mark.parametrize("compression", [NONE, GZIP, ZSTD], ids=["plain", "gzip", "zstd"])
def test_a_headers_key_that_is_no_text_is_nobodys_fault(compression: int) -> None:
    """[R-28] Kafka takes any bytes; kafka-python, which takes them for UTF-8, is not asked for headers."""
    (batch,) = read(bytes(strange(compression)), 2)
    assert batch.look_into().offsets == (0, 1)
    assert batch.look_into().offsets == (0, 1), "and again"
    with pytest.raises(CorruptRecordError, match="UnicodeDecodeError"):  # the fault
        list(batch.raw)


@pytest.mark.parametrize("compression", [NONE, GZIP, ZSTD], ids=["plain", "gzip", "zstd"])
def test_a_time_that_no_column_holds_is_seen_and_its_record_read(compression: int) -> None:
    """[R-13] Of a header's key that is no text each bad byte is replaced."""
    batches = read(bytes(strange(compression, 2**62)), 2)
    assert has_untellable(batches)
    assert not has_untellable(read(bytes(strange(compression)), 2)), "the control"
    (record,) = read_records(batches, 1, 2)
    assert (record.offset, record.timestamp_ms, record.timestamp_type, record.key, record.value) == (1, 2**62, 0, b"k", b"v")
    assert record.headers == [("\ufffd\ufffd", b"1"), ("y", None)]


@pytest.mark.parametrize("compression", [NONE, GZIP, ZSTD], ids=["plain", "gzip", "zstd"])
def test_of_a_batch_whose_checksum_is_another_one_nothing_is_believed(compression: int) -> None:
    """[R-15] Spark's reader refuses it; a bit of its times, or of a value, must not be landed by way of the log."""
    whole = bytes(strange(compression, 2**62))
    for place in (27, 35, len(whole) - 1):
        data = bytearray(whole)
        data[place] ^= 0x40
        batches = read(bytes(data), 2)
        assert not has_untellable(batches)
        with pytest.raises(Unavailable, match="the record batch at offset 0 is damaged on the broker: its checksum"):
            list(read_records(batches, 0, 2))


def test_records_of_old_formats_are_not_read_from_the_log() -> None:
    """[R-15] Their range fails with Spark's words."""
    batches = read(records(1, NONE, 0, 2), 2)
    assert not has_untellable(batches)
    with pytest.raises(Unavailable, match=r"before Kafka 0\.11"):
        list(read_records(batches, 0, 2))


def test_what_cannot_be_decompressed_here_is_one_clear_error() -> None:
    """[R-15] Its header tells of the time all the same."""
    data = strange(NONE, 2**62)
    data[22] |= SNAPPY  # what the attributes say it is compressed by
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    (batch,) = read(bytes(data), 2)
    assert has_untellable([batch])
    with pytest.raises(Unavailable, match=r"batch at offset 0 cannot be decompressed here: .*snappy"):
        list(read_records([batch], 0, 2))


@pytest.mark.parametrize("compression", [NONE, GZIP, ZSTD], ids=["plain", "gzip", "zstd"])
def test_a_damaged_batch_is_one_clear_error(compression: int) -> None:
    """[R-28] What it holds nobody knows, so nothing is decided of its range."""
    data = strange(compression)
    data[-7:] = bytes(7) if compression else b"\xff" * 7
    data[61:63] = b"\x7f\x7f"
    (batch,) = read(bytes(data), 2)
    with pytest.raises(Unavailable, match="the record batch at offset 0 is damaged on the broker"):
        batch.look_into()
    with pytest.raises(Unavailable, match="the record batch at offset 0 is damaged on the broker"):
        list(read_records([batch], 0, 2))
