"""JSON on real Spark: what is not one value is none, no value becomes another one; and the DDL that schemas are written in."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as f
from pyspark.sql.types import DataType

from pipeline_defs.adapters.formats.json_batches import UNEXPLAINED, explain_mismatch
from pipeline_defs.adapters.formats.spark_json import parse_schema
from pipeline_defs.adapters.spark.engine import Engine
from pipeline_defs.adapters.spark.spark_session import end, make_active, open_session
from pipeline_defs.core.decode.columns import NotDdl, parse_ddl
from pipeline_defs.core.decode.decoders import Format, Side
from pipeline_defs.core.errors import BadSetting
from tests.support.decoded import decode_rows, decoding_session
from tests.support.fuzz import ddl_of, draw_shape
from tests.support.strategies import draws

MICROSECONDS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss"}


def outcomes(engine: Engine, records: Sequence[bytes], side: Side) -> list[tuple[Any, str | None, str | None]]:
    """Value, error class and error of some records, in their order; values as JSON has them, nulls left out."""
    rows = decoding_session(engine).createDataFrame([*enumerate(records)], "offset long, value binary")
    decoded = decode_rows(rows, side)[0]
    found = decoded.select("offset", f.to_json(f.struct("value"), MICROSECONDS).alias("value"), "failure.*").orderBy("offset")
    return [(json.loads(row.value).get("value"), row.error_class, row.error) for row in found.collect()]


ONE = b'{"a": 1}'
NOT_ONE_VALUE = [
    *(b"", b" ", b",", b"nul", b"{", b"}", b"[", b"]", b"'a'", b"{a: 1}", b"NaN", b"01", b"+1", b".5", b"1.", b"0x1", b"-"),
    # behind a value: another one, garbage, and what closes or goes on with whatever the text is read within
    *(ONE + more for more in (b"]}", b"]} any", b"}}", b"}}}", b"}", b"]", b",", b"x", b" 5", b"\n{}", b"//", b"/*", b"#")),
    *(ONE + more for more in (b"\0", b"\xef\xbb\xbf", b"\xc2\xa0", b',"x', b',"x":"', b',"\\', b',"x":"y\\')),
    *(ONE + more for more in (b',"x":{"a": 2}', b',"v":{"a": 2}', b'],"x":[{"a": 2}', b'},"x":{"v":{"a": 2}', b'],"e":true}')),
    *(b"\xef\xbb\xbf" + ONE, b":" + ONE, b"," + ONE, b'"a": 1', b'{"a": 1 /*c*/}', b'{"a": 1,}', b'{"a": \x001}'),
    # half of a surrogate pair is no character; a text nested so deep is read by nobody
    *(b'{"z": "\\ud83d"}', b'{"z": "\\ude00\\ud83d"}', b'{"z": "\\\\\\uD83D."}', b'{"z": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
]


def test_text_that_is_not_one_json_value_is_none(engine: Engine) -> None:
    """Spark's parser ends at the first value, whatever comes behind it; what is read of a text must be the whole of it."""
    sound = [b'\t {"a": 1}\r\n ', b'{"a": 1, "z": "\\ud83d\\ude00 \\\\ud83d \\u00e4"}', b'{"a": 2, "a": 1}']
    found = outcomes(engine, [*sound, *NOT_ONE_VALUE, b'{"a": 1}\xff'], Side(Format.JSON, "a BIGINT"))
    assert [value for value, *_ in found[:3]] == [{"a": 1}] * 3, "the control"
    classes = [error_class for _, error_class, _ in found[3:]]
    passed = [(text, each) for text, each in zip(NOT_ONE_VALUE, classes, strict=False) if each != "json_malformed"]
    assert (passed, classes[-1]) == ([], "not_utf8")


def test_json_beyond_a_limit_of_the_parser_is_set_aside_with_the_limits(engine: Engine) -> None:
    """It is JSON all the same, so that the error may not say otherwise; at each limit it is read."""

    def bodies(levels: int, digits: int, characters: int) -> list[bytes]:
        deep = b"[" * (levels - 1) + b"]" * (levels - 1)
        return [b'{"z": ' + deep + b"}", b'{"z": ' + b"1" * digits + b"}", b'{"' + b"z" * characters + b'": 1}']

    within, beyond = bodies(998, 1_000, 50_000), bodies(999, 1_001, 50_001)
    found = outcomes(engine, [*within, *beyond], Side(Format.JSON, "a BIGINT"))
    assert [why for _, why, _ in found] == [None] * 3 + ["json_malformed"] * 3
    for _, _, error in found[3:]:
        assert error is not None
        assert all(f"{limit} " in error for limit in ("998", "1,000", "50,000", "20,000,000"))


VALUES = (
    "at TIMESTAMP, d DATE, t TIMESTAMP_NTZ, x DOUBLE, f FLOAT, b TINYINT, s STRING, l ARRAY<STRUCT<id: BIGINT NOT NULL>>, "
    "m MAP<STRING, STRUCT<id: BIGINT NOT NULL, at: TIMESTAMP>>, o STRUCT<id: BIGINT NOT NULL, at: TIMESTAMP NOT NULL>"
)
SAID: list[tuple[str, str, Any]] = [
    ("at", '"2020-01-02T03:04:05.678901Z"', "2020-01-02T03:04:05.678901Z"),
    ("at", '"2020-01-02 08:34:05.678901+05:30"', "2020-01-02T03:04:05.678901Z"),
    ("at", '"2020-01-02T03:04:05.678901999"', "2020-01-02T03:04:05.678901Z"),
    ("at", '"2020-01-02T03:04"', "2020-01-02T03:04:00.000000Z"),
    ("at", '"0001-01-01"', "0001-01-01T00:00:00.000000Z"),
    # its zone in each of ISO 8601's forms: one moment, whichever way its offset is written
    *(("at", f'"2020-01-02T12:00:00.5{zone}"', "2020-01-02T12:00:00.500000Z") for zone in ("Z", "+00", "+0000", "+00:00")),
    *(("at", f'"2020-01-02T12:00:00.5{zone}"', "2020-01-02T10:30:00.500000Z") for zone in ("+01:30", "+0130")),
    *(("at", f'"2020-01-02T12:00:00.5{zone}"', "2020-01-02T14:00:00.500000Z") for zone in ("-02", "-0200", "-02:00")),
    ("at", "1577934245", "2020-01-02T03:04:05.000000Z"),
    ("at", "253402300799", "9999-12-31T23:59:59.000000Z"),
    ("d", '"2020-01-02"', "2020-01-02"),
    ("t", '"2020-01-02T03:04:05"', "2020-01-02T03:04:05"),
    ("x", "1.5e300", 1.5e300),
    ("f", "0.5", 0.5),
    ("b", "-128", -128),
    ("s", '"\\ud83d\\ude00"', "\U0001f600"),
    ("s", '{"a": [1]}', '{"a":[1]}'),
    ("l", '[{"id": 1}, null]', [{"id": 1}, None]),
    ("m", '{"k": {"id": 1, "at": 0}}', {"k": {"id": 1, "at": "1970-01-01T00:00:00.000000Z"}}),
    ("o", '{"id": 1, "at": "2020-01-02"}', {"id": 1, "at": "2020-01-02T00:00:00.000000Z"}),
]
NOTHING = ["{}", '{"at": null, "d": null, "b": null, "l": null, "m": null, "o": null}']
UNSAID = [
    # a time of whatever day it is read on; digits that are a year, or a date; days that are none
    *(("at", f'"{text}"') for text in ("12:00:00", "T12:00", "2020", "20200102", "2020-02-30", "2020-1-2", "now", "")),
    *(("at", f'"{text}"') for text in ("2020-01-02T24:00:00Z", "2020-01-02T03:04:05Z\\n", "9999-12-31T23:59:59-12:00")),
    # milliseconds, microseconds, what overflows to a year that there is, and what is no whole number of seconds
    *(("at", text) for text in ("1577934245000", "1577934245000000", "1.5", "true", "1e20")),
    *(("at", text) for text in ("253402300800", "-62135596801", "18446744073709551616", '{"a": 1, "b": 2}', "[1]")),
    *(("d", text) for text in ('"20200102"', '"18000"', '"2020"', '"2020-02-30"', '"2020-01-02T03:04:05Z"', "18000")),
    *(("t", text) for text in ('"2020-01-02T03:04:05Z"', '"12:00"', "1577934245")),
    *(("x", "1e400"), ("x", "-1e400"), ("f", "1e39"), ("b", "200"), ("b", "-129"), ("b", "300")),
    *(("l", "[{}]"), ("l", '[{"id": 1}, {"id": null}]'), ("m", '{"k": {}}'), ("m", '{"k": {"id": 1, "at": "12:00"}}')),
    *(("m", '{"k": {"id": 1}, "k": {"id": 2}}'), ("m", '{"k": null, "\\u006b": null}')),
    *(("o", '{"id": 1}'), ("o", '{"id": 1, "at": null}'), ("o", '{"at": 0}')),
]


def test_a_value_that_its_type_cannot_say_is_an_error_and_never_another_value(engine: Engine) -> None:
    """And what it can say is just that; null and missing are null, but where the schema forbids it, at any depth."""
    records = [f'{{"{name}": {text}}}' for name, text, *_ in (*SAID, *UNSAID)]
    found = outcomes(engine, [each.encode() for each in (*NOTHING, *records)], Side(Format.JSON, VALUES))
    assert found[:2] == [({}, None, None)] * 2
    said, unsaid = found[2 : 2 + len(SAID)], found[2 + len(SAID) :]
    assert [value for value, *_ in said] == [{name: value} for name, _, value in SAID], "the control"
    passed = [(what, each[1]) for what, each in zip(UNSAID, unsaid, strict=True) if each[1] != "json_mismatch"]
    assert passed == []
    errors = {text: error or "" for (_, text), (_, _, error) in zip(UNSAID, unsaid, strict=True)}
    expected = "at: expected a time such as 2013-01-31T12:00:00Z, or seconds since 1970, of the years 1 to 9999"
    assert errors["true"] == "at: expected TIMESTAMP, found boolean"
    assert errors["1577934245000"] == expected
    assert errors["[{}]"] == "l[].id is null or missing"
    assert errors['{"k": {"id": 1}, "k": {"id": 2}}'] == "m has a key twice"
    assert errors['"2020-1-2"'] == errors['"now"'] == "at: expected TIMESTAMP, found a text unlike 2013-01-31T12:00:00Z"
    assert errors["1e39"] == "f is beyond FLOAT"
    assert errors["300"] == "b: expected a number from -128 to 127"


TIMES = "T12:00:00Z; 23:59:59.5-1800;T12:00-00:00;T12:00+17:59;T23:59:60Z;T24:00:00Z;T12:60;T12:00:00+18:30;T12:00:00+19"
BASE64 = r"AQI=; AQI=\n;AQ==\tAQI=;AR==;; ;A Q I =;AQI;AQI =;A===;AQ=\n=;AQ==A;AQ_-;AQI\u00e9"
ODD = {
    "t TIMESTAMP": ["5", "1.5", "1e9", "18446744073709551616", *(f'"2013-01-31{each}"' for each in TIMES.split(";"))],
    "b BINARY": [f'"{each}"' for each in BASE64.split(";")],
}


@pytest.mark.parametrize("schema", ODD)
def test_what_spark_sets_aside_is_explained_and_what_it_reads_is_never_called_wrong(engine: Engine, schema: str) -> None:
    name, kind = schema.split()
    records = [f'{{"{name}": {text}}}'.encode() for text in ODD[schema]]
    found = outcomes(engine, records, Side(Format.JSON, schema))
    assert {error is None for *_, error in found} == {True, False}, "the control"
    type_ = parse_schema(schema)
    for record, (*_, error) in zip(records, found, strict=True):
        assert explain_mismatch(record, type_) == (error or UNEXPLAINED), record
        assert error is None or error.startswith(f"{name}: expected {kind}, found a "), record


MONEY = "few DECIMAL(10, 2), many DECIMAL(38, 3), l ARRAY<DECIMAL(10, 2)>, m MAP<STRING, DECIMAL(4, 1)>"
NUMBERS: list[tuple[str, str, Any]] = [
    *(("few", text, 1.5) for text in ("1.5", '"1.5"', '"+1.50"', "15e-1", '"15E-1"', "1.499")),
    *(("few", text, 0.0) for text in ("1e-999999999", "0.000000000000000000000000000000000000000001", "-0")),
    *(("few", "1.005", 1.01), ("few", "99999999.99", 99999999.99), ("many", "12345678901234.567", 12345678901234.567)),
    *(("many", "1e-05", 0.0), ("many", "1.5E3", 1500.0), ("m", '{"k": 1}', {"k": 1.0})),
    ("l", '[1, "2.5", null]', [1.0, 2.5, None]),
]
NO_NUMBERS = [
    *(("few", f'"{text}"') for text in ("0,99", "1.234,56", "5,", "12,34", "\u0661", " 5", "", "NaN", "1e-999999999", "x")),
    *(("few", text) for text in ("true", "[1]", '{"a": 1}', "1e400", "100000000", "1" * 900)),
    *(("many", "1.234567890123456789E-7"), ("l", '["1,5"]'), ("m", '{"k": "1,5"}'), ("m", '{"k": 1000}')),
]


def test_a_decimal_is_the_number_that_stands_there_or_an_error(engine: Engine) -> None:
    """Spark would take `1,5` for 15, and hours to round 1e-999999999: a record that stops its topic for ever."""
    records = [f'{{"{name}": {text}}}'.encode() for name, text, *_ in (*NUMBERS, *NO_NUMBERS)]
    found = outcomes(engine, records, Side(Format.JSON, MONEY))
    assert [value for value, *_ in found[: len(NUMBERS)]] == [{name: value} for name, _, value in NUMBERS], "the control"
    for (name, text), (value, why, error) in zip(NO_NUMBERS, found[len(NUMBERS) :], strict=True):
        assert (value, why) == (None, "json_mismatch"), (name, text)
        assert (error or "").startswith(f"{name}") and "expected a number such as 12.5" in (error or ""), (text, error)


def test_of_a_field_twice_the_last_counts_where_each_is_of_its_type(engine: Engine) -> None:
    texts = [b'{"n": 1, "n": 2}', b'{"n": "x", "n": 2}', b'{"n": 2, "n": "x"}']
    found = outcomes(engine, texts, Side(Format.JSON, "n BIGINT"))
    reasons = (UNEXPLAINED, "n: expected BIGINT, found string")
    assert found == [({"n": 2}, None, None), *((None, "json_mismatch", why) for why in reasons)]


def test_a_value_that_is_no_struct_is_decoded_alone(engine: Engine) -> None:
    """A schema may be one type: null is then no value."""
    texts = [b'"2020-01-02"', b" 5 ", b"null", b'"12:00"', b"5]}", b'5,"x":6', b'5},"x":{"v":6']
    found = outcomes(engine, texts, Side(Format.JSON, "TIMESTAMP"))
    days = ["2020-01-02T00:00:00.000000Z", "1970-01-01T00:00:05.000000Z"]
    assert [value for value, *_ in found] == [*days, *[None] * 5]
    assert [each for _, each, _ in found] == [None, None, "json_mismatch", "json_mismatch", *["json_malformed"] * 3]


TAKEN = """
BIGINT; bigint;  int ; ARRAY<INT>; MAP<STRING, ARRAY<INT>>; STRUCT<a: INT>; STRUCT<a INT>; DECIMAL(10, 2)
date DATE; timestamp TIMESTAMP, int INT; a INT NOT NULL, b STRING COMMENT 'x, y>'; `a b` INT, `c``d` INT; _a INT; ä INT
a TIMESTAMP_NTZ, b TIMESTAMP_LTZ; a VARIANT; a VOID; a DEC(5), b NUMERIC(5, 1), c REAL, d LONG, e BYTE, f SHORT
a CHAR(3), b VARCHAR(5), c CHARACTER(2); a STRING COLLATE system.builtin.UTF8_LCASE NOT NULL COMMENT 'x'
a INTERVAL DAY, b INT; a INTERVAL YEAR TO MONTH, b INT
a: INT, b: STRING; a STRUCT<>; a /* why */ INT; a ARRAY<STRUCT<b: INT NOT NULL COMMENT 'x'>>; a1 INT, 1a INT
array ARRAY<INT>, map MAP<INT, INT>, struct STRUCT<a INT>; a INT -- why
"""
REFUSED = """
id BIGNIT; id TEXT; id, at TIMESTAMP; id BIGINT at TIMESTAMP; a STRUCT<b: INT; id BIGINT,; {}; MAP<STRING>; id INT DEFAULT 5
id INT GENERATED ALWAYS; id INT COMMENT x; id INT NOT; id INT COMMENT 'x' NOT NULL; id INT PRIMARY KEY
"""


def each_of(texts: str) -> list[str]:
    return [text.strip() for line in texts.splitlines() for text in line.split(";") if text.strip()]


@pytest.fixture
def spark_reads(engine: Engine) -> Iterator[None]:
    """The Spark that is asked is the one that all tests share, and not one of another home, which may be gone."""
    with engine.job({}, "read schemas", "nothing was read"):
        yield


def spark_takes(text: str) -> bool:
    try:
        parse_schema(text)
    except BadSetting:
        return False
    return True


def is_refused(text: str) -> bool:
    """Return whether a text is refused; not for a name that is there twice, of which Spark says so when it writes."""
    try:
        parse_ddl(text)
    except NotDdl as error:
        return "is there twice" not in str(error)
    return False


def test_what_spark_takes_is_never_refused(spark_reads: None) -> None:
    texts = each_of(TAKEN)
    for _, dice in draws(40):
        text = ddl_of(draw_shape(dice))
        texts += [text, text.replace(": ", " "), text.lower(), _change(dice, text), _change(dice, text)]
    assert [text for text in texts if is_refused(text) and spark_takes(text)] == []
    assert sum(map(spark_takes, each_of(TAKEN))) > 20, "the control"


def _change(dice: random.Random, text: str) -> str:
    """Leave out, repeat or exchange a few characters."""
    at = dice.randrange(len(text))
    return text[:at] + dice.choice(["", ",", "<", ">", " ", "x", text[:at]]) + text[at + dice.randrange(3) :]


@pytest.mark.parametrize("text", each_of(REFUSED))
def test_what_is_refused_spark_refuses_and_says_why(spark_reads: None, text: str) -> None:
    assert is_refused(text)
    with pytest.raises(BadSetting, match=r"such as `id BIGINT, at TIMESTAMP`: .{20,}; nothing was .*correct `inline_schema`"):
        parse_schema(text)


def test_a_map_that_spark_reads_of_json_is_never_refused(engine: Engine) -> None:
    """Its keys are text; of another one each job would fail."""

    def is_read(key: str) -> bool:
        try:
            session.range(1).select(f.from_json(f.lit("{}"), f"m MAP<{key}, INT>")).collect()
        except AnalysisException:
            return False
        return True

    def is_taken(key: str) -> bool:
        with suppress(NotDdl):
            return bool(parse_ddl(f"m MAP<{key}, INT>", of_json=True))
        return False

    keys = each_of("STRING; STRING COLLATE UTF8_LCASE; CHAR(3); VARCHAR(3); INT; DATE; BINARY; ARRAY<STRING>; STRUCT<a: INT>")
    with engine.job({}, "read schemas", "nothing was read") as session:
        read = [key for key in keys if is_read(key)]
    assert "STRING" in read and "INT" not in read, "the control"
    assert [key for key in read if not is_taken(key)] == []
    assert not is_taken("INT") and not is_taken("DATE")


def test_a_server_that_went_away_does_not_refuse_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is sent to correct a schema that is right: the engine says what happened, and the ranges are tried again."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    gone = SparkConnectGrpcException("<_InactiveRpcError of RPC that terminated with: StatusCode.UNAVAILABLE>")
    monkeypatch.setattr(DataType, "fromDDL", Mock(side_effect=gone))
    with pytest.raises(SparkConnectGrpcException) as found:
        parse_schema("id BIGINT")
    assert found.value is gone


def test_a_schema_is_read_by_the_session_that_was_asked_for_last(engine: Engine) -> None:
    """Not by one that was opened here before and whose server is gone."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    gone = open_session("sc://127.0.0.1:1")
    make_active(gone)
    try:
        with pytest.raises(SparkConnectGrpcException):
            parse_schema("id BIGINT")  # the control: it is the active one
        engine.session({})
        assert parse_schema("id BIGINT").simpleString() == "struct<id:bigint>"
    finally:
        end(gone, is_told=False)
