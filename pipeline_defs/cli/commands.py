"""All commands in their sections, and how a command ends.

Errors are printed as one message with what to do; exit code 2 means refused, 1 means failed or violated, 130 means Ctrl-C.
"""

import errno
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import click
from dagster_shared.utils.warnings import BetaWarning, PreviewWarning, SupersessionWarning

from ..adapters.system.processes import raise_open_files
from ..adapters.system.project_folder import load_env_file
from ..core.errors import FileUnusable, HistoryUnavailable, OffsetlakeError, Refused, as_ours
from .show import SPARK_LOGS, print_error
from .terminal import ERRORS

SECTIONS: Mapping[str, Mapping[str, str]] = {  # the module of each command
    "First steps": {
        "init": "home.init",
        "up": "home.up",
        "doctor": "home.doctor",
        "jars": "home.doctor",
        "explain": "home.doctor",
        "broker": "home.broker",
        "produce": "work.produce",
        "demo": "..lab.cli.demo",
    },
    "Land": {
        "plan": "work.land",
        "land": "work.land",
        "backfill": "work.backfill",
        "losses": "work.losses",
        "accept-loss": "work.losses",
        "skip": "work.losses",
    },
    "Read": {"sql": "work.read", "trace": "work.read", "map": "look.map"},
    "Operate": {
        "status": "look.glance",
        "audit": "work.read",
        "engine": "home.engine",
        "metrics": "look.metrics",
        "rebuild": "work.land",
        "compact": "work.compact",
        "sweep": "work.compact",
    },
    "Derived data": {"decode": "work.decode", "dead-letters": "work.decode", "latest": "work.decode"},
    "Lab": {"bench": "..lab.cli.bench", "drill": "..lab.cli.drill"},
}


class Commands(Mapping[str, click.Command]):
    """The commands by name; one is imported when it is asked for, since all of them together take seconds."""

    def __init__(self) -> None:
        self._modules = {name: module for section in SECTIONS.values() for name, module in section.items()}

    def __getitem__(self, name: str) -> click.Command:
        """Return a command."""
        place = self._modules[name]
        module = import_module(place if place.startswith(".") else f".{place}", __package__)
        found = getattr(module, _FUNCTIONS.get(name) or name.replace("-", "_"))
        assert isinstance(found, click.Command)
        assert found.name == name
        return found

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._modules)

    def __len__(self) -> int:
        """Return how many commands there are."""
        return len(self._modules)


_FUNCTIONS = {"map": "coverage_map"}
NOT_OURS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG}
INTERRUPTED = 130  # as a shell says of a program that Ctrl-C has ended
INTERRUPTED_TEXT = "interrupted: what was finished stands, nobody sees half of anything; `offsetlake status` says what is left"


@contextmanager
def interruptible() -> Iterator[None]:
    """Answer Ctrl-C with one line and the exit code `INTERRUPTED`."""
    try:
        yield
    except KeyboardInterrupt:
        ERRORS.print(INTERRUPTED_TEXT, soft_wrap=True)
        raise SystemExit(INTERRUPTED) from None


@contextmanager
def telling() -> Iterator[None]:
    """Raise an error of ours where the system does not let us use a file or stdout, or Dagster's history does not answer."""
    try:
        yield
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise
        raise FileUnusable(
            f"{error.filename or 'stdout, or a file,'} cannot be used: {(error.strerror or '').lower()}; the command ended "
            "there, what it did before stands; have this user own it, on a disk with room, or set OFFSETLAKE_HOME to another "
            "folder"
        ) from error
    except Exception as error:
        ours = as_ours(error, "the command")
        if isinstance(ours, HistoryUnavailable):
            raise ours from error
        raise


class Sections(click.Group):
    """A group whose help lists its commands by what they are for, each with its whole first sentence."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; on Ctrl-C click by itself would print "Aborted!" and exit with 1."""
        with interruptible():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click asks so)
        """Write the sections."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, first_sentence(self.commands[name])) for name in names])


def first_sentence(command: click.Command) -> str:
    """Return the first sentence of a command's help, uncut, in one line."""
    paragraph = " ".join((command.help or "").split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


@click.group(cls=Sections, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="offsetlake")
def cli() -> None:
    """Land Kafka topics in a Parquet lake: one offset range = one Dagster partition = one Parquet file.

    \b
    Examples:
      offsetlake doctor
      offsetlake plan flights --apply
      offsetlake land flights --pending
      offsetlake status flights
      offsetlake sql "SELECT count(*) FROM flights"
    """


cli.commands = Commands()  # type: ignore[assignment]


def run() -> None:
    """Run the command; print an error of ours as one message, without a traceback."""
    began = time.time()
    for each in (BetaWarning, PreviewWarning, SupersessionWarning):  # about our use of Dagster, not the user's
        warnings.simplefilter("ignore", each)
    try:
        with interruptible(), telling():
            raise_open_files()
            load_env_file()
            cli(standalone_mode=True)
    except OffsetlakeError as error:
        print_error(error)
        logs = [log for log in dict.fromkeys(SPARK_LOGS) if "Spark" in str(error) and _is_written_since(log, began)]
        for note in (*error.__notes__, *(f"what Spark says itself is in {log}" for log in logs)):
            ERRORS.print(note, style="dim", soft_wrap=True)
        sys.exit(2 if isinstance(error, Refused) else 1)


def _is_written_since(log: Path, began: float) -> bool:
    try:
        return log.stat().st_mtime >= began
    except OSError:  # it is not there, or another user's
        return False
