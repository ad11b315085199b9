"""The two consoles of every command, stdout and stderr, on which text is shown as it is; and progress, on stderr.

Records, topic names and error texts come from strangers. Invariant: no text is taken for Rich markup, and no control character
reaches the terminal; where a style is wanted, `styled` says so apart from the text. Progress is a bar with done, total, rate
and time left in a terminal, else a line now and then; nothing is shown of what ends within `FIRST_SECONDS`.
"""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from ..core.steps import StepWatcher, no_step
from ..orchestration.runs.moments import pace_text

PIPE_WIDTH = 160  # columns, where the output is no terminal and so has no width of its own
# C1 (which some terminals obey as ESC), what turns the text's direction, lone surrogates; then C0 but tab and newline, and DEL
_HIDDEN = (range(0x80, 0xA0), (0x61C, 0x200E, 0x200F), range(0x2028, 0x202F), range(0x2066, 0x206A), range(0xD800, 0xE000))
_PICTURES = dict.fromkeys(chain(*_HIDDEN), 0xFFFD) | {code: 0x2400 + code for code in range(0x20) if code not in b"\t\n"}
_PICTURES[0x7F] = 0x2421
T = TypeVar("T")
FIRST_SECONDS = 2.0  # what is quicker needs no line
EVERY_SECONDS = 10.0
_showing = threading.Lock()  # held by the one progress that is shown


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


# a shell's `>&-` closes stdout: Python has none then
OUT = Terminal(width=None if sys.stdout is not None and sys.stdout.isatty() else PIPE_WIDTH)
ERRORS = Terminal(stderr=True)


class Shown:
    """One piece of work whose progress is shown; any thread may tell how far it is."""

    def __init__(self, text: str, total: int | None) -> None:
        self.text, self.total, self.done = text, total, 0
        self.waits_for = ""
        self.started = time.monotonic()

    def update(self, done: int | None = None, total: int | None = None, text: str | None = None) -> None:
        """Set how much is done, of how much, and the text of what is done now; none leaves each as it is."""
        self.done = self.done if done is None else done
        self.total = self.total if total is None else total
        self.text = self.text if text is None else text

    def begin(self, text: str) -> None:
        """Begin another piece of work, of which nothing is done yet."""
        self.text, self.total, self.done, self.started = text, None, 0, time.monotonic()

    def advance(self, by: int = 1) -> None:
        """Add to what is done; where that is more than was foreseen, the total grows with it."""
        self.done += by
        self.total = None if self.total is None else max(self.total, self.done)

    def each(self, done: Iterable[T]) -> Iterator[T]:
        """Yield each item, and count it as done when the next one is asked for."""
        for one in done:
            yield one
            self.advance()

    def watching(self, watch: StepWatcher = no_step) -> StepWatcher:
        """Return a step watcher that shows while Spark is starting, and passes all other steps to `watch`."""

        def on_step(step: str, **fields: object) -> None:
            if step in {"start_spark", "spark_started"}:
                self.waits_for = ", starting Spark" if step == "start_spark" else ""
            else:
                watch(step, **fields)

        return on_step

    @property
    def words(self) -> str:
        """What is done now, and what it waits for."""
        return f"{self.text}{self.waits_for}"

    def line(self) -> str:
        """Return the progress in one line."""
        return f"{self.words}: {pace_text(self.done, self.total, time.monotonic() - self.started)}"


@contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Shown]:
    """Show the progress of the work in the context; `total` is none while nobody knows it.

    Inside another `progress` the outer one stays shown.
    """
    shown, ended = Shown(text, total), threading.Event()
    if not _showing.acquire(blocking=False):
        yield shown
        return
    watch = _draw if ERRORS.is_terminal else _print
    watcher = threading.Thread(target=watch, args=(shown, ended), name="offsetlake-progress", daemon=True)
    watcher.start()
    try:
        yield shown
    finally:
        ended.set()
        watcher.join()
        _showing.release()


def _draw(shown: Shown, ended: threading.Event) -> None:
    words, rate = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[rate]}")
    columns = (words, BarColumn(), MofNCompleteColumn(), rate, TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=ERRORS, transient=True) as bar:
        task = bar.add_task(visible(shown.text), total=shown.total, rate="")
        while not ended.wait(0.1):
            pace = shown.done / max(0.001, time.monotonic() - shown.started)
            described = visible(shown.words)
            bar.update(task, completed=shown.done, total=shown.total, description=described, rate=f"{pace:.1f}/s")


def _print(shown: Shown, ended: threading.Event) -> None:
    wait = FIRST_SECONDS
    while not ended.wait(wait):
        ERRORS.print(shown.line(), soft_wrap=True)
        wait = EVERY_SECONDS
