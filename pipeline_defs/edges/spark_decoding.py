"""Decoding in Spark: landed files in, per file one of decoded rows and, where any are bad, one of dead letters.

One landed file is one task is one file, in the order of its rows. Nothing here is visible or decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.client_properties import ANYBODY, RegistryLogin
from ..core.decoders import Decode, Format, Side
from ..core.errors import ScanFailed
from .decoded import Decoded
from .spark import PARQUET_OPTIONS, SCAN_CONF, first_cause
from .spark_avro import decode_avro
from .spark_days import check_event_time
from .spark_json import decode_json
from .spark_json_schema import decode_json_schema
from .spark_protobuf import decode_protobuf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

WHOLE_FILES = str(1 << 40)  # bytes: no file is cut, and none shares a task with another one
DECODE_CONF: Mapping[str, str] = {
    **SCAN_CONF,
    "spark.sql.files.maxPartitionBytes": WHOLE_FILES,
    "spark.sql.files.openCostInBytes": WHOLE_FILES,
    "spark.sql.shuffle.partitions": "1",  # only a registry's ids are ever shuffled
}
# what is decoded has many small columns: dictionaries of them cost a fifth of the whole job and save a tenth of the bytes
DECODED_PARQUET: Mapping[str, str] = {**PARQUET_OPTIONS, "parquet.enable.dictionary": "false"}
RAW_SCHEMA = (
    "topic STRING, generation INT, partition INT, offset BIGINT, timestamp TIMESTAMP, timestamp_type INT, key BINARY, "
    "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
OUTCOME = "_"  # the column of what keys and values decode to
IDENTITY = ("topic", "generation", "partition", "offset", "timestamp")
Decoder = Callable[["DataFrame", str, Side, RegistryLogin], Decoded]


def decode_none(rows: DataFrame, column: str, side: Side, login: RegistryLogin = ANYBODY) -> Decoded:  # noqa: ARG001
    """Leaves bytes as they are."""
    from pyspark.sql import functions as f

    return Decoded(_outcome(f.col(column)))


def decode_string(rows: DataFrame, column: str, side: Side, login: RegistryLogin = ANYBODY) -> Decoded:  # noqa: ARG001
    """Reads UTF-8; other bytes are an error, never replacement characters."""
    from pyspark.sql import functions as f

    text = f.col(column).cast("string")
    is_text = text.isNull() | f.is_valid_utf8(text)
    error = f.when(~is_text, f.lit("not_utf8"))
    return Decoded(_outcome(f.when(is_text, text), error, f.when(~is_text, f.lit("the bytes are not UTF-8"))))


def _outcome(value: Column, error_class: Column | None = None, error: Column | None = None) -> Column:
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("string")
    return f.struct(
        value.alias("value"),
        (nothing if error_class is None else error_class).alias("error_class"),
        (nothing if error is None else error).alias("error"),
        f.lit(None).cast("int").alias("schema_id"),
    )


def _decode_json(rows: DataFrame, column: str, side: Side, login: RegistryLogin = ANYBODY) -> Decoded:  # noqa: ARG001
    from pyspark.sql import functions as f

    return Decoded(decode_json(f.col(column), side.schema or ""))


DECODERS: Mapping[Format, Decoder] = {
    Format.NONE: decode_none,
    Format.STRING: decode_string,
    Format.JSON: _decode_json,
    Format.JSON_SCHEMA: decode_json_schema,
    Format.AVRO: decode_avro,
    Format.PROTOBUF: decode_protobuf,
}


class SparkDecoder:
    """Decodes landed files of one topic with one session."""

    def __init__(self, session: SparkSession, decode: Decode, login: RegistryLogin = ANYBODY) -> None:
        self._session = session.newSession()
        for name, value in DECODE_CONF.items():
            self._session.conf.set(name, value)
        self._decode = decode
        self._login = login

    @property
    def writer(self) -> str:
        """Names what writes: equal bytes can be expected only from the same writer."""
        return f"spark {self._session.version}"

    def decide(self, files: Sequence[Path]) -> Decoded:
        """Decides how rows of landed files decode, all that a registry is asked included: struct<key, value>, each as it does.

        Once for a job: were it asked again for the dead letters, a version registered meanwhile might leave a row in neither.
        """
        from pyspark.sql import functions as f

        rows = self._read(files)
        schemas: dict[str, str] = {}
        sides = {}
        for name, side in (("key", self._decode.key), ("value", self._decode.value)):
            decoded = DECODERS[side.format](rows, name, side, self._login)
            schemas |= {f"{name}:{what}": schema for what, schema in decoded.schemas.items()}
            sides[name] = decoded.column.alias(name)
        # Spark moves filters below what they filter by, and would decode each record once for the filter and once more for
        # the rows. It does not move them below what is not the same each time, as this number is
        once = f.monotonically_increasing_id().alias("once")
        return Decoded(f.struct(sides["key"], sides["value"], once), schemas)

    def stage_decoded(self, files: Sequence[Path], decided: Decoded, folder: Path) -> None:
        """Writes the rows of landed files that can be decoded below `folder`."""
        from pyspark.sql import functions as f

        outcome = self._read(files).withColumn(OUTCOME, decided.column)
        good = outcome.where(f.col("_.key.error_class").isNull() & f.col("_.value.error_class").isNull())
        columns = [
            *map(f.col, (*IDENTITY, "headers")),
            f.col("_.key.value").alias("key"),
            f.col("_.value.value").alias("value"),
            *_schema_ids(),
        ]
        rows = good.select(*columns)
        if self._decode.event_time is not None:
            check_event_time(rows.schema, self._decode.event_time)
        self._write(rows, folder, len(files))

    def stage_dead_letters(self, files: Sequence[Path], decided: Decoded, folder: Path) -> None:
        """Writes the rows of landed files that cannot be decoded below `folder`, as they are, with what is wrong."""
        from pyspark.sql import functions as f

        outcome = self._read(files).withColumn(OUTCOME, decided.column)
        is_key = f.col("_.key.error_class").isNotNull()
        bad = outcome.where(is_key | f.col("_.value.error_class").isNotNull())
        columns = [
            *map(f.col, (*IDENTITY, "key", "value", "headers")),
            f.when(is_key, "key").otherwise("value").alias("side"),
            f.coalesce("_.key.error_class", "_.value.error_class").alias("error_class"),
            f.when(is_key, f.col("_.key.error")).otherwise(f.col("_.value.error")).alias("error"),
            *_schema_ids(),
        ]
        self._write(bad.select(*columns), folder, len(files))

    def _read(self, files: Sequence[Path]) -> DataFrame:
        from pyspark.errors import PySparkException

        try:
            return self._session.read.schema(RAW_SCHEMA).parquet(*(str(file) for file in files))
        except PySparkException as error:  # one is not there any more
            raise ScanFailed(
                f"Spark could not read {len(files)} landed files: {first_cause(error)}; nothing became visible; the ranges "
                "that are landed still are decoded at the next try"
            ) from error

    def _write(self, rows: DataFrame, folder: Path, files: int) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            rows.write.mode("errorifexists").options(**DECODED_PARQUET).parquet(str(folder))
        except (PySparkException, Py4JError) as error:
            raise ScanFailed(
                f"Spark could not decode {files} landed files: {first_cause(error)}; nothing became visible; the ranges "
                "stay landed, and are decoded at the next try"
            ) from error


def _schema_ids() -> list[Column]:
    """Are the registry ids that a row's key and value were written with, of rows that can be decoded and of others."""
    from pyspark.sql import functions as f

    return [f.col(f"{OUTCOME}.{side}.schema_id").alias(f"{side}_schema_id") for side in ("key", "value")]
