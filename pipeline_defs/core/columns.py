"""Columns of a decoded row as far as its configuration says them, before anything is decoded.

Nothing here reads a schema. Invariant: what is not known has no kind, and is never refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .days import EventTime, Kind
from .near import meant


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
    found, at = row, ""
    for name in event_time.parts:
        if found.kind is None:
            return
        if name not in found.fields:
            times = [path for path, each in row.paths() if each.kind is None or event_time.accepts(_time(each.kind))]
            names = f"of {', '.join(found.fields)}" if found.fields else f"a {found.kind}"
            raise event_time.refuse(
                f"no column {name} in {at or 'the row'}, which is {names}{meant(event_time.path, times)}"
            )
        found, at = found.fields[name], f"{at}.{name}".lstrip(".")
    if found.kind is not None and not event_time.accepts(_time(found.kind)):
        raise event_time.refuse(f"a {found.kind}")


def _time(kind: str) -> Kind | None:
    match kind:
        case "timestamp" | "date" | "integer":
            return kind
        case _:
            return None
