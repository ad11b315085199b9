"""Batches of JSON in Spark's Python workers: checked against their schemas; why those that Spark set aside do not fit.

What a worker imports is here and nothing else. Invariant: messages have the schema's names, and nothing of a document's
content.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any

import pandas as pd  # noqa: TID253 (a worker needs it at once, and nobody else imports this file early)
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from .json_checks import find_violation, open_checker

WHOLE_NUMBERS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64, "TIMESTAMP": 64}  # of seconds, with their bits
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
NO_TEXTS = {"TIMESTAMP": "a text unlike 2013-01-31T12:00:00Z", "BINARY": "a text that is no base64"}
NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
DAY = "(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"  # of the years 1 to 9999, which every reader of the files can say
TIME = r"[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?"
ZONE = "Z|[+-](0[0-9]|1[0-7])(:?[0-5][0-9])?|[+-]18(:?00)?"
MOMENT = re.compile(rf"{DAY}({TIME})?({ZONE})?")
# as Spark's parser reads it: spaces before four characters, not within, and more of them behind an =
BASE64 = re.compile(r"([\0- ]*[A-Za-z0-9+/]{2}([A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==))*[\0- ]*")
UNEXPLAINED = "it is not of the schema's types"


def batch_checker(schemas: Mapping[int, tuple[str, tuple[tuple[str, str], ...]]]) -> Callable[..., pd.Series]:
    """Make the function that a worker calls with each batch: numbers of schemas, and bodies."""

    def check(numbers: pd.Series, bodies: pd.Series) -> pd.Series:
        found = [
            None if body is None or number not in schemas else find_violation(open_checker(*schemas[number]), body)
            for number, body in zip(numbers, bodies, strict=True)
        ]
        return pd.Series(found, dtype=object)

    return check


def batch_explainer(schema: DataType) -> Callable[..., pd.Series]:
    """Make the function that a worker calls with each batch of documents that are not of a schema."""

    def explain(bodies: pd.Series) -> pd.Series:
        return pd.Series([None if body is None else explain_mismatch(body, schema) for body in bodies], dtype=object)

    return explain


def explain_mismatch(body: bytes, schema: DataType) -> str:
    """Return which field of a document is not of its type, as `id: expected BIGINT, found string`."""
    try:
        document = json.loads(body)
        if document is None:
            return f"expected {_name(schema)}, found null"
        return next(_find(document, schema, "", is_nullable=True), UNEXPLAINED)
    except (ValueError, RecursionError):  # Spark reads it, and Python does not: a number of 5,000 digits
        return UNEXPLAINED


def _name(schema: DataType) -> str:
    return schema.simpleString().partition("<")[0].partition("(")[0].upper()


def _find(value: Any, schema: DataType, path: str, *, is_nullable: bool) -> Iterator[str]:
    if value is None:
        if not is_nullable:
            yield f"{path or 'the whole'} is null or missing"
        return
    name, found = _name(schema), NAMES[type(value)]
    found = found if found not in TAKES.get(name, {found}) else _beyond(value, name)
    if found:
        yield f"{path}: expected {name}, found {found}".removeprefix(": ")
        return
    match schema:
        case StructType():
            for each in schema:
                below = f"{path}.{each.name}".lstrip(".")
                yield from _find(value.get(each.name), each.dataType, below, is_nullable=each.nullable)
        case ArrayType():
            for each in value:
                yield from _find(each, schema.elementType, f"{path}[]", is_nullable=schema.containsNull)
        case MapType():
            for each in value.values():
                yield from _find(each, schema.valueType, f"{path}{{}}", is_nullable=schema.valueContainsNull)


def _is_said(text: str, name: str) -> bool:
    """Return whether a column's type can hold a text, as far as that is certain."""
    try:
        if name == "TIMESTAMP":
            return MOMENT.fullmatch(text) is not None and date.fromisoformat(text[:10]) is not None
    except ValueError:
        return False
    return name != "BINARY" or BASE64.fullmatch(text) is not None


def _beyond(value: Any, name: str) -> str:
    """Return what is wrong with a number or text of the right JSON type; an empty text if nothing is."""
    if isinstance(value, str):
        return "" if _is_said(value, name) else NO_TEXTS[name]
    bits = WHOLE_NUMBERS.get(name)
    if bits is None:
        return ""
    if isinstance(value, float):
        return "a number with a fraction or exponent"
    return "" if -(1 << bits - 1) <= value < 1 << bits - 1 else "a number beyond it"
