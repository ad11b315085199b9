"""JSON in Spark: bytes to columns of a stated schema, with what is wrong of those that do not have it.

Spark's own parser does the work; what it would pass over in silence is an error here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING

from ..core.errors import BadSetting

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

ROOT, CORRUPT = "r", "c"
# Spark reads the first value of a text and passes over what comes after it; as the only element of a list, a text with
# more than one value is a longer list, or no JSON at all
OPENED, CLOSED = '{"r":[', "]}"
STRICT = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


def parse_schema(ddl: str) -> DataType:
    """Reads a schema in Spark's DDL; raises `BadSetting`. Needs a Spark session."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import _parse_datatype_string

    try:
        return _parse_datatype_string(ddl)
    except PySparkException as error:
        reason = str(error).splitlines()[0]
        raise BadSetting(
            f"the schema of a json decoder is not Spark's DDL, expected such as `id BIGINT, at TIMESTAMP`: {reason}; nothing "
            "was decoded; correct `schema` in defs.yaml"
        ) from error


def decode_json(source: Column, ddl: str) -> Column:
    """Decodes JSON of a schema in Spark's DDL; see `spark_decoding.Decoded`.

    | the record | what becomes of it |
    |---|---|
    | null | null: a tombstone |
    | not UTF-8, no JSON, more than one value, `null` | error |
    | another type than the schema's, of a field or of the whole | error |
    | a field that is null or missing | null; an error where the schema says `NOT NULL` |
    | a field that the schema does not name | passed over: it is in the landed range |
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    schema = parse_schema(ddl)
    text = source.cast("string")
    wrapped = StructType([StructField(ROOT, ArrayType(schema)), StructField(CORRUPT, StringType())])
    listed = f.concat(f.lit(OPENED), text, f.lit(CLOSED))
    parsed = f.from_json(listed, wrapped, STRICT)
    values = parsed[ROOT]
    value = f.get(values, 0)
    lacking = reduce(lambda one, other: one | other, _lacking(value, schema), f.lit(False))  # noqa: FBT003
    is_right = f.is_valid_utf8(text) & parsed[CORRUPT].isNull() & (f.size(values) == 1) & value.isNotNull() & ~lacking
    error_class = (
        f.when(source.isNull() | f.coalesce(is_right, f.lit(False)), f.lit(None).cast("string"))  # noqa: FBT003
        .when(~f.is_valid_utf8(text), "not_utf8")
        .when(f.try_parse_json(listed).isNull() | (f.size(values) != 1), "json_malformed")
        .otherwise("json_mismatch")
    )
    wanted = schema.simpleString().replace(":", ": ").replace(",", ", ")
    found = f.schema_of_variant(f.try_parse_json(text))
    error = (
        f.when(error_class == "not_utf8", "the bytes are not UTF-8")
        .when(error_class == "json_malformed", "the text is not one JSON value")
        .when(error_class == "json_mismatch", f.concat(f.lit("found "), found, f.lit(f", expected {wanted}")))
    )
    return f.struct(
        f.when(error_class.isNull(), value).alias("value"),
        error_class.alias("error_class"),
        error.alias("error"),
        f.lit(None).cast("int").alias("schema_id"),
    )


def _lacking(value: Column, schema: DataType) -> Iterator[Column]:
    """Says of each field that may not be null whether it is: those of the value, and of structs in it."""
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        for field in schema.fields:
            if not field.nullable:
                yield value[field.name].isNull()
            for inner in _lacking(value[field.name], field.dataType):
                yield value[field.name].isNotNull() & inner
