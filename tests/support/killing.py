"""Starts a child of `crash_child`, waits until it stands still at a step, and kills it with its JVM, or lets it go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline_defs.settings import PROJECT
from tests.support.crash_child import describe
from tests.support.world import World

QUICK_JVM = "-XX:TieredStopAtLevel=1"  # a JVM that lives for seconds starts faster so


@dataclass(frozen=True, slots=True)
class Child:
    """Is a child process that stands still at a step."""

    process: subprocess.Popen[str]

    def resume(self) -> None:
        """Lets it go on and waits until it has finished by itself."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert "FINISHED\n" in list(self.process.stdout)
        assert self.process.wait(60) == 0


@contextmanager
def stopped_at(world: World, action: str, step: str, nth: int = 1) -> Iterator[Child]:
    """Runs the child up to the step; inside the context it stands there, after it it has died by SIGKILL or ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.crash_child", describe(world.settings, world.topic, action, step, nth)],
        cwd=PROJECT,
        env={**os.environ, "JDK_JAVA_OPTIONS": QUICK_JVM},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            said = _first_word(process)
            assert said == f"REACHED {step}", f"the child was to stop at {step}, it said {said!r}"
            yield Child(process)
        finally:
            has_ended = process.poll() is not None
            if not has_ended:
                os.killpg(process.pid, signal.SIGKILL)
        assert has_ended or process.wait(30) == -signal.SIGKILL


def _first_word(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(("REACHED", "FINISHED", "ENDED")):
            return line.strip()
    return "nothing"
