"""JSON Schemas as columns: Spark's DDL of what is plain, text for the rest.

Nothing here validates. Invariant: a document that a schema allows has a place in its columns, but for numbers that are
larger than a column's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT = "STRING"
PLAIN: Mapping[str, str] = {"string": TEXT, "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}


def columns_of(schema: Any, references: Mapping[str, Any]) -> str:
    """Is the DDL of a schema's columns; `references` are other schemas by the name that it calls them.

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
    return _Columns(schema, references).of(schema, schema, ())


def find_clashes(schema: Any) -> list[str]:
    """Finds properties that differ from another one of their object in case only: Spark and DuckDB take them for one."""
    clashes: list[str] = []
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            folded = [name.lower() for name in properties]
            clashes += [name for name in properties if folded.count(name.lower()) > 1]
        for inner in schema.values():
            clashes += find_clashes(inner)
    elif isinstance(schema, list):
        for inner in schema:
            clashes += find_clashes(inner)
    return clashes


class _Columns:
    def __init__(self, schema: Any, references: Mapping[str, Any]) -> None:
        self._schema = schema
        self._references = references

    def of(self, schema: Any, root: Any, within: tuple[int, ...]) -> str:
        """Is the column of a schema; `root` is the document that it stands in, `within` the schemas around it."""
        if not isinstance(schema, dict) or id(schema) in within:
            return TEXT
        within = (*within, id(schema))
        if "$ref" in schema:
            found, where = self._follow(str(schema["$ref"]), root)
            return self.of(found, where, within)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                branches = [each for each in schema[word] if each != {"type": "null"}]
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

    def _follow(self, reference: str, root: Any) -> tuple[Any, Any]:
        """Is what a reference leads to, and the document that this stands in; nothing where it leads nowhere."""
        name, _, pointer = reference.partition("#")
        found = where = self._references.get(name) if name else root
        for step in pointer.strip("/").split("/") if pointer.strip("/") else ():
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        return found, where


def quote(name: str) -> str:
    """Is a name as Spark's DDL quotes it."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Are the types that a schema allows beside null, as it says or as its `enum` or `const` shows."""
    said = schema.get("type")
    if said is not None:
        return set([said] if isinstance(said, str) else said) - {"null"}
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return {names.get(type(value), "any") for value in values} - {"null"}
