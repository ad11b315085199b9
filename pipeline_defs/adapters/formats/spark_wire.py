"""Confluent's wire format in Spark: a 0 byte, four bytes of schema id, and what was written with that schema.

Reads which ids some rows have, looks them up, and tells the rows apart by them. Decodes nothing of what comes after.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ...core.decode.decoders import Side, name_subject
from ...core.errors import UnknownSubject, UnusableSchema, unusable_schema
from ..kafka.schema_registry import Registered, Registry

Usable = TypeVar("Usable")

HEAD = 5  # bytes: the 0 byte and the id
MOST_IDS = 1_000
"""How many ids are looked up: bytes that are of another format may begin with any number of them."""
UNUSABLE = "unusable_schema"


@dataclass(frozen=True, slots=True)
class Reader:
    """A schema that rows are read with, what it refers to by name, and `what` messages call it."""

    text: str
    references: Mapping[str, str]
    what: str


@dataclass(frozen=True, slots=True)
class Wire:
    """What rows of one topic say of their writers; `broken` are ids whose schema the registry cannot give whole, and why.

    It `is_cut` if there are more ids than are looked up.
    """

    registry: Registry
    topic: str
    column: str
    writers: Mapping[int, Registered]
    broken: Mapping[int, str]
    is_cut: bool

    def read_reader(self, side: Side, kind: str) -> Reader:
        """Return what all rows of a topic are read with: the side's own schema, else the latest version of its subject.

        `kind` is a language such as AVRO.
        """
        if side.schema:
            return Reader(side.schema, {}, f"the reader's schema of {self.topic}'s {self.column}")
        latest = self.registry.read_latest(name_subject(side.subject, self.topic, self.column, side.message or ""))
        what = f"schema {latest.id} of registry {self.registry.url}"
        if latest.kind != kind:
            raise unusable_schema(what, f"it is {latest.kind}, expected {kind}")
        return Reader(latest.text, latest.references, what)

    def explain(self, raw: Column, failures: Mapping[int, tuple[str, str]]) -> tuple[Column, Column]:
        """Return class and text of what is wrong with a row that was not decoded; `failures` are those of each writer."""
        failures = {**failures, **{each: (UNUSABLE, reason) for each, reason in self.broken.items()}}
        unasked = f", or was not asked for it, as rows have more than {MOST_IDS:,} ids" if self.is_cut else ""
        strange = f.format_string(f"registry {self.registry.url} has no schema %s{unasked}", _number(raw))
        begun = f.when(f.length(raw) > 0, f.concat(f.lit(", "), f.hex(f.substring(raw, 1, HEAD)))).otherwise("")
        found = f.concat(f.length(raw).cast("string"), f.lit(" bytes"), begun)
        short = f.concat(f.lit("expected a 0 byte and four bytes of schema id in front, found "), found)
        framed = is_framed(raw)
        classes = {each: f.lit(failure[0]) for each, failure in failures.items()}
        texts = {each: f.lit(failure[1]) for each, failure in failures.items()}
        return (
            choose_by_id(raw, classes, f.when(framed, "unknown_schema_id").otherwise("not_wire_format")),
            choose_by_id(raw, texts, f.when(framed, strange).otherwise(short)),
        )


def read_wire(rows: DataFrame, column: str, registry: Registry) -> Wire:
    """Look up the ids of some rows; a Spark job over `column`. Raises `RegistryUnavailable`."""
    head = f.when(is_framed(f.col(column)), f.substring(column, 1, HEAD))  # what is of another format counts once, as null
    counted = rows.groupBy("topic", head.alias("head")).count()
    found = counted.orderBy(f.desc("count"), "head").limit(MOST_IDS + 2).collect()
    ids = [int.from_bytes(row.head[1:]) for row in found if row.head is not None]
    writers, broken = {}, {}
    for each in sorted(ids[:MOST_IDS]):
        try:
            schema = registry.read_schema(each) if each < 1 << 31 else None
        except (UnusableSchema, UnknownSubject) as error:
            broken[each] = f"written with schema {each}, which cannot be had: {error.message.partition('; nothing')[0]}"
        else:
            if schema is not None:
                writers[each] = schema
    return Wire(registry, found[0].topic if found else "", column, writers, broken, len(ids) > MOST_IDS)


def usable(
    writers: Mapping[int, Registered], kind: str, use: Callable[[Registered], Usable]
) -> tuple[dict[int, Usable], dict[int, tuple[str, str]]]:
    """Return what `use` makes of each writer's schema, and the failure of each that cannot be used or is of another kind.

    A schema that cannot be used does not affect the others: only what was written with it is set aside.
    """
    used, failures = {}, {}
    for each, schema in writers.items():
        if schema.kind != kind:
            failures[each] = ("wrong_schema_type", f"schema {each} is {schema.kind}, expected {kind}")
            continue
        try:
            used[each] = use(schema)
        except UnusableSchema as error:
            reason = error.fields.get("reason", str(error))
            failures[each] = (UNUSABLE, f"written with schema {each}, which cannot be used: {reason}")
    return used, failures


def head_of(schema_id: int) -> bytes:
    """Return the bytes in front of what was written with a schema."""
    return b"\0" + schema_id.to_bytes(4)


def choose_by_id(raw: Column, choices: Mapping[int, Column], otherwise: Column) -> Column:
    """Return the choice for the row's schema id; all in one expression, so that all rows go into one file."""
    head = f.substring(raw, 1, HEAD)
    chosen = f.when(f.lit(False), otherwise)  # noqa: FBT003
    for each, choice in choices.items():
        chosen = chosen.when(head == f.lit(head_of(each)), choice)
    return chosen.otherwise(otherwise)


def schema_id(raw: Column) -> Column:
    """Return the id in front of a key or value; null if that is not of the wire format."""
    return f.when(is_framed(raw), _number(raw).try_cast("int"))


def is_framed(raw: Column) -> Column:
    """Return whether a key or value has the 0 byte and an id."""
    return (f.length(raw) >= HEAD) & (f.substring(raw, 1, 1) == f.lit(b"\0"))


def _number(raw: Column) -> Column:
    """Return the id as a text of decimal digits."""
    return f.conv(f.hex(f.substring(raw, 2, HEAD - 1)), 16, 10)
