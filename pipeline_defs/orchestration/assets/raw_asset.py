"""The raw asset of a topic, which runs `landing.landing.land`; one event with its facts per landed range.

Works alike for one key, a backfill and `offsetlake land`. Invariant: the run is red unless every range it selects is landed;
what is landed is reported all the same.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from ...adapters.telemetry.openlineage import Landed, telling
from ...core.errors import RangesFailed
from ...core.landing.verdicts import Outcome, Verdict, violations_by_range
from ...core.log.latency import file_facts
from ...landing.landed_files import rows_path
from ...landing.landing import land
from ...resources import Adapters
from ...topics import LAND_PENDING, Topic, op_name
from ..runs.moments import telling_pace
from ..runs.siblings import end_siblings, read_landed_by, read_siblings
from ..runs.tries import read_tries, trying
from ..runs.work import new_attempt, run_of, selected_keys, step_logger, tell_range
from .catalog import raw_spec
from .checks import check_quickly

RANGES_PER_RUN = 200
NEWLY_LANDED = {Outcome.LANDED, Outcome.ROLLED_FORWARD, Outcome.REPLACED}  # what OpenLineage is told of


ON_CHANGE = (
    "a landed range that Kafka has otherwise by now (compacted further, say): keep the landed file and say so, or put what "
    "is there now in its place, as a new revision of its manifest"
)


class LandConfig(dg.Config):
    """What a person may say of one run, in its run config."""

    on_change: Literal["keep", "replace"] = Field(default="keep", description=ON_CHANGE)


def land_config(topic: Topic, on_change: str) -> dict[str, Any]:
    """Return the run config of the topic's raw asset, as `LandConfig` validates it."""
    return {"ops": {op_name(topic.asset_key): {"config": {"on_change": on_change}}}}


def build_raw_asset(topic: Topic, lake: str) -> dg.AssetsDefinition:
    """Build the asset that lands the topic's ranges; runs of one topic take turns, by its pool. `lake` is only shown."""

    @dg.multi_asset(
        name=op_name(topic.asset_key),
        specs=[raw_spec(topic, lake)],
        partitions_def=topic.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=RANGES_PER_RUN),
        pool=topic.landing.pool,
    )
    def raw(
        context: dg.AssetExecutionContext,
        config: LandConfig,
        adapters: dg.ResourceParam[Adapters],
        pyspark: LazyPySparkResource,
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with run_of(context, topic.landing, adapters):
            landed_by = read_landed_by(context.instance, context.run)
            if landed_by is not None:
                context.log.info("step=left run=%s of the same backfill has landed every range of this one", landed_by)
                return
            keys = selected_keys(context, topic.name)
            room = RANGES_PER_RUN - len(keys)
            siblings = read_siblings(
                context.instance, context.run, topic, lambda: adapters.lake.read_plan_log(topic.name).ranges, room
            )
            shared = [offsets.key for ranges in siblings.values() for offsets in ranges]
            attempt = new_attempt(context, config.on_change)
            tools = adapters.tools(topic, pyspark, step_logger(context))
            failures: list[Verdict] = []
            tell_pace = partial(context.log.info, "step=progress %s")
            with (
                trying(context.instance, topic.landing, {*keys, *shared}, context.run.run_id, adapters.now_ms) as done,
                landed_lineage(topic, adapters, context.log.warning) as tell,
                _telling_of(failures, topic, context),
            ):
                verdicts = land(topic.name, [*keys, *shared] if keys else [], attempt, tools)
                for verdict in telling_pace(verdicts, len({*keys, *shared}), adapters.now_ms, tell_pace):
                    if verdict.outcome is Outcome.FAILED:
                        failures.append(verdict)
                        adapters.watch_step("failed", key=verdict.offsets.key)
                        continue
                    adapters.watch_step("landed", key=verdict.offsets.key)
                    yield from tell_range(context, materialization(topic, verdict, adapters))
                    adapters.watch_step("reported", key=verdict.offsets.key)
                    done.add(verdict.offsets.key)
                    tell(verdict)
            # a run without a partition key has no output, so Dagster skips the checks that come after it
            if not context.has_partition_key:
                for evaluation in check_quickly(topic, adapters, read_tries(context.instance, topic.landing).in_progress):
                    context.log_event(evaluation)
            end_siblings(context.instance, context.run, siblings, {verdict.offsets for verdict in failures})
            _check_landed(topic, set(keys), failures)

    return raw


@contextmanager
def _telling_of(failures: Sequence[Verdict], topic: Topic, context: dg.AssetExecutionContext) -> Iterator[None]:
    """Log which ranges had failed if an error ends the run: only that error is the run's reason then."""
    try:
        yield
    except BaseException:
        for text in _texts(topic, failures):
            context.log.error(text)  # noqa: TRY400 (the error itself is Dagster's to log)
        raise


def _texts(topic: Topic, failures: Sequence[Verdict]) -> list[str]:
    return [text for each in failures for text in violations_by_range(topic.name, each.offsets, each.violations)]


def _check_landed(topic: Topic, keys: AbstractSet[str], failures: Sequence[Verdict]) -> None:
    """Raise `RangesFailed` where one of the run's own ranges is not landed; other runs tell of their own ranges."""
    own = [verdict for verdict in failures if verdict.offsets.key in keys]
    if own:
        raise RangesFailed(
            f"of {len(keys)} ranges of topic {topic.name} {len(keys) - len(own)} landed and {len(own)} failed; the sensor "
            f"{LAND_PENDING} tries what is not landed again, except what at_most_once has claimed; what was landed before and "
            "was read again keeps its file",
            _texts(topic, own),
        )


@contextmanager
def landed_lineage(topic: Topic, adapters: Adapters, warn: Callable[[str], None]) -> Iterator[Callable[[Verdict], None]]:
    """Yield a function that tells OpenLineage of a newly landed range, where a receiver is configured; `warn` if it cannot."""
    data_url, source = adapters.lake.store.url(f"data/{topic.name}"), adapters.bootstrap_servers(topic).partition(",")[0]
    with telling(adapters.lineage(), "ranges", warn) as tell:

        def tell_landed(verdict: Verdict) -> None:
            if verdict.manifest is not None and verdict.outcome in NEWLY_LANDED:
                tell(Landed(verdict.manifest, topic.landing.job, source, data_url))

        yield tell_landed


def materialization(topic: Topic, verdict: Verdict, adapters: Adapters) -> dg.AssetMaterialization:
    """Return the event of one landed range, with the facts that the UI shows: from its manifest, and how this run found it.

    Its data version is the file's digest.
    """
    manifest = verdict.manifest
    if manifest is None:
        raise ValueError(f"{verdict.offsets.key} is not landed")
    offsets, file, provenance = manifest.offsets, manifest.file, manifest.provenance
    holes: Counter[str] = Counter()
    for hole in manifest.holes:
        holes[hole.cause.value] += hole.end - hole.start
    metadata: dict[str, Any] = {
        "outcome": verdict.outcome.value,
        "rows": manifest.rows,
        "dagster/partition_row_count": manifest.rows,
        "bytes": file.bytes if file else 0,
        "offsets": offsets.text(topic.name),
        "start_offset": offsets.start,
        "end_offset": offsets.end,
        "holes": dict(holes),
        "digest": manifest.digest,
        "seconds": provenance.seconds,
        "records_per_second": round(manifest.rows / provenance.seconds) if provenance.seconds else 0,
        "landed_by_run": dg.MetadataValue.dagster_run(provenance.run_id),
        "attempt": provenance.attempt,
        "code_version": provenance.code_version,
        "landed_at": dg.MetadataValue.timestamp(provenance.landed_at_ms / 1000),
    }
    if file is not None:
        metadata["file"] = dg.MetadataValue.path(adapters.lake.store.url(rows_path(manifest, adapters.lake)))
        for name, moment_ms in (("min_timestamp", file.min_timestamp_ms), ("max_timestamp", file.max_timestamp_ms)):
            if moment_ms is not None:
                metadata[name] = dg.MetadataValue.timestamp(moment_ms / 1000)
        if file.max_timestamp_ms is not None:  # how long the newest record of the range waited until it was landed
            metadata["lag_seconds"] = max(0.0, (provenance.landed_at_ms - file.max_timestamp_ms) / 1000)
        metadata |= file_facts(file, provenance.landed_at_ms)
    if verdict.violations:
        metadata["note"] = dg.MetadataValue.md("\n".join(f"- {text}" for text in verdict.violations))
    tags = {DATA_VERSION_TAG: manifest.digest}
    return dg.AssetMaterialization(topic.asset_key, partition=offsets.key, metadata=metadata, tags=tags)
