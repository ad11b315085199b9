"""Sealing: roll forward, plan, read, stage, verify, commit, publish; small landed files become few larger ones beside them.

`data/` is never touched. The seal decides, by put-if-absent; before it nothing is visible, after it anyone can finish.
A reader takes a sealed file only while each of its ranges is landed as it was sealed (`core/sealing.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .attempt import Attempt, Tools
from .auditing import Finding
from .core.errors import OffsetlakeError
from .core.manifest import StagedFile
from .core.offsets import OffsetRange
from .core.seal import Seal, SealProvenance
from .core.sealing import (
    SealOutcome,
    SealPlan,
    SealVerdict,
    Superseded,
    choose_seals,
    find_superseded,
    is_current,
    plan_seals,
    verify_sealed,
)
from .edges import parquet
from .edges.lake import Lake
from .edges.seals import Seals, deletion_guard, sealed_path
from .staging_places import LocalStaging
from .standing import LandedFile, landed_files
from .sweeping import SWEEP_AFTER_SECONDS

SEAL_THREADS = 2  # files that are written at once; each is one Spark task


@dataclass(frozen=True, slots=True)
class _Run:
    topic: str
    attempt: Attempt
    tools: Tools
    seals: Seals
    target_bytes: int
    staging: LocalStaging


def plan_sealing(topic: str, lake: Lake, target_bytes: int, *, every: bool = False) -> list[SealPlan]:
    """Plans what to seal of a topic now; writes nothing."""
    seals = Seals(lake)
    coverage = lake.coverage(topic)
    return plan_seals(coverage, seals.read_published(topic), seals.read(topic), target_bytes, every=every)


def seal(
    topic: str, attempt: Attempt, tools: Tools, target_bytes: int, *, every: bool = False
) -> Iterator[SealVerdict]:
    """Seals what is due of a topic; yields one verdict per sealed file. One that fails leaves the others sealed."""
    lake = tools.lake
    yield from _roll_forward(topic, tools)
    plans = plan_sealing(topic, lake, target_bytes, every=every)
    tools.on_step("seal_planned", topic=topic, files=len(plans), ranges=sum(len(plan.manifests) for plan in plans))
    staging = LocalStaging(attempt.id, lake)
    run = _Run(topic, attempt, tools, Seals(lake), target_bytes, staging)
    try:
        with ThreadPoolExecutor(SEAL_THREADS) as pool:
            yield from pool.map(lambda plan: _seal_or_fail(run, plan), plans)
    finally:
        staging.close()
    _sweep_own_staging(run)
    _sweep_superseded(topic, tools)


def _roll_forward(topic: str, tools: Tools) -> Iterator[SealVerdict]:
    """Publishes what an attempt before has committed, where its staged file is whole; else it is sealed anew."""
    seals = Seals(tools.lake)
    coverage = tools.lake.coverage(topic)
    published = set(map(sealed_path, seals.read_published(topic)))
    for each in seals.read(topic):
        is_owed = sealed_path(each) not in published and is_current(each, coverage)
        if is_owed and seals.is_staged(each) and seals.publish(each):
            tools.on_step("seal_rolled_forward", key=each.offsets.key)
            yield SealVerdict(each.offsets, SealOutcome.ROLLED_FORWARD, each)


def _seal_or_fail(run: _Run, plan: SealPlan) -> SealVerdict:
    try:
        return _seal(run, plan)
    except (OffsetlakeError, FileNotFoundError) as error:  # a published file that somebody takes away while it is read
        return SealVerdict(plan.offsets, SealOutcome.FAILED, violations=(str(error),))


def _seal(run: _Run, plan: SealPlan) -> SealVerdict:
    """Writes, verifies, commits and publishes one sealed file, or says why not."""
    with landed_files(plan.with_rows, run.tools.lake) as sources:
        return _seal_from(run, plan, sources)


def _seal_from(run: _Run, plan: SealPlan, sources: Mapping[OffsetRange, LandedFile]) -> SealVerdict:
    tools, key, started = run.tools, plan.offsets.key, run.tools.now_ms()
    folder = run.staging.root / f"seal-{key}"
    if changed := _changed(run.topic, plan, sources):
        return SealVerdict(plan.offsets, SealOutcome.FAILED, violations=tuple(changed))
    tools.on_step("seal_read", key=key, ranges=len(plan.manifests))
    paths = [sources[manifest.offsets].path for manifest in plan.with_rows]
    tools.files.merge(plan.offsets.text(run.topic), paths, plan.offsets.generation, str(folder))
    tools.on_step("seal_staged", key=key)
    file, schema, violations = _verify(run, plan, sources, folder)
    if file is None or violations:
        return SealVerdict(plan.offsets, SealOutcome.FAILED, violations=tuple(violations))
    tools.on_step("seal_verified", key=key, rows=file.rows, bytes=file.bytes)
    attempt, now_ms = run.attempt, tools.now_ms()
    ours = Seal(
        run.topic,
        plan.offsets,
        plan.originals,
        file,
        SealProvenance(
            attempt.id,
            attempt.run_id,
            attempt.code_version,
            tools.spark.writer,
            now_ms,
            round((now_ms - started) / 1000, 3),
        ),
        run.target_bytes,
        plan.revision,
        schema,
    )
    run.seals.stage(next(folder.glob("*.parquet")), file.path)
    standing = run.seals.commit(ours)
    if standing != ours:
        return SealVerdict(plan.offsets, SealOutcome.SUPERSEDED, standing)
    tools.on_step("seal_committed", key=key)
    run.seals.publish(ours)
    tools.on_step("seal_published", key=key)
    return SealVerdict(plan.offsets, SealOutcome.SEALED, ours)


def _changed(topic: str, plan: SealPlan, sources: Mapping[OffsetRange, LandedFile]) -> list[str]:
    """Names the landed files that have not the digest in their manifest."""
    return [
        f"range {manifest.offsets.text(topic)}: its landed file has not the sha256 {manifest.digest} of its manifest; it is "
        "not sealed, nor what would be sealed with it"
        for manifest in plan.with_rows
        if not sources[manifest.offsets].is_of(manifest)
    ]


def _verify(
    run: _Run, plan: SealPlan, sources: Mapping[OffsetRange, LandedFile], folder: Path
) -> tuple[StagedFile | None, dict[str, str], list[str]]:
    """Holds the staged file against its originals; returns its facts and columns, and every law that it breaks."""
    where = plan.offsets.text(run.topic)
    parts = list(parquet.read_parts(folder))
    if len(parts) != 1:
        return None, {}, [f"Spark wrote {len(parts)} files of {where}, expected one; nothing became visible"]
    part = parts[0]
    file = run.staging.settle(part, f"{plan.offsets.key}.sealed")
    originals = [sources[manifest.offsets].path for manifest in plan.with_rows]
    difference = parquet.differing_from_all(originals, part.path)
    violations = verify_sealed(run.topic, plan, file, parquet.read_runs(part.path), difference)
    return file, part.schema, [*violations, *_changed(run.topic, plan, sources)]  # one may have been replaced meanwhile


def _sweep_own_staging(run: _Run) -> None:
    """Deletes what this attempt staged, unless a seal still needs a file of it to be published."""
    own = [each for each in run.seals.read(run.topic) if each.provenance.attempt == run.attempt.id]
    if all(run.seals.is_published(each) for each in own):
        run.tools.lake.store.delete_folder(f"staging/{run.attempt.id}")


def _sweep_superseded(topic: str, tools: Tools) -> None:
    """Deletes the sealed files that nobody who opened the views within the last hours can be reading.

    What is to go is worked out where nothing can be swept meanwhile that only such a file has then; what has its rows instead
    is held against its digest first.
    """
    seals, latest_ms = Seals(tools.lake), tools.now_ms() - SWEEP_AFTER_SECONDS * 1000
    if not _superseded_before(topic, tools.lake, seals, latest_ms):
        return
    with tools.lake.store.locked(deletion_guard(topic)):
        for each in _superseded_before(topic, tools.lake, seals, latest_ms):
            if not any(seals.why_changed(other) for other in each.instead):
                tools.lake.store.delete_folder(sealed_path(each.seal))
                tools.on_step("seal_swept", key=each.seal.offsets.key, revision=each.seal.revision)


def _superseded_before(topic: str, lake: Lake, seals: Seals, latest_ms: float) -> list[Superseded]:
    found = find_superseded(lake.coverage(topic), seals.read_published(topic))
    return [each for each in found if each.since_ms < latest_ms]


def check_sealed(topic: str, lake: Lake) -> Finding:
    """Checks each sealed file that readers use against the digest in its seal."""
    seals, coverage = Seals(lake), lake.coverage(topic)
    used = choose_seals(coverage, seals.read_published(topic))
    violations = []
    for each in used:
        if reason := seals.why_changed(each):
            advice = (
                "restore it from a backup, and do not delete it: of ranges whose originals were swept it has the only rows"
                if coverage.swept & set(each.ranges)
                else "delete it, and readers take its ranges again"
            )
            violations.append(f"sealed file of {each.offsets.text(topic)}: {reason}; {advice}")
    facts = {"ranges": sum(len(each.ranges) for each in used), "rows": sum(each.file.rows for each in used)}
    return Finding("sealed", f"{len(used)} sealed files", tuple(violations), facts)
