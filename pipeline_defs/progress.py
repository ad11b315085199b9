"""Whether a topic lands what arrives: ranges that fail again and again, and silence where something waits.

Found from the lake, the broker and Dagster's runs; the sensor's tick and the check of the audit job ask the same.
Invariant: a topic on which nothing waits has nothing to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import dagster as dg

from .auditing import Finding
from .core.coverage import Coverage
from .core.dispatch import Tried
from .core.offsets import OffsetRange
from .core.progress import Silence, Unplanned, find_silences
from .exposure import Endangered
from .moments import time_text
from .projection import read_reason
from .topics import Topic

REASON_LENGTH = 600


def check_progress(
    topic: Topic,
    coverage: Coverage,
    endangered: Sequence[Endangered],
    runs: tuple[Mapping[OffsetRange, str], Mapping[OffsetRange, Tried]],
    instance: dg.DagsterInstance,
    now_ms: int,
) -> tuple[Finding, bool]:
    """Checks that what arrives is landed; says too whether it is an error: not, where runs are still at work on it.

    `runs` says of ranges which active run holds them, and how often they were tried.
    """
    held, tried = runs
    pending = coverage.pending()
    failing = [offsets for offsets in sorted(pending) if offsets in tried and tried[offsets].is_stalled]
    waiting = {each.partition: Unplanned(each.offset, each.timestamp_ms) for each in endangered}
    silent = [
        silence
        for silence in find_silences(coverage, waiting, topic.policy.max_age_seconds, now_ms)
        if silence.planned not in failing
    ]
    reason_of = cache(lambda run_id: read_reason(instance, run_id))
    violations = [
        _failing_text(topic, offsets, tried[offsets], reason_of(tried[offsets].failed_run)) for offsets in failing
    ]
    violations += [_silent_text(topic, silence, held) for silence in silent]
    concerns = [offsets.key for offsets in failing]
    concerns += [each.planned.key if each.planned else f"{each.partition}-{each.offset}-" for each in silent]
    facts = {"pending_ranges": len(pending), "failing_ranges": len(failing), "silent_partitions": len(silent)}
    is_error = bool(failing) or any(silence.planned is None or silence.planned not in held for silence in silent)
    return Finding("progress", f"{len(pending)} pending ranges", tuple(violations), facts, tuple(concerns)), is_error


def _failing_text(topic: Topic, offsets: OffsetRange, tried: Tried, reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines()]
    own = [line for line in lines if offsets.text(topic.name) in line or f"{offsets.folder}/{offsets.stem}" in line]
    why = " ".join(own or lines).removeprefix("- ")
    return (
        f"range {offsets.text(topic.name)} has failed {tried.attempts} times in a row since "
        f"{time_text(tried.first_failed_ms)}, last in run {tried.failed_run[:8]}: {why[:REASON_LENGTH]}"
    )


def _silent_text(topic: Topic, silence: Silence, held: Mapping[OffsetRange, str]) -> str:
    since = f"waits and nothing of {topic.name}/{silence.partition} has landed since {time_text(silence.since_ms)}"
    if silence.planned is None:
        return (
            f"{topic.name}/{silence.partition}: offset {silence.offset} is in no range, {since}; have the sensor "
            f"plan_and_land_{topic.slug} run, or `offsetlake plan {topic.name} --commit`"
        )
    holder = held.get(silence.planned)
    why = (
        f"{holder} holds it"
        if holder
        else f"no run holds it; have the sensor plan_and_land_{topic.slug} run, or `offsetlake land {topic.name} --pending`"
    )
    return f"range {silence.planned.text(topic.name)} {since}: {why}"
