"""What commands say of the runs that they launch: a line for each as it ends, and one error for those that failed.

Why a range failed is in the run's own words. Invariant: of a run that failed no line says how many of its ranges did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from ..core.errors import RangesFailed
from .terminal import OUT

(NOTE,) = RangesFailed("runs failed").__notes__  # which the error of the command has too


class Ended(Protocol):
    """A run that has ended."""

    @property
    def run_id(self) -> str:
        """Its id."""

    @property
    def succeeded(self) -> bool:
        """Whether all of it was done."""

    @property
    def reason(self) -> str:
        """Why not."""


Run = TypeVar("Run", bound=Ended)


def print_runs(topic: str, runs: Iterable[Run], words: Callable[[Run], str], stays: str) -> None:
    """Say of each run, as it ends, what it did; raise `RangesFailed` where one failed, with what stays of it nevertheless."""
    failures = []
    for run in runs:
        OUT.print(f"{words(run)} in run {run.run_id}" if run.succeeded else f"run {run.run_id} failed")
        if not run.succeeded:
            reason = "\n  ".join(line for line in run.reason.splitlines() if line != NOTE)
            failures.append(f"run {run.run_id}: {reason}")
    if failures:
        failed = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
        raise RangesFailed(f"{failed} of topic {topic} failed; {stays}", failures)
