"""Columns of a decoded row before anything is decoded: from the configuration and from Spark's DDL, without Spark.

Nothing here decides what Spark makes of a schema. Invariant: a column of unknown type has no kind and is never refused, nor
is anything that Spark accepts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from ..advice import meant
from ..errors import BadSetting
from ..tables.days import EventTime
from ..tables.latest import refuse_sequence
from .schema_text import MOST_LEVELS

_UNORDERED = frozenset({"struct", "list", "map", "boolean", "binary", "float"})
KINDS: Mapping[str, str] = {
    **dict.fromkeys(("TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"), "integer"),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"), "timestamp"),
    **dict.fromkeys(("STRING", "CHAR", "CHARACTER", "VARCHAR"), "text"),
    **dict.fromkeys(("FLOAT", "REAL", "DOUBLE"), "float"),
    **dict.fromkeys(("DECIMAL", "DEC", "NUMERIC"), "decimal"),
    **{name: name.lower() for name in ("DATE", "BOOLEAN", "BINARY", "VARIANT", "VOID", "INTERVAL")},
}
NESTED = {"ARRAY": 1, "MAP": 2}
FOREIGN: Mapping[str, str] = {  # as other systems call them
    **dict.fromkeys(("TEXT", "UUID", "JSON", "STR"), "STRING"),
    **dict.fromkeys(("DATETIME", "TIMESTAMPTZ", "TIME"), "TIMESTAMP"),
    "BOOL": "BOOLEAN",
    "INT64": "BIGINT",
    "INT32": "INT",
    "FLOAT64": "DOUBLE",
    "NUMBER": "DECIMAL",
    "BYTES": "BINARY",
    "OBJECT": "STRUCT<name: TYPE>",
    "RECORD": "STRUCT<name: TYPE>",
    "LIST": "ARRAY<TYPE>",
}
MOST_DIGITS = 38
_DIGITS = re.compile(r"(\d{1,9})(?:,(\d{1,9}))?")
_TOKEN = re.compile(r"\s+|--[^\n]*|/\*.*?\*/|(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\w+|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Column:
    """A column's type: `kind` is none where it is unknown; a struct has `fields` by name, a list or map its `inner` types."""

    kind: str | None
    fields: Mapping[str, Column] = field(default_factory=dict)
    inner: tuple[Column, ...] = ()

    def walk(self) -> Iterator[Column]:
        """Yield this column and all within it."""
        yield self
        for each in (*self.fields.values(), *self.inner):
            yield from each.walk()

    def paths(self, path: str = "") -> Iterator[tuple[str, Column]]:
        """Yield the columns of a struct, at any depth, each with its path."""
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
    """Raise `BadSetting` where an event time certainly names no column of a row, or one that is no time."""
    check_path(row, event_time.path, event_time.accepts, event_time.refuse)


def check_sequence(row: Column, sequence: str, topic: str) -> None:
    """Raise `BadSetting` where the sequence of latest records certainly names no column of a row, or one without an order."""
    check_path(row, sequence, lambda kind: kind not in _UNORDERED, partial(refuse_sequence, topic, sequence))


def check_path(row: Column, path: str, accepts: Callable[[str], bool], refuse: Callable[[str], BadSetting]) -> None:
    """Raise the error that `refuse` returns where a path certainly names no column of a row, or one of a wrong kind."""
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


class NotDdl(ValueError):
    """A text is no schema in Spark's DDL; the message says why."""


def parse_ddl(text: str, *, of_json: bool = False) -> Column:
    """Read a schema: columns, or one type. Raise `NotDdl` where Spark, or with `of_json` its JSON reader, cannot take it."""
    tokens = [token for token in _TOKEN.findall(text) if token]
    if not tokens:
        raise NotDdl("it is empty")
    try:
        return _DdlReader(tokens, of_json=of_json).whole()
    except NotDdl:
        alone = len(tokens) == 1 or tokens[1] in {"<", "("}
        is_type = tokens[0].upper() in {*KINDS, *NESTED, "STRUCT"}
        if not (alone and is_type):
            raise
    reader = _DdlReader(tokens, of_json=of_json)
    found = reader.type("the whole", 0)
    reader.end()
    return found


class _DdlReader:
    def __init__(self, tokens: list[str], *, of_json: bool) -> None:
        self._tokens = tokens
        self._of_json = of_json
        self._at = 0

    def whole(self) -> Column:
        """Read the columns of a row, and nothing after them."""
        columns = self._columns("", 0)
        self.end()
        return Column("struct", columns)

    def end(self) -> None:
        """Refuse anything that is left."""
        if self._peek():
            self._fail("a comma or the end")

    def type(self, path: str, level: int) -> Column:
        """Read a type; `path` is its column."""
        name = self._peek().upper()
        if level > MOST_LEVELS:
            raise NotDdl(f"it is nested more than {MOST_LEVELS} levels deep")
        if not name or not name[0].isalpha():
            raise NotDdl(f"`{path}` has no type, expected such as BIGINT or STRING{self._before()}")
        self._at += 1
        if name in NESTED:
            return self._nested(name, path, level)
        if name == "STRUCT":
            self._take("<", f"STRUCT<...> of `{path}`")
            fields = {} if self._peek() == ">" else self._columns(path, level + 1)
            if self._of_json and not fields:
                raise NotDdl(f"`{path}` is a STRUCT of no fields, which no Parquet file can have: leave it out")
            self._take(">", f"the end of STRUCT<...> of `{path}`")
            return Column("struct", fields)
        if name not in KINDS:
            other = f", did you mean {FOREIGN[name]}?" if name in FOREIGN else meant(name, [*KINDS, *NESTED, "STRUCT"])
            raise NotDdl(f"`{path}` has the type {name}, which Spark does not have{other}")
        if self._peek() == "(":
            self._refuse_digits(name, path)
            while self._peek() not in {")", ""}:
                self._at += 1
            self._take(")", f"the end of {name}(...) of `{path}`")
        while name == "INTERVAL" and self._peek() not in {"", ",", ">"}:  # its units
            self._at += 1
        return Column(KINDS[name])

    def _refuse_digits(self, name: str, path: str) -> None:
        """Refuse a DECIMAL with more digits than Spark has, or with a scale above its precision."""
        size = "".join(self._tokens[self._at + 1 : self._at + 4]).partition(")")[0].replace(" ", "")
        found = _DIGITS.fullmatch(size)
        if found and name in {"DECIMAL", "DEC", "NUMERIC"}:
            precision, scale = int(found[1]), int(found[2] or 0)
            if precision > MOST_DIGITS or scale > precision:
                raise NotDdl(f"`{path}` is {name}({size}), expected at most {MOST_DIGITS} digits, and no more behind the point")

    def _nested(self, name: str, path: str, level: int) -> Column:
        self._take("<", f"{name}<...> of `{path}`")
        first = self._peek().upper()
        inner = [self.type(f"{path}[]", level + 1)]
        if self._of_json and name == "MAP" and inner[0].kind != "text":
            raise NotDdl(f"{path}: expected MAP<STRING, ...>, found MAP<{first}, ...>")
        self._after_type(path)
        while len(inner) < NESTED[name]:
            self._take(",", f"two types of MAP<...> of `{path}`")
            inner.append(self.type(f"{path}{{}}", level + 1))
            self._after_type(path)
        self._take(">", f"the end of {name}<...> of `{path}`")
        return Column("list" if name == "ARRAY" else "map", inner=tuple(inner))

    def _columns(self, path: str, level: int) -> dict[str, Column]:
        columns, folded = dict[str, Column](), set[str]()
        while True:
            token = self._peek()
            if not token or not (token[0] in "`\"'" or token[0].isalnum() or token[0] == "_"):
                self._fail("a column's name")
            name = token[1:-1].replace("``", "`") if token[0] == "`" else token
            self._at += 1
            if self._peek() == ":":
                self._at += 1
            below = f"{path}.{name}".lstrip(".")
            if name.lower() in folded:
                raise NotDdl(f"`{below}` is there twice, in this or another case: Spark and DuckDB take both for one")
            folded.add(name.lower())
            columns[name] = self.type(below, level)
            self._after_type(below)
            if self._peek() != ",":
                return columns
            self._at += 1

    def _after_type(self, path: str) -> None:
        """Pass over COLLATE, NOT NULL and COMMENT; refuse anything else, such as the next column without a comma."""
        if self._passes("COLLATE"):
            self._at += 1
            while self._peek() == ".":
                self._at += 2
        if self._passes("NOT") and not self._passes("NULL"):
            self._fail(f"NULL behind NOT of `{path}`")
        if self._passes("COMMENT"):
            if self._peek()[:1] not in {"'", '"'}:
                self._fail(f"a quoted text behind COMMENT of `{path}`")
            self._at += 1
        if self._peek() not in {"", ",", ">"}:
            self._fail(f"a comma behind the type of `{path}`")

    def _passes(self, word: str) -> bool:
        """Pass over a word where it is the next one; return whether it was."""
        found = self._peek().upper() == word
        self._at += found
        return found

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, token: str, expected: str) -> None:
        if self._peek() != token:
            self._fail(f"{token} for {expected}")
        self._at += 1

    def _fail(self, expected: str) -> NoReturn:
        raise NotDdl(f"expected {expected}, found {self._peek() or 'the end'}{self._before()}")

    def _before(self) -> str:
        before = " ".join(self._tokens[max(0, self._at - 4) : self._at])
        return f" behind {before!r}" if before else ""
