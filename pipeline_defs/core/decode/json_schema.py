"""JSON Schemas as columns: Spark's DDL of what is plain, text for the rest.

Nothing here validates. Invariant: a document that a schema allows has a place in its columns, but for numbers that are
larger than a column's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from .schema_text import MOST_COLUMNS, MOST_LEVELS

TEXT = "STRING"
PLAIN: Mapping[str, str] = {"string": TEXT, "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}


def columns_of(schema: Any, references: Mapping[str, Any]) -> str:
    """Return the DDL of a schema's columns; `references` are other schemas by the name that it calls them.

    Raises `ValueError` for more columns, or levels of them, than a table can have.

    | the schema | the column |
    |---|---|
    | `string`, `integer`, `number`, `boolean` | STRING, BIGINT, DOUBLE, BOOLEAN |
    | `object` with `properties` | STRUCT of them |
    | `object` with a schema of `additionalProperties` only | MAP |
    | `array` with one schema of `items` | ARRAY |
    | one of these, or null | the same |
    | `enum`, `const` of one plain type | that type |
    | a `$ref` to one of these, but within itself | that |
    | anything else | STRING: the JSON of it, of a text what it says |
    """
    return _Columns(references).of(schema, schema, ())


def find_clashes(schema: Any) -> list[str]:
    """Find properties that differ from another one of their object in case only: Spark and DuckDB take them for one."""
    clashes: list[str] = []
    for each in _subschemas(schema):
        properties = each.get("properties")
        if isinstance(properties, dict):
            folded = [name.lower() for name in properties]
            clashes += [name for name in properties if folded.count(name.lower()) > 1]
    return clashes


def _subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each object of a schema, itself first; what only looks like a schema in it too."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


class _References:
    """The schemas that a schema refers to: within itself by pointer, anchor or id, and others by name."""

    def __init__(self, references: Mapping[str, Any]) -> None:
        self._references = references
        self._named: dict[int, dict[str, Any]] = {}

    def follow(self, reference: str, root: Any) -> tuple[Any, Any]:
        """Return what a reference leads to, and the document that this stands in; nothing where it leads nowhere."""
        name, _, pointer = reference.partition("#")
        found = where = self._references.get(name, self._names(root).get(name)) if name else root
        if pointer and not pointer.startswith("/"):
            return self._names(where).get(f"#{pointer}"), where
        for step in unquote(pointer).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                place = int(key) if key.isdecimal() else len(found)
                found = found[place] if place < len(found) else None
            else:
                found = found.get(key) if isinstance(found, dict) else None
        return found, where

    def _names(self, root: Any) -> Mapping[str, Any]:
        """Return what a document names by `$id` and `$anchor`."""
        if id(root) not in self._named:
            names: dict[str, Any] = {}
            for each in _subschemas(root):
                for word, mark in (("$id", ""), ("id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
                    if isinstance(each.get(word), str):
                        names[f"{mark}{each[word]}"] = each
            self._named[id(root)] = names
        return self._named[id(root)]


class _Columns:
    def __init__(self, references: Mapping[str, Any]) -> None:
        self._references = _References(references)
        self._count = 0

    def of(self, schema: Any, root: Any, within: tuple[int, ...]) -> str:
        """Return the column of a schema; `root` is the document that it stands in, `within` the schemas around it."""
        if not isinstance(schema, dict) or id(schema) in within:
            return TEXT
        self._count += 1
        if self._count > MOST_COLUMNS or len(within) > MOST_LEVELS:
            raise ValueError(
                f"it has more than {MOST_COLUMNS:,} columns, or {MOST_LEVELS} levels, once each reference is put in its place"
            )
        within = (*within, id(schema))
        if "$ref" in schema:
            found, where = self._references.follow(str(schema["$ref"]), root)
            return self.of(found, where, within)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                given = schema[word] if isinstance(schema[word], list) else []
                branches = [each for each in given if each != {"type": "null"}]
                return self.of(branches[0], root, within) if len(branches) == 1 and "type" not in schema else TEXT
        kinds = _kinds(schema)
        if kinds == {"object"}:
            return self._object(schema, root, within)
        if kinds == {"array"}:
            items = schema.get("items")
            is_list = isinstance(items, dict) and "prefixItems" not in schema
            return f"ARRAY<{self.of(items, root, within)}>" if is_list else TEXT
        return PLAIN.get(next(iter(kinds)), TEXT) if len(kinds) == 1 else TEXT

    def _object(self, schema: Mapping[str, Any], root: Any, within: tuple[int, ...]) -> str:
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, dict) and properties:
            columns = (f"{quote(name)}: {self.of(inner, root, within)}" for name, inner in properties.items())
            return f"STRUCT<{', '.join(columns)}>"
        if isinstance(others, dict) and "patternProperties" not in schema:
            return f"MAP<STRING, {self.of(others, root, within)}>"
        return TEXT


def quote(name: str) -> str:
    """Return a name as Spark's DDL quotes it."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema allows beside null, as it says or as its `enum` or `const` shows."""
    said = schema.get("type")
    if said is not None:
        return {str(each) for each in (said if isinstance(said, list) else [said])} - {"null"}
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    values = values if isinstance(values, list) else []
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return {names.get(type(value), "any") for value in values} - {"null"}
