"""Where a topic stands at a glance: lag, pace, age, time to loss, failures and what to do next, as plain documents.

The command prints them, `metrics.py` counts them. Offsets are of the open generation; what open transactions hold back is
not lag yet, as no reader may see it.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorStatus

from ..core.advice import TopicStatus, counted, next_action
from ..core.errors import BrokerUnavailable, LakeUnavailable, OffsetlakeError, UnknownTopic, as_ours
from ..core.landing.dispatch import Tried
from ..core.landing.progress import find_lag, landed_per_second
from ..core.log.coverage import Coverage, State
from ..core.log.latency import WINDOW_MS, latency_facts, waits_of
from ..core.log.losses import Loss, all_losses
from ..core.log.manifest import Manifest
from ..core.offsets import OffsetRange
from ..orchestration.home.daemons import find_daemons, is_silent, read_sensors, read_silence, tick_silence
from ..orchestration.home.dagster_home import is_begun, open_instance
from ..orchestration.home.run_locks import find_code_server, is_code_server_gone
from ..orchestration.runs.known import read_known
from ..orchestration.runs.ledger import check_expiry, check_losses
from ..orchestration.runs.moments import duration_text
from ..orchestration.runs.progress import (
    TopicProgress,
    check_progress,
    held_back,
    holding_row,
    read_progress,
    waiting_text,
    why_failed,
)
from ..orchestration.runs.tries import read_tries
from ..orchestration.runs.waiting import undecoded_text
from ..orchestration.topic_set import Broken, TopicFiles
from ..resources import Adapters
from ..topics import LAND_PENDING, Topic
from .news import TICKS_COUNT, read_tick_failures
from .tables import read_tables


def find_instance(home: Path) -> dg.DagsterInstance:
    """Open the Dagster instance of a home; where there is none, an empty one in memory: looking creates nothing."""
    return open_instance(home) if is_begun(home) else dg.DagsterInstance.ephemeral()


_OF_BROKER = ("earliest_offset", "end_offset", "lag", "lag_bytes", "lag_seconds", "oldest_waiting_ms", "seconds_to_loss")


def read_statuses(
    topics: Iterable[Topic], adapters: Adapters, instance: dg.DagsterInstance
) -> Iterator[tuple[dict[str, Any], Coverage | None]]:
    """Read where topics stand, each as far as it can be read: no topic hides another, and no broker what the lake says.

    Yields each document with the coverage that it was made from, none where that cannot be read. What could not be read of a
    document is none, and its `error` and `kind` say why. A broker that does not answer is asked once.
    """
    down: dict[str, BrokerUnavailable] = {}
    for topic in topics:
        coverage, began = None, time.monotonic()
        servers = adapters.bootstrap_servers(topic)
        try:
            coverage = adapters.lake.recent(topic.name, adapters.now_ms() - WINDOW_MS)
            if servers in down:
                raise down[servers]
            yield _describe(topic, coverage, adapters, instance), coverage
        except Exception as raised:  # noqa: BLE001 (told by its type: another topic is not to pay for it)
            error = as_ours(raised, f"topic {topic.name}")
            has_waited = time.monotonic() - began > adapters.kafka_timeout_seconds / 4
            if isinstance(error, BrokerUnavailable) and has_waited:  # else it may be of this topic alone
                down[servers] = error
            known = _describe_lake(topic, coverage, adapters, instance) if coverage else {"partitions": [], "tables": []}
            said = {"error": str(error), "kind": error.kind, "next_action": _mend(topic, error)}
            yield {"topic": topic.name, **known, **said}, coverage


def broken_document(broken: Broken) -> dict[str, Any]:
    """Return the document of a topic whose defs.yaml cannot be used, and why."""
    said = {"error": broken.error.message, "kind": broken.error.kind, "next_action": "correct the file"}
    return {"topic": broken.name, "partitions": [], "tables": [], **said}


def read_left_behind(files: TopicFiles, adapters: Adapters) -> Iterator[dict[str, Any]]:
    """Yield the document of each topic of the lake that has ranges planned and not landed, and no defs.yaml any more.

    Nothing else names it: its defs.yaml was deleted, or names another topic now.
    """
    with suppress(LakeUnavailable):  # which is told of the topics that there are
        for name in sorted({*adapters.lake.planned_topics()} - {*files.names}):
            try:
                if files.find(name) is not None or not (pending := adapters.lake.recent(name).pending()):
                    continue
                said = (
                    f"so what is planned, {counted(len(pending), 'range')}, does not land; while Kafka has the records, a "
                    f"defs.yaml with `topic: {name}` lands them"
                )
            except OffsetlakeError as error:
                said = f"and cannot be read: {error}"
            known = {"topic": name, "partitions": [], "tables": []}
            yield {**known, "next_action": f"no defs.yaml names it, or it is excluded, {said}"}


def _mend(topic: Topic, error: OffsetlakeError) -> str:
    """Return what to do about a topic that cannot be read whole; the error itself is said once, beside it."""
    if isinstance(error, UnknownTopic):
        return f"create the topic {topic.name} on the broker, or delete its defs.yaml; where a pattern matches it, `exclude` it"
    if isinstance(error, BrokerUnavailable):
        return "only what the lake says is shown: the broker cannot be asked"
    return f"see the error ({error.kind})"


def _describe(topic: Topic, coverage: Coverage, adapters: Adapters, instance: dg.DagsterInstance) -> dict[str, Any]:
    """Return where a topic stands as a document; times are ms since 1970, none where nothing waits or nothing deletes."""
    now_ms = adapters.now_ms()
    known = read_known(instance, [topic], now_ms)
    found = read_progress(topic, coverage, adapters, known)
    sizes = adapters.kafka(topic).read_bytes_per_offset(topic.name, found.marks) if found.endangered else {}
    rows = _partition_rows(topic, found, sizes, now_ms)
    pending = set(found.coverage.pending())
    known_of_lake = _of_lake(topic, coverage, rows, found.losses(), now_ms)
    of_broker = {
        **{name: sum(row[name] or 0 for row in rows) for name in ("lag", "lag_bytes")},
        "lag_seconds": _most(row["lag_seconds"] for row in rows),
        "seconds_to_loss": _least(row["seconds_to_loss"] for row in rows),
        "group_off": _group_off(topic, coverage, adapters),
    }
    now = TopicStatus(
        topic.name,
        lag=of_broker["lag"],
        pending=len(pending),
        in_progress=len(pending & found.tries.in_progress.keys()),
        failed=known_of_lake["failed_ranges"],
        not_accepted=known_of_lake["not_accepted_offsets"],
        late=check_expiry(topic, found.endangered).violations,
        stuck=check_progress(topic, found, instance, now_ms).violations,
        held_back=held_back(topic, found, now_ms),
        waiting=waiting_text(topic, found, now_ms),
        undecoded=undecoded_text(topic, found.coverage, adapters, known),
        why_failed=why_failed(topic, found, instance) if known_of_lake["failed_ranges"] else "",
        is_landing=bool(pending & found.tries.in_progress.keys()) and not found.blocked,
        to_tick=find_missing_tick(instance, now_ms) or find_failing_ticks(topic, instance),
    )
    tables = read_tables(topic, coverage, adapters, instance)
    return {**known_of_lake, **of_broker, "next_action": next_action(now), "partitions": rows, "tables": tables}


def find_missing_tick(instance: dg.DagsterInstance, now_ms: int) -> str:
    """Return what to do where nothing plans by itself, as Dagster is away, hangs, or has its sensor off; else nothing."""
    silence = read_silence(instance, "SENSOR", now_ms / 1000)
    if is_silent(silence) and (daemons := find_daemons(instance.root_directory)):
        said = f"for {duration_text(silence)}" if silence is not None else "yet"
        return f"wait for Dagster's daemon, {daemons[0].text}, which has said nothing {said} (where it hangs, end it)"
    if is_silent(silence) or is_code_server_gone(instance.root_directory):
        return "start Dagster (`offsetlake up`)"
    sensors = read_sensors(instance)
    tickless = tick_silence(sensors, now_ms / 1000)
    if tickless is not None and is_silent(tickless):
        server = find_code_server(instance.root_directory)
        which = f"Dagster's code server{f', {server.text},' if server else ''}"
        since = duration_text(tickless)
        return f"see whether the definitions load (`dg check defs`), or wait for {which} which has not ticked for {since}"
    is_off = any(each.name == LAND_PENDING and each.status is InstigatorStatus.STOPPED for each in sensors)
    return f"switch on Dagster's sensor {LAND_PENDING}" if is_off else ""


def find_failing_ticks(topic: Topic, instance: dg.DagsterInstance) -> str:
    """Return what to do where ticks fail, for this topic or for all; else nothing."""
    sensors = [each for each in read_sensors(instance) if each.name == LAND_PENDING]
    found = read_tick_failures(instance, sensors, datetime.now(UTC) - TICKS_COUNT)
    why = [reason for name, reason in found if name in {topic.name, ""}]
    return f"mend why Dagster's sensor {LAND_PENDING} fails ({why[0]})" if why else ""


def _describe_lake(topic: Topic, coverage: Coverage, adapters: Adapters, instance: dg.DagsterInstance) -> dict[str, Any]:
    """Return the part of a document that needs no broker; what only the broker knows is none."""
    tried, now_ms = read_tries(instance, topic.landing).tried, adapters.now_ms()
    rows = [*_lake_rows(coverage, tried, now_ms, coverage.log.state.heads).values()]
    return {
        **_of_lake(topic, coverage, rows, all_losses(coverage, {}), now_ms),
        **dict.fromkeys(("lag", "lag_bytes", "lag_seconds", "seconds_to_loss", "group_off")),
        "partitions": rows,
        "tables": read_tables(topic, coverage, adapters, instance),
    }


def _of_lake(
    topic: Topic, coverage: Coverage, rows: Sequence[Mapping[str, Any]], losses: list[Loss], now_ms: int
) -> dict[str, Any]:
    """Return what the lake says of a topic; latencies are of the records that came for the first time within the last hour."""
    sums = ("landed_per_second", "landed_ranges", "failed_ranges")
    return {
        "topic": topic.name,
        "generation": coverage.log.generation,
        "group": topic.group,
        **{name: sum(row[name] for row in rows) for name in sums},
        "pending_ranges": len(coverage.pending()),
        **check_losses(topic, losses).facts,
        "last_landed_at_ms": _most(row["last_landed_at_ms"] for row in rows),
        **latency_facts(waits_of(coverage.first_landed(), now_ms - WINDOW_MS)),
    }


def _lake_rows(
    coverage: Coverage, tried: Mapping[OffsetRange, Tried], now_ms: int, partitions: Iterable[int]
) -> dict[int, dict[str, Any]]:
    """Return a row for each of these Kafka partitions in the open generation, sorted; what only the broker knows is none."""
    generation = coverage.log.generation
    frontier, planned = coverage.frontier(generation), {p: head.offset for p, head in coverage.log.state.heads.items()}
    states = [(offsets, state) for offsets, state in coverage.states().items() if offsets.generation == generation]
    counts = Counter((offsets.partition, state) for offsets, state in states)
    failed = Counter(offsets.partition for offsets, state in states if state is State.PENDING and offsets in tried)
    landed: dict[int, list[Manifest]] = defaultdict(list)
    for offsets, manifest in coverage.manifests.items():
        landed[offsets.partition].append(manifest)
    last: dict[int, int] = {}
    for (_, partition), at_ms in coverage.last_landed().items():
        last[partition] = max(last.get(partition, 0), at_ms)
    for (of, partition), sums in coverage.log.summed.items():
        counts[partition, State.LANDED] += sums.ranges if of == generation else 0
    return {
        partition: {
            "topic": coverage.log.topic,
            "generation": generation,
            "partition": partition,
            "planned_offset": planned.get(partition),
            "landed_offset": frontier.get(partition, planned.get(partition)),
            "landed_per_second": landed_per_second(landed[partition], now_ms),
            "landed_ranges": counts[partition, State.LANDED],
            "pending_ranges": counts[partition, State.PENDING],
            "failed_ranges": failed[partition],
            "last_landed_at_ms": last.get(partition),
            **dict.fromkeys(_OF_BROKER),
            "open_transactions": [],
        }
        for partition in sorted(partitions)
    }


def _partition_rows(
    topic: Topic, found: TopicProgress, bytes_per_offset: Mapping[int, float], now_ms: int
) -> list[dict[str, Any]]:
    known = _lake_rows(found.coverage, found.tries.tried, now_ms, [*found.marks, *found.leaderless])
    endangered = {each.partition: each for each in found.endangered}
    planned: dict[int, int] = {}  # when the first pending range was planned: a record's own time may be in the future
    for offsets in found.coverage.pending():
        planned.setdefault(offsets.partition, found.coverage.log.ranges[offsets].planned_at_ms)
    rows = [known[partition] for partition in found.leaderless]
    for behind in find_lag(found.coverage, found.marks):
        partition, lag = behind.partition, behind.offsets
        waiting = endangered.get(partition)
        oldest = _least([waiting.timestamp_ms, planned.get(partition)]) if waiting else None
        rows.append(
            {
                **known[partition],
                "earliest_offset": found.marks[partition].earliest,
                "end_offset": behind.end,
                "landed_offset": behind.landed,
                "lag": lag,
                "lag_bytes": round(lag * bytes_per_offset.get(partition, 0.0)),
                "lag_seconds": None if oldest is None else max(0.0, (now_ms - oldest) / 1000),
                "oldest_waiting_ms": oldest,
                "seconds_to_loss": waiting.seconds if waiting else None,
                "open_transactions": [
                    holding_row(topic, each, now_ms) for each in found.transactions if each.partition == partition
                ],
            }
        )
    return sorted(rows, key=itemgetter("partition"))


def _group_off(topic: Topic, coverage: Coverage, adapters: Adapters) -> int | None:
    """Return by how many offsets the consumer group is off what is landed; none where the broker does not tell."""
    try:
        there = adapters.kafka(topic).read_group(topic.name, topic.group)
    except OffsetlakeError:  # where it may not be read: nothing else of the topic depends on it
        return None
    return sum(abs(at - there.get(p, 0)) for p, at in coverage.frontier(coverage.log.generation).items())


def _most(values: Any) -> Any:
    return max((value for value in values if value is not None), default=None)


def _least(values: Any) -> Any:
    return min((value for value in values if value is not None), default=None)
