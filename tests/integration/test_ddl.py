"""The reader of Spark's DDL that definitions are held by, beside Spark itself: what Spark takes is never refused."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from pipeline_defs.adapters.formats.json.spark_json import parse_schema
from pipeline_defs.adapters.spark.spark_session import end, make_active, open_session
from pipeline_defs.core.decode.ddl import NotDdl, parse_ddl
from pipeline_defs.core.errors import BadSetting
from tests.support.fuzz import draws
from tests.support.fuzz_json import ddl_of, draw_shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline_defs.adapters.spark.engine import Engine

TAKEN = """
BIGINT; bigint;  int ; ARRAY<INT>; MAP<STRING, ARRAY<INT>>; STRUCT<a: INT>; STRUCT<a INT>; DECIMAL(10, 2)
date DATE; timestamp TIMESTAMP, int INT; a INT NOT NULL, b STRING COMMENT 'x, y>'; `a b` INT, `c``d` INT; _a INT; ä INT
a TIMESTAMP_NTZ, b TIMESTAMP_LTZ; a VARIANT; a VOID; a DEC(5), b NUMERIC(5, 1), c REAL, d LONG, e BYTE, f SHORT; a INT DEFAULT 5
a CHAR(3), b VARCHAR(5), c CHARACTER(2); a STRING COLLATE UTF8_LCASE; a INTERVAL DAY, b INT; a INTERVAL YEAR TO MONTH, b INT
a: INT, b: STRING; a STRUCT<>; a /* why */ INT; a ARRAY<STRUCT<b: INT NOT NULL COMMENT 'x'>>; a1 INT, 1a INT
array ARRAY<INT>, map MAP<INT, INT>, struct STRUCT<a INT>; a INT -- why
"""
REFUSED = "id BIGNIT; id TEXT; id, at TIMESTAMP; id BIGINT at TIMESTAMP; a STRUCT<b: INT; id BIGINT,; {}; MAP<STRING>"


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
    wrong = [text for text in texts if is_refused(text) and spark_takes(text)]
    assert wrong == []
    assert sum(map(spark_takes, each_of(TAKEN))) > 20, "the control"


def _change(dice: random.Random, text: str) -> str:
    """Leave out, repeat or exchange a few characters."""
    at = dice.randrange(len(text))
    return text[:at] + dice.choice(["", ",", "<", ">", " ", "x", text[:at]]) + text[at + dice.randrange(3) :]


@pytest.mark.parametrize("text", each_of(REFUSED))
def test_what_is_refused_spark_refuses_and_says_why(spark_reads: None, text: str) -> None:
    assert is_refused(text)
    with pytest.raises(
        BadSetting, match=r"such as `id BIGINT, at TIMESTAMP`: .{20,}; nothing was decoded; correct `inline_schema`"
    ):
        parse_schema(text)


def test_a_map_that_spark_reads_of_json_is_never_refused(engine: Engine) -> None:
    """Its keys are text; of another one each job would fail."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

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

    keys = [
        "STRING",
        "STRING COLLATE UTF8_LCASE",
        "CHAR(3)",
        "VARCHAR(3)",
        "INT",
        "DATE",
        "BINARY",
        "ARRAY<STRING>",
        "STRUCT<a: INT>",
    ]
    with engine.job({}, "read schemas", "nothing was read") as session:
        read = [key for key in keys if is_read(key)]
    assert "STRING" in read and "INT" not in read, "the control"
    assert [key for key in read if not is_taken(key)] == []
    assert not is_taken("INT") and not is_taken("DATE")


def test_a_server_that_went_away_does_not_refuse_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is sent to correct a schema that is right: the engine says what happened, and the ranges are tried again."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    from pyspark.sql.types import DataType

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
