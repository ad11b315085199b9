"""Decoding in Spark: landed files in, per file one of decoded rows and, where any are bad, one of dead letters.

One landed file is one task is one file, in the order of its rows. Nothing here is visible or decides anything. What Kafka's own
serializers write is decoded without Python and as it was written, -0.0, NaN, infinities and the least numbers included.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError
from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type

from ...core.decode.decoders import SERIALIZED, Decode, Format, Side
from ...core.errors import unusable_schema
from ...core.login.client_properties import ANYBODY, RegistryLogin
from ...core.tables.days import FIRST, LAST, SECONDS_A_DAY, UNITS, EventTime
from ...core.tables.decoded_table import EVENT_TIME, IDENTITY
from ..lake.parquet import RAW_SCHEMA
from ..spark.engine import Engine
from ..spark.spark import SCAN_CONF, paths_of, write_parquet
from ..store.remote_file import File
from .decoded import Decoded, SideOutcome, decoded_where_not_null, failed, is_of_a_calendar, no_id
from .own_formats import decode_own, told
from .spark_avro import decode_avro
from .spark_json import decode_json, decode_json_schema

BYTES: Mapping[str, int] = {Format.SHORT: 2, Format.INTEGER: 4, Format.LONG: 8, Format.FLOAT: 4, Format.DOUBLE: 8}
FRACTION_BITS: Mapping[str, int] = {
    Format.FLOAT: 23,
    Format.DOUBLE: 52,
}  # of IEEE 754; the rest, but for the sign, is the exponent
UUID = r"(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z"
WHOLE_FILES = str(1 << 40)  # bytes: no file is cut, and none shares a task with another one
DECODE_CONF: Mapping[str, str] = {
    **SCAN_CONF,
    "spark.sql.files.maxPartitionBytes": WHOLE_FILES,
    "spark.sql.files.openCostInBytes": WHOLE_FILES,
    "spark.sql.json.enablePartialResults": "false",  # nobody reads what a text that does not fit gives; 4 % of the job
    "spark.sql.variant.allowDuplicateKeys": "true",  # a text with a field twice is JSON all the same
    "spark.sql.shuffle.partitions": "1",  # only a registry's ids are ever shuffled
}
ZSTD_LEVEL = 1  # what can be made again, and is soon compacted, need not be as small as what is landed
# read as text, whatever bytes they are: Spark copies BINARY wherever it is asked for
TEXTS = (Format.JSON, Format.STRING, Format.UUID)
STILL_SECONDS = 300.0  # at least, for a job to finish a file, which takes seconds
STILL_SECONDS_PER_ROW = 0.002
BY_SPARK = (Format.NONE, Format.STRING, Format.AVRO, *SERIALIZED)  # without any Python worker
READ, RIGHT = "_read", "_right"  # the columns of what is read of keys and values, and of whether it is right
Decoder = Callable[["DataFrame", str, Side, RegistryLogin], Decoded]
KINDS: Mapping[type[types.DataType], str] = {
    **dict.fromkeys((types.TimestampType, types.TimestampNTZType), "timestamp"),
    types.DateType: "date",
    **dict.fromkeys((types.ByteType, types.ShortType, types.IntegerType, types.LongType), "integer"),
}


def decode_serialized(raw: Column, side: Side) -> Decoded:
    """Decode what a serializer of Kafka's wrote; anything of another length, or that is no UUID, is an error."""
    if side.format == Format.UUID:
        text = raw.cast("string")
        value, wrong = f.when(text.rlike(UUID), f.lower(text)), f.lit("expected the 36 characters of a UUID")
    else:
        size = f.octet_length(raw)
        value = f.when(size == BYTES[side.format], _number(f.hex(raw), side.format))
        wrong = f.concat(f.lit("found "), size.cast("string"), f.lit(f" bytes, expected {BYTES[side.format]}"))
    return decoded_where_not_null(raw, value.cast(SERIALIZED[side.format]), failed(f"{side.format}_malformed", wrong))


def _number(digits: Column, kind: str) -> Column:
    """Return the number whose bits are given as hexadecimal digits."""
    width = 8 * BYTES[kind]
    # never more than 64 bits, even of keys that are too long: Spark may work this out for them and not use it
    bits = f.conv(f.substring(digits, 1, width // 4), 16, -10).cast("bigint")
    if kind not in FRACTION_BITS:
        return bits if width == 64 else f.when(bits < 1 << (width - 1), bits).otherwise(bits - (1 << width))
    fraction_bits = FRACTION_BITS[kind]
    exponent_bits = width - 1 - fraction_bits
    exponent = f.shiftrightunsigned(bits, fraction_bits).bitwiseAND((1 << exponent_bits) - 1)
    fraction = bits.bitwiseAND((1 << fraction_bits) - 1)
    sign = f.when(f.shiftrightunsigned(bits, width - 1).bitwiseAND(1) == 1, f.lit(-1.0)).otherwise(f.lit(1.0))
    whole = f.when(exponent == 0, fraction).otherwise(fraction + (1 << fraction_bits)).cast("double")
    # the least exponent has two codes: 0, for numbers without the implicit bit that all others have, and 1
    least = 1 - (1 << (exponent_bits - 1)) + 1 - fraction_bits
    power = f.pow(f.lit(2.0), f.greatest(exponent, f.lit(1)) - 1 + least)
    beyond = f.when(fraction == 0, f.lit(float("inf"))).otherwise(f.lit(float("nan")))
    return sign * f.when(exponent == (1 << exponent_bits) - 1, beyond).otherwise(whole * power)


def raw_ddl(key: str = "BINARY", value: str = "BINARY") -> str:
    """Return the columns of landed rows in Spark's DDL, keys and values in the types that they are read as."""
    types = {field.name: from_arrow_type(field.type).simpleString() for field in RAW_SCHEMA} | {"key": key, "value": value}
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def decode_none(raw: Column) -> Decoded:
    """Leave bytes as they are."""
    nothing = f.lit(None).cast("string")
    return Decoded(raw, lambda raw: SideOutcome(raw, f.lit(True), failed(nothing, nothing), no_id()))  # noqa: FBT003


def decode_string(raw: Column) -> Decoded:
    """Read UTF-8; other bytes are an error, never replacement characters."""
    failure = failed("not_utf8", f.lit("the bytes are not UTF-8"))
    return decoded_where_not_null(raw, f.try_validate_utf8(raw.cast("string")), failure)


def _protobuf(rows: DataFrame, column: str, side: Side, login: RegistryLogin) -> Decoded:
    from .spark_protobuf import decode_protobuf  # of an extra

    return decode_protobuf(rows, column, side, login)


DECODERS: Mapping[str, Decoder] = {
    Format.NONE: lambda _rows, column, _side, _login: decode_none(f.col(column)),
    Format.STRING: lambda _rows, column, _side, _login: decode_string(f.col(column)),
    Format.JSON: lambda _rows, column, side, _login: decode_json(f.col(column), side.schema or ""),
    Format.JSON_SCHEMA: decode_json_schema,
    Format.AVRO: decode_avro,
    Format.PROTOBUF: _protobuf,
    **dict.fromkeys(SERIALIZED, lambda _rows, column, side, _login: decode_serialized(f.col(column), side)),
}


def find_decoder(name: str) -> Decoder:
    """Return the decoder of a format: ours, or a user's own."""
    return DECODERS.get(name) or (lambda rows, column, _side, _login: decode_own(rows, column, name))


@dataclass(frozen=True, slots=True)
class Decision:
    """How keys and values of rows decode."""

    sides: Mapping[str, Decoded]  # by key, value

    @property
    def schemas(self) -> Mapping[str, str]:
        """What decided the outcome beside the configuration, by side and id."""
        return {f"{side}:{what}": text for side, decoded in self.sides.items() for what, text in decoded.schemas.items()}

    def read(self, rows: DataFrame) -> tuple[DataFrame, Mapping[str, SideOutcome]]:
        """Decode rows: return them with two more columns, and what became of each side in terms of these."""
        # Spark inlines what a column is made of wherever that column is used, and would decode each record once for each
        # part of it, and again for each filter. It does not inline what is not deterministic, as this number
        once = f.monotonically_increasing_id().alias("once")
        read = f.struct(*(decoded.read.alias(side) for side, decoded in self.sides.items()), once)
        outcomes = {side: decoded.judge(f.col(READ)[side]) for side, decoded in self.sides.items()}
        # a column of its own: within a filter, what is used twice is worked out twice
        right = f.struct(*(outcome.is_right.alias(side) for side, outcome in outcomes.items()), once)
        judged = {side: replace(outcome, is_right=f.col(RIGHT)[side]) for side, outcome in outcomes.items()}
        return rows.withColumn(READ, read).withColumn(RIGHT, right), judged


class SparkDecoder:
    """Decoder of landed files of one topic."""

    def __init__(self, engine: Engine, decode: Decode, login: RegistryLogin = ANYBODY) -> None:
        self._engine = engine
        self._sides = decode.sides
        self._event_time = decode.event_time
        self._login = login

    @property
    def writer(self) -> str:
        """Name of what writes a file: equal bytes can be expected only from the same writer."""
        return f"spark {self._engine.version}"

    def decide(self, files: Sequence[File]) -> Decision:
        """Decide how rows of landed files decode, including all that a registry is asked.

        Call it once per job: asked again for the dead letters, a registry with a new version might leave a row in neither.
        """
        consequence = "nothing became visible; the ranges that are landed still are decoded at the next try"
        with self._engine.job(DECODE_CONF, f"read {len(files)} landed files", consequence) as session:
            if any(side.format not in BY_SPARK for side in self._sides.values()):
                self._engine.ready_workers(session)
            rows = self._read(session, files)
            return Decision(
                {name: find_decoder(side.format)(rows, name, side, self._login) for name, side in self._sides.items()}
            )

    def stage_decoded(self, files: Sequence[File], decision: Decision, folder: str, most_rows: int = 0) -> None:
        """Write the rows of landed files that can be decoded below `folder`; `most_rows` is how many one of them has.

        Raises `JobStuck` if no file is finished for long; those that are finished are in `folder`.
        """

        def good(read: DataFrame, sides: Mapping[str, SideOutcome]) -> DataFrame:
            columns = [*map(f.col, (*IDENTITY, "headers")), *(side.value.alias(name) for name, side in sides.items())]
            rows = read.where(sides["key"].is_right & sides["value"].is_right).select(*columns, *_schema_ids(sides))
            return rows if self._event_time is None else with_event_time(rows, self._event_time)

        self._stage(files, decision, good, folder, most_rows)

    def stage_dead_letters(self, files: Sequence[File], decision: Decision, folder: str, most_rows: int = 0) -> None:
        """Write the rows of landed files that cannot be decoded below `folder`, as they are, with what is wrong."""
        self._stage(files, decision, _dead_letters, folder, most_rows)

    def _stage(
        self,
        files: Sequence[File],
        decision: Decision,
        choose: Callable[[DataFrame, Mapping[str, SideOutcome]], DataFrame],
        folder: str,
        most_rows: int,
    ) -> None:
        consequence = "nothing became visible; the ranges stay landed, and are decoded at the next try"
        own = [f", {name} by {told(side.format)}" for name, side in self._sides.items() if side.format not in DECODERS]
        what = f"decode {len(files)} landed files{''.join(own)}"
        still_seconds = max(STILL_SECONDS, most_rows * STILL_SECONDS_PER_ROW)
        with self._engine.job(DECODE_CONF, what, consequence, still_seconds) as session:
            try:
                write_parquet(choose(*decision.read(self._read(session, files))), self._engine, folder, ZSTD_LEVEL)
            except (DecodeError, SystemError) as error:  # of the client's messages, which are 100 levels deep at most
                said = f"Spark's client cannot send what checks them: {error}; take levels out of it"
                raise unusable_schema("what keys and values are decoded to", said) from error

    def _read(self, session: SparkSession, files: Sequence[File]) -> DataFrame:
        types = {name: "STRING" if side.format in TEXTS else "BINARY" for name, side in self._sides.items()}
        return session.read.schema(raw_ddl(**types)).parquet(*paths_of(files))


def _dead_letters(read: DataFrame, sides: Mapping[str, SideOutcome]) -> DataFrame:
    key, value = sides["key"], sides["value"]
    failure = f.when(~key.is_right, key.failure).otherwise(value.failure)
    columns = [
        *map(f.col, IDENTITY),
        *(f.col(name).cast("binary").alias(f"raw_{name}") for name in sides),
        f.col("headers"),
        f.when(~key.is_right, "key").otherwise("value").alias("side"),
        failure["error_class"].alias("error_class"),
        failure["error"].alias("error"),
    ]
    return read.where(~(key.is_right & value.is_right)).select(*columns, *_schema_ids(sides))


def _schema_ids(sides: Mapping[str, SideOutcome]) -> list[Column]:
    return [side.schema_id.alias(f"{name}_schema_id") for name, side in sides.items()]


def with_event_time(rows: DataFrame, event_time: EventTime) -> DataFrame:
    """Return decoded rows with their event time; raise `BadSetting` if it is no column of theirs, or no time."""
    kind, found = _find(rows.schema, event_time)
    if not event_time.accepts(kind):
        raise event_time.refuse(found)
    column = time = f.col(".".join(f"`{name.replace('`', '``')}`" for name in event_time.parts))
    if kind == "integer" and event_time.unit:
        time = _from_integer(column, UNITS[event_time.unit])
    else:  # a cast of a date far beyond the calendar would fail the whole job
        time = f.when(is_of_a_calendar(column, types.DateType() if kind == "date" else types.TimestampType()), column)
    return rows.withColumn(EVENT_TIME, time.cast("timestamp"))


def _find(schema: types.StructType, event_time: EventTime) -> tuple[str | None, str]:
    found: types.DataType = schema
    at = "the row"
    for name in event_time.parts:
        if not isinstance(found, types.StructType) or name not in found.names:
            names = f"of {', '.join(found.names)}" if isinstance(found, types.StructType) else found.simpleString()
            return None, f"no column {name} in {at}, which is {names}"
        found, at = found[name].dataType, name
    return KINDS.get(type(found)), found.simpleString()


def _from_integer(column: Column, per_second: int) -> Column:
    """Return the moment so many units after 1970; null if no calendar has it: a cast beyond would fail the whole job."""
    first, end = (day * SECONDS_A_DAY * per_second for day in (FIRST, LAST + 1))
    micros = column.cast("bigint") * f.lit(1_000_000 // per_second)
    return f.when(column.between(first, end - 1), f.timestamp_micros(micros))
