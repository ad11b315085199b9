"""What the parts of a defs.yaml have in common: kinds of values, and the texts of errors in them.

Dagster derives a model of its own from each of ours, and checks the YAML by that, with its lines. Invariant: only a text with a
template is changed here, and nothing is accepted that Dagster would refuse.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, get_args

import dagster as dg
import jinja2
from dagster.components.resolved.errors import ResolutionException
from pydantic import (
    AfterValidator,
    BaseModel,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails

from ...adapters.system.yaml_text import shown
from ...core.advice import meant
from ...core.errors import LONGEST_REASON

OURS = re.compile(r"\w+Model$|function-")
"""Names of models and checks in the location of an error, which are not in the YAML."""
_BRANCH = re.compile(r"nullable\[.*\]|constrained-\w+|str|int|float|list\[.*\]|dict\[.*\]|\[key\]")
"""Names of the types that a field could have, which Pydantic appends to the field's location."""
_PLACE = re.compile(r"`?(?P<path>.*?) at (?P<file>.*):(?P<line>\d+)`?", re.DOTALL)
MISSING = "is missing"
_EXPECTED = {  # by what the codes of Pydantic's errors begin with
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "list": "a list",
    "too_short": "something",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "keys with their values"),
}
_MAY_BE_A_LOGIN = re.compile(r"@|://")


class YamlModel(dg.Model, dg.Resolvable):
    """A part of a defs.yaml."""

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return the model that Dagster checks the YAML by."""
        return _model_of(super().model())

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel | str) -> Any:
        """Return the part; raise `TypeError` for a text, which Dagster lets through, as it could be a template."""
        if isinstance(model, str):
            raise TypeError(f"expected the fields {', '.join(cls.model_fields)}, found a text")
        return super().resolve_from_model(context, model)


@cache
def _model_of(derived: type[BaseModel]) -> type[BaseModel]:
    class Explained(derived):  # type: ignore[valid-type, misc]
        @model_validator(mode="wrap")
        @classmethod
        def explain(cls: type[BaseModel], value: Any, handler: ModelWrapValidatorHandler[BaseModel]) -> BaseModel:
            empty = [each for each in _parts_of(cls) if isinstance(value, dict) and value.get(each[0], each) is None]
            if empty:
                raise ValidationError.from_exception_data(cls.__name__, [_of_nothing(*each) for each in empty])
            if isinstance(value, dict):  # Pydantic cannot check a length bound on none
                value = {name: each for name, each in value.items() if each is not None or not _may_be_none(cls, name)}
            try:
                return handler(value)
            except ValidationError as error:
                raise ValidationError.from_exception_data(error.title, _explain(error, cls)) from None

    Explained.__name__ = Explained.__qualname__ = derived.__name__
    return Explained


def _parts_of(kind: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the fields that are parts, with fields of their own."""
    for name, field in kind.model_fields.items():
        for each in get_args(field.annotation):
            if isinstance(each, type) and issubclass(each, BaseModel):
                yield name, each


def _may_be_none(kind: type[BaseModel], name: str) -> bool:
    return name in kind.model_fields and kind.model_fields[name].default is None


def _of_nothing(name: str, part: type[BaseModel]) -> InitErrorDetails:
    """Return the error of a part with nothing after its colon, which YAML reads as null."""
    needed = [f"`{each}`" for each, field in part.model_fields.items() if field.is_required()]
    expected = f"at least {', '.join(needed)}" if needed else f"fields, or `{name}: {{}}` for what they are by default"
    said = f"found nothing, expected {expected}; or take `{name}` out"
    return InitErrorDetails(type="value_error", loc=(name,), input=None, ctx={"error": ValueError(said)})


def _explain(error: ValidationError, kind: type[BaseModel]) -> list[InitErrorDetails]:
    """Return the errors, with the field that was meant for an unknown one, without those that call a part no text."""
    found, errors = [], error.errors()
    for each in errors:
        where = tuple(step for step in each["loc"] if not OURS.match(str(step)))
        if each["type"] == "string_type" and where[-1:] == ("str",) and isinstance(each["input"], dict) and len(errors) > 1:
            continue
        code, context = each["type"], each.get("ctx", {})
        if code == "extra_forbidden" and len(where) == 1:
            said = f"there is no such field{meant(str(where[0]), kind.model_fields)}; there are {', '.join(kind.model_fields)}"
            code, context = "value_error", {"error": ValueError(said)}
        found.append(InitErrorDetails(type=code, loc=where, input=each["input"], ctx=context))
    return found


def as_written(context: dg.ResolutionContext, value: Any) -> Any:
    """Return a text as it stands in the file, also `1_000` or `null`, which Dagster would make a number and none.

    A template in it, `{{ env.BROKERS }}`, is rendered, and is a text again; an unknown name in it is an error.
    """
    if isinstance(value, list):
        return [as_written(context, each) for each in value]
    if isinstance(value, dict):
        return {name: as_written(context, each) for name, each in value.items()}
    if not isinstance(value, str) or "{{" not in value:
        return value
    try:
        return _TEMPLATES.from_string(value).render(**context.scope)
    except (jinja2.TemplateError, ResolutionException, TypeError, AttributeError, ValueError) as error:
        said = str(error).partition(". ")[0]
        braces = " ".join(_BRACES.findall(value))  # what stands around them may be a login
        raise ValueError(
            f"the template {shown(braces)!r} cannot be rendered: {shown(said)}; expected such as '{{{{ env.NAME }}}}' with "
            "that variable set, or a text without {{"
        ) from None


def _refuse_nothing(value: object) -> object:
    if value is None:
        raise ValueError("it gives nothing, such as an environment variable that is not set")
    return value


_BRACES = re.compile(r"\{\{.*?(?:\}\}|$)", re.DOTALL)
_TEMPLATES = jinja2.Environment(undefined=jinja2.StrictUndefined, finalize=_refuse_nothing, autoescape=False)  # noqa: S701  no HTML
WRITTEN = dg.Resolver(as_written, inject_before_resolve=False)
"""Resolver for a text, and for a list or mapping of texts."""
LITERAL = dg.Resolver.passthrough()
"""Resolver for a text in which braces are the text's own: prose, and schemas."""


def number(low: float, high: float, *words: str) -> WrapValidator:
    """Accept a number in [low, high] or one of the words; Dagster lets any text through, as it could be a template."""

    def check(written: object, handler: ValidatorFunctionWrapHandler) -> object:
        value = written if isinstance(written, bool) else handler(written)  # Pydantic makes 1 of true
        if value in words or (isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high):
            return value
        found = shown(str(value).lower() if isinstance(value, bool) else repr(value))
        raise ValueError(f"expected a number from {low} to {high}{''.join(f' or {word}' for word in words)}, found {found}")

    return WrapValidator(check)


def word(*words: str) -> AfterValidator:
    """Accept one of the words."""
    return AfterValidator(lambda value: one_of(value, words))


def one_of(value: str, words: Sequence[str]) -> str:
    """Return a value that is one of some words; raise `ValueError` where it is none."""
    if value not in words:
        raise ValueError(f"expected one of {', '.join(words)}, found {shown(repr(value))}{meant(value, words)}")
    return value


def problems_of(error: ValidationError) -> list[str]:
    """Return the problems, each with its line and key, without what Pydantic says for programmers."""
    return list(dict.fromkeys(_problems(error)))


def _problems(error: ValidationError) -> Iterator[str]:
    said: set[str] = set()
    for each in error.errors():
        place = _PLACE.fullmatch(str(each["loc"][0])) if len(each["loc"]) == 1 else None
        steps = (place["path"].split(".") if place else [str(step) for step in each["loc"]]) or [""]
        steps = [step for step in steps if step != "attributes" or len(steps) == 1]
        while len(steps) > 1 and _BRANCH.fullmatch(steps[-1]):
            steps.pop()
        path = ".".join(steps)
        if path in said or any(each.startswith(f"{path}.") for each in said):  # another type of that field
            continue
        said.add(path)
        line = f"line {place['line']}: " if place else ""
        words = _words(each)
        if each["type"] == "extra_forbidden" and len(steps) == 1:
            words += " beside `type` and `attributes`; fields of the topic are below `attributes`, indented"
        yield f"{line}{f'`{path}`' if path else ''}{' ' if words == MISSING else ': ' if path else ''}{words}"


def _words(each: ErrorDetails) -> str:
    """Return what is wrong with one value; Pydantic's own words where there are no better."""
    code, value = each["type"], each["input"]
    if code == "missing":
        return MISSING
    if code == "extra_forbidden":
        return "there is no such field"
    expected = next((_EXPECTED[name] for name in _EXPECTED if code.startswith(name)), None)
    said = f"expected {expected}" if expected else str(each["msg"]).removeprefix("Value error, ")
    if code == "value_error":
        return said if len(said) <= LONGEST_REASON else f"{said[:LONGEST_REASON]}..."  # it may repeat a value
    if value is None:
        return f"{said}, found nothing"
    if isinstance(value, bool | int | float):
        value = str(value).lower()
        quoted = f"; in quotes it is a text: '{shown(value)}'" if code.startswith("string") else ""
        return f"{said}, found {shown(value)}{quoted}"
    if isinstance(value, str) and not _MAY_BE_A_LOGIN.search(value):
        return f"{said}, found {shown(value)!r}"
    return f"{said}, found a {'text' if isinstance(value, str) else 'list' if isinstance(value, list) else 'mapping'}"
