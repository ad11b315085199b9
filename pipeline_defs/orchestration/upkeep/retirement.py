"""Retiring keys: Dagster forgets the oldest landed ranges beyond a topic's `max_keys`; the lake keeps everything.

Which they are is `core.landing.retiring`'s, recomputed from the lake each time. Invariant: a key goes only while nothing holds
it: no active run or backfill, and no failed try.
"""

from collections.abc import Collection

import dagster as dg
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES, BulkActionsFilter, BulkActionStatus

from ...core.landing.retiring import retired
from ...core.log.coverage import Coverage
from ...core.offsets import OffsetRange
from ...topics import Topic
from ..runs.projection import read_order, read_selected
from ..runs.tries import read_tries

KEYS_AT_ONCE = 200  # before it looks again at what is held


def find_retirable(
    topic: Topic, coverage: Coverage, instance: dg.DagsterInstance, due: Collection[OffsetRange] = ()
) -> list[OffsetRange]:
    """Find the keys that Dagster has, need not show any more, and that nothing holds; `due` is still asked for by key."""
    away = retired(coverage, topic.max_keys)
    if not away or has_backfill(topic, instance):
        return []
    order = read_order(instance, topic)
    failed = read_tries(instance, topic.landing).tried.keys() - coverage.skipped()  # nobody tries those again
    needed = {*due, *failed}
    for duty in (topic.landing, topic.decoding):
        needed |= {*read_tries(instance, duty).held, *read_selected(instance, duty, order)}
    return [offsets for offsets in order if offsets in away and offsets not in needed]


def has_too_many(topic: Topic, instance: dg.DagsterInstance) -> bool:
    """Return whether Dagster has more keys of a topic than it is to show, and no backfill may ask for any of them."""
    return len(read_order(instance, topic)) > topic.max_keys and not has_backfill(topic, instance)


def retire_keys(
    topic: Topic, coverage: Coverage, instance: dg.DagsterInstance, due: Collection[OffsetRange] = ()
) -> list[OffsetRange]:
    """Delete the keys that can go from Dagster, oldest first, and return them; any number of runs may be at it.

    A crash in the middle leaves the rest for the next time. Events of these ranges stay in Dagster's log.
    """
    gone: list[OffsetRange] = []
    while batch := find_retirable(topic, coverage, instance, due)[:KEYS_AT_ONCE]:
        for offsets in batch:
            instance.delete_dynamic_partition(topic.ranges_name, offsets.key)
        gone += batch
    return gone


def has_backfill(topic: Topic, instance: dg.DagsterInstance) -> bool:
    """Return whether a backfill of the topic is under way: which keys it has yet to ask for, only its daemon knows."""
    active = [status for status in BulkActionStatus if status not in BULK_ACTION_TERMINAL_STATUSES]
    found = instance.get_backfills(filters=BulkActionsFilter(statuses=active))
    ours = {duty.asset_key for duty in topic.duties}
    return any(not ours.isdisjoint(backfill.asset_selection or ()) for backfill in found)
