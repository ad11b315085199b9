"""Markdown as the tests of the documents read it: files, fenced blocks, console sessions, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from pipeline_defs.settings import PROJECT

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_BEFORE = re.compile(r"`([^`\s]+)`:\n\n\Z")


@dataclass(frozen=True, slots=True)
class Block:
    """Is one fenced block: its language, its text, the line it begins at, and the file that the line before names."""

    language: str
    text: str
    line: int
    file: str | None


@dataclass(frozen=True, slots=True)
class Command:
    """Is one `$ ` line of a console block with the output shown below it, which may be none."""

    line: str
    output: str


def documents() -> list[Path]:
    """Are the project's own Markdown files."""
    return sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])


def read_blocks(text: str) -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        before = text[: found.start()]
        named = _FILE_BEFORE.search(before)
        yield Block(found[1], found[2], before.count("\n") + 1, named[1] if named else None)


def without_blocks(text: str) -> str:
    return _FENCE.sub("", text)


def read_commands(block: Block) -> Iterator[Command]:
    """Reads the commands of a console block, each with its output."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        yield Command(line, output)


def is_shown(shown: str, printed: str) -> bool:
    """Says whether a document shows what was printed; `...` stands for the rest of a line, or for any lines.

    Blanks at the ends of lines do not count.
    """
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "..." else ".*".join(re.escape(part) for part in line.rstrip().split("...")) + r"\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.splitlines())) is not None


def read_table(text: str, header: str) -> list[tuple[str, ...]]:
    """Reads the rows of the table below a header line, without backticks."""
    below = text[text.index(header) :].splitlines()[2:]
    lines = takewhile(lambda line: line.startswith("|"), below)
    return [tuple(cell.strip().replace("`", "") for cell in line.strip("|").split("|")) for line in lines]
