"""JSON values in Spark that are of the right JSON type and that their column still cannot hold: found, never changed.

Dates, times without a zone and decimals are read as what they are in the JSON, text or number, and converted here: Spark's own
reader takes other text for them, `1,5` for 15, and needs hours to round 1e-999999999. Times with a zone, as most have, it
reads by a strict format, and only their years are checked here: converting them here would take as long as all the rest.
Nothing here parses JSON.
"""

from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, ShortType, StructField, StructType, VariantType

from ...core.decode.columns import MOST_DIGITS
from .decoded import is_of_a_calendar
from .json_batches import DAY, TIME

TEXTS = {"date": rf"^{DAY}\z", "timestamp_ntz": rf"^{DAY}({TIME})?\z"}
DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\z"
# VARIANT has a number with an exponent, or of more than 38 digits, as a DOUBLE, which keeps 15 digits of each
DOUBLE_DIGITS = 15
OF_DOUBLE_DIGITS = rf"^-?[0-9.]{{1,{DOUBLE_DIGITS + 1}}}(E-?[0-9]+)?\z"
TIMESTAMP_FORMAT = "yyyy-MM-dd[['T'][' ']HH:mm[:ss[.SSSSSSSSS]][XXX][X]]"  # X is +01, and +0130 too
INFINITE = {"double", "float"}
EXPECTED = {
    "date": "expected a date such as 2013-01-31",
    "timestamp": "expected a time such as 2013-01-31T12:00:00Z, or seconds since 1970, of the years 1 to 9999",
    "timestamp_ntz": "expected a time without a zone, such as 2013-01-31T12:00:00",
    "tinyint": "expected a number from -128 to 127",
}


def read_type(schema: DataType) -> DataType:
    """Return what a schema is read as: VARIANT for DATE, TIMESTAMP_NTZ and DECIMAL, SMALLINT for TINYINT."""
    match schema:
        case StructType():
            return StructType([StructField(each.name, read_type(each.dataType), each.nullable) for each in schema])
        case ArrayType():
            return ArrayType(read_type(schema.elementType), schema.containsNull)
        case MapType():
            return MapType(schema.keyType, read_type(schema.valueType), schema.valueContainsNull)
    return VariantType() if _is_variant(schema) else ShortType() if schema.simpleString() == "tinyint" else schema


def _is_variant(schema: DataType) -> bool:
    return isinstance(schema, DecimalType) or schema.simpleString() in TEXTS


def settle(value: Column, schema: DataType) -> Column:
    """Return a value that was read as `read_type` says, in its schema's own type; null if that cannot hold it."""
    if read_type(schema) == schema:
        return value
    match schema:
        case StructType():
            fields = (settle(value[each.name], each.dataType).alias(each.name) for each in schema)
            return f.when(value.isNotNull(), f.struct(*fields))
        case ArrayType():
            return f.transform(value, lambda each: settle(each, schema.elementType))
        case MapType():
            return f.transform_values(value, lambda _, each: settle(each, schema.valueType))
    name = schema.simpleString()
    if name == "tinyint":
        return f.when(value.between(-128, 127), value.cast("tinyint"))
    text = f.try_variant_get(value, "$", "string")  # a number, too, has one; none that is a day
    if isinstance(schema, DecimalType):
        settled = f.when(text.rlike(DECIMAL), text.try_cast(schema))
        is_exact = (f.schema_of_variant(value) != "DOUBLE") | text.rlike(OF_DOUBLE_DIGITS)
        return settled if schema.precision <= DOUBLE_DIGITS else f.when(is_exact, settled)
    return f.when(text.rlike(TEXTS[name]), text.try_cast(name))


def find_wrong(value: Column, settled: Column, schema: DataType, path: str = "") -> Column:
    """Return what is wrong with a value, read as `read_type` says and settled, and where in it; null if nothing is.

    | the part | wrong is |
    |---|---|
    | a field that is `NOT NULL`, in arrays and maps too | null, or not there |
    | `DOUBLE`, `FLOAT` | a number beyond it, which Spark takes for infinite |
    | `TIMESTAMP` | out of the years 1 to 9999 |
    | `DATE`, `TIMESTAMP_NTZ`, `TINYINT`, `DECIMAL` | what `settle` has no value for |
    | `MAP` | a key twice |
    """
    return f.coalesce(*_wrong_parts(value, settled, schema, path), f.lit(None).cast("string"))


def _wrong_parts(value: Column, settled: Column, schema: DataType, path: str) -> Iterator[Column]:
    name, where = schema.simpleString(), path or "the whole"
    match schema:
        case StructType():
            for each in schema:
                inner, below = value[each.name], f"{path}.{each.name}".lstrip(".")
                if not each.nullable:
                    yield f.when(value.isNotNull() & is_null(inner, each.dataType), f"{below} is null or missing")
                yield from _wrong_parts(inner, settled[each.name], each.dataType, below)
        case ArrayType():
            yield from _wrong_elements(value, schema.elementType, f"{path}[]")
        case MapType():
            keys = f.map_keys(value)
            is_twice = (f.size(keys) > 1) & (f.size(f.array_distinct(keys)) < f.size(keys))
            yield f.when(value.isNotNull() & is_twice, f"{where} has a key twice")
            yield from _wrong_elements(f.map_values(value), schema.valueType, f"{path}{{}}")
    if name == "timestamp":
        yield f.when(~is_of_a_calendar(value, schema), f"{where}: {EXPECTED[name]}")
    elif name in INFINITE:
        yield f.when(f.abs(value) == float("inf"), f"{where} is beyond {name.upper()}")
    elif expected := _expected(schema):
        yield f.when(~is_null(value, schema) & settled.isNull(), f"{where}: {expected}")


def _expected(schema: DataType) -> str | None:
    if not isinstance(schema, DecimalType):
        return EXPECTED.get(schema.simpleString())
    exact = f", in all {MOST_DIGITS}, or {DOUBLE_DIGITS} with an exponent" if schema.precision > DOUBLE_DIGITS else ""
    return f"expected a number such as 12.5, with at most {schema.precision - schema.scale} digits before the point{exact}"


def _wrong_elements(values: Column, schema: DataType, path: str) -> Iterator[Column]:
    if _is_plain(schema):
        for leaves, name, where in _numbers(values, schema, path):
            for sign in ("inf", "-inf"):
                is_beyond = f.array_contains(leaves, f.lit(float(sign)).cast(name))
                yield f.when(is_beyond, f"{where} is beyond {name.upper()}")
        return

    def find(each: Column) -> Column:
        return find_wrong(each, settle(each, schema), schema, path)

    is_wrong = f.exists(values, lambda each: find(each).isNotNull())
    found = f.filter(f.transform(values, find), lambda why: why.isNotNull())
    yield f.when(is_wrong, f.get(found, 0))


def _numbers(values: Column, schema: DataType, path: str) -> Iterator[tuple[Column, str, str]]:
    """Yield arrays of the numbers that may be infinite in an array's elements, with their type and place."""
    if isinstance(schema, StructType):
        for each in schema:
            yield from _numbers(values[each.name], each.dataType, f"{path}.{each.name}")
    elif schema.simpleString() in INFINITE:
        yield values, schema.simpleString(), path


def _is_plain(schema: DataType) -> bool:
    """Return whether nothing can be wrong with an array's elements but that a number is infinite."""
    if isinstance(schema, StructType):
        return all(each.nullable and _is_plain(each.dataType) for each in schema)
    has_rules = any(True for _ in _wrong_parts(f.lit(None), f.lit(None), schema, ""))
    return schema.simpleString() in INFINITE or not has_rules


def is_null(value: Column, schema: DataType) -> Column:
    """Return whether a value that was read as `read_type` says is null, or not there."""
    return value.isNull() | f.is_variant_null(value) if _is_variant(schema) else value.isNull()
