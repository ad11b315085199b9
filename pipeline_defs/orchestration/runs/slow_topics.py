"""Slow topics: what kept the others of its lane waiting for long is landed and decoded in a lane apart for a while.

A run notes in its own tags whose landing or decoding it found slow, and whose quick after all, so every process finds the same.
"""

from collections.abc import Collection
from datetime import UTC, datetime

import dagster as dg
from dagster import RunsFilter

from ...topics import LAND_PENDING, Duty, Topic

SLOW_SECONDS = 60.0  # of a job, which is to take ten
SLOW_FOR_MS = 600_000
_HAS_JUDGED, _SLOW, _QUICK = "offsetlake/has_judged", "offsetlake/slow_topics", "offsetlake/quick_topics"


def name_of(duty: Duty) -> str:
    """Return the name by which a duty is noted: that of its asset."""
    return duty.asset_key.to_user_string()


def is_slow(topic: Topic, found: Collection[str]) -> bool:
    """Return whether a topic's landing or decoding is among what was found slow."""
    return any(name_of(duty) in found for duty in (topic.landing, topic.decoding))


def note_speed(duties: Collection[str], run_id: str, instance: dg.DagsterInstance, *, is_slow: bool) -> None:
    """Note in the tags of a run what it found slow, or quick after all, beside what it found before."""
    slow, quick = _read(instance.get_run_by_id(run_id))
    slow, quick = (slow | {*duties}, quick - {*duties}) if is_slow else (slow - {*duties}, quick | {*duties})
    tags = {_HAS_JUDGED: "yes", _SLOW: ",".join(sorted(slow)), _QUICK: ",".join(sorted(quick))}
    instance.add_run_tags(run_id, tags)


def read_slow(instance: dg.DagsterInstance, now_ms: int) -> set[str]:
    """Read what runs of the last ten minutes have found slow, as `name_of` names it; the word of the newest one counts."""
    since = datetime.fromtimestamp((now_ms - SLOW_FOR_MS) / 1000, UTC)
    found: set[str] = set()
    judged = RunsFilter(job_name=LAND_PENDING, tags={_HAS_JUDGED: "yes"}, updated_after=since)
    for run in reversed(instance.get_runs(judged)):
        slow, quick = _read(run)
        found = (found | slow) - quick
    return found


def _read(run: dg.DagsterRun | None) -> tuple[set[str], set[str]]:
    tags = run.tags if run is not None else {}
    slow, quick = (set(filter(None, tags.get(name, "").split(","))) for name in (_SLOW, _QUICK))
    return slow, quick
