"""The decoded asset of a topic, which runs `tables.decoding.decode`, with an event per decoded range; and event days.

Its partitions are the raw asset's. Partitions of `days/<topic>` are told as the decoded table counts them. No day has a file of
its own; its data version says whether it changed, so a late record makes its own day news, and no other. Invariant: the run is
red unless every range it selects is decoded; what is decoded is reported all the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster_pyspark import LazyPySparkResource

from ...adapters.tables.columns_of_table import arrow_schema
from ...adapters.telemetry.openlineage import Derived, telling
from ...core.decode.decoders import Decode
from ...core.errors import RangesFailed
from ...core.landing.verdicts import violations_by_range
from ...core.log.latency import file_facts
from ...core.offsets import parse_key
from ...core.tables.days import GONE, DayFacts, Days, day_at
from ...core.tables.decoded_ranges import DecodedRanges
from ...core.tables.decoded_table import TREE
from ...core.tables.decoding import Decided, DecodeVerdict, Decoding
from ...core.tables.delta import Snapshot
from ...landing.auditing import Finding
from ...resources import Adapters
from ...tables.decoding import decode
from ...topics import LANDED_TAG, Topic, op_name
from ..runs.known import database_of
from ..runs.moments import DAY_MS, telling_pace
from ..runs.projection import read_data_versions
from ..runs.tries import trying
from ..runs.work import Context, new_attempt, run_of, selected_keys, step_logger, tell_range
from .catalog import decoded_spec
from .checks import Ask, build_check, evaluation_of, read_doubted
from .decoded_checks import (
    COMPLETENESS,
    DEAD_LETTERS,
    DIGEST,
    OUTSIDE,
    check_dead_letters,
    check_decoded,
    check_decoded_files,
    check_outside,
)

NEWLY_DECODED = {Decided.DECODED, Decided.REPLACED}  # what OpenLineage is told of


def report_days(topic: Topic, instance: dg.DagsterInstance, adapters: Adapters) -> list[str]:
    """Tell Dagster of the days whose rows are not those that it was told of last; return these days."""
    if topic.days is None:
        return []
    decoded, now_ms = adapters.decodings.read_ranges(topic.name), adapters.now_ms()
    told_last = [each.storage_id for each in instance.fetch_materializations(topic.days_key, limit=1).records]
    seen = (database_of(instance), told_last, topic.days, decoded.table.version, decoded.table.metadata, day_at(now_ms))
    if adapters.compared.get(topic.days_key) == seen:
        return []
    news = find_untold(topic.days, decoded, read_data_versions(instance, topic.days_key), now_ms)
    for day, facts in news.items():
        instance.report_runless_asset_event(day_event(topic, day, facts, decoded.table, adapters))
        adapters.watch_step("reported_day", day=day)
    if not news:
        adapters.compared[topic.days_key] = seen
    return [*news]


def find_untold(days: Days, decoded: DecodedRanges, shown: Mapping[str, str | None], now_ms: int) -> dict[str, DayFacts]:
    """Find the days whose rows differ from what Dagster shows, sorted; `shown` is the data version of each day there."""
    found, own = decoded.sums.days, days.event_time.text
    news = {day: facts for day, facts in found.get(own, {}).items() if days.place(day, now_ms) == "told"}
    if found.keys() <= {own}:  # else there are rows whose day nobody knows
        news |= dict.fromkeys(shown.keys() - news.keys(), GONE)
    return {day: facts for day, facts in sorted(news.items()) if shown.get(day) != facts.version}


def day_event(topic: Topic, day: str, facts: DayFacts, table: Snapshot, adapters: Adapters) -> dg.AssetMaterialization:
    """Return the event of one day."""
    metadata: dict[str, Any] = {
        "rows": facts.rows,
        "dagster/partition_row_count": facts.rows,
        "ranges": facts.ranges,
        "last_ranges": ", ".join(offsets.key for offsets in facts.last_ranges),
        "table_version": table.version,
        "table": dg.MetadataValue.path(adapters.lake.store.url(f"{TREE}/{topic.name}")),
    }
    if facts.newest_ms is not None:
        metadata["newest_record"] = dg.MetadataValue.timestamp(facts.newest_ms / 1000)
    tags = {DATA_VERSION_TAG: facts.version}
    return dg.AssetMaterialization(topic.days_key, partition=day, metadata=metadata, tags=tags)


def build_decoded_asset(topic: Topic, config: Decode, lake: str) -> dg.AssetsDefinition:
    """Build the asset that decodes what is landed of a topic; `lake` is only shown."""
    duty = topic.decoding

    @dg.multi_asset(
        name=op_name(topic.decoded_key),
        specs=[decoded_spec(topic, config, lake)],
        partitions_def=topic.partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),  # not its parent's, or Dagster skips it in a backfill of both
        pool=duty.pool,
    )
    def decoded(
        context: dg.AssetExecutionContext, adapters: dg.ResourceParam[Adapters], pyspark: LazyPySparkResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with run_of(context, duty, adapters):
            keys = selected_keys(context, topic.name)
            if LANDED_TAG in context.run.tags:
                coverage = adapters.lake.coverage_of(topic.name, keys)
                keys = [key for key in keys if coverage.is_landed(parse_key(key))]
            tools = adapters.decode_tools(config, pyspark, step_logger(context))
            failures: list[DecodeVerdict] = []
            made: list[Decoding] = []
            began_ms, tell_pace = adapters.now_ms(), partial(context.log.info, "step=progress %s")
            with trying(context.instance, duty, keys, context.run.run_id, adapters.now_ms) as done:
                verdicts = decode(topic.name, keys, new_attempt(context), tools)
                for verdict in telling_pace(verdicts, len(keys), adapters.now_ms, tell_pace):
                    if verdict.outcome is Decided.FAILED or verdict.decoding is None:
                        failures.append(verdict)
                        continue
                    yield from tell_range(context, decoded_event(topic, verdict.decoding, verdict.outcome, adapters))
                    adapters.watch_step("reported_decoded", key=verdict.offsets.key)
                    done.add(verdict.offsets.key)
                    made += [verdict.decoding] if verdict.outcome in NEWLY_DECODED else []
                tell_decoded(topic, made, context, began_ms, adapters)  # before a tick would
            # a run without a partition key has no output, so Dagster skips the checks that come after it
            if not context.has_partition_key:
                for evaluation in check_decodings(topic, adapters):
                    context.log_event(evaluation)
            if failures:
                raise RangesFailed(
                    f"of {len(keys)} ranges of topic {topic.name} {len(keys) - len(failures)} are decoded and {len(failures)} "
                    "failed; what failed stays landed and is tried again",
                    [
                        each
                        for verdict in failures
                        for each in violations_by_range(topic.name, verdict.offsets, verdict.violations)
                    ],
                )

    return decoded


def tell_decoded(topic: Topic, made: Sequence[Decoding], context: Context, began_ms: int, adapters: Adapters) -> None:
    """Tell Dagster of the days that a run's decoding has changed, and OpenLineage of what was newly decoded, if anything.

    The OpenLineage event leads from the landed rows to the table as it is now.
    """
    report_days(topic, context.instance, adapters)
    if not made:
        return
    url, table = adapters.lake.store.url, adapters.decodings.read_ranges(topic.name).table
    columns = arrow_schema(table.metadata.schema) if table.metadata is not None else ()
    rows = sum(each.rows for each in made)
    with telling(adapters.lineage(), "tables", context.log.warning) as tell:
        tell(
            Derived(
                job=topic.decoding.job,
                run_id=context.run.run_id,
                source_url=url(f"data/{topic.name}"),
                source_version=None,
                read=rows + sum(each.dead for each in made),
                table_url=url(f"{TREE}/{topic.name}"),
                version=table.version,
                written=rows,
                columns={column.name: str(column.type) for column in columns},
                began_ms=began_ms,
                ended_ms=adapters.now_ms(),
            )
        )


def decoded_event(topic: Topic, decoding: Decoding, outcome: Decided, adapters: Adapters) -> dg.AssetMaterialization:
    """Return the event of one decoded range, with the facts that the UI shows: from its document, and how this run found it.

    Its data version is both files' digests.
    """
    offsets, provenance = decoding.offsets, decoding.provenance
    metadata: dict[str, Any] = {
        "outcome": outcome.value,
        "rows": decoding.rows,
        "dagster/partition_row_count": decoding.rows,
        "dead_letters": decoding.dead,
        "bytes": decoding.decoded.bytes if decoding.decoded else 0,
        "offsets": offsets.text(topic.name),
        "decoder": decoding.decoder,
        "source_digest": decoding.source,
        "revision": decoding.revision,
        "seconds": provenance.seconds,
        "decoded_by_run": dg.MetadataValue.dagster_run(provenance.run_id),
        "attempt": provenance.attempt,
        "code_version": provenance.code_version,
        "decoded_at": dg.MetadataValue.timestamp(provenance.landed_at_ms / 1000),
        "table": dg.MetadataValue.path(adapters.lake.store.url(f"{TREE}/{topic.name}")),
    }
    metadata |= file_facts(decoding.decoded, provenance.landed_at_ms)
    if decoding.dead:
        metadata["error_classes"] = dict(decoding.error_classes)
    if decoding.schema_ids:
        metadata["schema_ids"] = dict(decoding.schema_ids)
    tags = {DATA_VERSION_TAG: decoding.digest}
    return dg.AssetMaterialization(topic.decoded_key, partition=offsets.key, metadata=metadata, tags=tags)


def build_decoded_checks(topic: Topic) -> list[dg.AssetChecksDefinition]:
    """Build the checks of a topic's decoded asset."""
    return [build_check(topic, key, *_CHECKS[key.name]) for key in decoded_check_keys(topic)]


def decoded_check_keys(topic: Topic) -> list[dg.AssetCheckKey]:
    """Return the keys of the checks of a topic's decoded asset; none where it is not decoded."""
    names = [name for name in _CHECKS if name != OUTSIDE or topic.days] if topic.decode else []
    return [dg.AssetCheckKey(topic.decoded_key, name) for name in names]


def check_decodings(topic: Topic, adapters: Adapters) -> list[dg.AssetCheckEvaluation]:
    """Return what the quick checks of the decoded asset find now, for a run that has just decoded."""
    checks = (check_decoded, check_dead_letters, *((check_outside,) if topic.days else ()))
    return [evaluation_of(topic.decoded_key, check(topic, adapters, is_recent=True)) for check in checks]


def _ask_files(topic: Topic, adapters: Adapters, context: dg.AssetCheckExecutionContext) -> Finding:
    doubted = read_doubted(context.instance, dg.AssetCheckKey(topic.decoded_key, DIGEST))
    return check_decoded_files(topic, adapters, night=adapters.now_ms() // DAY_MS, doubted=doubted)


_CHECKS: dict[str, tuple[Ask, str]] = {
    COMPLETENESS: (
        lambda topic, adapters, _: check_decoded(topic, adapters),
        "rows + dead letters + holes + lost = end - start for every decoded range.",
    ),
    DIGEST: (
        _ask_files,
        "Every file of the table has the sha256 that its log names; of a large table not all of them are read each night.",
    ),
    DEAD_LETTERS: (
        lambda topic, adapters, _: check_dead_letters(topic, adapters),
        "No record had to be set aside; names the ranges of those that had, and what is wrong with them.",
    ),
    OUTSIDE: (
        lambda topic, adapters, _: check_outside(topic, adapters),
        "Every decoded row is of a day that Dagster has; names the ranges of those that are not, and why.",
    ),
}
