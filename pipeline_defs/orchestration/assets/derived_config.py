"""What defs.yaml says of decoding, of event days and of latest records, as Dagster's component model reads it.

Wrong keys and values are refused with their line; the columns that it names are checked against its schemas. No registry is
asked, and neither Spark nor Kafka is started. Invariant: what is not certainly wrong is not refused.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from ...adapters.system.extras import require
from ...adapters.system.text_files import UnreadableText, read_text_file
from ...adapters.system.yaml_text import shown
from ...core.decode.columns import ANY, Column, NotDdl, check_event_time, check_sequence, parse_ddl, row_of
from ...core.decode.decoders import SERIALIZED, Decode, Format, Side
from ...core.errors import BadSetting
from ...core.tables.days import Days, EventTime, parse_day
from ...core.tables.decoding import Budget
from ...core.tables.latest import Latest
from .yaml_model import LITERAL, WRITTEN, YamlModel, number, one_of

UNFIT = {"variant", "void", "interval"}  # kinds of columns that Spark has and a decoded table has not
EXTRA_OF: Mapping[str, str] = {Format.JSON_SCHEMA: "json-schema", Format.PROTOBUF: "protobuf"}


def row_of_decode(decode: Decode) -> Column:
    """Return the columns of decoded rows, as far as they are known; raise `BadSetting` or `UnusableSchema`."""
    return row_of(*(read_side(side, name) for name, side in decode.sides.items()))


@lru_cache(maxsize=1_000)
def read_side(side: Side, name: str) -> Column:
    """Return the column of keys, or values, as far as it is known; raise `BadSetting` or `UnusableSchema`."""
    what = f"the {side.format} schema of `decode.{name}`"
    if side.format == Format.STRING:
        return Column("text")
    if side.format == Format.NONE:
        return Column("binary")
    if side.format in SERIALIZED:
        return parse_ddl(SERIALIZED[side.format])
    if side.schema is None:  # in a registry, which is asked on decoding, or of a user's own format
        return ANY
    match Format(side.format):
        case Format.JSON:
            return _read_ddl(side.schema, name)
        case Format.AVRO:
            from ...adapters.formats.spark_avro import reader_schema

            return reader_schema(side.schema, (), what).column
        case Format.PROTOBUF:
            return _read_proto(side.schema, side.message, what)
        case _:
            from ...adapters.formats.json_checks import read_columns

            return parse_ddl(read_columns(side.schema, {}, what)[1])


def _read_ddl(text: str, name: str) -> Column:
    try:
        found = parse_ddl(text, of_json=True)
        if unfit := next((each.kind for each in found.walk() if each.kind in UNFIT), None):
            raise NotDdl(f"it has {unfit.upper()}, which no JSON becomes and other readers of the table do not know")
        return found
    except NotDdl as error:
        raise BadSetting(
            f"the schema of `decode.{name}` is not Spark's DDL, expected such as `id BIGINT, at TIMESTAMP`: {error}; nothing "
            "was decoded; correct `inline_schema`, or the file that `schema_file` names, in defs.yaml"
        ) from error


def _read_proto(text: str, message: str | None, what: str) -> Column:
    from ...adapters.formats.protobuf_schema import columns_of as columns_of_message
    from ...adapters.formats.protobuf_schema import compile_proto, find_message

    return columns_of_message(find_message(compile_proto(text, {}, what), message, what))


def _as_text(value: object) -> object:
    """Return a schema as text: Dagster parses JSON that is also valid Python, and people may write it as YAML."""
    return json.dumps(value) if isinstance(value, dict | list) else value


def _format(value: str) -> str:
    """Return the name of a format; users' own formats are looked up only where it is none of ours, as that imports Spark."""
    if value in {*Format}:
        return value
    from ...adapters.formats.own_formats import own_formats

    return one_of(value, [*Format, *own_formats()])


def _package(name: str) -> str | None:
    if name in {*Format}:
        return None
    from ...adapters.formats.own_formats import package_of

    return package_of(name)


class SideConfig(YamlModel):
    """How keys, or values, are decoded."""

    format: Annotated[str, WRITTEN, AfterValidator(_format)] = Field(
        default="none",
        description="none (bytes), string (UTF-8), json, json_schema, avro or protobuf; or what Kafka's own serializers write: "
        "short, integer, long, float, double, uuid; or a format of your own, by the name of its entry point",
    )
    inline_schema: Annotated[str | None, LITERAL, BeforeValidator(_as_text)] = Field(
        default=None, description="the schema: for json Spark's DDL, `id BIGINT NOT NULL, at TIMESTAMP`"
    )
    schema_file: Annotated[str | None, WRITTEN] = Field(
        default=None, min_length=1, description="or a file that holds it, a path from the project's folder"
    )
    registry: Annotated[str | None, WRITTEN] = Field(
        default=None, min_length=1, description="or the URL of a Schema Registry: records are of Confluent's wire format"
    )
    subject: Annotated[str | None, WRITTEN] = Field(
        default=None, min_length=1, description="the registry's subject, by default <topic>-<side>"
    )
    message: Annotated[str | None, WRITTEN] = Field(
        default=None,
        min_length=1,
        description="the Protobuf message, where there are several, or the record in the subject's name",
    )

    def as_side(self, name: str, project: Path) -> Side:
        """Return the side as the pipeline sees it; raise `BadSetting`."""
        where = f"`decode.{name}`"
        if self.format in EXTRA_OF:
            require(EXTRA_OF[self.format], f"format {self.format} of {where}")
        if self.registry is not None:
            require("registry", f"`registry` of {where}")
        schema = self.inline_schema
        if self.schema_file is not None:
            if schema is not None:
                raise BadSetting(
                    f"{where} has inline_schema and schema_file, expected one of them; nothing was decoded; delete one"
                )
            path = project / self.schema_file
            try:
                if not path.resolve().is_relative_to(project.resolve()):
                    raise UnreadableText("it is not below the project's folder")
                schema = read_text_file(path)
            except (ValueError, RuntimeError) as error:  # of a path with a NUL, and of a loop of links
                raise BadSetting(
                    f"{where} names schema_file {shown(self.schema_file)}, which cannot be read: {error}; nothing was decoded; "
                    "name a file below the project's folder"
                ) from None
        try:
            return Side(self.format, schema, self.registry, self.subject, self.message, _package(self.format))
        except ValueError as error:
            raise BadSetting(f"{where} in defs.yaml: {error}; nothing was decoded; correct it") from error


class BudgetConfig(YamlModel):
    """How many records of a range may be set aside before the range fails."""

    records: Annotated[int, number(0, 2**31 - 1)] = Field(default=Budget().records, description="so many, and")
    share: Annotated[float, number(0, 1)] = Field(
        default=Budget().share,
        description="so much of the range's records, from 0 to 1; one is always within it, unless it is 0",
    )


class DecodeConfig(YamlModel):
    """How a topic's landed ranges are decoded."""

    key: SideConfig = Field(default_factory=SideConfig, description="how keys are decoded")
    value: SideConfig = Field(default_factory=SideConfig, description="how values are decoded")
    dead_letters: BudgetConfig = Field(default_factory=BudgetConfig, description="the budget of records set aside")

    def as_decode(self, project: Path) -> Decode:
        """Return what the pipeline sees; raise `BadSetting` or `UnusableSchema`, for a schema that is wrong in itself too."""
        decode = Decode(
            self.key.as_side("key", project),
            self.value.as_side("value", project),
            Budget(self.dead_letters.records, self.dead_letters.share),
        )
        row_of_decode(decode)
        return decode


def _day(value: str) -> str:
    try:
        return parse_day(value)
    except ValueError:
        raise ValueError(f"expected a day such as 2013-01-01, found {value!r}") from None


class DaysConfig(YamlModel):
    """How a topic's decoded rows are counted by day."""

    start: Annotated[str, WRITTEN, AfterValidator(_day)] = Field(
        description="the first day, such as 2013-01-01; Dagster is told of no day before"
    )
    event_time: Annotated[str, WRITTEN] = Field(
        default=EventTime().path,
        description="a column's path in the decoded row, `value.ordered_at`: a TIMESTAMP, a DATE, or an integer with a unit",
    )
    unit: Annotated[str | None, WRITTEN] = Field(default=None, description="of an integer: s, ms or us since 1970")

    def as_days(self, topic: str, decode: Decode | None) -> Days:
        """Return what the pipeline sees; raise `BadSetting`."""
        if decode is None:
            raise BadSetting(
                f"topic {topic} has `days` and no `decode`, expected both: days are those of decoded rows; nothing was "
                "written; add `decode: {}` to defs.yaml for days of rows whose keys and values are bytes"
            )
        try:
            days = Days(self.start, EventTime(self.event_time, self.unit))
        except ValueError as error:
            raise BadSetting(
                f"topic {topic} has wrong `days` in defs.yaml: {error}; nothing was written; correct it"
            ) from error
        check_event_time(row_of_decode(decode), days.event_time)
        return days


class LatestConfig(YamlModel):
    """How the latest record of each key is found."""

    sequence: str | None = Field(
        default=None,
        description="path of the decoded field whose greatest value is the latest, such as value.version; by default the "
        "offset in the Kafka partition decides",
    )

    def as_latest(self, topic: str, decode: Decode | None) -> Latest:
        """Return what the pipeline sees; raise `BadSetting`."""
        if decode is None:
            raise BadSetting(
                f"topic {topic} has `latest` and no `decode`, expected both: it is made of decoded records; nothing was "
                "written; add `decode: {}` to defs.yaml for keys and values that are bytes"
            )
        if any(column.kind == "map" for column in read_side(decode.key, "key").walk()):
            raise BadSetting(
                f"topic {topic} has `latest`, and `decode.key` with a MAP, expected keys without one: Spark cannot tell which "
                "maps are equal; nothing was written; give keys a schema without it, or take `latest` out of defs.yaml"
            )
        latest = Latest(self.sequence)
        if self.sequence is not None:
            check_sequence(row_of_decode(decode), self.sequence, topic)
        return latest
