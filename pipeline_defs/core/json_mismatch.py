"""What of a JSON document is not of the types that its columns have: the field, the type, and the JSON type that is there.

Spark has judged the document before. Invariant: what is said has the schema's names, and nothing of what the document says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

WHOLE_NUMBERS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
NUMBER, STRING = frozenset({"number"}), frozenset({"string"})
TAKES = {
    **dict.fromkeys((*WHOLE_NUMBERS, "FLOAT", "DOUBLE"), NUMBER),
    **dict.fromkeys(("BINARY", "DATE", "TIMESTAMP_NTZ"), STRING),
    "TIMESTAMP": NUMBER | STRING,
    "BOOLEAN": frozenset({"boolean"}),
    "STRUCT": frozenset({"object"}),
    "MAP": frozenset({"object"}),
    "ARRAY": frozenset({"array"}),
}
NAMES = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}
UNEXPLAINED = "it is not of the schema's types"


@dataclass(frozen=True, slots=True)
class Shape:
    """A column's type: its name in capitals, and what is in it by name; of a list or map without one."""

    name: str
    is_nullable: bool = True
    inner: tuple[tuple[str, Shape], ...] = ()


def explain_mismatch(body: bytes, shape: Shape) -> str:
    """Say which field of a document is not of its type, as `id: expected BIGINT, found string`."""
    try:
        document = json.loads(body.decode())
        if document is None:
            return f"expected {shape.name}, found null"
        return next(_find(document, shape, ""), UNEXPLAINED)
    except (ValueError, RecursionError):  # Spark reads it, and Python does not: a number of 5,000 digits
        return UNEXPLAINED


def _find(value: Any, shape: Shape, path: str) -> Iterator[str]:
    if value is None:
        if not shape.is_nullable:
            yield f"{path or 'the whole'} is null or missing"
        return
    found = NAMES[type(value)]
    found = found if found not in TAKES.get(shape.name, {found}) else _beyond(value, shape)
    if found:
        yield f"{path}: expected {shape.name}, found {found}".removeprefix(": ")
    else:
        yield from _find_inside(value, shape, path)


def _beyond(value: Any, shape: Shape) -> str:
    """Say what is wrong with a number of the right JSON type; nothing where nothing is."""
    bits = WHOLE_NUMBERS.get(shape.name)
    if bits is None:
        return ""
    if isinstance(value, float):
        return "a number with a fraction or exponent"
    return "" if -(1 << bits - 1) <= value < 1 << bits - 1 else "a number beyond it"


def _find_inside(value: Any, shape: Shape, path: str) -> Iterator[str]:
    match shape.name:
        case "STRUCT":
            for name, each in shape.inner:
                yield from _find(value.get(name), each, f"{path}.{name}".lstrip("."))
        case "MAP" | "ARRAY":
            ((_, inner),) = shape.inner
            for each in value.values() if isinstance(value, dict) else value:
                yield from _find(each, inner, f"{path}{'{}' if shape.name == 'MAP' else '[]'}")
