"""What a topic's assets say of themselves in Dagster: for a reader who has never seen this project.

Descriptions, owners, tags, where the files lie, and which document to read on in. Nothing here is read or run.
"""

import re
import warnings
from textwrap import dedent
from typing import Any

import dagster as dg

from ...adapters.store.object_store import open_store
from ...adapters.system.project_folder import DOCS
from ...core.advice import command
from ...core.decode.decoders import Decode
from ...core.raw_columns import RAW_COLUMNS, RawType
from ...core.tables.days import Days
from ...core.tables.latest import Latest
from ...topics import LAND_PENDING, TOPIC_TAG, Topic

TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")
_SHOWN_TYPES = {RawType.INTEGER: "int", RawType.HEADERS: "array<struct<key: string, value: binary>>"}  # others as they are
# Dagster would warn of each asset at each load: thousands of lines in logs and in the output of Dagster's commands
warnings.filterwarnings("ignore", "Class `(LocalFileCodeReference|CodeReferencesMetadataValue)` is currently in beta")
_DOCUMENTS = ("dagster.md", "runbook.md", "protocol.md")  # what is where here, what to do about red, what is promised


def spec_of(topic: Topic, key: dg.AssetKey, text: str, **own: Any) -> dg.AssetSpec:
    """Return the spec of one of the topic's assets: what all of them have, and its `own` arguments.

    The text, dedented, follows the description in the topic's defs.yaml.
    """
    said = dedent(text).strip()
    return dg.AssetSpec(
        key,
        description=f"{topic.description.strip()}\n\n{said}" if topic.description else said,
        owners=topic.owners,
        tags={**({TOPIC_TAG: topic.name} if TAG_VALUE.fullmatch(topic.name) else {}), **topic.tags},
        **{"group_name": key.path[0], **own},
    )


def source_spec(topic: Topic) -> dg.AssetSpec:
    """Return the spec of the Kafka topic itself, an external asset: Offsetlake reads it and never changes it."""
    text = f"""
        Kafka topic `{topic.name}`, as it is on the broker. Offsetlake reads it and never changes it.

        The sensor `{LAND_PENDING}` notes here how far landing is behind it, at most once a minute and only
        where that has changed: a topic on which nothing happens says nothing. **Plots** of the events show it over time:

        - `lag`: offsets on the broker that no landed range covers yet;
        - `lag_seconds`: for how long the oldest record of them has waited;
        - `end_offset`: the sum of all end offsets; its slope is how fast the topic grows.
        """
    return spec_of(topic, topic.source_key, text, kinds={"kafka"}, metadata=_read_on())


def ledger_spec(topic: Topic) -> dg.AssetSpec:
    """Return the spec of the topic's loss ledger, an external asset: what the broker deleted before it was landed."""
    text = f"""
        What the broker deleted of `{topic.name}` before it was landed: offsets, cause, who accepted it; and what was left
        out on purpose. Empty, where all is landed; the sensor reports each change.

        - The check `nothing_lost` is red until a person has accepted each loss (`offsetlake accept-loss`) or the topic
          says `on_loss: record`. Nothing is ever reset or skipped in silence.
        - The check `time_to_loss` warns before: it says how long the broker will keep what is not landed.
        """
    return spec_of(topic, topic.losses_key, text, kinds={"kafka"}, metadata=_read_on(), deps=[topic.source_key])


def raw_spec(topic: Topic, lake: str) -> dg.AssetSpec:
    """Return the spec of the raw asset: what keys and colours mean, what a click does, columns, and where the files lie."""
    text = f"""
        Every record of Kafka topic `{topic.name}`, as it was: key, value, headers, timestamp. **One partition is one offset
        range**: one Parquet file that never changes, and one manifest with its facts and its digest.

        - A partition's key is `<Kafka partition>-<first offset>-<end offset>`: `3-300000-400000` holds the offsets from
          300000 to 399999 of Kafka partition 3. The sensor `{LAND_PENDING}` fixes the ranges before anything is
          read; a key that somebody types is refused.
        - Green is landed. Grey is planned and missing: the sensor asks for it by itself. Red means that its last run failed:
          the run says why, and the sensor asks again, later each time. A failed range is never skipped.
        - Materialising a landed range again reads it again from Kafka and compares; the file stays, unless the run's config
          says `on_change: replace`.
        - Offsets without a record (compaction, transaction markers) are explained in the metadata as `holes`.
        """
    shown = [(each, _SHOWN_TYPES.get(each.type, each.type.value)) for each in RAW_COLUMNS]
    columns = [dg.TableColumn(each.name, type=kind, description=each.description) for each, kind in shown]
    metadata = {"dagster/column_schema": dg.TableSchema(columns=columns), **_files("data", topic, lake), **_read_on()}
    metadata["files"] = dg.MetadataValue.path(f"{metadata['dagster/uri']}/**/*.parquet")
    kinds = {"kafka", "spark", "parquet"}
    return spec_of(topic, topic.asset_key, text, kinds=kinds, metadata=metadata, deps=[topic.source_key], skippable=True)


def decoded_spec(topic: Topic, decode: Decode, lake: str) -> dg.AssetSpec:
    """Return the spec of the decoded asset: what it is and what becomes of records that cannot be decoded."""
    text = f"""
        What the records of Kafka topic `{topic.name}` say: keys decoded as `{decode.key.format}`, values as
        `{decode.value.format}`. **The partitions are those of `raw/{topic.name}`**, the rows are in one Delta table, made
        from landed rows alone: it can be made again when a decoder is mended, or when Kafka has long deleted the records.

        - `topic`, `generation`, `partition` and `offset` lead from each row to its landed record, its range and its run.
        - A record that cannot be decoded is set aside with what is wrong: `{command("dead-letters", topic.name)}`. More than
          {decode.budget.records} of a range, or more than {decode.budget.share:.2%}, and the range fails.
        - `rows + dead letters + holes + lost` are the offsets of the range, always; the check `decoded_completeness` proves it.
        - Materialising a range again decodes it again; what comes out otherwise takes the place of what was there.
        """
    own = {"kinds": {"spark", "parquet"}, "metadata": _files("tables/decoded", topic, lake)}
    return spec_of(topic, topic.decoded_key, text, deps=[topic.asset_key], skippable=True, **own)


def days_spec(topic: Topic, days: Days, lake: str) -> dg.AssetSpec:
    """Return the spec of the event days, with a partition for each day since the first one."""
    text = f"""
        The decoded records of Kafka topic `{topic.name}` by the day of their event, `{days.event_time.path}`, in UTC. **One
        partition is one day** of the rows of `tables/decoded/{topic.name}`, by their column `event_time`; a day has no file of
        its own, and nothing is to be materialised: runs that decode tell of the days whose rows are others since.

        - A record that comes late, be it years, makes its own day news, and no other: an asset of yours downstream with daily
          partitions is asked for that day alone, and reads it by `offsetlake.read("{topic.name}", day=...)`.
        - Rows of days before {days.start}, of days to come and without a time are in the table as ever; the check
          `rows_outside_of_days` of `decoded/{topic.name}` names them.
        """
    return spec_of(
        topic,
        topic.days_key,
        text,
        deps=[dg.AssetDep(topic.decoded_key, partition_mapping=dg.AllPartitionMapping())],
        partitions_def=dg.DailyPartitionsDefinition(start_date=days.start, end_offset=1),
        kinds={"delta", "parquet"},
        metadata=_files("tables/decoded", topic, lake),
    )


def latest_spec(topic: Topic, config: Latest, lake: str) -> dg.AssetSpec:
    """Return the spec of the latest records: what the table is, and when it is right."""
    text = f"""
        **The latest record of each key** of Kafka topic `{topic.name}`, as decoded: one row per key, none where the newest
        record is a tombstone (its value is null). Records without a key are left out. Newest is
        what has the greatest {f"`{config.sequence}`" if config.sequence else "offset in the key's Kafka partition"},
        whenever it arrived.

        - A Delta table, `tables/latest/{topic.name}`, kept by MERGE: each version has each key once. Tombstones are kept as
          rows with `_deleted`; `offsetlake sql` leaves them out.
        - Each version says which version of the decoded table it is made of. An update brings in what is new and what was
          decoded again; the outcome is that of a full recomputation, and the check `latest_recomputed` shows it of a share of
          the keys each time.
        - The runs of `{LAND_PENDING}` update it where that is due. Materialising does nothing where none is;
          the run's config `full: true` makes the table anew from all ranges.
        """
    own = {"kinds": {"spark", "parquet"}, "metadata": _files("tables/latest", topic, lake)}
    return spec_of(topic, topic.latest_key, text, deps=[topic.decoded_key], **own)


def _files(tree: str, topic: Topic, lake: str) -> dict[str, Any]:
    return {"dagster/uri": open_store(lake).url(f"{tree}/{topic.name}")}


def _read_on() -> dict[str, Any]:
    """Return the documents that Dagster offers to open beside the defs.yaml; none where they are not there."""
    documents: list[dg.LocalFileCodeReference | dg.UrlCodeReference] = [
        dg.LocalFileCodeReference(file_path=str(DOCS / name), label=name) for name in _DOCUMENTS if (DOCS / name).is_file()
    ]
    return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=documents)} if documents else {}
