"""Runs that a command executes in its own process, through Dagster: events and lineage are recorded as by any other run.

And what commands print of these runs: progress, how each ended, one error for those that failed, with the run's own reasons.
Invariant: no line counts the ranges of a run that failed.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster._core.events import RunFailureReason
from dagster._core.storage.tags import RUN_FAILURE_REASON_TAG

from ..core.advice import counted
from ..core.errors import RangesFailed
from ..core.landing.dispatch import split_stretches
from ..core.landing.selection import find_ranges
from ..core.log.coverage import Coverage
from ..core.offsets import OffsetRange
from ..definitions import build_defs
from ..orchestration.assets.raw_asset import RANGES_PER_RUN, land_config
from ..orchestration.home.dagster_home import open_instance
from ..orchestration.home.dead_runs import end_dead_runs
from ..orchestration.home.run_locks import hold_run, release_run
from ..orchestration.runs.projection import RANGE_END, RANGE_START, forget_unplanned, read_order, read_reason, register_keys
from ..orchestration.topic_defs import build_topic_defs
from ..resources import Adapters
from ..topics import LANDED_TAG, REDO_TAG, Duty, Topic, op_name
from .terminal import OUT, progress

(NOTE,) = RangesFailed("runs failed").__notes__  # the command's own error has it too
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}  # the event log has it all
SHOWN_REASONS = 20  # lines of a failed run's reason: of a thousand ranges each has its own, often the same


@dataclass(frozen=True, slots=True)
class Launched:
    """One run that has ended: its id, its ranges where it has any, and whether all of it succeeded, checks included.

    `outcomes` are what became of the ranges, as their events say.
    """

    run_id: str
    ranges: tuple[OffsetRange, ...]
    succeeded: bool
    reason: str = ""
    outcomes: Sequence[str] = ()


def choose_ranges(topic: Topic, keys: Sequence[str], adapters: Adapters) -> list[OffsetRange]:
    """Return the ranges of the keys, or all pending ones where none is given; refuse what is not planned."""
    coverage = adapters.lake.coverage_of(topic.name, keys)
    return find_ranges(topic.name, keys, coverage) if keys else coverage.pending()


@dataclass(frozen=True, slots=True)
class InProcessRuns:
    """Runs of a topic's jobs in this process."""

    topic: Topic
    adapters: Adapters
    instance: dg.DagsterInstance

    def land(self, ranges: Iterable[OffsetRange], *, redo: bool, on_change: str = "keep") -> Iterator[Launched]:
        """Run the topic's landing job, once per stretch of neighbouring keys.

        Raises `KeyboardInterrupt` where Ctrl-C or SIGTERM ended a run: what it landed stays landed.
        """
        config = land_config(self.topic, on_change)
        yield from self._run(self.topic.landing, set(ranges), config, _redo_tags(redo=redo), RANGES_PER_RUN)

    def decode(self, ranges: Iterable[OffsetRange], *, redo: bool, in_one_run: bool = False) -> Iterator[Launched]:
        """Run the topic's decoding job, as `land` does its landing job.

        `in_one_run` puts all ranges, and landed ones between them, into one run, so that changed columns go in together.
        """
        wanted, tags, most = set(ranges), _redo_tags(redo=redo), RANGES_PER_RUN
        if in_one_run:
            forget_unplanned(self.instance, self.topic, lambda: self.adapters.lake.coverage(self.topic.name))
            coverage = self._coverage_of(wanted)
            register_keys(self.instance, self.topic, coverage, wanted=wanted)
            if all(map(coverage.is_landed, wanted)):  # else the run has to name those that are not
                tags[LANDED_TAG] = "yes"
            order = read_order(self.instance, self.topic)
            places = [place for place, offsets in enumerate(order) if offsets in wanted]
            between = order[places[0] : places[-1] + 1] if places else []
            wanted.update(offsets for offsets in between if offsets is not None)
            most = len(wanted)
        yield from self._run(self.topic.decoding, wanted, {}, tags, most)

    def update_latest(self, *, full: bool) -> Launched:
        """Run the topic's job of its latest state.

        Raises `KeyboardInterrupt` where Ctrl-C or SIGTERM ended the run: the table is as before, or updated.
        """
        config = {"ops": {op_name(self.topic.latest_key): {"config": {"full": full}}}}
        return execute(self._job_of(self.topic.upserting), self.instance, self.topic.upserting.tags, (), config)

    def _run(
        self, duty: Duty, wanted: set[OffsetRange], run_config: Mapping[str, Any], tags: Mapping[str, str], most: int
    ) -> Iterator[Launched]:
        job, coverage = self._job_of(duty), self._coverage_of(wanted)
        register_keys(self.instance, self.topic, coverage, wanted=wanted)
        for stretch in split_stretches(read_order(self.instance, self.topic), wanted, most):
            register_keys(self.instance, self.topic, coverage, wanted=wanted)  # again: keys that no run holds may be retired
            yield execute(job, self.instance, {**duty.tags, **tags}, tuple(stretch), run_config)

    def _job_of(self, duty: Duty) -> dg.JobDefinition:
        end_dead_runs(self.instance, self.adapters.now_ms())
        topics = build_topic_defs(self.topic, self.adapters.settings.lake)  # other topics are not read
        return build_defs(self.adapters, topics=topics).resolve_job_def(duty.job)

    def _coverage_of(self, ranges: Iterable[OffsetRange]) -> Coverage:
        return self.adapters.lake.coverage_of(self.topic.name, [offsets.key for offsets in ranges])


def _redo_tags(*, redo: bool) -> dict[str, str]:
    return {REDO_TAG: "yes" if redo else "no"}


def execute(
    job: dg.JobDefinition,
    instance: dg.DagsterInstance,
    tags: Mapping[str, str],
    ranges: tuple[OffsetRange, ...],
    run_config: Mapping[str, Any],
) -> Launched:
    """Run a job in this process, over ranges with neighbouring keys where it has any.

    Raises `KeyboardInterrupt` where Ctrl-C or SIGTERM ended the run.
    """
    run_id, keys = str(uuid.uuid4()), [offsets.key for offsets in ranges]
    hold_run(instance.root_directory, run_id)
    try:
        result = job.execute_in_process(
            instance=instance,
            raise_on_error=False,
            partition_key=keys[0] if len(keys) == 1 else None,
            tags={**tags, **({RANGE_START: keys[0], RANGE_END: keys[-1]} if len(keys) > 1 else {})},
            run_config={**QUIET, **run_config},
            run_id=run_id,
        )
    finally:
        release_run(run_id)
    run = instance.get_run_by_id(run_id)  # Dagster takes the signal for itself while it runs
    if run is not None and run.tags.get(RUN_FAILURE_REASON_TAG) == RunFailureReason.UNEXPECTED_TERMINATION.value:
        raise KeyboardInterrupt
    told = [event.step_materialization_data.materialization.metadata for event in result.get_asset_materialization_events()]
    outcomes = [str(metadata["outcome"].value) for metadata in told if "outcome" in metadata]
    return Launched(run_id, ranges, result.success, "" if result.success else read_reason(instance, run_id), outcomes)


@contextmanager
def launching(
    adapters: Adapters, doing: str, total: int, *, said: Mapping[str, str], counts: Collection[str] = ()
) -> Iterator[dg.DagsterInstance]:
    """Open the instance for runs in this process, and show their progress while the context is open.

    `said` gives by step the text to show from then on, its fields in braces; each step in `counts` is one more done.
    """

    def on_step(step: str, **fields: object) -> None:
        if step in counts:
            shown.advance()
        elif step in said:
            shown.update(text=doing + said[step].format(**fields))

    logging.getLogger("dagster").setLevel(logging.ERROR)
    with open_instance(adapters.settings.dagster_home) as instance, progress(doing, total) as shown:
        adapters.watch_step = shown.watching(on_step)
        yield instance


def print_runs(topic: str, runs: Iterable[Launched], did: str) -> None:
    """Print for each run, as it ends, how many ranges it `did`, "landed" say; raise `RangesFailed` where one failed."""
    failures = []
    for run in runs:
        done = f"{did} {counted(len(run.outcomes or run.ranges), 'range')} in run {run.run_id}"  # it may have passed over some
        others = Counter(outcome.replace("_", " ") for outcome in run.outcomes if outcome != did)
        how = ", ".join(f"{count} {outcome}" for outcome, count in sorted(others.items()))  # read again and unchanged, say
        OUT.print(": ".join(filter(None, [done, how])) if run.succeeded else f"run {run.run_id} failed")
        if not run.succeeded:
            lines = [line for line in run.reason.splitlines() if line != NOTE]
            more = [f"{len(lines) - SHOWN_REASONS:,} more: see the run in Dagster"] if len(lines) > SHOWN_REASONS else []
            failures.append("\n  ".join([f"run {run.run_id}: {lines[0] if lines else ''}", *lines[1:SHOWN_REASONS], *more]))
    if failures:
        raise RangesFailed(f"{counted(len(failures), 'run')} of topic {topic} failed; what it {did} stays {did}", failures)
