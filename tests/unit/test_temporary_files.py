"""Temporary files of a process that was killed: the next process deletes them, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline_defs.settings import PROJECT

OWNER = """
import sys
from pipeline_defs.adapters.system.locks import scratch
(scratch() / "copy.parquet").write_bytes(b"rows")
print(scratch(), flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Give a process that has a temporary file below a folder, and the folder of its own."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_temporary_files_of_a_process_that_was_killed_go_with_the_next_one(tmp_path: Path) -> None:
    """Those of a lake in a bucket are as large as its files; who works keeps its own, and who ends deletes them."""
    with owner(tmp_path) as (works, kept):
        with owner(tmp_path) as (dies, left):
            dies.send_signal(signal.SIGKILL)
            dies.wait()
            assert (left / "copy.parquet").exists(), "the fault: nobody has deleted it"
        with owner(tmp_path) as (_, own):
            assert sorted(tmp_path.iterdir()) == sorted([kept, own])
            assert (kept / "copy.parquet").exists() and works.poll() is None
        assert [*tmp_path.iterdir()] == [kept]
    assert [*tmp_path.iterdir()] == []
