"""Progress of commands: a bar with done, total, rate and time left in a terminal; else a line now and then.

On stderr, so what a command prints stays what it is. Nothing is shown of what ends within `FIRST_SECONDS`.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..core.steps import StepWatcher, no_step
from ..orchestration.runs.moments import pace_text
from .terminal import ERRORS, TerminalWords

T = TypeVar("T")

FIRST_SECONDS = 2.0  # what is quicker needs no line
EVERY_SECONDS = 10.0
_showing = threading.Lock()  # held by the one progress that is shown


class Shown:
    """One piece of work whose progress is shown; any thread may tell how far it is."""

    def __init__(self, text: str, total: int | None) -> None:
        self.text, self.total, self.done = text, total, 0
        self.waits_for = ""
        self.started = time.monotonic()

    def update(self, done: int | None = None, total: int | None = None, text: str | None = None) -> None:
        """Say how far the work is, of how much, and in words what is done now."""
        self.done = self.done if done is None else done
        self.total = self.total if total is None else total
        self.text = self.text if text is None else text

    def begin(self, text: str) -> None:
        """Say that another piece of work begins, of which nothing is done."""
        self.text, self.total, self.done, self.started = text, None, 0, time.monotonic()

    def advance(self, by: int = 1) -> None:
        """Say that so much more is done."""
        self.done += by

    def each(self, done: Iterable[T]) -> Iterator[T]:
        """Pass on what is done, one by one, each as one more."""
        for one in done:
            yield one
            self.advance()

    def watching(self, watch: StepWatcher = no_step) -> StepWatcher:
        """Return a watcher of steps that says while Spark starts, and passes all other steps on."""

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
    """Show the progress of what is done inside; `total` is none where nobody knows it yet.

    Inside of another progress that one goes on being shown.
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
    columns = (TerminalWords(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=ERRORS, transient=True) as bar:
        task = bar.add_task(shown.text, total=shown.total, rate="")
        while not ended.wait(0.1):
            rate = shown.done / max(0.001, time.monotonic() - shown.started)
            bar.update(task, completed=shown.done, total=shown.total, description=shown.words, rate=f"{rate:.1f}/s")


def _print(shown: Shown, ended: threading.Event) -> None:
    wait = FIRST_SECONDS
    while not ended.wait(wait):
        ERRORS.print(shown.line(), soft_wrap=True)
        wait = EVERY_SECONDS
