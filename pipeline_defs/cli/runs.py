"""What commands say of the runs that they launch: how far they are, how each ended, one error for those that failed.

Why a range failed is in the run's own words. Invariant: of a run that failed no line says how many of its ranges did.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import dagster as dg

from ..core.advice import counted
from ..core.errors import RangesFailed
from ..orchestration.home.dagster_home import open_instance
from ..resources import Edges
from .launching import Launched
from .progress import progress
from .terminal import OUT

(NOTE,) = RangesFailed("runs failed").__notes__  # which the error of the command has too


@contextmanager
def launching(
    edges: Edges, doing: str, total: int, *, said: Mapping[str, str], counts: Collection[str] = ()
) -> Iterator[dg.DagsterInstance]:
    """Open the instance for runs in this process, and show how far they are while the context is open.

    `said` has by steps what is shown once they are passed, the step's fields in braces; one of `counts` is one more done.
    """

    def on_step(step: str, **fields: object) -> None:
        if step in counts:
            shown.advance()
        elif step in said:
            shown.update(text=doing + said[step].format(**fields))

    logging.getLogger("dagster").setLevel(logging.ERROR)
    with open_instance(edges.settings.dagster_home) as instance, progress(doing, total) as shown:
        edges.watch_step = shown.watching(on_step)
        yield instance


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
        raise RangesFailed(f"{counted(len(failures), 'run')} of topic {topic} failed; what it {did} stays {did}", failures)
