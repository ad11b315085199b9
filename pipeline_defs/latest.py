"""Latest by key: see what stands -> find what is due -> merge in Spark -> exchange, one bucket of keys in one step each.

The state is derived from the decoded ranges and carries in its own files which of them went in: offset and result change
together. Invariant: of each key a plain glob shows the latest record of the ranges that its bucket's file names, or none
where that is a tombstone; at every moment, in any crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from .attempt import Attempt
from .core.errors import LakeUnavailable
from .core.latest import BucketFacts, Latest, Update, check_layout, plan_update
from .core.offsets import OffsetRange
from .edges.decodings import DecodedRanges, Decodings
from .edges.lake import Lake
from .edges.latest_columns import common_schema
from .edges.latest_files import LatestFiles, Present, StagedBucket, assemble
from .edges.spark_latest import Inputs, SparkLatest
from .staging_places import LocalStaging
from .steps import StepWatcher, no_step

TRIES = (
    20  # each lost exchange is another updater's success; and there are as many updaters as Dagster's pool allows: one
)


@dataclass(frozen=True, slots=True)
class LatestTools:
    """Is everything outside that keeping the latest state touches."""

    decodings: Decodings
    files: LatestFiles
    spark: Callable[[], SparkLatest]
    now_ms: Callable[[], int]
    on_step: StepWatcher = no_step

    @property
    def lake(self) -> Lake:
        """Is the lake that holds what is decoded and its latest state."""
        return self.decodings.lake


@dataclass(frozen=True, slots=True)
class Updated:
    """Is what an update came to: how many files of ranges it read, and the facts of the buckets that it exchanged."""

    read: int = 0
    exchanged: Mapping[int, BucketFacts] = field(default_factory=dict)


def read_state(topic: str, config: Latest, files: LatestFiles) -> dict[int, BucketFacts]:
    """Reads what each bucket's file says of itself; raises `LatestOutdated` where defs.yaml says another number of them."""
    facts = files.read_facts(topic)
    check_layout(topic, config.buckets, [*facts.values()])
    return facts


def find_waiting(topic: str, config: Latest, decodings: Decodings, files: LatestFiles) -> Update:
    """Finds what an update would do now; cheap: documents are kept, and so are facts of files that have not changed."""
    facts = read_state(topic, config, files)
    return find_update(config, facts, decodings.read_ranges(topic))


def find_update(config: Latest, facts: Mapping[int, BucketFacts], decoded: DecodedRanges) -> Update:
    """Finds what an update would do from buckets as they stood to ranges as they were read after them."""
    if not facts and not decoded.has_rows:
        return Update({}, (), ())
    present = {bucket: facts[bucket].applied if bucket in facts else None for bucket in range(config.buckets)}
    return plan_update(present, decoded.revisions)


def update(topic: str, config: Latest, attempt: Attempt, tools: LatestTools, *, full: bool = False) -> Updated:
    """Brings the latest state of a topic to its decoded ranges; with `full` from all of them, whatever stands.

    Any number may be at it: who was overtaken at a bucket begins again with that. Raises `LatestOutdated` before anything is
    written where files and defs.yaml, or keys and values of different times, do not go together.
    """
    read_state(topic, config, tools.files)
    staging = LocalStaging(attempt.id, tools.lake)
    folder = staging.root
    outcome = Updated()
    rebuilt = set(range(config.buckets)) if full else set[int]()
    try:
        for number in range(TRIES):
            with tools.files.snapshot(topic, range(config.buckets), folder / f"{number}" / "seen") as present:
                standing = {
                    bucket: Present(each.seen) if bucket in rebuilt else each for bucket, each in present.items()
                }
                like = next((each.rows for each in present.values() if each.rows), None)
                work = Work(topic, config, attempt, tools, standing, folder / f"{number}", like)
                did = _update_once(work)
            if did is None:
                return outcome
            rebuilt -= did.exchanged.keys()
            outcome = Updated(outcome.read + did.read, {**outcome.exchanged, **did.exchanged})
    finally:
        tools.lake.store.delete_folder(f"staging/{attempt.id}")
        staging.close()
    raise LakeUnavailable(
        f"cannot update latest/{topic}: others were faster {TRIES} times; nothing is lost, what they wrote is right; the next "
        "update goes on from there"
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Is what every step of one try is given; `standing` are the buckets as they were seen, before anything else was read.

    `like` is any bucket's file that stands, for its columns where no row is left.
    """

    topic: str
    config: Latest
    attempt: Attempt
    tools: LatestTools
    standing: Mapping[int, Present]
    folder: Path
    like: Path | None


def _update_once(work: Work) -> Updated | None:
    """Does what is due; none where nothing is. What it does not bring about, since it was overtaken, is due again."""
    tools, topic = work.tools, work.topic
    decoded = tools.decodings.read_ranges(topic)
    applied = {bucket: each.facts.applied if each.facts else None for bucket, each in work.standing.items()}
    plan = plan_update(applied, decoded.revisions)
    if not plan.targets or not (decoded.has_rows or work.like):
        return None
    readable = {offsets for offsets, each in decoded.known.items() if each.rows}
    history = readable if plan.changed else set[OffsetRange]()  # for keys that have lost their winner
    sources = sorted(history | (readable & set(plan.fresh)))
    with ExitStack() as copies:
        paths = {each: copies.enter_context(tools.lake.local_copy(decoded.path_of(each))) for each in sources}
        tools.on_step("read_decoded", topic=topic, ranges=len(plan.fresh), buckets=len(plan.targets))
        schema, staged = _stage(work, plan, decoded, paths, history)
    return Updated(len(plan.fresh), _exchange(work, plan, schema, staged))


def _stage(
    work: Work,
    plan: Update,
    decoded: DecodedRanges,
    paths: Mapping[OffsetRange, Path],
    history: AbstractSet[OffsetRange],
) -> tuple[pa.Schema, Mapping[int, StagedBucket]]:
    """Has Spark find the winners of the due buckets; nothing of it is visible."""
    due = [work.standing[bucket] for bucket in plan.targets]
    present = [each.rows for each in due if each.rows is not None]
    of_each_schema = {decoded.known[offsets].columns: path for offsets, path in paths.items()}
    files = [*present, *of_each_schema.values()]
    schema = common_schema(work.topic, files or [work.like] if work.like else files)
    inputs = Inputs(
        fresh=[paths[offsets] for offsets in plan.fresh if offsets in paths],
        present=present,
        tombstones=[each.tombstones for each in due if each.tombstones is not None],
        everything=[paths[offsets] for offsets in sorted(history)],
        changed=plan.changed,
    )
    started = work.tools.now_ms()
    buckets = work.config.buckets
    staged = work.tools.spark().stage(work.topic, inputs, schema, buckets, [*plan.targets], work.folder / "spark")
    work.tools.on_step("stage_latest", topic=work.topic, seconds=(work.tools.now_ms() - started) / 1000)
    return schema, staged


def _exchange(
    work: Work, plan: Update, schema: pa.Schema, staged: Mapping[int, StagedBucket]
) -> Mapping[int, BucketFacts]:
    """Exchanges the due buckets, one by one; returns the facts of those that had not been exchanged by another."""
    exchanged = {}
    for bucket, applied in plan.targets.items():
        facts = BucketFacts(
            topic=work.topic,
            bucket=bucket,
            buckets=work.config.buckets,
            key_type=str(schema.field("key").type),
            applied=applied,
            attempt=work.attempt.id,
            run_id=work.attempt.run_id,
            code_version=work.attempt.code_version,
        )
        path = work.folder / f"b{bucket:04d}.parquet"
        facts = assemble(staged[bucket], facts, schema, path)
        seen = work.standing[bucket].seen
        has_swapped = work.tools.files.exchange(work.topic, bucket, path, work.attempt.id, seen)
        work.tools.on_step("exchange_latest", bucket=bucket, keys=facts.keys, exchanged=has_swapped)
        if has_swapped:
            exchanged[bucket] = facts
    return exchanged
