"""The reference of defs.yaml and of the commands, made from the code: `python -m tests.support.reference` writes it anew."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.cli.commands import cli, first_sentence
from pipeline_defs.component import KafkaTopic
from pipeline_defs.orchestration.assets.derived_config import DaysConfig, DecodeConfig, LatestConfig, SideConfig

PAGE = PROJECT / "docs" / "reference.md"
HEAD = """# Reference

Made from the code by `python -m tests.support.reference`. Variables: [settings](settings.md).

"""


def made() -> str:
    """Return the page as the code says it now."""
    return HEAD + "\n".join([*_of_defs(), *_of_commands(), ""])


def _of_defs() -> Iterator[str]:
    yield "## `defs.yaml`: `attributes`\n"
    yield from _table(KafkaTopic)
    for title, model in (
        ("decode", DecodeConfig),
        ("decode.key, decode.value", SideConfig),
        ("days", DaysConfig),
        ("latest", LatestConfig),
    ):
        yield f"\n### `{title}`\n"
        yield from _table(model)


def _of_commands() -> Iterator[str]:
    yield "\n## Commands\n"
    yield "`offsetlake COMMAND --help` explains the options.\n"
    yield "| command | what it does (options) |"
    yield "|---|---|"
    for names, command in _leaves_of(cli):
        context = click.Context(command)
        arguments = [each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)]
        records = [each.get_help_record(context) for each in command.params if isinstance(each, click.Option)]
        options = ", ".join(f"`{each[0].removesuffix(' RANGE')}`" for each in records if each)  # a hidden option has no record
        yield _row(f"`{' '.join([*names, *arguments])}`", first_sentence(command) + (f" ({options})" if options else ""))


def _leaves_of(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _leaves_of(command, *names, name)
        else:
            yield (*names, name), command


def _table(model: type[Any]) -> Iterator[str]:
    yield "| key | default | |"
    yield "|---|---|---|"
    for name, default, description in _fields_of(model):
        yield _row(f"`{name}`", default, description)


def _row(*cells: str) -> str:
    return "| " + " | ".join(each.replace("|", r"\|") for each in cells) + " |"


def _fields_of(model: type[Any]) -> Iterator[tuple[str, str, str]]:
    found = model.model_fields if issubclass(model, BaseModel) else _of_component(model)
    for name, field in found.items():
        default = field.get_default(call_default_factory=True)
        is_shown = isinstance(default, str | int | float) and not field.is_required()
        yield name, f"`{default}`" if is_shown else "", field.description or ""


def _of_component(model: type[Any]) -> dict[str, FieldInfo]:
    return {each.name: each.default for each in fields(model) if isinstance(each.default, FieldInfo)}


if __name__ == "__main__":
    PAGE.write_text(made())


def texts() -> list[tuple[str, str]]:
    """Return every text of the package that is no docstring, with its place; what is filled in stands as `{}`."""
    found = []
    for path in (PROJECT / "pipeline_defs").rglob("*.py"):
        tree = ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        skip = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        skip |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if id(node) in skip:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
                found.append((f"{path.name}:{node.lineno}", "".join(parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((f"{path.name}:{node.lineno}", node.value))
    return found
