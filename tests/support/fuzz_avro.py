"""Avro as others write it, by fastavro: random schemas, data of them, and the rows that these are."""

import io
import random
from typing import Any

import fastavro

from pipeline_defs.adapters.formats.spark_wire import head_of

LEAVES = ["boolean", "int", "long", "float", "double", "string", "bytes"]


def draw_schema(dice: random.Random, depth: int = 0, names: list[int] | None = None) -> Any:
    """Draw a schema: a record at first."""
    names = [0] if names is None else names
    kinds = [*LEAVES, *LEAVES, "record", "array", "map", "enum", "fixed", "maybe", "either"]
    kind = "record" if depth == 0 else dice.choice(kinds if depth < 3 else LEAVES)
    names[0] += 1
    name = f"N{names[0]}"
    match kind:
        case "record":
            fields = [{"name": f"f{at}", "type": draw_schema(dice, depth + 1, names)} for at in range(dice.randint(1, 5))]
            return {"type": "record", "name": name, "namespace": dice.choice(["a", "b.c"]), "fields": fields}
        case "array":
            return {"type": "array", "items": draw_schema(dice, depth + 1, names)}
        case "map":
            return {"type": "map", "values": draw_schema(dice, depth + 1, names)}
        case "enum":
            return {"type": "enum", "name": name, "symbols": ["A", "B"]}
        case "fixed":
            return {"type": "fixed", "name": name, "size": 3}
        case "maybe":
            return ["null", dice.choice(LEAVES)]
        case "either":
            return ["int", "string"]
    return kind


def draw_datum(dice: random.Random, schema: Any) -> tuple[Any, Any]:
    """Draw a datum as fastavro takes it, and the value that it decodes to."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, list):
        branch = dice.choice(kind)
        datum, value = draw_datum(dice, branch)
        if "null" in kind:
            return datum, value
        return datum, {f"member_{each}": value if each == branch else None for each in kind}
    match kind:
        case "record":
            pairs = {each["name"]: draw_datum(dice, each["type"]) for each in schema["fields"]}
            return {name: datum for name, (datum, _) in pairs.items()}, {name: value for name, (_, value) in pairs.items()}
        case "array":
            pairs_ = [draw_datum(dice, schema["items"]) for _ in range(dice.randrange(4))]
            return [datum for datum, _ in pairs_], [value for _, value in pairs_]
        case "map":
            named = {f"k{at}": draw_datum(dice, schema["values"]) for at in range(dice.randrange(4))}
            return {name: datum for name, (datum, _) in named.items()}, {name: value for name, (_, value) in named.items()}
    choices: dict[str, list[Any]] = {
        "null": [None],
        "boolean": [True, False],
        "int": [0, -1, (1 << 31) - 1, -(1 << 31)],
        "long": [0, -1, (1 << 63) - 1, -(1 << 63)],
        "float": [0.5, -1.25, float("inf")],
        "double": [0.1, -1e300, float("-inf")],
        "string": ["", "ü", "x" * 100],
        "bytes": [b"", b"\x00\xff"],
        "enum": ["A", "B"],
        "fixed": [b"abc", b"\x00\xff\x7f"],
    }
    datum = dice.choice(choices[kind])
    return datum, datum


def avro(schema: Any, datum: Any, schema_id: int | None = None) -> bytes:
    """Return a datum of a schema, with the id in front where there is one."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), datum)
    return (head_of(schema_id) if schema_id is not None else b"") + out.getvalue()
