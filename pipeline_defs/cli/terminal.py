"""The two consoles of every command: stdout and stderr, on which text is shown as it is.

Records, topic names and error texts come from strangers. Invariant: no text is taken for Rich markup, and no control
character reaches the terminal; where a style is wanted, `styled` says so apart from the text.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, TextIO

from rich.console import Console
from rich.progress import Task, TextColumn
from rich.text import Text

from ..core.errors import OutputUnwritable

PIPE_WIDTH = 160  # columns, where the output is no terminal and so has no width of its own
# C1 (which some terminals obey as ESC), what turns the text's direction, lone surrogates; then C0 but tab and newline, and DEL
_HIDDEN = (range(0x80, 0xA0), (0x61C, 0x200E, 0x200F), range(0x2028, 0x202F), range(0x2066, 0x206A), range(0xD800, 0xE000))
_PICTURES = dict.fromkeys(chain(*_HIDDEN), 0xFFFD) | {code: 0x2400 + code for code in range(0x20) if code not in b"\t\n"}
_PICTURES[0x7F] = 0x2421


def visible(text: str) -> str:
    """Return a text with each control character as a picture of itself (`␛`), one column wide; others stay."""
    return text.translate(_PICTURES)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return one text of literal parts, each with its style where it has one: `styled(("flights", "bold"), ": done")`."""
    return Text.assemble(*(visible(p) if isinstance(p, str) else (visible(p[0]), p[1]) for p in parts))


class Terminal(Console):
    """A console to which every string is literal: cells of tables, titles, progress and plain lines."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the string as it is; Rich asks here for each one, whatever renders it."""
        literal = {"markup": False, "emoji": False, "highlight": False, "highlighter": None}
        return super().render_str(visible(text), **(options | literal))


class TerminalWords(TextColumn):
    """A column of a progress bar with a task's description as it is."""

    def __init__(self) -> None:
        super().__init__("{task.description}", markup=False)

    def render(self, task: Task) -> Text:
        """Return the description."""
        return styled(task.description)


# a shell's `>&-` closes stdout: Python has none then
OUT = Terminal(width=None if sys.stdout is not None and sys.stdout.isatty() else PIPE_WIDTH)
ERRORS = Terminal(stderr=True)


class Output:
    """A stream whose refusal to take what is printed is one error, `OutputUnwritable`; a pipe's end is click's and Rich's."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Return whatever else the stream has."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        with self._explained():
            if self._stream is None:
                raise OSError(errno.EBADF, "it is closed")
            return self._stream.write(text)

    def flush(self) -> None:
        """Write what waits."""
        with self._explained():
            if self._stream is not None:
                self._stream.flush()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputUnwritable(
                f"stdout cannot be written: {(error.strerror or type(error).__name__).lower()}; what the command says is "
                "incomplete, and what it did stands; make room there, or send its output elsewhere"
            ) from error


def drop_output() -> None:
    """Send what waits to be written nowhere, once it is said that stdout takes nothing: Python would say so at its end too."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
