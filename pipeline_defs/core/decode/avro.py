"""Avro schemas as text: one text with what it refers to in it, and closed so that the end of a datum shows.

Nothing here decodes. Invariants: what Spark takes is never refused; in a schema that was read a name is defined once, before
it is used.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .schema_text import MOST_COLUMNS, MOST_FIXED_BYTES, MOST_LEVELS, parse_json

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
NESTED = {"array": ("items", "[]"), "map": ("values", "{}")}  # the word for what is in it, and its path
END = bytes.fromhex("a3f01d6c27b859e4")
"""Is what is put after a datum and must come out behind it: no beginning of it is an end of it, so nothing shifts it."""
VALUE, MARK = "value", "end"
NOTHING = ("null", ["null"], {"type": "null"})
JAVA_STRING = "avro.java.string"


def parse_avro(text: str) -> Any:
    """Read a schema; a bare name such as `string` is one too. Raises `ValueError`."""
    if text.strip() in PRIMITIVES:
        return text.strip()
    schema = parse_json(text)
    if not isinstance(schema, dict | list | str):
        raise ValueError(f"expected a JSON object, list or string, found {text.strip()[:40]}")
    return schema


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema that needs no other.

    `refused` says why Spark or another reader has no columns for it: a record that contains itself, however deep; fields of one
    record that differ in case only; what is null only. It may be a writer's all the same.
    """

    text: str
    refused: tuple[str, ...]


def read_avro(text: str, references: Iterable[str] = ()) -> AvroSchema:
    """Read a schema: each named type of `references` is defined where it is first used, since a parser reads one text.

    Raise `ValueError` for a schema that no process has room for, of 24 records, each with two of the next one, say, or of a
    large `fixed`, for which room is made before it is read; and for a type that is defined twice, of which a parser reads the
    first for both. What is no schema may be any of what JSON of other types raises; the rest is the parser's to refuse.
    """
    schema = parse_avro(text)
    reader = _Reader({name: found for each in references for name, found in find_named(parse_avro(each), "")})
    found = reader.read_column(schema, "", "the whole", ())
    clashes = [f"fields differ in case only: {', '.join(reader.clashes)}"] if reader.clashes else []
    return AvroSchema(json.dumps(found.schema), (*reader.unreadable, *clashes))


def enclose(text: str) -> str:
    """Return the schema of a datum with `END` behind it: a datum that is cut, or goes on, moves the mark and is found out."""
    mark = {"name": MARK, "type": {"type": "fixed", "name": "offsetlake_end", "size": len(END)}}
    fields = [{"name": VALUE, "type": _without_java(parse_avro(text))}, mark]
    return json.dumps({"type": "record", "name": "offsetlake_datum", "fields": fields})


def _without_java(schema: Any) -> Any:
    """Return a schema that does not ask for Java's strings, in which bytes that are not UTF-8 become other characters."""
    if isinstance(schema, list):
        return [_without_java(each) for each in schema]
    if isinstance(schema, dict):
        return {name: _without_java(each) for name, each in schema.items() if name != JAVA_STRING}
    return schema


def full_name(schema: Mapping[str, Any], namespace: str) -> str:
    """Return the name of a named type with its namespace, or with the one that encloses it."""
    name = str(schema.get("name", ""))
    within = str(schema.get("namespace", namespace))
    return name if "." in name or not within else f"{within}.{name}"


def find_named(schema: Any, namespace: str) -> Iterator[tuple[str, Any]]:
    """Find each named type of a schema, with its full name; what it says of its namespace is then in the name."""
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
    """A part of a schema, whole, with the columns and levels that Spark would make of it."""

    schema: Any
    columns: int = 1
    levels: int = 1


class _Reader:
    """Walk over a schema in the order of Avro's parser, which remembers what has been defined."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.unreadable: list[str] = []
        self.clashes: list[str] = []
        self._given = given
        self._defined: dict[str, _Part] = {}

    def read_column(self, schema: Any, namespace: str, path: str, within: tuple[str, ...]) -> _Part:
        """Read a part that has a column of its own, as what is in a union has not."""
        part = self.read(schema, namespace, path, within)
        if part.schema in NOTHING:  # Polars reads nothing of a file with such a column
            self.unreadable.append(f"{path} is null only: leave it out, or give it another type")
        return part

    def read(self, schema: Any, namespace: str, path: str, within: tuple[str, ...]) -> _Part:
        """Read one part; `path` is where it stands, `within` are the records around it."""
        if isinstance(schema, str):
            return self._name(schema, namespace, path, within)
        if isinstance(schema, list):
            parts = [self.read(branch, namespace, path, within) for branch in schema]
            return _sized([part.schema for part in parts], parts)
        kind = schema["type"]
        if not isinstance(kind, str):
            inner = self.read(kind, namespace, path, within)
            return _sized({**schema, "type": inner.schema}, [inner])
        if kind in NAMED:
            return self._named(schema, namespace, path, within)
        if kind in NESTED:
            word, suffix = NESTED[kind]
            inner = self.read_column(schema[word], namespace, f"{path}{suffix}", within)
            return _sized({**schema, word: inner.schema}, [inner])
        return _Part(schema) if kind in PRIMITIVES else self._name(kind, namespace, path, within)

    def _name(self, name: str, namespace: str, path: str, within: tuple[str, ...]) -> _Part:
        """Read the name of a type: a definition that is given is put where it is first used, later its full name stands."""
        if name in PRIMITIVES:
            return _Part(name)
        readings = [name] if "." in name or not namespace else [f"{namespace}.{name}", name]
        for each in readings:
            if each in within:
                self.unreadable.append(f"record {each} contains itself at {path}, which Spark has no type for")
                return _Part(each)
            if each in self._defined:
                return replace(self._defined[each], schema=each)
            if each in self._given:
                return self.read(self._given[each], "", path, within)
        return _Part(name)

    def _named(self, schema: Mapping[str, Any], namespace: str, path: str, within: tuple[str, ...]) -> _Part:
        kind, name = schema["type"], full_name(schema, namespace)
        if name in self._defined or name in within:
            if not self._given:  # else it is inside another definition that was put here
                raise ValueError(f"{name} is defined twice, again at {path}: name it there, or give it another name")
            return self._name(name, "", path, within)
        if kind == "fixed" and schema["size"] > MOST_FIXED_BYTES:
            raise ValueError(f"fixed {name} has {schema['size']:,} bytes, expected at most {MOST_FIXED_BYTES:,}")
        self._defined[name] = found = self._record(schema, name, path, within) if "fields" in schema else _Part(schema)
        return found

    def _record(self, schema: Mapping[str, Any], name: str, path: str, within: tuple[str, ...]) -> _Part:
        namespace, names = name.rpartition(".")[0], [field["name"].lower() for field in schema["fields"]]
        parts = [
            self.read_column(field["type"], namespace, f"{path}.{field['name']}", (*within, name)) for field in schema["fields"]
        ]
        fields = [{**field, "type": part.schema} for field, part in zip(schema["fields"], parts, strict=True)]
        self.clashes += [f"{name}.{field['name']}" for field in fields if names.count(field["name"].lower()) > 1]
        return _sized({**schema, "fields": fields}, parts)


def _sized(schema: Any, inner: Sequence[_Part]) -> _Part:
    columns, levels = 1 + sum(each.columns for each in inner), 1 + max((each.levels for each in inner), default=0)
    if columns > MOST_COLUMNS or levels > MOST_LEVELS:
        raise ValueError(
            f"it has more than {MOST_COLUMNS:,} columns, or {MOST_LEVELS} levels, once each type is put where it is named"
        )
    return _Part(schema, columns, levels)
