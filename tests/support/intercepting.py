"""Calls of the product beside which something happens, and that are made all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def _nothing(*_: Any, **__: Any) -> None:
    """Happen to a call."""


def beside(
    patch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    before: Callable[..., object] = _nothing,
    after: Callable[..., object] = _nothing,
) -> None:
    """Have something be done before each call of a method or function, or after it, which is told its arguments.

    What it raises is how the call ends: before it nothing was done, after it an answer is lost.
    """
    real = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        before(*given, **named)
        answer = real(*given, **named)
        after(*given, **named)
        return answer

    patch.setattr(owner, name, call)
