"""Avro schemas as text: one text with what it refers to in it, and closed so that the end of a datum shows.

Nothing here decodes, and no schema is judged beyond what these need. Invariant: a name is defined once, before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .bounds import MOST_COLUMNS, MOST_FIXED_BYTES, MOST_LEVELS
from .columns import ANY, Column
from .json_text import parse_json
from .near import meant

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
KINDS = {
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "string": "text",
    "bytes": "binary",
}
LOGICAL: Mapping[tuple[str, str], str] = {
    ("int", "date"): "date",
    **{("long", f"{local}timestamp-{unit}"): "timestamp" for local in ("", "local-") for unit in ("millis", "micros")},
    ("bytes", "decimal"): "number",
}
SUFFIXES = {"items": "[]", "values": "{}"}
END = bytes.fromhex("a3f01d6c27b859e4")
"""Is what is put after a datum and must come out behind it: no beginning of it is an end of it, so nothing shifts it."""
VALUE, MARK = "value", "end"


def parse_avro(text: str) -> Any:
    """Read a schema; a bare name such as `string` is one too. Raises `ValueError`."""
    if text.strip() in PRIMITIVES:
        return text.strip()
    schema = parse_json(text)
    if not isinstance(schema, dict | list | str):
        raise ValueError(f"expected a JSON object, list or string, found {text.strip()[:40]}")
    return schema


def inline_references(text: str, references: Iterable[str]) -> str:
    """Is one schema that needs no other: each named type of `references` is defined where it is first used.

    Avro's parsers read one text and want a type defined before its name is used, once. Names that nobody defines stay.
    """
    found = {name: schema for reference in references for name, schema in find_named(parse_avro(reference))}
    return json.dumps(_Inliner(found).walk(parse_avro(text), ""))


def enclose(text: str) -> str:
    """Is the schema of a datum with `END` behind it: a datum that is cut, or goes on, moves the mark and is found out."""
    mark = {"name": MARK, "type": {"type": "fixed", "name": "offsetlake_end", "size": len(END)}}
    fields = [{"name": VALUE, "type": parse_avro(text)}, mark]
    return json.dumps({"type": "record", "name": "offsetlake_datum", "fields": fields})


def refuse_bomb(schema: Any) -> None:
    """Raise `ValueError` for a schema, without references, that no process has room for: columns, levels, bytes of a `fixed`.

    24 records that each have two fields of the next one are 16 million columns; room for a `fixed` is made before it is read.
    """
    _Size().of(schema, "", 0)


def refuse_unreadable(schema: Any) -> None:
    """Raise `ValueError`, with all of them, for parts of a reader's schema that Avro or Spark is certain to refuse.

    | part | why |
    |---|---|
    | a record that contains itself, however deep | Spark has no type for it |
    | a `fixed` without a size from 0 | Avro refuses it |
    | a union of nothing, directly in a union, or of one type twice | Avro refuses it |
    | a named type without a name, or defined twice | Avro refuses it, or reads the first for both |
    | fields of one record that differ in case only | Spark and DuckDB take them for one |
    """
    wrong = [*_Unreadable().of(schema, "", "the whole", ())]
    clashes = [] if wrong else find_clashes(schema)
    if clashes:
        wrong.append(f"fields differ in case only: {', '.join(clashes)}")
    if wrong:
        raise ValueError("; ".join(dict.fromkeys(wrong)))


def columns_of(schema: Any) -> Column:
    """Return the columns of a schema without references; raise `ValueError` for the name of a type that nobody defines."""
    return _Shape({name: None for name, _ in find_named(schema)}).of(schema, "", "the whole")


def record_name(text: str) -> str | None:
    """Is the full name of the record that a schema is of; none for one of another kind."""
    schema = parse_avro(text)
    return full_name(schema, "") if isinstance(schema, dict) and schema.get("type") in {"record", "error"} else None


def full_name(schema: Mapping[str, Any], namespace: str) -> str:
    """Is the name of a named type with its namespace, or with the one that encloses it."""
    name = str(schema.get("name", ""))
    within = str(schema.get("namespace", namespace))
    return name if "." in name or not within else f"{within}.{name}"


def find_named(schema: Any, namespace: str = "") -> Iterator[tuple[str, Any]]:
    """Finds each named type of a schema, with its full name; what it says of its namespace is then in the name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from find_named(branch, namespace)
    elif isinstance(schema, dict):
        if schema.get("type") in NAMED:
            name = full_name(schema, namespace)
            namespace = name.rpartition(".")[0]
            yield name, {**schema, "name": name.rpartition(".")[2], "namespace": namespace}
        for inner in _inner(schema):
            yield from find_named(inner, namespace)


def find_clashes(schema: Any) -> list[str]:
    """Finds fields that differ from another one of their record in case only: Spark and DuckDB take them for one."""
    clashes: list[str] = []
    for name, named in find_named(schema):
        fields = [str(field["name"]) for field in named.get("fields", ())]
        folded = [field.lower() for field in fields]
        clashes += [f"{name}.{field}" for field in fields if folded.count(field.lower()) > 1]
    return clashes


def _inner(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the schemas directly inside one that is written as an object."""
    yield from (schema[key] for key in ("items", "values") if key in schema)
    yield from (field["type"] for field in schema.get("fields", ()))
    if not isinstance(schema.get("type"), str):
        yield schema.get("type", [])


class _Shape:
    """The columns of a schema as Spark makes them, as far as that is sure."""

    def __init__(self, defined: dict[str, Column | None]) -> None:
        self._defined = defined

    def of(self, schema: Any, namespace: str, path: str) -> Column:
        """Return the column of a schema; `path` is where it stands."""
        if isinstance(schema, str):
            return self._name(schema, namespace, path)
        if isinstance(schema, list):
            branches = [self.of(branch, namespace, path) for branch in schema if branch != "null"]
            return branches[0] if len(branches) == 1 else ANY
        kind = schema.get("type")
        if not isinstance(kind, str):
            return self.of(kind, namespace, path)
        match kind:
            case "record" | "error":
                name = full_name(schema, namespace)
                within = name.rpartition(".")[0]
                fields = {
                    str(each["name"]): self.of(each["type"], within, f"{path}.{each['name']}")
                    for each in schema["fields"]
                }
                self._defined[name] = Column("struct", fields)
                return Column("struct", fields)
            case "array":
                return Column("list", inner=(self.of(schema["items"], namespace, f"{path}[]"),))
            case "map":
                return Column("map", inner=(self.of(schema["values"], namespace, f"{path}{{}}"),))
            case "enum" | "fixed":
                found = Column("text") if kind == "enum" else ANY
                self._defined[full_name(schema, namespace)] = found
                return found
            case _:
                logical = LOGICAL.get((kind, str(schema.get("logicalType"))))
                return Column(logical) if logical else self._name(kind, namespace, path)

    def _name(self, name: str, namespace: str, path: str) -> Column:
        if name in PRIMITIVES:
            return Column(KINDS.get(name, name))
        for each in _readings(name, namespace):
            if each in self._defined:
                return self._defined[each] or ANY
        known = [*PRIMITIVES, *NAMED, "array", "map", *self._defined]
        raise ValueError(f"{path} has the type {name}, which nobody defines{meant(name, known)}")


class _Unreadable:
    """What is certainly wrong in a schema; types are known from where they are defined, as Avro's parser reads."""

    def __init__(self) -> None:
        self._defined: set[str] = set()

    def of(self, schema: Any, namespace: str, path: str, within: tuple[str, ...]) -> Iterator[str]:
        """Yield what is wrong; `within` are the records around a schema, `path` is where it stands."""
        if isinstance(schema, str):
            if schema not in PRIMITIVES and (
                found := next(filter(within.__contains__, _readings(schema, namespace)), None)
            ):
                yield f"record {found} contains itself at {path}, which Spark has no type for"
        elif isinstance(schema, list):
            yield from self._union(schema, namespace, path)
            for branch in schema:
                yield from self.of(branch, namespace, path, within)
        elif schema.get("type") in NAMED if isinstance(schema.get("type"), str) else False:
            yield from self._named(schema, namespace, path, within)
        else:
            kind = schema.get("type")
            inner = {"array": "items", "map": "values"}.get(kind if isinstance(kind, str) else "", "type")
            if inner not in schema:
                yield f"{path} is of type {kind} and has no `{inner}`"
            else:
                yield from self.of(schema[inner], namespace, f"{path}{SUFFIXES.get(inner, '')}", within)

    def _union(self, branches: Sequence[Any], namespace: str, path: str) -> Iterator[str]:
        if not branches:
            yield f"{path} is a union of nothing"
        if any(isinstance(branch, list) for branch in branches):
            yield f"{path} is a union directly in a union"
        kinds = [_branch_name(branch, namespace) for branch in branches]
        for kind in sorted({str(kind) for kind in kinds if kind is not None and kinds.count(kind) > 1}):
            yield f"{path} is a union that has {kind} twice"

    def _named(self, schema: Mapping[str, Any], namespace: str, path: str, within: tuple[str, ...]) -> Iterator[str]:
        kind, name = schema["type"], full_name(schema, namespace)
        if not isinstance(schema.get("name"), str) or not schema["name"]:
            yield f"{path} is of type {kind} and has no `name`"
        elif name in self._defined:
            yield f"{name} is defined twice, again at {path}: name it there, or give it another name"
        self._defined.add(name)
        size = schema.get("size")
        if kind == "fixed" and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
            yield f"fixed {name} has the size {json.dumps(size)[:40]}, expected a number of bytes from 0"
        if kind in {"record", "error"} and not isinstance(schema.get("fields"), list):
            yield f"{kind} {name} has no list of `fields`"
            return
        for field in schema.get("fields", ()) if kind in {"record", "error"} else ():
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                yield f"{kind} {name} has a field without a `name` or a `type`"
            else:
                below = f"{path}.{field['name']}"
                yield from self.of(field["type"], name.rpartition(".")[0], below, (*within, name))


def _branch_name(branch: Any, namespace: str) -> str | None:
    """Return what a union tells a branch by; none for what is no type."""
    kind = branch.get("type") if isinstance(branch, dict) else branch
    if isinstance(branch, dict) and kind in NAMED:
        return full_name(branch, namespace)
    return kind if isinstance(kind, str) else None


class _Size:
    """Counts the columns of a schema, and the levels of them; a type that contains itself counts where it is defined."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}

    def of(self, schema: Any, namespace: str, level: int) -> tuple[int, int]:
        """Return columns and levels."""
        if isinstance(schema, str):
            return next((self._known[each] for each in _readings(schema, namespace) if each in self._known), (1, 1))
        if isinstance(schema, list):
            return self._sum([self.of(branch, namespace, level + 1) for branch in schema])
        if level > MOST_LEVELS:
            raise ValueError(f"it has more than {MOST_LEVELS} levels, expected less")
        if schema.get("type") not in NAMED:
            return self._sum([self.of(inner, namespace, level + 1) for inner in _inner(schema)])
        name = full_name(schema, namespace)
        self._known[name] = (1, 1)
        size = schema.get("size", 0)
        if isinstance(size, int) and size > MOST_FIXED_BYTES:
            raise ValueError(f"fixed {name} has {size:,} bytes, expected at most {MOST_FIXED_BYTES:,}")
        inner = [self.of(each, name.rpartition(".")[0], level + 1) for each in _inner(schema)]
        self._known[name] = self._sum(inner)
        return self._known[name]

    @staticmethod
    def _sum(inner: Sequence[tuple[int, int]]) -> tuple[int, int]:
        columns, levels = 1 + sum(each for each, _ in inner), 1 + max((each for _, each in inner), default=0)
        if columns > MOST_COLUMNS or levels > MOST_LEVELS:
            raise ValueError(
                f"it has more than {MOST_COLUMNS:,} columns, or {MOST_LEVELS} levels, once each type is put where it is named"
            )
        return columns, levels


class _Inliner:
    """Walks a schema in the order in which a parser reads it, and remembers what has been defined."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = found
        self._defined: set[str] = set()

    def walk(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, str):
            return self._name(schema, namespace)
        if isinstance(schema, list):
            return [self.walk(branch, namespace) for branch in schema]
        kind = schema.get("type")
        if not isinstance(kind, str):
            return {**schema, "type": self.walk(kind, namespace)}
        if kind not in PRIMITIVES | NAMED | {"array", "map"}:
            return self._name(kind, namespace)
        if kind in NAMED:
            name = full_name(schema, namespace)
            if name in self._defined:  # inside another definition that was put here
                return name
            self._defined.add(name)
            namespace = name.rpartition(".")[0]
        walked = {key: self.walk(schema[key], namespace) for key in ("items", "values") if key in schema}
        if "fields" in schema:
            walked["fields"] = [{**field, "type": self.walk(field["type"], namespace)} for field in schema["fields"]]
        return {**schema, **walked}

    def _name(self, name: str, namespace: str) -> Any:
        """Is a primitive's name as it is, else the definition where it is the first use, else the full name."""
        if name in PRIMITIVES:
            return name
        known = next(
            (each for each in _readings(name, namespace) if each in self._defined or each in self._found), None
        )
        if known is None or known in self._defined:
            return known or name
        return self.walk(self._found[known], "")


def _readings(name: str, namespace: str) -> list[str]:
    """Are the full names that a name may stand for, the one within its namespace first."""
    return [name] if "." in name or not namespace else [f"{namespace}.{name}", name]
