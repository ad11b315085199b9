"""What the parts of a defs.yaml have in common: a field that there is not is refused with the one that was probably meant.

Dagster derives a model of its own from each of ours, and checks the YAML by that, with its lines. Invariant: no value is
changed here, and none is let through that Dagster would not.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import dagster as dg
from pydantic import BaseModel, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from .core.near import meant

OURS = re.compile(r"\w+Model$|function-")
"""Names of models and checks in the place of an error, which is not in the YAML."""


class YamlModel(dg.Model, dg.Resolvable):
    """A part of a defs.yaml."""

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return the model that Dagster checks the YAML by."""
        return _model_of(super().model())

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel | str) -> Any:
        """Return the part; Dagster lets any text through, as it could be a template."""
        if isinstance(model, str):
            raise TypeError(f"expected the fields {', '.join(cls.model_fields)}, found the text {model!r}")
        return super().resolve_from_model(context, model)


@cache
def _model_of(derived: type[BaseModel]) -> type[BaseModel]:
    class Explained(derived):  # type: ignore[valid-type, misc]
        @model_validator(mode="wrap")
        @classmethod
        def explain(cls: type[BaseModel], value: Any, handler: ModelWrapValidatorHandler[BaseModel]) -> BaseModel:
            try:
                return handler(value)
            except ValidationError as error:
                raise ValidationError.from_exception_data(error.title, _explain(error, cls)) from None

    Explained.__name__ = Explained.__qualname__ = derived.__name__
    return Explained


def _explain(error: ValidationError, kind: type[BaseModel]) -> list[InitErrorDetails]:
    """Return what is wrong, of an unknown field which one was meant, and without the texts that a part could have been too."""
    found = []
    for each in error.errors():
        where = tuple(step for step in each["loc"] if not OURS.match(str(step)))
        if each["type"] == "string_type" and where[-1:] == ("str",) and isinstance(each["input"], dict):
            continue
        code, context = each["type"], each.get("ctx", {})
        if code == "extra_forbidden" and len(where) == 1:
            said = f"there is no such field{meant(str(where[0]), kind.model_fields)}; there are {', '.join(kind.model_fields)}"
            code, context = "value_error", {"error": ValueError(said)}
        found.append(InitErrorDetails(type=code, loc=where, input=each["input"], ctx=context))
    return found
