"""Batches of JSON checked against JSON Schemas by jsonschema-rs, in Spark's Python workers.

What a worker imports is here and nothing else. Nothing is fetched: a schema has what it refers to beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pandas as pd  # noqa: TID253 (a worker needs it at once, and nobody else imports this file early)
from jsonschema_rs import validator_for

BASE = "json-schema:///"
SHOWN = 3  # violations in a message


@cache
def open_validator(text: str, references: tuple[tuple[str, str], ...]) -> Any:
    """Is the validator of a schema, once per process; raises `ValueError` where it is none."""
    known = {name: json.loads(content) for name, content in references}

    def find(uri: str) -> Any:
        name = uri.removeprefix(BASE)
        if name not in known:
            raise LookupError(f"nothing is fetched, and no reference is called {name}")
        return known[name]

    return validator_for(json.loads(text), retriever=find)


def find_violation(validator: Any, body: bytes) -> str | None:
    """Says what of a document its schema does not allow; none where it allows all.

    What cannot be read, or is nested too deep to be, is a violation too: nothing that was not checked ever passes.
    """
    try:
        document = json.loads(body)
        found = [error for _, error in zip(range(SHOWN), validator.iter_errors(document), strict=False)]
    except (ValueError, RecursionError) as error:
        return f"it cannot be checked: {error}"
    return "; ".join(f"at /{'/'.join(map(str, each.instance_path))}: {each.message}" for each in found) or None


def batch_checker(schemas: Mapping[int, tuple[str, tuple[tuple[str, str], ...]]]) -> Callable[..., pd.Series]:
    """Makes the function that a worker calls with each batch: numbers of schemas, and bodies."""

    def check(numbers: pd.Series, bodies: pd.Series) -> pd.Series:
        found = [
            None if body is None or number not in schemas else find_violation(open_validator(*schemas[number]), body)
            for number, body in zip(numbers, bodies, strict=True)
        ]
        return pd.Series(found, dtype=object)

    return check
