"""Many topics of a cluster seen at once: ids, watermarks and configurations, in a few requests to each broker.

Kafka answers for a thousand Kafka partitions as fast as for one. Invariant: a topic about which the look is not certain
(recreated meanwhile, not allowed) is left out; what a broker leads that does not answer us counts as led by nobody. Any broker
answers for metadata, and one that lags still describes a topic that is gone, so the leaders of Kafka partitions are asked for
ids: kafka-python's admin client picks brokers itself, so its connection manager is used (docs/design/0003).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from uuid import UUID

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import AuthorizationError, KafkaError, NoError, StaleMetadata, UnknownTopicOrPartitionError, for_code
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import OffsetAndTimestamp

from ...core.log.plan_step import TopicIds, Watermarks
from .kafka_connection import NO_ANSWER, SilentBrokers

ISOLATION = {"read_uncommitted": 0, "read_committed": 1}
CONFIGS = ("cleanup.policy", "retention.ms", "retention.bytes", "min.insync.replicas", "unclean.leader.election.enable")
NO_LEADER = -1
_NO_ID = str(UUID(int=0))  # what brokers before 2.8 are taken to say
LEADER_MS = 2_000  # how long to wait for a leader that moves
Place = tuple[str, str | None, int, int, str]  # topic, its id, Kafka partition, offset, isolation level


@dataclass(frozen=True, slots=True)
class Observation:
    """Ids, watermarks and leader epochs of one incarnation of a topic; an epoch may be unknown.

    `leaderless` Kafka partitions have neither watermarks nor epochs.
    """

    topic_id: str | None
    watermarks: Mapping[int, Watermarks]
    leader_epochs: Mapping[int, int | None]
    cluster_id: str | None = None
    leaderless: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Description:
    """One broker's description of a topic: its id, none if the broker is too old for ids, and each Kafka partition's leader.

    `leaderless` are the Kafka partitions without a leader. `replicas` is the smallest number of copies of a Kafka partition.
    """

    topic_id: str | None
    leaders: Mapping[int, int]
    replicas: int
    leaderless: tuple[int, ...] = ()
    cluster_id: str | None = None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """Return the description in an answer of kafka-python's admin client."""
        told = sorted((part["partition_index"], part["leader_id"]) for part in answer["partitions"])
        leaders = {partition: leader for partition, leader in told if leader != NO_LEADER}
        replicas = min((len(part.get("replica_nodes", ())) for part in answer["partitions"]), default=0)
        leaderless = tuple(partition for partition, leader in told if leader == NO_LEADER)
        return cls(_known_id(answer.get("topic_id")), leaders, replicas, leaderless)

    def without(self, brokers: Collection[int]) -> Self:
        """Return it with no leader for the Kafka partitions that these brokers lead."""
        gone = {p for p, leader in self.leaders.items() if leader in brokers}
        left = {p: leader for p, leader in self.leaders.items() if p not in gone}
        return replace(self, leaders=left, leaderless=(*sorted({*self.leaderless, *gone}),)) if gone else self

    def agreed(self, ids: Collection[TopicIds]) -> Self | None:
        """Return it with its cluster's id if all leaders agree on the topic's id; none if they do not."""
        if self.topic_id is None or (self.leaderless and not self.leaders):
            return self
        if {each.topic_id for each in ids} != {self.topic_id} or len({*ids}) > 1:
            return None
        return replace(self, cluster_id=next(iter(ids)).cluster_id)


@dataclass(frozen=True, slots=True)
class TopicGlance:
    """What was seen of one topic, described in `told`; `ends` is by isolation level, then by Kafka partition.

    Kafka partitions without a leader are in neither `firsts` nor `ends`.
    """

    told: Description
    firsts: Mapping[int, int]
    ends: Mapping[str, Mapping[int, OffsetAndTimestamp]]
    config: dict[str, str]

    def observation(self, isolation_level: str) -> Observation:
        """Return it as a reader at an isolation level sees it."""
        told, ends = self.told, self.ends[isolation_level]
        marks = {p: Watermarks(first, ends[p].offset) for p, first in self.firsts.items()}
        epochs = {p: ends[p].leader_epoch for p in marks}
        return Observation(told.topic_id, marks, epochs, told.cluster_id, told.leaderless)


@dataclass(slots=True)
class Glance:
    """Answers of one look: topics by name; sizes by topic and Kafka partition, once they were asked for.

    `known` has the record timestamps that the glance before used, `timestamps` those that this one uses.
    """

    seen: dict[str, TopicGlance] = field(default_factory=dict)
    sizes: Mapping[str, dict[int, int]] | None = None
    known: Mapping[Place, int] = field(default_factory=dict)
    timestamps: dict[Place, int] = field(default_factory=dict)

    def recall(self, place: Place) -> int | None:
        """Return the timestamp of the first record from a place on, none if it was not read yet."""
        found = self.timestamps.get(place, self.known.get(place))
        if found is not None:
            self.timestamps[place] = found
        return found


def look_at(admin: KafkaAdminClient, topics: Collection[str], silent: SilentBrokers) -> dict[str, TopicGlance]:
    """Look at topics; leave out those whose state is not certain, as when a broker does not answer for the first time."""
    before = _describe(admin, topics, silent)
    partitions = [TopicPartition(topic, p) for topic, told in before.items() for p in told.leaders]
    firsts = _list(admin, partitions, OffsetSpec.EARLIEST, "read_uncommitted")
    ends = {level: _list(admin, partitions, OffsetSpec.LATEST, level) for level in ISOLATION}
    configs = read_configs(admin, before)
    after = _describe(admin, before, silent)
    seen: dict[str, TopicGlance] = {}
    for topic, told in before.items():
        own = [TopicPartition(topic, p) for p in told.leaders]
        is_whole = all(ends[level][tp].offset >= firsts[tp].offset for level in ISOLATION for tp in own)
        if (
            topic in after
            and after[topic].topic_id == told.topic_id
            and after[topic].leaders.keys() >= {*told.leaders}
            and is_whole
        ):
            of_levels = {level: {tp.partition: ends[level][tp] for tp in own} for level in ISOLATION}
            seen[topic] = TopicGlance(told, {tp.partition: firsts[tp].offset for tp in own}, of_levels, configs[topic])
    return seen


def _describe(admin: KafkaAdminClient, topics: Collection[str], silent: SilentBrokers) -> dict[str, Description]:
    """Describe the topics on whose id all leaders of their Kafka partitions agree."""
    if not topics:
        return {}
    answers = {each["name"]: each for each in admin.describe_topics(sorted(topics)) if not each["error_code"]}
    told = {name: Description.of(answer).without(silent.now) for name, answer in answers.items() if answer["partitions"]}
    ids, failed = read_ids_of_leaders(admin, {name: each.leaders.values() for name, each in told.items()})
    uncertain = silent.judge(failed, admin)
    left = ((name, each.without(failed)) for name, each in told.items() if uncertain.isdisjoint(each.leaders.values()))
    agreed = ((name, each.agreed(ids[name])) for name, each in left)
    return {name: each for name, each in agreed if each is not None}


def _list(
    admin: KafkaAdminClient, partitions: Collection[TopicPartition], which: OffsetSpec, level: str
) -> Mapping[TopicPartition, OffsetAndTimestamp]:
    wanted = dict.fromkeys(partitions, which)
    found: Mapping[TopicPartition, OffsetAndTimestamp] = admin.list_partition_offsets(
        wanted, isolation_level=ISOLATION[level], timeout_ms=LEADER_MS
    )
    return found


def read_configs(admin: KafkaAdminClient, topics: Collection[str]) -> dict[str, dict[str, str]]:
    """Read those settings of topics that `CONFIGS` names, defaults included."""
    wanted = [ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(CONFIGS)) for topic in topics]
    found = admin.describe_configs(wanted, config_filter="all")["topic"] if wanted else {}
    return {topic: {name: str(entry["value"]) for name, entry in found[topic].items()} for topic in topics}


def read_ids_of_leaders(
    admin: KafkaAdminClient, leaders: Mapping[str, Iterable[int]]
) -> tuple[dict[str, set[TopicIds]], dict[int, KafkaError | OSError]]:
    """Return the ids of topics according to the leaders of their Kafka partitions, and which leaders do not answer, with why.

    `leaders` is by topic. Each broker is asked once, for all topics of which it leads a Kafka partition.
    """
    led: dict[int, list[str]] = {}
    for topic, nodes in leaders.items():
        for node in {*nodes}:
            led.setdefault(node, []).append(topic)
    ids: dict[str, set[TopicIds]] = {topic: set() for topic in leaders}
    failed: dict[int, KafkaError | OSError] = {}

    def send(node: int, topics: Sequence[str]) -> Any:
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        return admin._manager.send(request, node_id=node)

    async def ask() -> None:
        for node, sent in [(node, send(node, topics)) for node, topics in sorted(led.items())]:  # all at once
            try:
                found = await sent
            except NO_ANSWER as error:
                failed[node] = error
                continue
            for answer in found.topics:
                ids[answer.name].add(TopicIds(None if answer.error_code else _known_id(answer.topic_id), found.cluster_id))

    admin._manager.run(ask)
    return ids, failed


def read_epoch_ends(
    admin: KafkaAdminClient, topic: str, leaders: Mapping[int, int], epochs: Mapping[int, tuple[int, int]]
) -> dict[int, int]:
    """Read for each Kafka partition where the records of an earlier leader epoch end, as the present leader has them (KIP-320).

    `epochs` are the earlier and the present one. If no record of an epoch is left, the end is that of the epoch before it.
    Raises `StaleMetadata` if the leader has changed.
    """
    led: dict[int, list[int]] = {}
    for partition in epochs:
        led.setdefault(leaders.get(partition, NO_LEADER), []).append(partition)
    ends: dict[int, int] = {}

    async def ask() -> None:
        for node, partitions in sorted(led.items()):
            request = OffsetForLeaderEpochRequest(
                replica_id=-1,
                topics=[
                    OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                        topic=topic,
                        partitions=[
                            OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(
                                partition=p, leader_epoch=epochs[p][0], current_leader_epoch=epochs[p][1]
                            )
                            for p in partitions
                        ],
                    )
                ],
            )
            (answer,) = (await admin._manager.send(request, node_id=node)).topics
            for told in answer.partitions:
                error = for_code(told.error_code)
                if issubclass(error, AuthorizationError | UnknownTopicOrPartitionError):
                    raise error
                if error is not NoError:
                    raise StaleMetadata(f"{topic}/{told.partition} is led by somebody else by now")
                ends[told.partition] = told.end_offset

    if NO_LEADER in led:
        raise StaleMetadata(f"nobody leads {topic}/{led[NO_LEADER][0]}")
    admin._manager.run(ask)
    return {partition: end for partition, end in ends.items() if end >= 0}


def _known_id(topic_id: object) -> str | None:
    return None if topic_id in {None, UUID(int=0)} or str(topic_id) == _NO_ID else str(topic_id)
