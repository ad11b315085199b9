"""What becomes of records that are decoded, on real Spark, side by side with none of them landed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline_defs.core.client_properties import ANYBODY, RegistryLogin
from pipeline_defs.core.decoders import Side
from pipeline_defs.edges.spark_decoding import DECODE_CONF, DECODERS, Decision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from pipeline_defs.edges.engine import Engine


def decoding_session(engine: Engine) -> SparkSession:
    """Return a session as decoding has one."""
    return engine.session(DECODE_CONF)


def decode_rows(rows: DataFrame, side: Side, login: RegistryLogin = ANYBODY) -> tuple[DataFrame, Mapping[str, str]]:
    """Decodes the column `value`; returns offset, value, failure, schema_id of each row, and the schemas that decided."""
    from pyspark.sql import functions as f

    decision = Decision({"value": DECODERS[side.format](rows, "value", side, login)})
    read, outcomes = decision.read(rows)
    of = outcomes["value"]
    return read.select(
        "offset",
        f.when(of.is_right, of.value).alias("value"),
        f.when(~of.is_right, of.failure).alias("failure"),
        of.schema_id.alias("schema_id"),
    ), decision.sides["value"].schemas
