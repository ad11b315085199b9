"""Batches of JSON checked against their schemas, in Spark's Python workers.

What a worker imports is here and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd  # noqa: TID253 (a worker needs it at once, and nobody else imports this file early)

from ..core.json_mismatch import Shape, explain_mismatch
from .json_checks import find_violation, open_checker


def batch_checker(schemas: Mapping[int, tuple[str, tuple[tuple[str, str], ...]]]) -> Callable[..., pd.Series]:
    """Make the function that a worker calls with each batch: numbers of schemas, and bodies."""

    def check(numbers: pd.Series, bodies: pd.Series) -> pd.Series:
        found = [
            None if body is None or number not in schemas else find_violation(open_checker(*schemas[number]), body)
            for number, body in zip(numbers, bodies, strict=True)
        ]
        return pd.Series(found, dtype=object)

    return check


def batch_explainer(shape: Shape) -> Callable[..., pd.Series]:
    """Make the function that a worker calls with each batch of documents that are not of a shape."""

    def explain(bodies: pd.Series) -> pd.Series:
        return pd.Series([None if body is None else explain_mismatch(body, shape) for body in bodies], dtype=object)

    return explain
