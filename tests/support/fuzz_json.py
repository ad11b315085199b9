"""Random columns, random JSON for them, and what Python's own parser makes of it by the rules of docs/decoding.md."""

import json
import math
import random
from dataclasses import dataclass
from typing import Any

BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
LEAVES = [*BITS, "DOUBLE", "BOOLEAN", "STRING"]
TEXTS = ["", "word", "ü \U0001f600", 'quote " and \\', "4711-hush", "\n\t", "null", "5"]
NUMBERS: list[Any] = [0, -1, 127, 128, -129, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63), 0.5, -1e300, 1e-5, 10**25]


@dataclass(frozen=True)
class Shape:
    """A column's type: its name in capitals, and what is in it by name; of a list or map without one."""

    name: str
    is_nullable: bool = True
    inner: tuple[tuple[str, "Shape"], ...] = ()


class Wrong(Exception):
    """A document that must be set aside."""


def draw_shape(dice: random.Random, depth: int = 0) -> Shape:
    """Draw the columns of a document: a struct at first."""
    kind = "STRUCT" if depth == 0 else dice.choice([*LEAVES, *LEAVES, "STRUCT", "ARRAY", "MAP"] if depth < 3 else LEAVES)
    is_nullable = dice.random() < 0.8
    if kind == "STRUCT":
        fields = tuple((f"f{at}", draw_shape(dice, depth + 1)) for at in range(dice.randint(1, 5)))
        return Shape("STRUCT", is_nullable, fields)
    if kind in {"ARRAY", "MAP"}:
        inner = draw_shape(dice, depth + 1)
        return Shape(kind, is_nullable, (("", Shape(inner.name, True, inner.inner)),))
    return Shape(kind, is_nullable)


def ddl_of(shape: Shape) -> str:
    """Return a shape in Spark's DDL; of the whole without STRUCT."""
    return ", ".join(_field(name, each) for name, each in shape.inner)


def _field(name: str, shape: Shape) -> str:
    return f"{name}: {_type(shape)}{'' if shape.is_nullable else ' NOT NULL'}"


def _type(shape: Shape) -> str:
    match shape.name:
        case "STRUCT":
            return f"STRUCT<{', '.join(_field(name, each) for name, each in shape.inner)}>"
        case "ARRAY":
            return f"ARRAY<{_type(shape.inner[0][1])}>"
        case "MAP":
            return f"MAP<STRING, {_type(shape.inner[0][1])}>"
    return shape.name


def draw_value(dice: random.Random, shape: Shape, wild: float) -> Any:
    """Draw a value of a shape; with the chance `wild`, at each place, of any other one."""
    if dice.random() < wild:
        return dice.choice([None, True, [], {}, "4711-hush", {"f0": "4711-hush"}, [4711], *NUMBERS])
    if shape.is_nullable and dice.random() < 0.15:
        return None
    match shape.name:
        case "STRUCT":
            present = [(name, each) for name, each in shape.inner if not (each.is_nullable and dice.random() < 0.1)]
            dice.shuffle(present)
            return {name: draw_value(dice, each, wild) for name, each in present} | ({"z": 1} if dice.random() < 0.2 else {})
        case "ARRAY":
            return [draw_value(dice, shape.inner[0][1], wild) for _ in range(dice.randrange(4))]
        case "MAP":
            return {dice.choice(TEXTS): draw_value(dice, shape.inner[0][1], wild) for _ in range(dice.randrange(4))}
    bits = BITS.get(shape.name, 0)
    leaves: dict[str, list[Any]] = {
        "DOUBLE": [number for number in NUMBERS if isinstance(number, float) or abs(number) < 1 << 53],
        "BOOLEAN": [True, False],
        "STRING": TEXTS,
    }
    return dice.choice(leaves.get(shape.name) or [0, 1, -1, (1 << bits - 1) - 1, -(1 << bits - 1)])


def draw_body(dice: random.Random, value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=dice.random() < 0.5, indent=dice.choice([None, None, 1]))
    return (dice.choice(["", " ", "\r\n\t"]) + text + dice.choice(["", " "])).encode()


def expect(body: bytes, shape: Shape) -> Any:
    """Return the decoded value of a document; raise `Wrong` where it must be set aside."""
    try:
        document = json.loads(body.decode(), object_pairs_hook=_Pairs, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Wrong from error
    _refuse_halves(document)
    if document is None:
        raise Wrong
    return _value(document, shape)


class _Pairs(list[tuple[str, Any]]):
    """An object with its keys as they stand, which may be there twice."""


def _refuse(text: str) -> None:
    raise ValueError(text)


def _refuse_halves(value: Any) -> None:
    """Refuse half of a surrogate pair anywhere, in what no column has too."""
    try:
        if isinstance(value, str):
            value.encode()
        elif isinstance(value, _Pairs):
            for name, each in value:
                name.encode()
                _refuse_halves(each)
        elif isinstance(value, list):
            for each in value:
                _refuse_halves(each)
    except UnicodeEncodeError as error:
        raise Wrong from error


def _value(value: Any, shape: Shape) -> Any:
    if value is None:
        if not shape.is_nullable:
            raise Wrong
        return None
    match shape.name:
        case "STRUCT":
            given = dict(_pairs(value))
            return {name: _value(given.get(name), each) for name, each in shape.inner}
        case "MAP":
            pairs = _pairs(value)
            if len(dict(pairs)) < len(pairs):
                raise Wrong
            return {name: _value(each, shape.inner[0][1]) for name, each in pairs}
        case "ARRAY":
            if not isinstance(value, list) or isinstance(value, _Pairs):
                raise Wrong
            return [_value(each, shape.inner[0][1]) for each in value]
    return _leaf(value, shape)


def _leaf(value: Any, shape: Shape) -> Any:
    if shape.name == "STRING":
        return value if isinstance(value, str) else ...  # its JSON, as Spark writes it
    if shape.name == "BOOLEAN":
        is_right = isinstance(value, bool)
    elif shape.name == "DOUBLE":
        is_right = not isinstance(value, bool) and isinstance(value, int | float) and not math.isinf(_as_float(value))
    else:
        bits = BITS[shape.name]
        is_right = type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1
    if not is_right:
        raise Wrong
    return float(value) if shape.name == "DOUBLE" else value


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _pairs(value: Any) -> _Pairs:
    if not isinstance(value, _Pairs):
        raise Wrong
    return value


def is_same(found: Any, expected: Any) -> bool:
    """Return whether a decoded value is the one expected; of `...` any text is."""
    if expected is ...:
        return isinstance(found, str)
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(is_same(found[name], expected[name]) for name in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(is_same, found, expected))
    return bool(type(found) is type(expected) and found == expected)
