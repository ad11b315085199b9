"""JSON Schemas as columns: Spark types where they are plain, text for the rest; and how much work a schema is to check.

Nothing here validates. Invariant: a document that a schema allows fits into its columns, except for numbers too large for
theirs; and no schema, however it refers to itself, takes more steps than it has characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from .schema_text import MOST_CHECKS, MOST_COLUMNS, MOST_LEVELS

TEXT = "STRING"
PLAIN: Mapping[str, str] = {"string": TEXT, "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
SAME = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies", "$ref", "extends")
"""Keywords whose schemas apply to the same value as the schema around them."""
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
ADDED = (*SAME, *REFERENCES, "patternProperties", "contains", "propertyNames")
"""Keywords whose checks add up: their schemas apply to the same value, or to a part that others apply to as well."""
APPLIED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")


def columns_of(schema: Any, references: Mapping[str, Any]) -> str:
    """Return the DDL of a schema's columns; `references` are other schemas by the names that it uses for them.

    Raises `ValueError` for more columns, or levels of them, than a table can have.

    | the schema | the column |
    |---|---|
    | `string`, `integer`, `number`, `boolean` | STRING, BIGINT, DOUBLE, BOOLEAN |
    | `object` with `properties` | STRUCT of them |
    | `object` with a schema of `additionalProperties` only | MAP |
    | `array` with one schema of `items` | ARRAY |
    | one of these, or null | the same |
    | `enum`, `const` of one plain type | that type |
    | a `$ref` to one of these, not within itself | that |
    | anything else | STRING: its JSON, or a text itself |
    """
    return _Columns(references).of(schema, schema, ())


def find_clashes(schema: Any) -> list[str]:
    """Find properties of one object that differ only in case: Spark and DuckDB take them for one."""
    clashes: list[str] = []
    for each in _subschemas(schema):
        properties = each.get("properties")
        if isinstance(properties, dict):
            folded = Counter(name.lower() for name in properties)
            clashes += [name for name in properties if folded[name.lower()] > 1]
    return clashes


def refuse_bomb(schema: Any, references: Mapping[str, Any]) -> int:
    """Return how many checks of one value a validator may make at most; raise `ValueError` above `MOST_CHECKS`.

    A validator follows each reference anew: 24 levels that each refer to the next one twice are 16 million checks.
    """
    checks = _count_checks(schema, _References(references))
    if checks > MOST_CHECKS:
        raise ValueError(
            f"its references make {checks:,} checks of one value, expected at most {MOST_CHECKS:,}: let each level refer to "
            "the next one once"
        )
    return checks


def refuse_loop(schema: Any, references: Mapping[str, Any]) -> None:
    """Raise `ValueError` for references that lead back to themselves at the same value: such a schema says nothing.

    `{"$ref": "#"}` allows every document. A tree whose parts refer to the whole is no loop: each part is another value.
    """
    known = _References(references)
    leads_to = {
        id(each): [id(found) for found in _at_same_value(each, root, known)]
        for root in (schema, *references.values())
        for each in _subschemas(root)
    }
    try:
        TopologicalSorter(leads_to).prepare()
    except CycleError:
        raise ValueError("its references lead back to themselves, so that it says nothing of a value") from None


def _at_same_value(schema: Mapping[str, Any], root: Any, references: _References) -> Iterator[Any]:
    """Yield the schemas within one that apply to the same value."""
    for word, value in schema.items():
        if word in REFERENCES:
            yield references.follow(str(value), root)[0]
        elif word in SAME:
            yield from _schemas_in(word, value)


def _subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each object in a schema, itself first, also those that only look like a schema."""
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
        """Return the target of a reference, and the document that has it; the target is none where there is none."""
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
        """Return the schemas that a document names by `$id` and `$anchor`."""
        if id(root) not in self._named:
            names: dict[str, Any] = {}
            for each in _subschemas(root):
                for word, mark in (("$id", ""), ("id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
                    if isinstance(each.get(word), str):
                        names[f"{mark}{each[word]}"] = each
            self._named[id(root)] = names
        return self._named[id(root)]


def _count_checks(schema: Any, references: _References) -> int:
    """Count the checks that a schema makes of one value; a schema within itself counts as one check.

    Checks of the same value or part add up; of different parts only the most costly one counts.
    """
    known: dict[int, int] = {}
    waiting = [(schema, schema, False)]  # no recursion: definitions that refer to each other are hundreds of levels
    while waiting:
        each, where, is_left = waiting.pop()
        if not isinstance(each, dict) or (id(each) in known and not is_left):
            continue
        inner = [*_find_inner(each, where, references)]
        if is_left:
            counts = [(word, known.get(id(found), 1)) for word, found, _ in inner]
            added = sum(count for word, count in counts if word in ADDED)
            known[id(each)] = 1 + added + max((count for word, count in counts if word not in ADDED), default=0)
        else:
            known[id(each)] = 1
            waiting.append((each, where, True))
            waiting += [(found, its_root, False) for _, found, its_root in reversed(inner)]
    return known.get(id(schema), 1)


def _find_inner(schema: Mapping[str, Any], root: Any, references: _References) -> Iterator[tuple[str, Any, Any]]:
    """Yield the schemas directly in one: their keyword, the schema, and the document that has it."""
    for word, value in schema.items():
        if word in REFERENCES:
            yield (word, *references.follow(str(value), root))
        else:
            yield from ((word, each, root) for each in _schemas_in(word, value))


def _schemas_in(word: str, value: Any) -> list[Any]:
    if word in NAMED:
        return [*value.values()] if isinstance(value, dict) else []
    if word in APPLIED and isinstance(value, list):
        return value
    return [value] if isinstance(value, dict) else []


class _Columns:
    def __init__(self, references: Mapping[str, Any]) -> None:
        self._references = _References(references)
        self._count = 0

    def of(self, schema: Any, root: Any, within: tuple[int, ...]) -> str:
        """Return the column of a schema; `root` is the document that has it, `within` are the schemas around it."""
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
    """Return the types besides null that a schema allows, by its `type`, or by its `enum` or `const`."""
    said = schema.get("type")
    if said is not None:
        return {str(each) for each in (said if isinstance(said, list) else [said])} - {"null"}
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    values = values if isinstance(values, list) else []
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return {names.get(type(value), "any") for value in values} - {"null"}
