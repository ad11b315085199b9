"""What trace and the audit's broker check say of a topic, as plain documents; commands print them, programs read them."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..adapters.tables.delta_log import raw_table_log
from ..adapters.tables.duck import Duck
from ..adapters.tables.latest_table import LatestTable
from ..adapters.tables.sql_text import file_pattern
from ..adapters.tables.topic_rows import within
from ..core.advice import command
from ..core.errors import BrokenTable, BrokerUnavailable, DamagedFile, NoLeader, OtherCluster, Refused, UnknownTopic
from ..core.log.coverage import State
from ..core.log.topic_state import find_shrunk, refuse_other_cluster
from ..core.offsets import OffsetRange
from ..core.tables.decoded_table import EVENT_TIME
from ..core.tables.decoding import choose_outdated
from ..core.tables.raw_table import RangeFiles, is_compacted
from ..landing.auditing import Finding
from ..landing.landed_files import rows_path
from ..resources import Adapters
from ..topics import Topic

NOT_ASKED = "nothing"
_RECORD = "SELECT {columns} FROM read_parquet($1) WHERE {wanted}"


def trace_row(topic: Topic, partition: int, offset: int, adapters: Adapters, generation: int | None = None) -> dict[str, Any]:
    """Follow one record: row -> file -> range -> run -> attempt -> code version -> plan step; what is derived from it too."""
    coverage = adapters.lake.around(topic.name, partition, offset, generation)
    wanted = coverage.log.state.generation if generation is None else generation
    states = coverage.states()
    of_partition = (each for each in states if each.partition == partition and each.generation == wanted)
    offsets = next((each for each in of_partition if offset in each), None)
    if offsets is None:
        raise Refused(
            f"{topic.name}/{partition} offset {offset} (generation {wanted}) is in no link of the plan log; nothing of it "
            f"was ever planned; `{command('status', topic.name)}` shows what is"
        )
    answer: dict[str, Any] = {"topic": topic.name, "partition": partition, "offset": offset, "generation": wanted}
    answer |= {"range": offsets.key, "state": states[offsets].value}
    manifest = coverage.manifests.get(offsets)
    step = coverage.log.ranges.get(offsets)
    if step is not None:
        answer |= {"plan_step": step.seq, "planned_at_ms": step.planned_at_ms, "planner": step.planner}
    if manifest is None:
        return answer
    provenance, record = manifest.provenance, OffsetRange(wanted, partition, offset, offset + 1)
    answer |= {
        "file": adapters.lake.store.url(rows_path(manifest, adapters.lake)) if manifest.file else None,
        **({} if manifest.is_dropped else {"sha256": manifest.digest}),  # then the file is the table's, with other rows too
        "run": provenance.run_id,
        "attempt": provenance.attempt,
        "code_version": provenance.code_version,
        "writer": provenance.writer,
        "landed_at_ms": provenance.landed_at_ms,
    }
    log = raw_table_log(topic.name, adapters.lake.store)
    with suppress(BrokenTable):  # the audit tells of it
        file = RangeFiles(log.read()).find_at(manifest)
        if file is not None and is_compacted(file):
            answer["compacted_file"] = adapters.lake.store.url(f"{log.folder}/{file.path}")
    decoded = adapters.decodings.read_ranges(topic.name) if topic.decode else None
    decoding = decoded.get(offsets) if decoded else None
    if topic.decode and decoded is not None and decoding is not None:
        url = adapters.lake.store.url
        answer["decoded"] = {
            "revision": decoding.revision,
            "is_outdated": bool(choose_outdated({offsets: decoding}, topic.decode.fingerprint)),
            "is_of_replaced_file": not decoding.is_of(manifest),
            "file": url(decoded.path_of(offsets)) if decoding.decoded else None,
            "dead_letters_file": url(decoded.path_of(offsets, is_dead=True)) if decoding.dead else None,
            "run": decoding.provenance.run_id,
            "decoded_at_ms": decoding.provenance.landed_at_ms,
            "dead_letter": None,
        }
        if decoding.dead:
            path = decoded.path_of(offsets, is_dead=True)
            answer["decoded"]["dead_letter"] = _read_row(topic.name, path, record, adapters, "side, error_class, error")
        if decoding.decoded and topic.decode.event_time:
            path, day = decoded.path_of(offsets), f"CAST({EVENT_TIME}::DATE AS VARCHAR) AS day"
            answer["decoded"] |= _read_row(topic.name, path, record, adapters, day) or {}
    if topic.latest is not None:
        answer["is_latest"] = _is_latest(topic.name, record, adapters)
    hole = next((hole for hole in manifest.holes if hole.start <= offset < hole.end), None)
    answer["hole"] = hole.cause.value if hole else None
    answer["row"] = None if hole else _read_row(topic.name, rows_path(manifest, adapters.lake), record, adapters)
    return answer


def _is_latest(topic: str, record: OffsetRange, adapters: Adapters) -> bool | None:
    """Return whether the latest table has a record, a tombstone too; none where the table cannot be read."""
    snapshot = LatestTable(adapters.lake, topic).read()
    if snapshot is None or snapshot.why_unreadable or not snapshot.files:
        return None
    return bool(_select("1", snapshot.files, record, adapters)[1])


def _read_row(topic: str, path: str, record: OffsetRange, adapters: Adapters, columns: str = "*") -> dict[str, Any] | None:
    if not adapters.lake.store.exists(path):
        raise DamagedFile(
            f"{adapters.lake.store.url(path)}, which has the record, is gone; nothing was written; `{command('audit', topic)}` "
            "names it and what is to be done",
            path=path,
        )
    names, rows = _select(columns, [path], record, adapters)
    return dict(zip(names, rows[0], strict=True)) if rows else None


def _select(
    columns: str, paths: Iterable[str], record: OffsetRange, adapters: Adapters
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of columns of a record, and its rows in files of the lake."""
    patterns = [file_pattern(adapters.lake, path) for path in paths]
    return Duck(adapters.lake, []).query(_RECORD.format(columns=columns, wanted=within([record])), [patterns])


def check_broker(topic: Topic, adapters: Adapters) -> Finding:
    """Check what is landed against what the broker has: the topic is the planned one, nothing lies beyond its end."""
    coverage = adapters.lake.coverage(topic.name)
    log_state = coverage.log.state
    kafka = adapters.kafka(topic)
    policy, violations = replace(topic.policy, records_per_range=1), list[str]()  # or sizes would be asked for
    try:
        state = kafka.read_topic_state(topic.name, log_state, policy, adapters.now_ms())
        refuse_other_cluster(topic.name, log_state.cluster_id, state.cluster_id)
    except (UnknownTopic, OtherCluster, BrokerUnavailable, NoLeader) as error:
        return Finding("broker", NOT_ASKED, (str(error),))
    marks = {partition: seen.watermarks for partition, seen in state.partitions.items()}
    if log_state.topic_id not in {None, state.topic_id}:
        violations.append(
            f"{topic.name} was planned with topic id {log_state.topic_id}, the broker has {state.topic_id}: recreated"
        )
    facts = {"on_broker": 0, "landed": 0, "pending": 0, "not_planned": 0}
    for partition, mark in sorted(marks.items()):
        head = log_state.heads.get(partition)
        planned_to = head.offset if head else mark.earliest
        facts["on_broker"] += mark.end - mark.earliest
        facts["not_planned"] += max(0, mark.end - max(planned_to, mark.earliest))
    violations += [
        f"{topic.name}/{partition}: no broker that answers us leads it, so what it has is not compared"
        for partition in state.leaderless
    ]
    violations += [
        f"{topic.name}/{partition} is planned to {log_state.heads[partition].offset}, and Kafka has lost records before that: "
        f"its log ends at {marks[partition].end} now; the next tick, or `{command('plan', topic.name, '--apply')}`, lands what "
        "it has as the next generation"
        for partition in find_shrunk(log_state, state)
    ]
    for offsets, of_range in coverage.states().items():
        if of_range in {State.LANDED, State.PENDING}:
            facts[of_range.value] += len(offsets)
    return Finding("broker", f"{len(marks)} Kafka partitions", tuple(violations), facts)
