"""What commands say of the runs that they launch: a line for each as it ends, and one error for those that failed.

Why a range failed is in the run's own words. Invariant: of a run that failed no line says how many of its ranges did.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..core.advice import counted
from ..core.errors import RangesFailed
from ..launching import Launched
from .terminal import OUT

(NOTE,) = RangesFailed("runs failed").__notes__  # which the error of the command has too


def print_runs(topic: str, runs: Iterable[Launched], did: str) -> None:
    """Say of each run, as it ends, how many ranges it `did`: landed, say; raise `RangesFailed` where one failed."""
    failures = []
    for run in runs:
        done = f"{did} {counted(len(run.ranges), 'range')} in run {run.run_id}"
        OUT.print(done if run.succeeded else f"run {run.run_id} failed")
        if not run.succeeded:
            reason = "\n  ".join(line for line in run.reason.splitlines() if line != NOTE)
            failures.append(f"run {run.run_id}: {reason}")
    if failures:
        raise RangesFailed(
            f"{counted(len(failures), 'run')} of topic {topic} failed; what it {did} stays {did}", failures
        )
