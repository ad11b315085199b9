"""How commands show things: tables for people, JSON for programs, sizes and times in words."""

import base64
import datetime
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ..adapters.spark.spark_server import LOG
from ..adapters.system.project_folder import check_home, defs_folder, find_project
from ..core.advice import meant, some_of
from ..core.errors import OffsetlakeError, Refused, UnknownTopic
from ..core.offsets import check_topic
from ..orchestration.topic_set import Broken, TopicFiles
from ..resources import Adapters
from ..settings import read_settings
from ..topic_files import load_topics
from ..topics import Topic
from .terminal import ERRORS, OUT, Terminal, progress, styled

SPARK_LOGS: list[Path] = []  # logs of this command's Spark, named where it failed
LEAST_WIDTH = 80  # columns that a table takes at least
LONGEST_SHOWN = 2_000  # characters of one value; Rich would take minutes to fold a record of megabytes
PATIENCE_SECONDS = 8.0  # how long a person waits to hear that no broker answers; runs wait longer


class TopicName(click.ParamType[str]):
    """A name that Kafka allows for a topic; every command refuses any other before it reads anything."""

    name = "topic"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 (click's)
        """Return the name; raises `Refused` for one that no topic can have."""
        try:
            return check_topic(value)
        except ValueError as error:
            raise Refused(f"{error}; nothing was done") from None


topic_argument = click.argument("topic", type=TopicName())
optional_topic_argument = click.argument("topic", type=TopicName(), required=False)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
on_change_option = click.option(
    "--on-change",
    type=click.Choice(["keep", "replace"]),
    default="keep",
    show_default=True,
    help="What becomes of a landed range that Kafka has otherwise by now, compacted further, say.",
)


def open_adapters() -> Adapters:
    """Open the adapters that this machine's environment names; Spark prints to a log below OFFSETLAKE_HOME."""
    check_home(find_project())
    settings = read_settings()
    SPARK_LOGS.extend([settings.spark_log, settings.engine_folder / LOG])
    return Adapters(settings, kafka_timeout_seconds=PATIENCE_SECONDS, spark_log=settings.spark_log)


def choose_topics(name: str | None) -> TopicFiles:
    """Read the topics of this project; where one is named, as if it were the only one."""
    found = read_topics()
    return found if name is None else replace(found, topics={name: find_topic(name, found)}, broken=(), patterns=())


def find_topic(name: str, found: TopicFiles | None = None) -> Topic:
    """Find a topic that a defs.yaml names or whose pattern matches; refuse others, naming the known ones."""
    found = found or read_topics()
    if topic := found.find(name):
        return topic
    if broken := found.find_broken(name):
        raise broken.error
    if found.broken:
        reasons = some_of([each.error.message for each in found.broken], 3)
        raise UnknownTopic(
            f"topic {name} is in no defs.yaml that can be used, and may be in one that cannot (`offsetlake doctor`): {reasons}"
        )
    known = [*sorted(found.topics), *(f"what matches `{each.pattern}`" for each in found.patterns)]
    raise UnknownTopic(
        f"topic {name} has no defs.yaml in {find_project()}; known are {some_of(known) or 'none'}"
        f"{meant(name, found.topics)}; nothing was written; add {defs_folder(find_project()) / name / 'defs.yaml'}"
    )


def print_broken(broken: Iterable[Broken]) -> None:
    """Print which files cannot be used, for a command that goes on with the others."""
    for each in broken:
        print_error(each.error)


def for_each(files: TopicFiles, do: Callable[[Topic], None]) -> bool:
    """Call `do` for each topic; print errors of topics and of files that cannot be used, and return whether there was any.

    Where there is only one topic, its error is raised as the command's.
    """
    print_broken(files.broken)
    failed = bool(files.broken)
    for topic in files.topics.values():
        try:
            do(topic)
        except OffsetlakeError as error:
            if len(files.topics) == 1:
                raise
            print_error(error, f"topic {topic.name}: ")
            failed = True
    return failed


def print_error(error: OffsetlakeError, where: str = "") -> None:
    """Print an error as each command does."""
    ERRORS.print(styled(("error", "bold red"), " ", (error.kind, "dim"), f": {where}{error}"), soft_wrap=True)


def read_topics() -> TopicFiles:
    """Read the topics of this project, and show that while it takes long."""
    with progress("reading the topics of this project"):
        return load_topics()


def print_json(document: object) -> None:
    """Print a document as JSON; bytes as text where they are UTF-8, else in base64, NaN and the infinities as text."""
    click.echo(json.dumps(_json(document), indent=1, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], longest: int = LONGEST_SHOWN) -> None:
    """Print a table; numbers are right-aligned, and a value is cut after `longest` characters."""
    table = Table(title=title, title_justify="left", header_style="bold")
    listed = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numeric = any(isinstance(row[index], int | float) for row in listed)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*(cell(value, longest) for value in row))
    # a narrower terminal wraps the lines
    screen = OUT if OUT.width >= LEAST_WIDTH else Terminal(file=OUT.file, width=LEAST_WIDTH)
    screen.print(table if columns else title)  # a table without columns would print nothing


def size_text(count: float | None) -> str:
    """Return a number of bytes in words."""
    if count is None:
        return "?"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def cell(value: object, longest: int = LONGEST_SHOWN) -> str | Text:
    """Return a value for a person to read."""
    if isinstance(value, Text):
        return value
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict | list | tuple):
        return shortened(json.dumps(_json(value), ensure_ascii=False), longest)
    if isinstance(value, bytes):
        return shortened(bytes_text(value), longest, f"{len(value):,} bytes")
    return shortened(str(value), longest)


def shortened(text: str, longest: int = LONGEST_SHOWN, size: str | None = None) -> str:
    """Return a text for a person to read: a long one is cut, with its full length beside it; JSON has all of it."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({size or f'{len(text):,} characters'} in all)"


def bytes_text(value: bytes) -> str:
    """Return bytes for a person to read: as text where they are UTF-8, else as Python writes them."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return str(value)


def _json(value: Any) -> Any:
    """Return a value in JSON's types: a type that JSON lacks becomes text, bytes that are not UTF-8 become base64."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(Decimal(value))  # NaN, Infinity, -Infinity: no numbers to JSON
    if isinstance(value, Mapping):
        return {str(_json(key)): _json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime.date | datetime.datetime | datetime.time):
        return value.isoformat()
    return str(value)
