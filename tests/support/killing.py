"""Starts a child of `crash_child`, waits until it stands still at a step, and kills it with its JVM, or lets it go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.support.crash_child import describe
from tests.support.world import World
from tests.support.zygote import Forked

QUICK_JVM = "-XX:TieredStopAtLevel=1"  # a JVM that lives for seconds starts faster so


@dataclass(frozen=True, slots=True)
class Child:
    """Is a child process that stands still at a step."""

    process: Forked
    stdin: IO[str]
    stdout: IO[str]

    def resume(self) -> None:
        """Lets it go on and waits until it has finished by itself."""
        self.stdin.write("\n")
        self.stdin.flush()
        assert "FINISHED\n" in list(self.stdout)
        assert self.process.wait(60) == 0


@contextmanager
def stopped_at(world: World, action: str, step: str, nth: int = 1) -> Iterator[Child]:
    """Runs the child up to the step; inside the context it stands there, after it it has died by SIGKILL or ended."""
    child_in, ours_out = _pipe()
    ours_in, child_out = _pipe()
    with Path(os.devnull).open("w") as nothing, child_in, child_out:
        task = describe(world.settings, world.topic, action, step, nth)
        process = Forked("tests.support.crash_child", [task], os.environ, [child_in, child_out, nothing])
    with process, ours_in, ours_out:
        try:
            said = _first_word(ours_in)
            assert said == f"REACHED {step}", f"the child was to stop at {step}, it said {said!r}"
            yield Child(process, ours_out, ours_in)
        finally:
            has_ended = process.poll() is not None
            if not has_ended:
                os.killpg(process.pid, signal.SIGKILL)
        assert has_ended or process.wait(30) == -signal.SIGKILL


def _pipe() -> tuple[IO[str], IO[str]]:
    read, write = os.pipe()
    return os.fdopen(read, "r"), os.fdopen(write, "w")


def _first_word(stdout: IO[str]) -> str:
    for line in stdout:
        if line.startswith(("REACHED", "FINISHED", "ENDED")):
            return line.strip()
    return "nothing"
