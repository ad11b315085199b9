"""Avro schemas as text: references are put in place, and an end mark is added that shows where a datum ends.

Nothing here decodes. Invariants: a schema that Spark accepts is never refused; in a schema that was read a name is defined
once, before it is used.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..advice import meant
from .columns import ANY, Column
from .schema_text import MOST_COLUMNS, MOST_FIXED_BYTES, MOST_LEVELS, parse_json

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
KINDS = {"int": "integer", "long": "integer", "float": "float", "double": "float", "string": "text", "bytes": "binary"}
LOGICAL: Mapping[tuple[str, str], str] = {
    ("int", "date"): "date",
    **{("long", f"{local}timestamp-{unit}"): "timestamp" for local in ("", "local-") for unit in ("millis", "micros")},
    ("bytes", "decimal"): "decimal",
}
NESTED = {"array": ("items", "[]", "list"), "map": ("values", "{}", "map")}  # keyword of the inner type, path, column
END = bytes.fromhex("a3f01d6c27b859e4")
"""The mark that is written after a datum and must be read after it: no prefix of it is a suffix, so a shift is noticed."""
VALUE, MARK = "value", "end"
NOTHING = ("null", ["null"], {"type": "null"})
JAVA_STRING = "avro.java.string"
_NAME = re.compile(r"[^\W\d]\w*")  # of types, fields and symbols; letters of any language are allowed


def parse_avro(text: str) -> Any:
    """Read a schema: JSON of an object, list or string, or a bare name; raise `ValueError` else."""
    if text.strip() in PRIMITIVES:
        return text.strip()
    schema = parse_json(text)
    if not isinstance(schema, dict | list | str):
        raise ValueError(f"expected a JSON object, list or string, found {text.strip()[:40]}")
    return schema


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A self-contained schema; `column` is what Spark makes of it, as far as that is certain.

    `refused` says why Spark or another reader has no columns for it: a record contains itself, at any depth; fields of one
    record differ only in case; a column is null only. It can still be a writer's schema.
    """

    text: str
    column: Column
    refused: tuple[str, ...]


def read_avro(text: str, references: Iterable[str] = ()) -> AvroSchema:
    """Read a schema; named types of `references` are defined where they are first used, since a parser reads one text.

    Raise `ValueError` for a schema that is too large for a process, else with everything that Avro certainly refuses:

    | part | why |
    |---|---|
    | more columns or levels than `schema_text.py` allows | 24 records, each with two of the next, are 16 million columns |
    | a `fixed` of more bytes than it allows | readers allocate it before they read |
    | a list of items that take no bytes | six bytes claim any number of them |
    | an undefined type | |
    | a `fixed` without a size from 0 | |
    | a union of nothing, directly in a union, or of one type twice | |
    | a named type without a name, or defined twice | Avro refuses it, or reads the first for both |
    | an invalid name or symbol, a symbol that is there twice | |
    """
    schema = parse_avro(text)
    given = {name: found for each in references for name, found in find_named(parse_avro(each), "")}
    reader = _Reader(given, {name for name, _ in find_named(schema, "")})
    found = reader.read_column(schema, "", "the whole", ())
    reader.refuse_empty_items()
    if reader.wrong:
        raise ValueError("; ".join(dict.fromkeys(reader.wrong)))
    clashes = [f"fields differ in case only: {', '.join(reader.clashes)}"] if reader.clashes else []
    return AvroSchema(json.dumps(found.schema), found.column, (*reader.unreadable, *clashes))


def enclose(text: str) -> str:
    """Return the schema of a datum followed by `END`: a datum that is too short or too long moves the mark and is noticed."""
    mark = {"name": MARK, "type": {"type": "fixed", "name": "offsetlake_end", "size": len(END)}}
    fields = [{"name": VALUE, "type": _without_java(parse_avro(text))}, mark]
    return json.dumps({"type": "record", "name": "offsetlake_datum", "fields": fields})


def _without_java(schema: Any) -> Any:
    """Return the schema without requests for Java strings, which replace bytes that are not UTF-8."""
    if isinstance(schema, list):
        return [_without_java(each) for each in schema]
    if isinstance(schema, dict):
        return {name: _without_java(each) for name, each in schema.items() if name != JAVA_STRING}
    return schema


def full_name(schema: Mapping[str, Any], namespace: str) -> str:
    """Return the full name of a named type: in its own namespace, or else in the enclosing one."""
    name = str(schema.get("name", ""))
    within = str(schema.get("namespace", namespace))
    return name if "." in name or not within else f"{within}.{name}"


def find_named(schema: Any, namespace: str) -> Iterator[tuple[str, Any]]:
    """Yield each named type of a schema with its full name; the type's own name and namespace are set from that."""
    if isinstance(schema, list):
        for branch in schema:
            yield from find_named(branch, namespace)
    elif isinstance(schema, dict):
        if str(schema.get("type")) in NAMED:
            name = full_name(schema, namespace)
            namespace = name.rpartition(".")[0]
            yield name, {**schema, "name": name.rpartition(".")[2], "namespace": namespace}
        fields = schema.get("fields")
        inside = [each.get("type") for each in fields if isinstance(each, dict)] if isinstance(fields, list) else []
        for inner in (*inside, *(schema.get(word) for word in ("items", "values", "type"))):
            yield from find_named(inner, namespace)


@dataclass(frozen=True, slots=True)
class _Part:
    """A self-contained part of a schema, with its column, and the number of columns and levels that Spark would make of it.

    `is_empty` says that each of its values takes no bytes.
    """

    schema: Any
    column: Column = ANY
    columns: int = 1
    levels: int = 1
    is_empty: bool = False


class _Reader:
    """A walk over a schema in the order of Avro's parser, which remembers what has been defined."""

    def __init__(self, given: Mapping[str, Any], own: set[str]) -> None:
        self.wrong: list[str] = []
        self.unreadable: list[str] = []
        self.clashes: list[str] = []
        self._given = given
        self._own = own
        self._defined: dict[str, _Part] = {}
        self._items: list[tuple[_Part, str, str]] = []  # of lists, each with its namespace and path

    def read_column(self, schema: Any, namespace: str, path: str, within: tuple[str, ...]) -> _Part:
        """Read a part that has a column of its own, which branches of a union have not."""
        part = self.read(schema, namespace, path, within)
        if part.schema in NOTHING:  # Polars reads nothing of a file with such a column
            self.unreadable.append(f"{path} is null only: leave it out, or give it another type")
        return part

    def read(self, schema: Any, namespace: str, path: str, within: tuple[str, ...]) -> _Part:
        """Read one part; `path` is its place, `within` are the records around it."""
        if isinstance(schema, str):
            return self._name(schema, namespace, path, within)
        if isinstance(schema, list):
            return self._union(schema, namespace, path, within)
        if not isinstance(schema, dict) or "type" not in schema:
            self.wrong.append(f"{path} is {json.dumps(schema)[:40]}, expected a type")
            return _Part(schema)
        kind = schema["type"]
        if not isinstance(kind, str):
            inner = self.read(kind, namespace, path, within)
            return _sized({**schema, "type": inner.schema}, inner.column, [inner], is_empty=inner.is_empty)
        if kind in NAMED:
            return self._named(schema, namespace, path, within)
        if kind in NESTED:
            return self._nested(schema, namespace, path, within)
        if kind not in PRIMITIVES:
            return self._name(kind, namespace, path, within)
        logical = LOGICAL.get((kind, str(schema.get("logicalType"))))
        return _Part(schema, Column(logical or KINDS.get(kind, kind)), is_empty=kind == "null")

    def _name(self, name: str, namespace: str, path: str, within: tuple[str, ...]) -> _Part:
        """Read the name of a type: at its first use a given definition is put in its place, later its full name."""
        if name in PRIMITIVES:
            return _Part(name, Column(KINDS.get(name, name)), is_empty=name == "null")
        readings = [name] if "." in name or not namespace else [f"{namespace}.{name}", name]
        for each in readings:
            if each in within:
                self.unreadable.append(f"record {each} contains itself at {path}, which Spark has no type for")
                return _Part(each)
            if each in self._defined:
                return replace(self._defined[each], schema=each)
            if each in self._given:
                return self.read(self._given[each], "", path, within)
        if self._own.isdisjoint(readings):  # some of Avro's parsers accept a definition later in the text
            known = [*PRIMITIVES, *NAMED, *NESTED, *self._defined]
            self.wrong.append(f"{path} has the type {name}, which nobody defines{meant(name, known)}")
        return _Part(name)

    def _union(self, branches: Sequence[Any], namespace: str, path: str, within: tuple[str, ...]) -> _Part:
        if not branches:
            self.wrong.append(f"{path} is a union of nothing")
        if any(isinstance(branch, list) for branch in branches):
            self.wrong.append(f"{path} is a union directly in a union")
        parts = [self.read(branch, namespace, path, within) for branch in branches]
        kinds = [_branch_name(part.schema, namespace) for part in parts]
        twice = sorted({kind for kind in kinds if kind is not None and kinds.count(kind) > 1})
        self.wrong += [f"{path} is a union that has {kind} twice" for kind in twice]
        columns = [part.column for part in parts if part.schema != "null"]
        return _sized([part.schema for part in parts], columns[0] if len(columns) == 1 else ANY, parts)

    def _nested(self, schema: Mapping[str, Any], namespace: str, path: str, within: tuple[str, ...]) -> _Part:
        word, suffix, column = NESTED[schema["type"]]
        if word not in schema:
            self.wrong.append(f"{path} is of type {schema['type']} and has no `{word}`")
            return _Part(schema)
        inner = self.read_column(schema[word], namespace, f"{path}{suffix}", within)
        if word == "items":
            self._items.append((inner, namespace, path))
        return _sized({**schema, word: inner.schema}, Column(column, inner=(inner.column,)), [inner])

    def _named(self, schema: Mapping[str, Any], namespace: str, path: str, within: tuple[str, ...]) -> _Part:
        kind, name = schema["type"], full_name(schema, namespace)
        if not isinstance(schema.get("name"), str) or not schema["name"]:
            self.wrong.append(f"{path} is of type {kind} and has no `name`")
        elif name in self._defined or name in within:
            if not self._given:  # else a reference's definition that was put in may contain it
                self.wrong.append(f"{name} is defined twice, again at {path}: name it there, or give it another name")
            return self._name(name, "", path, within)
        self._refuse_names(f"{kind} {name}", [name.rpartition(".")[2]] if name else [])
        if kind in {"record", "error"}:
            found = self._record(schema, name, path, within)
        else:
            if kind == "fixed":
                self._refuse_size(name, schema.get("size"))
            symbols = schema.get("symbols") if kind == "enum" else None
            self._refuse_names(f"enum {name}", symbols if isinstance(symbols, list) else [], are_once=True)
            found = _Part(
                schema, Column("text") if kind == "enum" else ANY, is_empty=kind == "fixed" and schema.get("size") == 0
            )
        self._defined[name] = found
        return found

    def refuse_empty_items(self) -> None:
        """Refuse lists of items that take no bytes, once each type is known that is named before it is defined."""
        for items, namespace, path in self._items:
            names = {f"{namespace}.{items.schema}", items.schema} if isinstance(items.schema, str) else ()
            if items.is_empty or any(self._defined[each].is_empty for each in names if each in self._defined):
                raise ValueError(f"{path} is a list of items that take no bytes: a few bytes would claim any number of them")

    def _refuse_names(self, what: str, names: Sequence[Any], *, are_once: bool = False) -> None:
        """Refuse names that Avro's parser does not accept, and, with `are_once`, repeated ones."""
        found = [each for each in names if isinstance(each, str)]
        self.wrong += [
            f"{what} has the name {each!r}, expected letters, digits and _" for each in found if not _NAME.fullmatch(each)
        ]
        twice = sorted(each for each, times in Counter(found).items() if are_once and times > 1)
        self.wrong += [f"{what} has {each} twice" for each in twice]

    def _refuse_size(self, name: str, size: Any) -> None:
        """Refuse a bad size of a `fixed`: readers allocate it before they read a byte."""
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            said = json.dumps(size)[:40]
            self.wrong.append(f"fixed {name} has the size {said}, expected a number of bytes from 0")
        elif size > MOST_FIXED_BYTES:
            raise ValueError(f"fixed {name} has {size:,} bytes, expected at most {MOST_FIXED_BYTES:,}")

    def _record(self, schema: Mapping[str, Any], name: str, path: str, within: tuple[str, ...]) -> _Part:
        if not isinstance(schema.get("fields"), list):
            self.wrong.append(f"{schema['type']} {name} has no list of `fields`")
            return _Part(schema)
        fields, parts = list[Mapping[str, Any]](), dict[str, _Part]()
        for field in schema["fields"]:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                self.wrong.append(f"{schema['type']} {name} has a field without a `name` or a `type`")
                continue
            below = f"{path}.{field['name']}"
            part = self.read_column(field["type"], name.rpartition(".")[0], below, (*within, name))
            fields.append({**field, "type": part.schema})
            parts[field["name"]] = part
        self._refuse_names(f"{schema['type']} {name}", [*parts])
        folded = Counter(field["name"].lower() for field in fields)
        self.clashes += [f"{name}.{field['name']}" for field in fields if folded[field["name"].lower()] > 1]
        column = Column("struct", {each: part.column for each, part in parts.items()})
        is_empty = all(each.is_empty for each in parts.values())
        return _sized({**schema, "fields": fields}, column, [*parts.values()], is_empty=is_empty)


def _sized(schema: Any, column: Column, inner: Sequence[_Part], *, is_empty: bool = False) -> _Part:
    columns, levels = 1 + sum(each.columns for each in inner), 1 + max((each.levels for each in inner), default=0)
    if columns > MOST_COLUMNS or levels > MOST_LEVELS:
        raise ValueError(
            f"it has more than {MOST_COLUMNS:,} columns, or {MOST_LEVELS} levels, once each type is put where it is named"
        )
    return _Part(schema, column, columns, levels, is_empty)


def _branch_name(branch: Any, namespace: str) -> str | None:
    """Return the name by which a union distinguishes a branch; none for what is no type."""
    kind = branch.get("type") if isinstance(branch, dict) else branch
    if isinstance(branch, dict) and str(kind) in NAMED:
        return full_name(branch, namespace)
    return kind if isinstance(kind, str) else None
