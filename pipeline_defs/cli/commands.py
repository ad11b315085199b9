"""All commands in their sections, and how a command ends.

Errors are printed as one message with what to do; exit code 2 means refused, 1 means failed or violated, 130 means Ctrl-C.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO, cast

import click
from dagster_shared.utils.warnings import BetaWarning, PreviewWarning, SupersessionWarning

from ..core.errors import OffsetlakeError, OutputUnwritable, Refused
from ..settings import load_env_file
from .backfill import backfill
from .bench import bench
from .broker import broker
from .compact import compact, sweep
from .decode import dead_letters, decode, latest
from .demo import demo
from .doctor import doctor, explain, jars
from .drill import drill
from .engine import engine
from .glance import status
from .init import init
from .land import land, plan, rebuild
from .losses import accept_loss, losses, skip
from .map import coverage_map
from .metrics import metrics
from .produce import produce
from .read import audit, sql, trace
from .show import SPARK_LOGS, print_error
from .terminal import ERRORS, Output, drop_output
from .up import up

SECTIONS: Mapping[str, Sequence[click.Command]] = {
    "First steps": (init, up, doctor, jars, explain, broker, produce, demo),
    "Land": (plan, land, backfill, losses, accept_loss, skip),
    "Read": (sql, trace, coverage_map),
    "Operate": (
        status,
        audit,
        engine,
        metrics,
        rebuild,
        compact,
        sweep,
    ),
    "Derived data": (decode, dead_letters, latest),
    "Lab": (bench, drill),
}


INTERRUPTED = 130  # as a shell says of a program that Ctrl-C has ended
INTERRUPTED_TEXT = (
    "interrupted: what was finished stands, nobody sees half of anything; `offsetlake status` says what is left"
)


@contextmanager
def interruptible() -> Iterator[None]:
    """End with `INTERRUPTED` and one line for Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        ERRORS.print(INTERRUPTED_TEXT, soft_wrap=True)
        raise SystemExit(INTERRUPTED) from None


class Sections(click.Group):
    """A group whose help lists its commands by what they are for, each with its whole first sentence."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was asked for; click would print "Aborted!" for Ctrl-C, and end with 1."""
        with interruptible():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click asks so)
        """Write the sections."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(str(each.name), first_sentence(each)) for each in commands])


def first_sentence(command: click.Command) -> str:
    """Return what a command does, whole, in one line."""
    paragraph = " ".join((command.help or "").split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


@click.group(cls=Sections, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="offsetlake")
def cli() -> None:
    """Land Kafka topics in a Parquet lake: one offset range = one Dagster partition = one Parquet file.

    \b
    Examples:
      offsetlake doctor
      offsetlake plan flights --commit
      offsetlake land flights --pending
      offsetlake status flights
      offsetlake sql "SELECT count(*) FROM flights"
    """


for _commands in SECTIONS.values():
    for _command in _commands:
        cli.add_command(_command)


def run() -> None:
    """Run the command; what goes wrong by the user's or the world's doing is one message, not a traceback."""
    began = time.time()
    for each in (BetaWarning, PreviewWarning, SupersessionWarning):  # of what we build with Dagster: not the user's
        warnings.simplefilter("ignore", each)
    try:
        with interruptible(), redirect_stdout(cast("TextIO", Output(sys.stdout))):
            load_env_file()
            cli(standalone_mode=True)
    except OffsetlakeError as error:
        print_error(error)
        for note in (*error.__notes__, *(f"what Spark says itself is in {log}" for log in _written(SPARK_LOGS, began))):
            ERRORS.print(note, style="dim", soft_wrap=True)
        if isinstance(error, OutputUnwritable):
            drop_output()
        sys.exit(2 if isinstance(error, Refused) else 1)


def _written(logs: Iterable[Path], began: float) -> list[Path]:
    """Return the logs that have been written to since a moment, in seconds since 1970."""
    return [log for log in dict.fromkeys(logs) if log.is_file() and log.stat().st_mtime >= began]
