"""Metrics of topics, under the names of Kafka's exporters where these have one, else `offsetlake_*`.

Offsets are those of the open generation; counts of what was landed or lost are of all generations. Invariant: a broker that
does not answer takes away only what it alone knows, a damaged topic only what is its own; `offsetlake_up` and
`offsetlake_topic_error` tell of both, and everything else is there.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from ..adapters.telemetry.prometheus import Metric, family, histogram
from ..core.log.coverage import Coverage, State
from ..core.log.latency import Histogram
from ..core.log.losses import find_losses
from ..core.tables.days import SECONDS_A_DAY, number_of
from ..orchestration.topic_set import Broken
from ..resources import Adapters
from ..settings import code_version
from ..topics import Topic
from .status import read_statuses

PARTITION = ("topic", "partition")
TABLE = ("topic", "table")
GROUP = ("consumergroup", "topic", "partition")
HELP: Mapping[str, tuple[tuple[str, ...], str]] = {
    "kafka_topic_partitions": (("topic",), "Kafka partitions of the topic"),
    "kafka_topic_partition_current_offset": (PARTITION, "where the log ends, for a reader at the topic's isolation level"),
    "kafka_topic_partition_oldest_offset": (PARTITION, "where the log begins"),
    "kafka_consumergroup_current_offset": (GROUP, "the offset up to which everything is landed"),
    "kafka_consumergroup_lag": (GROUP, "offsets that are not landed"),
    "kafka_consumergroup_lag_sum": (GROUP[:2], "offsets of the topic that are not landed"),
    "offsetlake_group_off_offsets": (GROUP[:2], "offsets by which Kafka's record of the group is not what is landed"),
    "offsetlake_up": (("topic",), "1 where lake and broker could be read, 0 where not"),
    "offsetlake_topic_error": (("topic", "kind"), "1 where the topic cannot be read whole: the kind of the error"),
    "offsetlake_build_info": (("version",), "always 1; the version that answers"),
    "offsetlake_generation": (("topic",), "the open generation: how often the topic was recreated or truncated"),
    "offsetlake_planned_offset": (PARTITION, "the offset up to which ranges are planned"),
    "offsetlake_landed_offset": (PARTITION, "the offset up to which everything is landed"),
    "offsetlake_lag_bytes": (PARTITION, "bytes on the broker's disk that are not landed, by the mean size of a record"),
    "offsetlake_lag_seconds": (PARTITION, "age of the oldest record that is not landed, 0 where all is"),
    "offsetlake_time_to_loss_seconds": (
        PARTITION,
        "until the broker may delete what is not landed, +Inf where nothing deletes it or nothing waits",
    ),
    "offsetlake_failed_ranges": (PARTITION, "pending ranges that the last run of them has failed with"),
    "offsetlake_open_transactions": (PARTITION, "open transactions that hold back what follows them"),
    "offsetlake_not_accepted_offsets": (("topic",), "lost offsets that nobody has accepted"),
    "offsetlake_ranges": ((*PARTITION, "state"), "ranges and other links of the plan log, by where they stand"),
    "offsetlake_last_landed_timestamp_seconds": (PARTITION, "when a range was last landed, since 1970"),
    "offsetlake_landed_records_total": (PARTITION, "records landed, over all generations"),
    "offsetlake_table_version": (TABLE, "version of a Delta table, -1 where there is none yet"),
    "offsetlake_table_error": ((*TABLE, "kind"), "1 where a table cannot be read: the kind of the error"),
    "offsetlake_table_waiting_ranges": (TABLE, "ranges that a table does not have as they are now"),
    "offsetlake_table_waiting_seconds": (TABLE, "how long the first of these has waited, 0 where none does"),
    "offsetlake_dead_letters": (("topic",), "records that could not be decoded and were set aside"),
    "offsetlake_newest_day_timestamp_seconds": (("topic",), "when the newest day begins that Dagster was told of, since 1970"),
    "offsetlake_untold_days": (("topic",), "days whose rows are not what Dagster was told of them"),
    "offsetlake_latency_seconds": (
        TABLE,
        "records by how long after their timestamp they could be read, those of ranges that came for the first time",
    ),
    "offsetlake_latency_last_hour_seconds": (
        (*TABLE, "quantile"),
        "within how long after its timestamp so great a share of the records could be read that came within the last hour",
    ),
    "offsetlake_landed_bytes_total": (PARTITION, "bytes of the landed files, over all generations"),
    "offsetlake_hole_offsets_total": ((*PARTITION, "cause"), "landed offsets without a row, by cause"),
    "offsetlake_lost_offsets_total": ((*PARTITION, "cause"), "offsets recorded as lost, by cause, over all generations"),
}
_HISTOGRAM = "offsetlake_latency_seconds"
_OF_ROW = {  # by metric, the field of a row of the status document
    "kafka_topic_partition_current_offset": "end_offset",
    "kafka_topic_partition_oldest_offset": "earliest_offset",
    "offsetlake_planned_offset": "planned_offset",
    "offsetlake_landed_offset": "landed_offset",
    "offsetlake_lag_bytes": "lag_bytes",
    "offsetlake_failed_ranges": "failed_ranges",
}

Samples = dict[str, dict[tuple[str, ...], float]]


def read_metrics(
    topics: Iterable[Topic], adapters: Adapters, instance: dg.DagsterInstance, broken: Iterable[Broken] = ()
) -> list[Metric]:
    """Read the metrics of some topics; every family is there, with as many samples as could be read."""
    found: Samples = defaultdict(dict)
    found["offsetlake_build_info"][code_version(),] = 1
    latencies: dict[tuple[str, ...], Histogram] = {}
    listed = list(topics)
    for topic, (document, coverage) in zip(listed, read_statuses(listed, adapters, instance), strict=True):
        found["offsetlake_up"][topic.name,] = float("error" not in document)
        if "error" in document:
            found["offsetlake_topic_error"][topic.name, document["kind"]] = 1
        if coverage is not None:
            _count_lake(topic, coverage, found)
            _count_status(topic, document, found)
            _count_tables(topic.name, document["tables"], adapters.now_ms(), found)
            _count_latencies(topic, coverage, document, adapters, latencies, found)
    for each in broken:
        found["offsetlake_up"].setdefault((each.name,), 0)
        found["offsetlake_topic_error"][each.name, each.error.kind] = 1
    return [
        histogram(name, text, labels, latencies) if name == _HISTOGRAM else family(name, text, labels, found[name])
        for name, (labels, text) in HELP.items()
    ]


def _count_latencies(
    topic: Topic,
    coverage: Coverage,
    document: Mapping[str, Any],
    adapters: Adapters,
    latencies: dict[tuple[str, ...], Histogram],
    found: Samples,
) -> None:
    """Count how long records waited: all raw and decoded rows as histograms, those of the last hour as quantiles per table."""
    latencies[topic.name, "raw"] = coverage.waits()
    if any(each["table"] == "decoded" and "error" not in each for each in document["tables"]):
        latencies[topic.name, "decoded"] = adapters.decodings.read_ranges(topic.name).sums.waits
    for each_table in ({"table": "raw", **document}, *document["tables"]):
        for share, quantile in ((50, "0.5"), (95, "0.95")):
            seconds = each_table.get(f"latency_p{share}_seconds")
            if seconds is not None:
                found["offsetlake_latency_last_hour_seconds"][topic.name, each_table["table"], quantile] = seconds


def _count_lake(topic: Topic, coverage: Coverage, found: Samples) -> None:
    found["offsetlake_generation"][topic.name,] = coverage.log.generation
    counts: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for place in {(topic.name, str(partition)) for _, partition in coverage.ends()}:
        # at 0 from the beginning: a series that is absent cannot be alerted on
        counts["offsetlake_ranges"].update({(*place, state.value): 0 for state in State})
        counts["offsetlake_landed_records_total"][place] = counts["offsetlake_landed_bytes_total"][place] = 0
    for offsets, state in coverage.states().items():
        counts["offsetlake_ranges"][topic.name, str(offsets.partition), state.value] += 1
    for (_, partition), summed in coverage.log.summed.items():
        counts["offsetlake_ranges"][topic.name, str(partition), State.LANDED.value] += summed.ranges
    last = found["offsetlake_last_landed_timestamp_seconds"]
    for (_, partition), sums in coverage.sums().items():
        place = (topic.name, str(partition))
        counts["offsetlake_landed_records_total"][place] += sums.rows
        counts["offsetlake_landed_bytes_total"][place] += sums.bytes
        last[place] = max(last.get(place, 0), sums.last_landed_ms / 1000)
        for cause, count in sums.holes.items():
            counts["offsetlake_hole_offsets_total"][*place, cause] += count
    for loss in find_losses(coverage):
        place = (topic.name, str(loss.offsets.partition))
        counts["offsetlake_lost_offsets_total"][*place, loss.cause] += len(loss.offsets)
    for name, counted in counts.items():
        found[name] |= counted


def _count_tables(topic: str, tables: Iterable[Mapping[str, Any]], now_ms: int, found: Samples) -> None:
    for each in tables:
        place = (topic, each["table"])
        if "error" in each:
            found["offsetlake_table_error"][*place, each["kind"]] = 1
            continue
        if each["table"] == "days":
            found["offsetlake_untold_days"][topic,] = each["untold_days"]
            if each["newest_day"]:
                found["offsetlake_newest_day_timestamp_seconds"][topic,] = number_of(each["newest_day"]) * SECONDS_A_DAY
            continue
        since = each["waiting_since_ms"]
        found["offsetlake_table_version"][place] = each["version"]
        found["offsetlake_table_waiting_ranges"][place] = each["waiting_ranges"]
        found["offsetlake_table_waiting_seconds"][place] = 0.0 if since is None else max(0.0, (now_ms - since) / 1000)
        if "dead_letters" in each:
            found["offsetlake_dead_letters"][topic,] = each["dead_letters"]


def _count_status(topic: Topic, document: Mapping[str, Any], found: Samples) -> None:
    """Count what a status document says; what it does not know, while the broker is away say, has no sample."""
    name, group, rows = topic.name, topic.group, document["partitions"]
    found["offsetlake_not_accepted_offsets"][name,] = document["not_accepted_offsets"]
    for row in rows:
        place = (name, str(row["partition"]))
        for metric, column in _OF_ROW.items():
            if row[column] is not None:
                found[metric][place] = row[column]
        if row["landed_offset"] is not None:
            found["kafka_consumergroup_current_offset"][group, *place] = row["landed_offset"]
    if document["lag"] is None:
        return
    found["kafka_topic_partitions"][name,] = len(rows)
    found["kafka_consumergroup_lag_sum"][group, name] = document["lag"]
    if document["group_off"] is not None:
        found["offsetlake_group_off_offsets"][group, name] = document["group_off"]
    for row in (row for row in rows if row["lag"] is not None):  # none without a leader
        place = (name, str(row["partition"]))
        found["kafka_consumergroup_lag"][group, *place] = row["lag"]
        found["offsetlake_lag_seconds"][place] = row["lag_seconds"] or 0.0
        left = row["seconds_to_loss"]
        found["offsetlake_time_to_loss_seconds"][place] = math.inf if left is None else left
        found["offsetlake_open_transactions"][place] = len(row["open_transactions"])
