"""What defs.yaml says of decoding, as Dagster's component model reads it; wrong keys and values are refused with their line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from .core.decoders import Decode, Format, Side
from .core.decoding import Budget
from .core.errors import BadSetting
from .edges.text_files import MIB, UnreadableText, read_text_file
from .edges.yaml_text import shown
from .schema_checks import row_of_decode
from .yaml_model import LITERAL, WRITTEN, YamlModel, number, word


def _as_text(value: object) -> object:
    """Return a schema as text: Dagster makes an object of JSON that is Python too, and people may write one in YAML."""
    return json.dumps(value) if isinstance(value, dict | list) else value


MOST_BYTES_OF_A_SCHEMA = 16 * MIB


class SideConfig(YamlModel):
    """Says how keys, or values, are decoded."""

    format: Annotated[str, WRITTEN, word(*Format)] = Field(
        default="none",
        description="none (bytes), string (UTF-8), json, json_schema, avro or protobuf; or what Kafka's own serializers write: "
        "short, integer, long, float, double, uuid",
    )
    inline_schema: Annotated[str | None, LITERAL, BeforeValidator(_as_text)] = Field(
        default=None, description="the schema: for json Spark's DDL, `id BIGINT NOT NULL, at TIMESTAMP`"
    )
    schema_file: Annotated[str | None, WRITTEN] = Field(
        default=None, min_length=1, description="or a file that holds it, a path from the project's folder"
    )
    registry: Annotated[str | None, WRITTEN] = Field(
        default=None,
        min_length=1,
        description="or the URL of a Schema Registry: records are of Confluent's wire format",
    )
    subject: Annotated[str | None, WRITTEN] = Field(
        default=None, min_length=1, description="the registry's subject, by default <topic>-<side>"
    )
    message: Annotated[str | None, WRITTEN] = Field(
        default=None, min_length=1, description="the Protobuf message, where there are several"
    )

    def as_side(self, name: str, project: Path) -> Side:
        """Returns the side as the pipeline sees it; raises `BadSetting`."""
        where = f"`decode.{name}`"
        schema = self.inline_schema
        if self.schema_file is not None:
            if schema is not None:
                raise BadSetting(
                    f"{where} has inline_schema and schema_file, expected one of them; nothing was decoded"
                )
            path = project / self.schema_file
            try:
                if not path.resolve().is_relative_to(project.resolve()):
                    raise UnreadableText("it is not below the project's folder")
                schema = read_text_file(path, MOST_BYTES_OF_A_SCHEMA)
            except UnreadableText as error:
                raise BadSetting(
                    f"{where} names schema_file {shown(self.schema_file)}, which cannot be read: {error}; nothing was decoded; "
                    "name a file below the project's folder"
                ) from None
        try:
            return Side(Format(self.format), schema, self.registry, self.subject, self.message)
        except ValueError as error:
            raise BadSetting(f"{where} in defs.yaml: {error}; nothing was decoded; correct it") from error


class BudgetConfig(YamlModel):
    """Says how many records of a range may be set aside before the range fails."""

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
