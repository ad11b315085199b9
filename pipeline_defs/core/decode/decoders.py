"""How a topic's keys and values are decoded according to its defs.yaml: values by which two decoders can be compared.

Nothing here decodes. Invariant: a side that exists has a known format, and a schema where its format needs one.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from ..setting_values import check_web_address
from ..tables.days import EventTime
from ..tables.decoding import Budget


class Format(StrEnum):
    """What the bytes of a key or value are."""

    NONE = "none"  # the bytes themselves
    STRING = "string"  # UTF-8
    JSON = "json"
    JSON_SCHEMA = "json_schema"  # JSON that follows a JSON Schema
    AVRO = "avro"
    PROTOBUF = "protobuf"
    SHORT = "short"
    INTEGER = "integer"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    UUID = "uuid"


SERIALIZED: Mapping[str, str] = {
    Format.SHORT: "SMALLINT",
    Format.INTEGER: "INT",
    Format.LONG: "BIGINT",
    Format.FLOAT: "FLOAT",
    Format.DOUBLE: "DOUBLE",
    Format.UUID: "STRING",
}
"""Formats of Kafka's own serializers, which have no schema: the column's type in Spark's DDL."""


WITH_SCHEMA = frozenset({Format.JSON, Format.JSON_SCHEMA, Format.AVRO, Format.PROTOBUF})
"""Formats that need a schema; custom formats take none."""
REGISTERED = WITH_SCHEMA - {Format.JSON}
"""Formats whose schema may be in a registry."""

BY_RECORD = frozenset({"record_name", "topic_record_name"})
"""Values of `subject` (see `name_subject`) that need a record's name: `message`."""


@dataclass(frozen=True, slots=True)
class Side:
    """How keys, or values, are decoded: by a `Format`, or by the name of a custom one.

    `schema` is the schema itself: for `json` Spark's DDL (`id BIGINT, at TIMESTAMP`), for the others in their own language.
    With `registry`, the URL of a Schema Registry, records have Confluent's wire format, and `schema` is none or the reader's
    schema; `subject` is the registry's name for it. `message` is the Protobuf message, where there are several, or the record
    that a subject of `BY_RECORD` is named after.
    `package` is the package of a custom format, with its version: another version is another decoder.
    """

    format: str = Format.NONE
    schema: str | None = None
    registry: str | None = None
    subject: str | None = None
    message: str | None = None
    package: str | None = None

    def __post_init__(self) -> None:
        needs_schema = self.format in WITH_SCHEMA
        if self.registry and self.format not in REGISTERED:
            raise ValueError(
                f"decode {self.format} takes no `registry`, found one; expected it with {', '.join(sorted(REGISTERED))}"
            )
        if self.subject and not self.registry:
            raise ValueError("`subject` names a schema of a registry, expected `registry` beside it")
        if self.subject in BY_RECORD and not (self.message or self.schema):
            raise ValueError(
                f"`subject: {self.subject}` has no record's name, expected `message` beside it: the full name of the record, "
                "such as com.acme.Order, that all are read with"
            )
        if needs_schema and not (self.schema or self.registry):
            or_registry = ", or `registry`" if self.format in REGISTERED else ""
            raise ValueError(
                f"decode {self.format} has no schema, expected `inline_schema` or `schema_file`{or_registry} beside it"
            )
        if not needs_schema and self.schema:
            raise ValueError(f"decode {self.format} takes no schema, found one")
        if "@" in (self.registry or ""):  # the URL is in errors, documents and the UI: it is not repeated here
            raise ValueError(
                "`registry` has a login in it, expected the address alone; write the login as "
                "schema.registry.basic.auth.user.info into the file that OFFSETLAKE_KAFKA_PROPERTIES names"
            )
        for number, address in enumerate((self.registry or "").split(",") if self.registry else (), 1):
            try:
                check_web_address(address.strip())
                if "?" in address or "#" in address:
                    raise ValueError("it has ? or # in it (what follows is not shown), expected the address alone")
            except ValueError as error:
                raise ValueError(f"`registry` address {number}: {error}") from None


@dataclass(frozen=True, slots=True)
class Decode:
    """How a topic is decoded; `budget` limits the dead letters of a range.

    `event_time`, where the topic has days, is the source of the column `event_time`, by which rows are counted.
    """

    key: Side = field(default_factory=Side)
    value: Side = field(default_factory=Side)
    budget: Budget = field(default_factory=Budget)
    event_time: EventTime | None = None

    @property
    def sides(self) -> Mapping[str, Side]:
        """Both sides by the name of their column."""
        return {"key": self.key, "value": self.value}

    @property
    def fingerprint(self) -> str:
        """A digest that is equal where the same bytes give the same rows; the budget is not part of it."""
        parts = [asdict(self.key), asdict(self.value), *([self.event_time.text] if self.event_time else [])]
        sides = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(sides.encode()).hexdigest()[:16]

    def fingerprint_with(self, schemas: Mapping[str, str]) -> str:
        """Return the fingerprint with a registry's schemas; the same as `fingerprint` where there are none."""
        if not schemas:
            return self.fingerprint
        return hashlib.sha256(json.dumps([self.fingerprint, dict(schemas)], sort_keys=True).encode()).hexdigest()[:16]


def name_subject(subject: str | None, topic: str, column: str, record: str) -> str:
    """Return the subject of a topic's keys or values (`column`); `record` is the full name that a strategy may use.

    | `subject` in defs.yaml | the subject of the values of `orders` |
    |---|---|
    | nothing, or `topic_name` | `orders-value` |
    | `record_name` | the record's full name, `com.acme.Order` |
    | `topic_record_name` | `orders-com.acme.Order` |
    | anything else | what is written |
    """
    match subject:
        case None | "topic_name":
            return f"{topic}-{column}"
        case "record_name":
            return record
        case "topic_record_name":
            return f"{topic}-{record}"
        case _:
            return subject
