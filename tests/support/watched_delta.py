"""Calls of delta-rs as calls of a writer of `interleaving`: opened, asked, or told to commit.

Delta-rs does its own I/O, so a lake of this kind is on a disk; it opens no store in memory. A commit is one call: what is
written before its entry is in the log is seen by nobody, and a writer that dies there may leave that (`leaves_files`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake.table import TableMerger

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.store.disk import Disk
from pipeline_defs.adapters.store.disk_store import DiskStore
from tests.support import interleaving
from tests.support.interleaving import Dead, WatchedDisk, Writer


class AtWork(threading.local):
    """The writer whose thread this is, how a lost answer of a commit is told, and what dying at one leaves."""

    writer: Writer | None = None
    lost: type[Exception] = OSError
    leaves_files: bool = False

    def call(self, name: str, do: Callable[[], Any]) -> Any:
        return do() if self.writer is None else self.writer.call(name, OSError("the answer was lost"), do)

    def commit(self, uri: str, do: Callable[[], Any]) -> Any:
        if self.writer is None:
            return do()
        try:
            return self.writer.call("commit", self.lost("the answer was lost"), do)
        except Dead:
            if self.leaves_files:
                log = Path(uri.removeprefix("file://")) / "_delta_log"
                before = {*log.glob("*.json")}
                do()
                for entry in {*log.glob("*.json")} - before:
                    entry.unlink()
            raise


at_work = AtWork()


class WatchedTable(deltalake.DeltaTable):
    """A Delta table whose calls pass by the writer that is at work."""

    def __init__(self, table_uri: Any, *arguments: Any, **options: Any) -> None:
        opened = super().__init__
        at_work.call("open", lambda: opened(table_uri, *arguments, **options))

    @classmethod
    def create(cls, table_uri: Any, **options: Any) -> Any:  # type: ignore[override]
        return at_work.commit(str(table_uri), lambda: deltalake.table.DeltaTable.create(table_uri, **options))

    def transaction_version(self, app_id: str) -> int | None:
        """Read the log, as delta-rs does each time that it is asked."""
        asked = super().transaction_version
        found: int | None = at_work.call("ask", lambda: asked(app_id))
        return found

    def merge(self, *arguments: Any, **options: Any) -> Any:
        return WatchedMerger(super().merge(*arguments, **options), self.table_uri)

    def create_write_transaction(self, *arguments: Any, **options: Any) -> None:
        write = super().create_write_transaction
        at_work.commit(self.table_uri, lambda: write(*arguments, **options))


class WatchedMerger:
    """A MERGE whose end is a commit."""

    def __init__(self, merger: TableMerger, uri: str) -> None:
        self._merger, self._uri = merger, uri

    def __getattr__(self, name: str) -> Callable[..., WatchedMerger]:
        def clause(*arguments: Any, **options: Any) -> WatchedMerger:
            return WatchedMerger(getattr(self._merger, name)(*arguments, **options), self._uri)

        return clause

    def execute(self) -> Any:
        return at_work.commit(self._uri, self._merger.execute)


class DurableDisk(WatchedDisk):
    """A local disk on which to wait for is a call too."""

    def make_durable(self, path: str) -> None:
        at_work.call("sync", lambda: Disk.make_durable(self, path))


def watch_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls of delta-rs pass by the writer at work; a commit is a write whose answer can be lost, or find a full disk."""
    write = deltalake.write_deltalake

    def watched(table: Any, *arguments: Any, **options: Any) -> None:
        at_work.commit(table.table_uri, lambda: write(table, *arguments, **options))

    monkeypatch.setattr(deltalake, "DeltaTable", WatchedTable)
    monkeypatch.setattr(deltalake, "write_deltalake", watched)
    monkeypatch.setattr(interleaving, "WRITES", {*interleaving.WRITES, "commit", "sync"})
    monkeypatch.setattr(interleaving, "FILLING", {*interleaving.FILLING, "commit", "sync"})


def begin_work(lake: Lake, writer: Writer, lost: type[Exception] = OSError, *, leaves_files: bool = False) -> None:
    """Have this thread's calls be those of a writer, whose lake this is."""
    at_work.writer, at_work.lost, at_work.leaves_files = writer, lost, leaves_files
    assert isinstance(lake.store, DiskStore)
    lake.store.disk = DurableDisk(lake.store.folder, writer)
