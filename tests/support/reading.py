"""Who reads a lake again and again in a thread, while something goes on in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

Rows = list[tuple[Any, ...]]


class LoopingReader:
    """Reads as long as its context lasts; `errors` are what it could not read, or not have seen."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._stop = threading.Event()

    def read(self) -> None:
        """Reads once, and keeps what it saw."""
        raise NotImplementedError

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Reads in a thread as long as the context lasts."""
        thread = threading.Thread(target=self._read_on)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def ask(self, folder: Path, question: Callable[[], Rows]) -> Rows | None:
        """Asks of files that are exchanged; none where there is no answer.

        DuckDB opens a file twice in a query: where it is exchanged in between, the query ends with an error. It counts as one
        only where no file was exchanged meanwhile.
        """
        before = _versions(folder)
        try:
            return question()
        except duckdb.Error as error:
            if _versions(folder) == before:
                self.errors.append(str(error))
            return None

    def _read_on(self) -> None:
        while not self._stop.is_set():
            self.read()


def _versions(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.glob("*.parquet")}
