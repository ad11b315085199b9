"""Many topics of a cluster seen at once: ids, watermarks and configurations, in a few requests to each broker.

Kafka answers of a thousand Kafka partitions as soon as of one. Invariant: a topic of which the look tells nothing certain
(no leader, created again meanwhile, not allowed) is not among what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.structs import OffsetAndTimestamp

from ..core.plan_step import Watermarks
from .kafka_topic import NO_LEADER, Description, Observation, read_ids_of_leaders

ISOLATION = {"read_uncommitted": 0, "read_committed": 1}
CONFIGS = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)
LEADER_MS = 2_000  # for which a leader that moves is waited for
Place = tuple[str, str | None, int, int, str]  # topic, its id, Kafka partition, offset, isolation level


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one topic; `ends` is by isolation level, then by Kafka partition."""

    topic_id: str | None
    leaders: Mapping[int, int]
    firsts: Mapping[int, int]
    ends: Mapping[str, Mapping[int, OffsetAndTimestamp]]
    config: dict[str, str]

    def observation(self, isolation_level: str) -> Observation:
        """Return it as a reader at an isolation level sees it."""
        ends = self.ends[isolation_level]
        marks = {p: Watermarks(first, ends[p].offset) for p, first in self.firsts.items()}
        return Observation(self.topic_id, marks, {p: ends[p].leader_epoch for p in marks})


@dataclass(slots=True)
class Glance:
    """What is answered from one look: topics by name, sizes by topic and Kafka partition once they were asked for.

    `known` are timestamps of records that the glance before has used; those that this one uses are in `timestamps`.
    """

    seen: dict[str, Seen] = field(default_factory=dict)
    sizes: Mapping[str, dict[int, int]] | None = None
    known: Mapping[Place, int] = field(default_factory=dict)
    timestamps: dict[Place, int] = field(default_factory=dict)

    def timestamp(self, place: Place, read: Callable[[], int | None]) -> int | None:
        """Return the timestamp of the first record from a place on; none, which is not remembered, where there is none yet."""
        found = self.timestamps.get(place, self.known.get(place))
        if found is None:
            found = read()
        if found is not None:
            self.timestamps[place] = found
        return found


def look_at(admin: KafkaAdminClient, topics: Collection[str]) -> dict[str, Seen]:
    """Look at topics; those of which it is not certain what is so are left out."""
    before = _describe(admin, topics)
    partitions = [TopicPartition(topic, p) for topic, told in before.items() for p in told.leaders]
    firsts = _list(admin, partitions, OffsetSpec.EARLIEST, "read_uncommitted")
    ends = {level: _list(admin, partitions, OffsetSpec.LATEST, level) for level in ISOLATION}
    configs = read_configs(admin, before)
    after = _describe(admin, before)
    seen: dict[str, Seen] = {}
    for topic, told in before.items():
        own = [TopicPartition(topic, p) for p in told.leaders]
        is_whole = all(ends[level][tp].offset >= firsts[tp].offset for level in ISOLATION for tp in own)
        if topic in after and after[topic].topic_id == told.topic_id and is_whole:
            seen[topic] = Seen(
                told.topic_id,
                told.leaders,
                {tp.partition: firsts[tp].offset for tp in own},
                {level: {tp.partition: ends[level][tp] for tp in own} for level in ISOLATION},
                configs[topic],
            )
    return seen


def _describe(admin: KafkaAdminClient, topics: Collection[str]) -> dict[str, Description]:
    """Describe the topics on whose id all brokers agree, and of which each Kafka partition has a leader."""
    if not topics:
        return {}
    answers = {each["name"]: each for each in admin.describe_topics(sorted(topics)) if not each["error_code"]}
    told = {name: Description.of(answer) for name, answer in answers.items()}
    told = {name: each for name, each in told.items() if each.leaders and NO_LEADER not in each.leaders.values()}
    ids = read_ids_of_leaders(admin, {name: each.leaders.values() for name, each in told.items()})
    return {name: each for name, each in told.items() if each.topic_id is None or ids[name] == {each.topic_id}}


def _list(
    admin: KafkaAdminClient, partitions: Collection[TopicPartition], which: OffsetSpec, level: str
) -> Mapping[TopicPartition, OffsetAndTimestamp]:
    wanted = dict.fromkeys(partitions, which)
    found: Mapping[TopicPartition, OffsetAndTimestamp] = admin.list_partition_offsets(
        wanted, isolation_level=ISOLATION[level], timeout_ms=LEADER_MS
    )
    return found


def read_configs(admin: KafkaAdminClient, topics: Collection[str]) -> dict[str, dict[str, str]]:
    """Read what is used of the configurations of topics, defaults included."""
    wanted = [ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(CONFIGS)) for topic in topics]
    found = admin.describe_configs(wanted, config_filter="all")["topic"] if wanted else {}
    return {topic: {name: str(entry["value"]) for name, entry in found[topic].items()} for topic in topics}
