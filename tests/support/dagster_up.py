"""`offsetlake up`, or a Dagster of one's own, as a person has it in a terminal, and what its UI knows."""

import json
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.world import PATIENCE_SECONDS

RUNS = "{ runsOrError { ... on Runs { results { runId } } } }"
_URL = re.compile(r"http://127\.0\.0\.1:\d+")


class Terminal:
    """A command that stays, with the lines that it has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def url(self) -> str:
        found = _URL.search(self.text)
        assert found is not None, self.text
        return found[0]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; the command must not end before it holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.text}"
            assert time.monotonic() < deadline, self.text
            time.sleep(0.1)

    def wait_for(self, words: str) -> None:
        self.wait_until(lambda: words in self.text)

    def end(self, number: signal.Signals) -> int:
        """End it by a signal and return its exit code, once all its output is read."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code


def hear_signals() -> None:
    """Give signals their usual meaning: whoever runs the tests in the background of a script has them ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def terminal(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> Iterator[Terminal]:
    """Run a command that stays; what the test leaves running is ended."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=hear_signals,  # noqa: PLW1509 (no other thread holds a lock here)
    )
    with process:
        try:
            yield Terminal(process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(PATIENCE_SECONDS)
                finally:
                    process.kill()


def run_ids(url: str) -> set[str]:
    return {run["runId"] for run in _ask(url, RUNS)["runsOrError"]["results"]}


def asset_keys(url: str) -> list[list[str]]:
    """Return the assets that a Dagster UI has definitions of, each as its path."""
    found = _ask(url, "{ assetNodes { assetKey { path } } }")["assetNodes"]
    return [each["assetKey"]["path"] for each in found]


def is_answering(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=5):  # noqa: S310
            return True
    except OSError:
        return False


def _ask(url: str, query: str) -> dict[str, Any]:
    body = json.dumps({"query": query}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)["data"]
    return found
