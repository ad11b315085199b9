"""Rebuilding: gives back to Dagster and the consumer group, from the lake alone, what they should show.

Keys, then materialisations with metadata and data versions, then the group's offsets. Each is compared with what is
there first, so it can be killed anywhere and repeated; what is right is left alone. It also sums up what is settled, as a tick
does, since nothing else would where no sensor ticks. A tick looks only at what is newer than a frontier document; so each
hour the comparison, a run of its own, rebuilds the topics with one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from ...core.landing.selection import retired
from ...core.log.coverage import Coverage
from ...core.log.settling import is_true_of
from ...core.offsets import OffsetRange
from ...landing.mirror import mirror_frontier
from ...resources import Adapters
from ...topics import Topic
from ..assets.decoded_asset import report_days
from ..runs.projection import ACTIVE, FAILED, find_unseen, forget_unplanned, read_data_versions, register_keys
from ..runs.tries import read_tries
from ..runs.visiting import do_for_each
from ..runs.waiting import read_due
from .ticking import landed_event, move_frontier, report_decoded

COMPARE = "compare_with_lake"
COMPARE_EVERY_MS = 3_600_000
AGAIN_MS = 600_000


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was given back: keys, materialisations, and where each Kafka partition of the group was moved to."""

    keys: int
    events: int
    group: Mapping[int, int]


def rebuild_topic(
    topic: Topic,
    adapters: Adapters,
    instance: dg.DagsterInstance,
    on_restored: Callable[[int, int], None] = lambda done, total: None,
) -> Rebuilt:
    """Give Dagster, and Kafka's lag tools, what the lake knows of a topic; `on_restored` gets the events done, and the total.

    Raises `BrokerUnavailable` only at the end, when Dagster has what it lacked.
    """
    document = adapters.lake.recent(topic.name).log.base  # first: the coverage then has all that it sums up
    coverage = forget_unplanned(instance, topic, lambda: adapters.lake.coverage(topic.name))
    if coverage.log.state.seq:
        adapters.lake.remember(topic.name)  # before Dagster shows any of it
    keys = register_keys(instance, topic, coverage)
    adapters.watch_step("keys_registered", topic=topic.name, keys=keys)
    in_progress = read_tries(instance, topic.landing).in_progress.keys()
    versions = {o: each.digest for o, each in coverage.manifests.items() if o not in in_progress and coverage.is_landed(o)}
    owed = _find_owed(topic, topic.asset_key, coverage, versions, instance)
    for done, offsets in enumerate(owed, 1):
        instance.report_runless_asset_event(landed_event(topic, offsets, coverage, adapters))
        adapters.watch_step("restored", key=offsets.key)
        on_restored(done, len(owed))
    decoded = _restore_decoded(topic, adapters, instance) if topic.decode else 0
    if document is not None and not is_true_of(document, coverage):
        adapters.lake.frontiers.forget(topic.name)  # somebody has deleted a manifest, say: the next tick reads all
        adapters.watch_step("frontier_forgotten", topic=topic.name)
    elif not in_progress and adapters.lake.recent(topic.name).pending() == coverage.pending():
        move_frontier(topic, coverage, adapters, read_due(topic, adapters))
    group = mirror_frontier(topic.name, topic.group, adapters.lake, adapters.kafka(topic))
    return Rebuilt(keys, len(owed) + decoded, group)


def _restore_decoded(topic: Topic, adapters: Adapters, instance: dg.DagsterInstance) -> int:
    """Tell Dagster of the decoded ranges that it has no materialisation of, or an older one; return how many."""
    coverage = adapters.lake.coverage(topic.name)
    decoded = adapters.decodings.read_ranges(topic.name).of(coverage)
    in_progress = read_tries(instance, topic.decoding).in_progress.keys()
    versions = {offsets: decoding.digest for offsets, decoding in decoded.items() if offsets not in in_progress}
    owed = _find_owed(topic, topic.decoded_key, coverage, versions, instance)
    for offsets in owed:
        report_decoded(topic, decoded[offsets], adapters, instance)
    return len(owed) + len(report_days(topic, instance, adapters))


def _find_owed(
    topic: Topic, key: dg.AssetKey, coverage: Coverage, versions: Mapping[OffsetRange, str], instance: dg.DagsterInstance
) -> list[OffsetRange]:
    """Find the ranges that Dagster lacks, or shows in another data version than the lake's, as after a replace that died."""
    unseen = find_unseen(instance, topic, key, coverage, lambda each: each in versions)
    shown, told = read_data_versions(instance, key), versions.keys() - {*unseen} - retired(coverage, topic.max_keys)
    return [*unseen, *sorted(each for each in told if shown.get(each.key) != versions[each])]


def build_comparison(topics: Sequence[Topic]) -> dg.JobDefinition:
    """Build the job that compares the topics of a code location."""
    description = (
        "Compares all that the lake has of each topic with what Dagster shows, and tells it what it lacks. The sensor of the "
        "topics asks for it when it starts, and every hour; a plan log that has lost steps fails it."
    )

    @dg.op(name="compare_history", description=description)
    def compare(context: dg.OpExecutionContext, adapters: dg.ResourceParam[Adapters]) -> None:
        def compare_one(topic: Topic) -> None:
            if adapters.lake.frontiers.has(topic.name):
                found = rebuild_topic(topic, adapters, context.instance)
                context.log.info("step=compared topic=%s keys=%s events=%s", topic.name, found.keys, found.events)

        do_for_each(topics, adapters, compare_one)

    @dg.job(name=COMPARE, description=description)
    def compare_with_lake() -> None:
        compare()

    return compare_with_lake


def is_comparison_due(
    topics: Sequence[Topic], tags: Mapping[str, str], instance: dg.DagsterInstance, adapters: Adapters
) -> bool:
    """Return whether a comparison is due: none with these tags was made since this process began to tick, or for an hour.

    One that failed is repeated after ten minutes: it was killed, or found what a person has to mend.
    """
    if not any(adapters.lake.frontiers.has(topic.name) for topic in topics):
        return False
    record = next(iter(instance.get_run_records(dg.RunsFilter(job_name=COMPARE, tags={**tags}), limit=1)), None)
    if record is None:
        return True
    asked_ms, now_ms = record.create_timestamp.timestamp() * 1000, adapters.now_ms()
    every_ms = AGAIN_MS if record.dagster_run.status in FAILED else COMPARE_EVERY_MS
    is_set_back = adapters.opened_ms > now_ms  # the clock, since this process began: it does not say who came first
    is_recent = (asked_ms >= adapters.opened_ms or is_set_back) and abs(now_ms - asked_ms) < every_ms
    return not is_recent and record.dagster_run.status not in ACTIVE
