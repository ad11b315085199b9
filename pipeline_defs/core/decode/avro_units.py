"""Units of numbers in Avro: Avro reads the same number by either schema, whatever unit each of them gives it.

Invariant: a field without a unit in one schema is not reported, since units are often added to a schema later.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from .avro import NAMED, NESTED, PRIMITIVES, find_named, full_name, parse_avro

UNITS: Mapping[str, str] = {
    "date": "days",
    **{
        f"{kind}-{unit}": f"{unit}econds"
        for kind in ("time", "timestamp", "local-timestamp")
        for unit in ("millis", "micros", "nanos")
    },
}
TYPES = (*PRIMITIVES, *NAMED, *NESTED)
Names = Mapping[str, Any]


def find_other_unit(writer: str, reader: str) -> str | None:
    """Return where two self-contained schemas first give a number different units, and which; none where all agree."""
    schemas = parse_avro(writer), parse_avro(reader)
    names = [dict(find_named(schema, "")) for schema in schemas]
    return next(_find(*schemas, (names[0], names[1]), "", frozenset()), None)


def _find(writer: Any, reader: Any, names: tuple[Names, Names], path: str, within: frozenset[tuple[str, str]]) -> Iterator[str]:
    for one in _branches(writer, names[0]):
        others = _branches(reader, names[1])
        for other in [each for each in others if _kind(each) == _kind(one)] or others:
            yield from _find_in_branch(one, other, names, path, within)


def _find_in_branch(
    writer: Mapping[str, Any],
    reader: Mapping[str, Any],
    names: tuple[Names, Names],
    path: str,
    within: frozenset[tuple[str, str]],
) -> Iterator[str]:
    units = _unit(writer), _unit(reader)
    if None not in units and units[0] != units[1]:
        yield f"{path or 'the whole'} was written in {units[0]}, and the reader's schema has {units[1]}"
    kind = writer["type"]
    if kind != reader["type"]:
        return
    if kind in NESTED:
        word, suffix, _ = NESTED[kind]
        yield from _find(writer[word], reader[word], names, f"{path}{suffix}", within)
    pair = full_name(writer, ""), full_name(reader, "")
    if kind in {"record", "error"} and pair not in within:
        written = {field["name"]: field["type"] for field in writer["fields"]}
        for field in reader["fields"]:
            for name in (field["name"], *field.get("aliases", ())):
                if name in written:
                    below = f"{path}.{field['name']}".lstrip(".")
                    yield from _find(written[name], field["type"], names, below, within | {pair})


def _branches(schema: Any, names: Names) -> list[Mapping[str, Any]]:
    """Return the types that a part of a schema may have, each as an object with its definition."""
    if isinstance(schema, list):
        return [found for branch in schema for found in _branches(branch, names)]
    if isinstance(schema, str):
        known = names.get(schema) or next((each for name, each in names.items() if name.rpartition(".")[2] == schema), None)
        return [known or {"type": schema}]
    return [schema] if schema["type"] in TYPES else _branches(schema["type"], names)


def _kind(schema: Mapping[str, Any]) -> str:
    kind = str(schema["type"])
    return f"{kind} {full_name(schema, '').rpartition('.')[2]}" if kind in NAMED else kind


def _unit(schema: Mapping[str, Any]) -> str | None:
    logical = str(schema.get("logicalType"))
    return f"scale {schema.get('scale', 0)}" if logical == "decimal" else UNITS.get(logical)
