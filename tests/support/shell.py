"""A shell in which the documents are typed: who types what they say sees what they show."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pipeline_defs.lab.environment import plain_environment
from pipeline_defs.settings import PROJECT
from tests.support.markdown import Block, is_shown, read_commands
from tests.support.world import PATIENCE_SECONDS

MAKE = "make "  # what sets up or runs everything is CI's to run


def open_shell(folder: Path, code: Path = PROJECT, **more: str) -> Shell:
    """Give the shell of who has just installed Offsetlake, but with little memory for Spark."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"PATH": path, "PYTHONPATH": str(code), "PYTHONUTF8": "1", "OFFSETLAKE_SPARK_DRIVER_MEMORY": "1g"}
    return Shell(folder, plain_environment("SPARK_") | own | more)


@dataclass
class Shell:
    """Is where a person stands: a folder and an environment, which `cd` and `export` change."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str) -> str:
        """Runs a command and returns what it printed; it must succeed."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def type_in(self, block: Block, where: str) -> None:
        """Types a console block; what each command prints must be what is shown below it.

        A variable that the environment has already keeps its value: it stands for the reader's own.
        """
        for command in read_commands(block):
            word, _, rest = command.line.partition(" ")
            if command.line.startswith(MAKE) or word in {"cd", "export"}:
                assert not command.output, f"{where}: nobody compares the output of {command.line}"
            if word == "cd":
                self.folder /= rest
            elif word == "export":
                name, _, value = rest.partition("=")
                self.environment.setdefault(name, value)
            elif not command.line.startswith(MAKE):
                printed = self.run("bash", "-eo", "pipefail", "-c", command.line)
                assert is_shown(command.output, printed), f"{where}: `{command.line}` printed\n{printed}"
