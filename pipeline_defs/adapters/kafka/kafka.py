"""What the broker says: topic ids, watermarks, timestamps, open transactions, group offsets.

For planning, evidence and administration only: Spark reads records in bulk. Invariant: results are keyed by Kafka
partition, never joined by position; nothing here decides anything.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import AuthorizationError, StaleMetadata, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp

from ...core.advice import some_of
from ...core.errors import BrokerRefuses, BrokerUnavailable, NoLeader, OffsetlakeError, Refused, StaleAnswer, UnknownTopic
from ...core.log.cutting import Policy
from ...core.log.expiry import Durability, Exposure, Rates, read_durability, read_retention, seconds_to_loss
from ...core.log.holes import BatchSpan, SpanKind
from ...core.log.plan_step import LogState, TopicIds, Watermarks, are_two
from ...core.log.topic_state import PartitionState, TopicState
from ...core.offsets import is_internal
from .kafka_connection import Connection, T, read_refusals
from .kafka_glance import (
    ISOLATION,
    LEADER_MS,
    Description,
    Glance,
    Observation,
    TopicGlance,
    look_at,
    read_configs,
    read_epoch_ends,
    read_ids_of_leaders,
)
from .kafka_log import (
    FETCH_BYTES,
    LOOKS,
    Fetched,
    LogRecord,
    RecordBatch,
    fetch_request,
    find_first_time,
    has_untellable,
    read_batches,
    read_records,
    send_fetches,
)
from .kafka_transactions import OpenTransaction, find_open

PATIENCE_SECONDS = 5.0  # a shared look that takes longer to fail is not followed by a look at each topic


class Kafka(Connection):
    """One Kafka cluster."""

    def __init__(self, bootstrap_servers: str, **how: Any) -> None:
        super().__init__(bootstrap_servers, **how)
        self._glance = Glance()
        # by topic and Kafka partition: topic id, leader epoch of the head and of now, and where the head's epoch ends
        self._epoch_ends: dict[str, dict[int, tuple[tuple[str, int, int], int]]] = {}

    @contextmanager
    def glancing(self, topics: Collection[str]) -> Iterator[None]:
        """Look at many topics with a few requests to each broker; answer from what was seen while the context is open.

        Topics that the shared look leaves open are asked for one by one, which names what is wrong with each.
        Raises `BrokerUnavailable` if no broker answers in time.
        """
        began = time.monotonic()
        try:
            seen = self._ask("", lambda admin: look_at(admin, topics, self._silent), attempts=1)
        except OffsetlakeError:
            if time.monotonic() - began > PATIENCE_SECONDS:
                raise
            seen = {}
        ours = self._glance = Glance(seen, known=self._glance.timestamps)
        try:
            yield
        finally:
            if self._glance is ours:  # not the glance of a tick that has begun meanwhile
                self._glance = Glance(timestamps=ours.timestamps)

    def look_again(self, topic: str) -> None:
        """Forget what a glance has seen of a topic, so that the broker is asked."""
        self._glance.seen.pop(topic, None)

    def read_ids(self, topic: str) -> TopicIds:
        """Read the ids of a topic and of its cluster, on which all leaders of its Kafka partitions agree.

        Brokers too old for ids give none. Raises `UnknownTopic`, `NoLeader` if no Kafka partition has a leader, and
        `StaleAnswer` if brokers keep disagreeing.
        """
        seen, began = self._glanced(topic), time.monotonic()
        if seen is not None:
            return TopicIds(seen.told.topic_id, seen.told.cluster_id)

        def question(admin: KafkaAdminClient) -> TopicIds:
            told = self._describe_led(topic, began, by_some=True)
            if told.topic_id is None:
                return TopicIds(None, None)
            ids, failed = read_ids_of_leaders(admin, {topic: told.leaders.values()})
            self._silent.give_up(failed, admin, began + self._timeout_ms / 2000)
            told = told.without(failed)
            if not told.leaders:
                raise self._no_leader(topic, told.leaderless)
            agreed = told.agreed(ids[topic])
            if agreed is None:
                others = sorted({str(each.topic_id) for each in ids[topic]} - {told.topic_id})
                raise StaleMetadata(f"brokers give it {', '.join([str(told.topic_id), *others])} as id")
            return TopicIds(agreed.topic_id, agreed.cluster_id)

        return self._ask(topic, question)

    def read_watermarks(self, topic: str, isolation_level: str, of: Collection[int] = ()) -> Mapping[int, Watermarks]:
        """Read `[earliest, end)` of every Kafka partition with a leader, the end at the reader's isolation level.

        Raises `NoLeader` if one `of` these has none.
        """
        seen = self.observe(topic, isolation_level)
        if hidden := sorted({*of} & {*seen.leaderless}):
            raise self._no_leader(topic, hidden)
        return seen.watermarks

    def observe(self, topic: str, isolation_level: str) -> Observation:
        """Read ids and watermarks of one incarnation of the topic; start over if it was recreated in between.

        Raises `NoLeader` if no Kafka partition has a leader; if only some have none, the others are read.
        """
        seen, began = self._glanced(topic), time.monotonic()
        if seen is not None:
            return seen.observation(isolation_level)

        def question(_: KafkaAdminClient) -> Observation:
            ids, told = self.read_ids(topic), self._describe_led(topic, began)  # the first finds who does not answer
            firsts = self._list_offsets(topic, [*told.leaders], OffsetSpec.EARLIEST, "read_uncommitted")
            ends = self._list_offsets(topic, sorted(firsts), OffsetSpec.LATEST, isolation_level)
            if self.read_ids(topic) != ids or any(ends[p].offset < firsts[p].offset for p in firsts):
                raise StaleMetadata("it was created again while it was looked at")
            marks = {p: Watermarks(firsts[p].offset, ends[p].offset) for p in firsts}
            epochs = {p: end.leader_epoch for p, end in ends.items()}
            return Observation(ids.topic_id, marks, epochs, ids.cluster_id, told.leaderless)

        return self._ask(topic, question)

    def _list_offsets(
        self, topic: str, partitions: Sequence[int], which: OffsetSpec, isolation_level: str
    ) -> dict[int, OffsetAndTimestamp]:
        """Read an offset of each Kafka partition; `LATEST` is its last stable one, its high watermark if `read_uncommitted`."""
        wanted = {TopicPartition(topic, p): which for p in partitions}
        level = ISOLATION[isolation_level]
        found = self._ask(topic, lambda admin: admin.list_partition_offsets(wanted, isolation_level=level))
        return {p: found[TopicPartition(topic, p)] for p in partitions}

    def _read_ends(self, topic: str, partitions: Sequence[int], isolation_level: str) -> dict[int, int]:
        seen = self._glance.seen.get(topic)
        if seen is not None and seen.told.leaders.keys() >= {*partitions}:
            return {p: seen.ends[isolation_level][p].offset for p in partitions}
        ends = self._list_offsets(topic, partitions, OffsetSpec.LATEST, isolation_level)
        return {p: end.offset for p, end in ends.items()}

    def read_topic_state(self, topic: str, log_state: LogState, policy: Policy, now_ms: int) -> TopicState:
        """Read all that planning needs: one request for each question and leader, and one for each waiting tail."""
        seen = self.observe(topic, policy.isolation_level)
        try:
            epoch_ends = self._read_epoch_ends(topic, log_state, seen)
        except StaleAnswer:  # the leader has changed since the shared look
            self.look_again(topic)
            seen = self.observe(topic, policy.isolation_level)
            epoch_ends = self._read_epoch_ends(topic, log_state, seen)
        topic_id, watermarks = seen.topic_id, seen.watermarks
        same = log_state.topic_id in {None, topic_id} and not are_two(log_state.cluster_id, seen.cluster_id)
        heads = {p: log_state.heads[p].offset for p in watermarks if p in log_state.heads} if same else {}
        highs = self._read_high_watermarks(topic, watermarks, heads)
        starts = self._start_offsets(topic, watermarks, policy) if log_state.seq == 0 else {}
        retention = read_retention(self.read_config(topic))
        first = {p: max(heads.get(p, 0), marks.earliest) for p, marks in watermarks.items()}
        waiting = {p: at for p, at in first.items() if at < watermarks[p].end}
        oldest = self.read_timestamps(topic, waiting, policy.isolation_level)
        partitions = {}
        for partition, marks in watermarks.items():
            exposed = Exposure(first[partition], oldest.get(partition), marks)
            left = seconds_to_loss(retention, Rates(), exposed, now_ms) if partition in waiting else None
            partitions[partition] = PartitionState(
                watermarks=marks,
                oldest_ms=oldest.get(partition),
                start_offset=starts.get(partition),
                seconds_to_loss=left,
                high_watermark=highs.get(partition),
                leader_epoch=seen.leader_epochs[partition],
                epoch_end=epoch_ends.get(partition),
            )
        size = self.read_bytes_per_record(topic, watermarks) if policy.records_per_range == "auto" else None
        return TopicState(topic, topic_id, partitions, size, seen.cluster_id, seen.leaderless)

    def _read_high_watermarks(self, topic: str, marks: Mapping[int, Watermarks], heads: Mapping[int, int]) -> dict[int, int]:
        """Read the ends of the logs themselves where these count: below a head, and of all Kafka partitions at a growth.

        At a growth the new ones are asked first. A producer that moves a key to one of them has written to the old one before,
        so the older record is never of a later epoch.
        """
        new = marks.keys() - heads.keys()
        if not (heads and new):
            below = [p for p, head in heads.items() if marks[p].end < head]
            return self._read_ends(topic, below, "read_uncommitted") if below else {}
        try:
            ends = [self._list_offsets(topic, [*some], OffsetSpec.LATEST, "read_uncommitted") for some in (new, heads)]
        except UnknownTopic as error:
            raise StaleAnswer(
                f"topic {topic} has fewer Kafka partitions than a moment before, as if it was created again; nothing was "
                "planned; the next tick looks again"
            ) from error
        return {p: end.offset for some in ends for p, end in some.items()}

    def _read_epoch_ends(self, topic: str, log_state: LogState, seen: Observation) -> dict[int, int]:
        """Read where the leader epoch that moved each head ends, for Kafka partitions with a newer leader.

        The answer never changes under one leader, so it is asked for once.
        """
        if log_state.topic_id is None or log_state.topic_id != seen.topic_id:
            return {}
        epochs = {
            p: (head.leader_epoch, now)
            for p, head in log_state.heads.items()
            if (now := seen.leader_epochs.get(p)) is not None and head.leader_epoch is not None and head.leader_epoch < now
        }
        known = self._epoch_ends.get(topic, {})
        ends = {p: known[p][1] for p, each in epochs.items() if p in known and known[p][0] == (log_state.topic_id, *each)}
        if unknown := {p: each for p, each in epochs.items() if p not in ends}:

            def question(admin: KafkaAdminClient) -> dict[int, int]:
                return read_epoch_ends(admin, topic, self._describe(topic).leaders, unknown)

            ends |= self._ask(topic, question, attempts=1)
            self._epoch_ends[topic] = {p: ((log_state.topic_id, *epochs[p]), end) for p, end in ends.items()}
        return ends

    def _start_offsets(self, topic: str, marks: Mapping[int, Watermarks], policy: Policy) -> dict[int, int]:
        if policy.start == "latest":
            return {p: mark.end for p, mark in marks.items()}
        return self.read_offsets_at(topic, marks, policy.start) if isinstance(policy.start, int) else {}

    def read_offsets_at(self, topic: str, marks: Mapping[int, Watermarks], moment_ms: int) -> dict[int, int]:
        """Read each Kafka partition's first offset with a record of that moment or later; its end if there is none.

        A time before 1970 is asked for as 0: Kafka takes negative ones for other questions, as -1 for the end of the log.
        """
        specs = {TopicPartition(topic, p): max(0, moment_ms) for p in marks}
        found = self._ask(topic, lambda admin: admin.list_partition_offsets(specs))
        # no record at or after the timestamp is answered with -1
        offsets = {p: found[TopicPartition(topic, p)].offset for p in marks}
        return {p: offset if offset >= 0 else marks[p].end for p, offset in offsets.items()}

    def read_timestamps(self, topic: str, offsets: Mapping[int, int], isolation_level: str) -> dict[int, int | None]:
        """Read the timestamp (ms since 1970) of each Kafka partition's first record from an offset on, if there is one.

        While a topic is glanced at, timestamps that were read before are remembered: records never change.
        """
        seen = self._glance.seen.get(topic)
        if seen is None:
            return self._read_timestamps(topic, offsets, isolation_level)
        places = {p: (topic, seen.told.topic_id, p, offset, isolation_level) for p, offset in offsets.items()}
        known = {p: self._glance.recall(place) for p, place in places.items()}
        unknown = {p: offsets[p] for p, at_ms in known.items() if at_ms is None}
        read = self._read_timestamps(topic, unknown, isolation_level)
        self._glance.timestamps |= {places[p]: at_ms for p, at_ms in read.items() if at_ms is not None}
        return known | read

    def _read_timestamps(self, topic: str, offsets: Mapping[int, int], isolation_level: str) -> dict[int, int | None]:
        """Look past markers and aborted or emptied batches, with at most one fetch per partition for each of `LOOKS`."""
        times: dict[int, int | None] = {}
        at = {**offsets}

        def find(place: TopicPartition, fetched: Fetched) -> tuple[int | None, int | None]:
            return find_first_time(fetched, at[place.partition])

        for max_bytes in LOOKS:
            found = self._fetch(topic, at, isolation_level, find, max_bytes) if at else {}
            times |= {p: at_ms for p, (at_ms, _) in found.items()}
            at = {p: behind for p, (_, behind) in found.items() if behind is not None}
        return times

    def read_bytes_per_record(self, topic: str, watermarks: Mapping[int, Watermarks] | None = None) -> float | None:
        """Return the mean size of a record on the broker's disk in bytes; none if the topic is empty."""
        marks = watermarks or self.read_watermarks(topic, "read_committed")
        found = self.read_bytes_per_offset(topic, marks)
        offsets = {p: marks[p].end - marks[p].earliest for p in found}
        return sum(found[p] * offsets[p] for p in found) / sum(offsets.values()) if found else None

    def read_bytes_per_offset(self, topic: str, watermarks: Mapping[int, Watermarks]) -> dict[int, float]:
        """Return the mean bytes per offset on a broker's disk, of each Kafka partition that is not empty.

        What DeleteRecords has deleted counts until its segment is gone: the broker does not say where a segment begins.
        """
        sizes = self.read_sizes(topic, sorted(watermarks))
        return {p: sizes.get(p, 0) / (mark.end - mark.earliest) for p, mark in watermarks.items() if mark.end > mark.earliest}

    def read_sizes(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Read the bytes on disk of each Kafka partition, of its largest replica on the brokers that lead any."""
        glance = self._glance  # another thread may end it meanwhile
        if glance.seen.get(topic) is None:
            return self._read_sizes({topic: partitions}).get(topic, {})
        if glance.sizes is None:
            glance.sizes = self._read_sizes({name: [*each.told.leaders] for name, each in [*glance.seen.items()]})
        return glance.sizes.get(topic, {})

    def _read_sizes(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int]]:
        wanted = {topic: list(partitions) for topic, partitions in topics.items()}
        told = {topic: seen.told if (seen := self._glance.seen.get(topic)) else self._describe(topic) for topic in topics}
        leaders = sorted({leader for each in told.values() for leader in each.leaders.values()})  # the others may be silent
        brokers = self._ask(next(iter(topics)), lambda admin: admin.describe_log_dirs(wanted, brokers=leaders))
        sizes: dict[str, dict[int, int]] = {}
        for found in (found for broker in brokers for log_dir in broker["log_dirs"] for found in log_dir["topics"]):
            largest = sizes.setdefault(found["name"], {})
            for replica in found["partitions"]:
                partition = replica["partition_index"]
                largest[partition] = max(largest.get(partition, 0), replica["partition_size"])
        return sizes

    def read_spans(
        self,
        topic: str,
        partition: int,
        wanted: Sequence[tuple[int, int]],
        isolation_level: str,
        is_told: Callable[[BatchSpan], bool] = lambda span: True,
    ) -> Iterator[BatchSpan]:
        """Read what the log holds in the sorted intervals `wanted`, batch by batch.

        Intervals that lie close together share a fetch; long stretches between them are not fetched. Only data batches
        whose header does not tell enough (`is_told` is false) are decompressed, and come with offsets; those behind the
        last interval, which are fetched along with it, never are.
        """
        reached = 0
        for start, end in wanted:
            for batch in self._read_batches(topic, partition, max(start, reached), end, isolation_level):
                span = batch.span
                reached = max(reached, span.end)
                is_enough = span.kind is not SpanKind.DATA or span.start >= wanted[-1][1] or is_told(span)
                yield span if is_enough else batch.look_into()

    def has_untellable(self, topic: str, partition: int, start: int, end: int, isolation_level: str) -> bool:
        """Return whether an interval of offsets may have a record whose time no column can hold, which Spark cannot read."""
        return has_untellable(self._read_batches(topic, partition, start, end, isolation_level))

    def read_records(self, topic: str, partition: int, start: int, end: int, isolation_level: str) -> Iterator[LogRecord]:
        """Read the records of an interval of offsets: slow, for records that Spark cannot read."""
        return read_records(self._read_batches(topic, partition, start, end, isolation_level), start, end)

    def is_compacted(self, topic: str) -> bool:
        """Return whether the topic's cleanup policy includes compaction, or may: its settings cannot be read."""
        return "compact" in self.read_config(topic).get("cleanup.policy", "compact")

    def read_durability(self, topic: str) -> Durability:
        """Read what decides whether the loss of a broker takes acknowledged records with it; raise `BrokerRefuses`."""
        if not (config := self.read_config(topic)):
            raise BrokerRefuses(
                f"the Kafka broker at {self.bootstrap_servers} does not let us read the settings of topic {topic} "
                "(DescribeConfigs), so nobody knows when it deletes what is not landed; all else goes on; have it allowed, "
                "`offsetlake explain security` names what is needed",
                topic=topic,
            )
        return read_durability(self._describe(topic).replicas, config)

    def read_config(self, topic: str) -> dict[str, str]:
        """Read those of the topic's settings that `CONFIGS` names, defaults included; none where we may not read them."""
        seen = self._glance.seen.get(topic)
        if seen is not None:
            return seen.config
        return self._ask(topic, lambda admin: read_configs(admin, [topic])[topic])

    def _read_batches(self, topic: str, partition: int, start: int, end: int, isolation_level: str) -> Iterator[RecordBatch]:
        def fetch(at: int) -> Fetched:
            return self._fetch(topic, {partition: at}, isolation_level, lambda _, fetched: fetched)[partition]

        return read_batches(fetch, start, end)

    def _fetch(
        self,
        topic: str,
        offsets: Mapping[int, int],
        isolation_level: str,
        take: Callable[[TopicPartition, Fetched], T],
        max_bytes: int = FETCH_BYTES,
    ) -> dict[int, T]:
        """Fetch each Kafka partition from an offset on: up to `max_bytes` of each, but at least one batch."""
        level = ISOLATION[isolation_level]
        requests = {TopicPartition(topic, p): fetch_request(topic, p, at, level, max_bytes) for p, at in offsets.items()}
        return self._ask(topic, lambda admin: send_fetches(admin, requests, take))

    def read_open_transactions(self, topic: str, now_ms: int) -> list[OpenTransaction]:
        """Return the transactions that hold back the last stable offset; ask only where it is behind the log's end.

        A transaction that no coordinator knows is taken to have begun with its first record.
        """
        partitions = self._partitions(topic)
        stable = self._read_ends(topic, partitions, "read_committed")
        high = self._read_ends(topic, partitions, "read_uncommitted")
        behind = {p: high[p] for p in partitions if stable[p] < high[p]}
        until = time.monotonic() + self._timeout_ms / 2000
        found = self._ask(topic, lambda admin: find_open(admin, topic, behind, now_ms, self._silent, until)) if behind else []
        return [each if each.started_at_ms is not None else self._began_with_first(topic, each) for each in found]

    def _began_with_first(self, topic: str, transaction: OpenTransaction) -> OpenTransaction:
        partition = transaction.partition
        times = self.read_timestamps(topic, {partition: transaction.first_offset}, "read_uncommitted")
        return replace(transaction, started_at_ms=times[partition])

    def move_group(self, topic: str, frontier: Mapping[int, int], group: str) -> None:
        """Move the consumer group's offsets to the landed frontier, so that lag tools work."""
        if not frontier:
            return
        offsets = {TopicPartition(topic, p): OffsetAndMetadata(at, "", -1) for p, at in frontier.items()}
        refused = self._ask(topic, lambda admin: read_refusals(admin.alter_group_offsets(group, offsets)))
        if refused:
            raise BrokerUnavailable(
                f"the Kafka broker at {self.bootstrap_servers} does not move consumer group {group} on "
                f"{', '.join(f'{topic}/{p} to {frontier[p]}: {why}' for p, why in refused.items())}; what is landed stays "
                "landed; have no consumer join that group, the next run moves it",
                group=group,
            )

    def read_group(self, topic: str, group: str) -> dict[int, int]:
        """Read the group's offsets of a topic."""
        found = self._ask(topic, lambda admin: admin.list_group_offsets({group: None}))[group]
        return {tp.partition: meta.offset for tp, meta in found.items() if tp.topic == topic}

    def list_topics(self) -> list[str]:
        """List the topics of the cluster, without Kafka's own."""
        return sorted(name for name in self._ask("", lambda admin: admin.list_topics()) if not is_internal(name))

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None, *, replicas: int = 1) -> None:
        """Create a topic with `replicas` copies of each Kafka partition and wait until its leaders answer.

        The answer to the request that created it may be lost: a topic that a repeated request finds is taken for it.

        Raises:
            Refused: the topic was there before.
        """
        wanted = {topic: {"num_partitions": partitions, "replication_factor": replicas, "configs": dict(configs or {})}}
        requests = 0

        def create(admin: KafkaAdminClient) -> None:
            nonlocal requests
            requests += 1
            try:
                admin.create_topics(wanted)
            except TopicAlreadyExistsError as error:
                if requests == 1:
                    raise Refused(
                        f"topic {topic} exists already on the broker at {self.bootstrap_servers}; nothing was created; use "
                        "that topic, or name another"
                    ) from error

        self._ask(topic, create)
        self._ask(topic, lambda admin: admin.wait_for_topics([topic], timeout_ms=self._timeout_ms))

    def _partitions(self, topic: str) -> list[int]:
        seen = self._glance.seen.get(topic)
        return list((seen.told if seen else self._describe(topic)).leaders)

    def _glanced(self, topic: str) -> TopicGlance | None:
        """Return what a glance has seen of a topic, or none; raise `NoLeader` if it saw no Kafka partition with a leader."""
        seen = self._glance.seen.get(topic)
        if seen is not None and not seen.told.leaders:
            raise self._no_leader(topic, seen.told.leaderless)
        return seen

    def _describe_led(self, topic: str, began: float, *, by_some: bool = False) -> Description:
        """Describe a topic of which some Kafka partition has a leader; raises `StaleMetadata` while leaders move.

        With `by_some` one leader is enough, and the others are not waited for. Raises `NoLeader`.
        """
        told = self._describe(topic)
        if told.leaders and (by_some or not told.leaderless):
            return told
        if not told.leaderless:
            raise StaleMetadata("no Kafka partition of it is told")
        if time.monotonic() - began < min(LEADER_MS, self._timeout_ms / 2) / 1000:
            raise StaleMetadata(f"nobody leads {topic}/{told.leaderless[0]}")
        if not told.leaders:
            raise self._no_leader(topic, told.leaderless)
        return told

    def _no_leader(self, topic: str, partitions: Collection[int]) -> NoLeader:
        why = f" ({self._silent.text})" if self._silent.now else ""
        return NoLeader(
            f"no broker of {self.bootstrap_servers} leads {some_of([f'{topic}/{p}' for p in partitions])}{why}; nothing was "
            "written and nothing is lost; start the brokers that have them, or make their advertised addresses reachable from "
            "here: then all goes on by itself",
            topic=topic,
        )

    def _describe(self, topic: str) -> Description:
        def question(admin: KafkaAdminClient) -> Description:
            (found,) = admin.describe_topics([topic])
            error = for_code(found["error_code"])
            if issubclass(error, AuthorizationError | UnknownTopicOrPartitionError):
                raise error  # the admin client leaves these in its answer
            return Description.of(found).without(self._silent.now)

        return self._ask(topic, question)
