"""JSON checked against JSON Schemas by jsonschema-rs.

Nothing is fetched: a schema has what it refers to beside it. Invariant: messages about a document have nothing of its content,
only its schema's words and the JSON types of values.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from ...core.decode.json_schema import columns_of, find_clashes, refuse_bomb, refuse_loop
from ...core.decode.schema_text import parse_json
from ...core.errors import is_panic, unusable_schema

BASE = "json-schema:///"
SHOWN = 3  # violations in a message
LONGEST = 200  # characters of one place, or of what a schema says
MOST_TOLD = 5_000  # checks of one value: beyond, finding errors of branches within branches takes for ever
TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}

Checked = tuple[str, tuple[tuple[str, str], ...]]
"""A schema, and what it refers to by name: as a worker is given them."""


@dataclass(frozen=True)
class Checker:
    """A schema that documents are checked by; it `tells` where they fail, unless it has too many branches."""

    validator: Any
    tells: bool


@cache
def open_checker(text: str, references: tuple[tuple[str, str], ...]) -> Checker:
    """Return the checker of a schema, the same one for the life of the process; raise `ValueError` if it is no schema."""
    schema, known = parse_json(text), {name: parse_json(content) for name, content in references}

    def find(uri: str) -> Any:
        name = uri.removeprefix(BASE)
        if name not in known:
            raise LookupError(f"nothing is fetched, and no reference is called {name}")
        return known[name]

    checks = refuse_bomb(schema, known)
    try:
        from jsonschema_rs import validator_for  # of an extra, which JSON without a schema does without

        return Checker(validator_for(schema, retriever=find), checks <= MOST_TOLD)
    except BaseException as error:
        if is_panic(error):
            raise ValueError("jsonschema-rs, which would check documents by it, fails") from error
        raise


def check_schema(text: str, references: Mapping[str, str], what: str) -> Checked:
    """Return a schema that documents can be checked by, with what it refers to; raise `UnusableSchema`."""
    checked = (text, tuple(sorted(references.items())))
    try:
        open_checker(*checked)
        clashes = find_clashes(json.loads(text))
        if clashes:
            raise ValueError(f"properties differ in case only: {', '.join(clashes)}")
    except ValueError as error:
        raise unusable_schema(what, str(error).splitlines()[0]) from error
    return checked


def read_columns(text: str, references: Mapping[str, str], what: str) -> tuple[Checked, str]:
    """Return a reader's schema, and its columns in Spark's DDL; raise `UnusableSchema`."""
    checked = check_schema(text, references, what)
    known = {name: json.loads(content) for name, content in references.items()}
    try:
        refuse_loop(json.loads(text), known)
        return checked, columns_of(json.loads(text), known)
    except ValueError as error:
        raise unusable_schema(what, str(error)) from error


def find_violation(checker: Checker, body: bytes) -> str | None:
    """Return what its schema does not allow in a document; none if it allows all.

    What cannot be read, or is nested too deep to be, is a violation too: nothing that was not checked ever passes.
    """
    try:
        document = DECODER.decode(body.decode())
        if checker.validator.is_valid(document):
            return None
        if not checker.tells:
            return "it is not valid; its schema has too many branches to say where"
        errors = [error for _, error in zip(range(SHOWN), checker.validator.iter_errors(document), strict=False)]
        return "; ".join(map(_say, errors))
    except BaseException as error:
        if not isinstance(error, (ValueError, RecursionError)) and not is_panic(error):
            raise
        return f"it cannot be checked: {_explain(error)}"


def _explain(error: BaseException) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower()} at character {error.pos}"
    if isinstance(error, Unchecked):
        return str(error)
    if isinstance(error, UnicodeError):
        return "it has half of a surrogate pair, or bytes that are not UTF-8"
    if isinstance(error, RecursionError) or "recursion" in str(error).lower():
        return "it is nested too deep"
    return "a number has too many digits" if "digits" in str(error) else "jsonschema-rs fails at it"


class Unchecked(ValueError):
    """A number that is in the text, and that no checker can be given."""


def _number(text: str) -> float:
    """Return a number; raise `Unchecked` for one beyond DOUBLE, which the checker would take for null."""
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise Unchecked("a number is beyond DOUBLE")
    return number


def _constant(text: str) -> float:
    raise Unchecked(f"{text} is no JSON")


DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_constant)


def _say(error: Any) -> str:
    """Return where a document is not as its schema wants, and how: by types of values, never by values."""
    kind, path = error.kind, [str(step) for step in error.evaluation_path]
    named = {name for word, name in pairwise(path) if word == "properties"}
    at = "/".join(str(step) if isinstance(step, int) or step in named else "*" for step in error.instance_path)
    match kind.name:
        case "type":
            found = TYPES.get(type(error.instance), "null")
            said = f"expected {' or '.join(map(str, kind.types))}, found {found}"
        case "required":
            said = f"{json.dumps(kind.property)} is a required property"
        case "falseSchema":
            said = "nothing is allowed here"
        case name:
            limit = getattr(kind, "limit", getattr(kind, "pattern", None))
            said = f"not as {name} says" if limit is None else f"not as {name} {_cut(json.dumps(limit))} says"
    return f"at /{_cut(at)}: {said} (/{_cut('/'.join(map(str, error.schema_path)))})"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
