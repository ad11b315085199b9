"""Child processes to be killed: each does some work, and stands still at a step of it until told to go on.

They fork from a server that has imported everything, each into a session of its own, so that a kill takes its JVM too.
Invariant: inside `stopped_at` the child stands at the step; after it the child has died by SIGKILL, or has ended.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from ...adapters.spark.spark_server import CONNECT_MODE
from ...core.errors import OffsetlakeError
from ...core.steps import no_step

PRELOADED = [
    "pipeline_defs.cli.commands",
    "pipeline_defs.cli.work.land",
    "pipeline_defs.lab.drills.peers",
    "dagster_pyspark",
    "pyarrow.dataset",
    "pyspark.sql",
]
START_SECONDS = 180
END_SECONDS = 60

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(PRELOADED)


class ChildFailed(OffsetlakeError):
    """A child ended before the step at which it was to stand still, or did not end well."""


class EndedBefore(ChildFailed):
    """A child did all of its work without being seen at the step at which it was to stand still."""

    kind = ChildFailed.kind


ChildWork = Callable[[Callable[..., None]], None]
"""Something that a child does; it tells what it is given each step as it is passed."""


@dataclass(frozen=True, slots=True)
class Child:
    """A child that stands still, or runs."""

    process: BaseProcess
    connection: Connection

    def resume(self) -> None:
        """Let it go on and wait until it has ended by itself; raise `ChildFailed` where it failed."""
        self.connection.send("go on")
        word, said = self.hear()
        if word != "finished":
            raise ChildFailed(f"a child was to finish, it {word} {said}")
        self.process.join(END_SECONDS)

    def hear(self) -> tuple[str, str]:
        """Wait for what it says next: the step that it reached, that it finished, or why it failed."""
        if not self.connection.poll(START_SECONDS):
            raise ChildFailed(f"a child said nothing for {START_SECONDS} s")
        try:
            word, said = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(END_SECONDS)
            return "died", f"with exit code {self.process.exitcode}"
        return str(word), str(said)


@contextmanager
def started(work: ChildWork, step: str = "", nth: int = 1, *, log: Path) -> Iterator[Child]:
    """Start a child that does the work, and have it stand still at the `nth` passing of `step`; kill it in the end."""
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_main, args=(work, step, nth, theirs, log), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Child(process, ours)
    finally:
        end(process)
        ours.close()


@contextmanager
def stopped_at(work: ChildWork, step: str, nth: int = 1, *, log: Path) -> Iterator[Child]:
    """Run a child up to a step; raise `ChildFailed` where it never gets there."""
    with started(work, step, nth, log=log) as child:
        word, said = child.hear()
        if (word, said) != ("reached", step):
            kind = EndedBefore if word == "finished" else ChildFailed
            raise kind(f"a child was to stand still at {step}, it {word} {said}; its log: {log}")
        yield child


def end(process: BaseProcess) -> None:
    """Kill a child with its whole session, where it has not ended."""
    if process.is_alive() and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
    process.join(END_SECONDS)


def become(out: Path, err: Path) -> None:
    """Give this process a session of its own, and files to print to."""
    os.setsid()
    for path, number in ((out, 1), (err, 2)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), number)


def _main(work: ChildWork, step: str, nth: int, connection: Connection, log: Path) -> None:
    become(log, log)
    os.environ.pop(CONNECT_MODE, None)  # whoever started it may be a client of Spark; it is none yet
    passed, stands = 0, threading.Lock()

    def watch(name: str, **_: object) -> None:
        nonlocal passed
        with stands:  # while one thread stands still, each other one gets to its next step and no further
            passed += name == step
            if name == step and passed == nth:
                connection.send(("reached", name))
                connection.recv()

    try:
        work(watch if step else no_step)
    except Exception as error:
        connection.send(("failed", f"{type(error).__name__}: {error}"))
        raise
    connection.send(("finished", ""))
    sys.stdout.flush()
