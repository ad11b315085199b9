"""Columns of a decoded row as far as its configuration says them, before anything is decoded.

Nothing here reads a schema. Invariant: what is not known has no kind, and is never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from ..errors import BadSetting
from ..near import meant
from ..tables.days import EventTime
from ..tables.latest import refuse_sequence

_UNORDERED = frozenset({"struct", "list", "map", "boolean", "binary", "float"})


@dataclass(frozen=True, slots=True)
class Column:
    """A column's type: `kind` is none where it is not known; a struct has `fields` by name, a list or map what is `inner`."""

    kind: str | None
    fields: Mapping[str, Column] = field(default_factory=dict)
    inner: tuple[Column, ...] = ()

    def walk(self) -> Iterator[Column]:
        """Yield a column and all within it."""
        yield self
        for each in (*self.fields.values(), *self.inner):
            yield from each.walk()

    def paths(self, path: str = "") -> Iterator[tuple[str, Column]]:
        """Yield the columns of a struct, at any depth, by their path."""
        for name, each in self.fields.items():
            below = f"{path}.{name}".lstrip(".")
            yield below, each
            yield from each.paths(below)


ANY = Column(None)


def row_of(key: Column, value: Column) -> Column:
    """Return the decoded row of a topic with such keys and values."""
    whole, text = Column("integer"), Column("text")
    known = {"topic": text, "generation": whole, "partition": whole, "offset": whole, "timestamp": Column("timestamp")}
    return Column("struct", {**known, "headers": Column("list"), "key": key, "value": value})


def check_event_time(row: Column, event_time: EventTime) -> None:
    """Raise `BadSetting` where an event time is certainly no column of a row, or no time."""
    check_path(row, event_time.path, event_time.accepts, event_time.refuse)


def check_sequence(row: Column, sequence: str, topic: str) -> None:
    """Raise `BadSetting` where what orders the latest records is certainly no column of a row, or has no order."""
    check_path(row, sequence, lambda kind: kind not in _UNORDERED, partial(refuse_sequence, topic, sequence))


def check_path(row: Column, path: str, accepts: Callable[[str], bool], refuse: Callable[[str], BadSetting]) -> None:
    """Raise what `refuse` makes of what is there where a path is certainly no column of a row, or of no kind that fits."""
    found, at = row, ""
    for name in path.split("."):
        if found.kind is None:
            return
        if name not in found.fields:
            fitting = [path for path, each in row.paths() if each.kind is None or accepts(each.kind)]
            names = f"of {', '.join(found.fields)}" if found.fields else _one(found.kind)
            raise refuse(f"no column {name} in {at or 'the row'}, which is {names}{meant(path, fitting)}")
        found, at = found.fields[name], f"{at}.{name}".lstrip(".")
    if found.kind is not None and not accepts(found.kind):
        raise refuse(_one(found.kind))


def _one(kind: str) -> str:
    return f"an {kind}" if kind.startswith("i") else f"a {kind}"
