"""Markdown as the tests of the documents read it, and a shell in which it is typed: one sees what the document shows."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.lab.processes import plain_environment
from tests.support.world import PATIENCE_SECONDS

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_BEFORE = re.compile(r"`([^`\s]+)`:\n\n\Z")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, its text, the line it begins at, and the file that the line before names."""

    language: str
    text: str
    line: int
    file: str | None


@dataclass(frozen=True, slots=True)
class Command:
    """One `$ ` line of a console block with the output shown below it, which may be none."""

    line: str
    output: str


def documents() -> list[Path]:
    """The project's own Markdown files."""
    return sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])


def read_blocks(text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        before = text[: found.start()]
        named = _FILE_BEFORE.search(before)
        yield Block(found[1], found[2], before.count("\n") + 1, named[1] if named else None)


def without_blocks(text: str) -> str:
    return _FENCE.sub("", text)


def read_commands(block: Block) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        yield Command(line, output)


def is_shown(shown: str, printed: str) -> bool:
    """Say whether a document shows what was printed; `...` stands for the rest of a line, or for any lines.

    Blanks at the ends of lines do not count.
    """
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "..." else ".*".join(re.escape(part) for part in line.rstrip().split("...")) + r"\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.splitlines())) is not None


def read_table(text: str, header: str) -> list[tuple[str, ...]]:
    """Read the rows of the table below a header line, without backticks."""
    below = text[text.index(header) :].splitlines()[2:]
    lines = takewhile(lambda line: line.startswith("|"), below)
    return [tuple(cell.strip().replace("`", "") for cell in line.strip("|").split("|")) for line in lines]


MAKE = "make "  # what sets up or runs everything is CI's to run


@dataclass
class Shell:
    """Where a person stands: a folder and an environment, which `cd` and `export` change."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str) -> str:
        """Run a command and return what it printed; it must succeed."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def type_in(self, block: Block, where: str) -> None:
        """Type a console block; what each command prints must be what is shown below it.

        A variable that the environment has already keeps its value: it stands for the reader's own.
        """
        for command in read_commands(block):
            word, _, rest = command.line.partition(" ")
            if command.line.startswith(MAKE) or word in {"cd", "export"}:
                assert not command.output, f"{where}: nobody compares the output of {command.line}"
            if word == "cd":
                self.folder /= rest
            elif word == "export":
                name, _, value = rest.partition("=")
                self.environment.setdefault(name, value)
            elif not command.line.startswith(MAKE):
                printed = self.run("bash", "-eo", "pipefail", "-c", command.line)
                assert is_shown(command.output, printed), f"{where}: `{command.line}` printed\n{printed}"


def open_shell(folder: Path, code: Path = PROJECT, **more: str) -> Shell:
    """Give the shell of who has just installed Offsetlake, but with little memory for Spark."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"PATH": path, "PYTHONPATH": str(code), "PYTHONUTF8": "1", "OFFSETLAKE_SPARK_DRIVER_MEMORY": "1g"}
    return Shell(folder, plain_environment("SPARK_") | own | more)
