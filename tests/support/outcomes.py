"""What becomes of records that are decoded, on real Spark, side by side with none of them landed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline_defs.adapters.formats.spark_decoding import DECODE_CONF, Decision, find_decoder
from pipeline_defs.adapters.spark.engine import Engine
from pipeline_defs.core.client_properties import ANYBODY, RegistryLogin
from pipeline_defs.core.decode.decoders import Side

RAW = "topic string, partition int, offset long, key binary, value binary"


@dataclass(frozen=True)
class Outcomes:
    """What became of some records, in their order."""

    rows: Sequence[Any]
    schemas: Mapping[str, str]
    type: str

    @property
    def values(self) -> list[Any]:
        return [row.value.asDict(recursive=True) if hasattr(row.value, "asDict") else row.value for row in self.rows]

    @property
    def classes(self) -> list[str | None]:
        return [row.failure.error_class if row.failure else None for row in self.rows]

    @property
    def errors(self) -> list[str | None]:
        return [row.failure.error if row.failure else None for row in self.rows]

    @property
    def ids(self) -> list[int | None]:
        return [row.schema_id for row in self.rows]


def decode(
    engine: Engine, records: Sequence[bytes | None], side: Side, topic: str = "orders", login: RegistryLogin = ANYBODY
) -> Outcomes:
    """Decode values of a topic's only partition."""
    values = [(topic, 0, at, None, value) for at, value in enumerate(records)]
    frame, schemas = decode_rows(decoding_session(engine).createDataFrame(values, RAW), side, login)
    rows = frame.orderBy("offset").collect()
    return Outcomes(rows, schemas, frame.schema["value"].dataType.simpleString())


def decoding_session(engine: Engine) -> SparkSession:
    return engine.session(DECODE_CONF)


def decode_rows(rows: DataFrame, side: Side, login: RegistryLogin = ANYBODY) -> tuple[DataFrame, Mapping[str, str]]:
    """Decodes the column `value`; returns offset, value, failure, schema_id of each row, and the schemas that decided."""
    decision = Decision({"value": find_decoder(side.format)(rows, "value", side, login)})
    read, outcomes = decision.read(rows)
    of = outcomes["value"]
    return read.select(
        "offset",
        f.when(of.is_right, of.value).alias("value"),
        f.when(~of.is_right, of.failure).alias("failure"),
        of.schema_id.alias("schema_id"),
    ), decision.sides["value"].schemas
