"""Brokers that lag, as the admin client meets them: whose word on a topic counts, and for how long it is doubted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kafka import TopicPartition
from kafka.structs import OffsetAndTimestamp

from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.adapters.kafka.kafka_glance import Glance, look_at
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.core.errors import StaleAnswer
from pipeline_defs.core.log.plan_step import Tail, Watermarks
from pipeline_defs.core.log.planning import PartitionState, Policy, TopicState
from pipeline_defs.landing import planner
from pipeline_defs.landing.planner import Planner

OLD, NEW = UUID(int=1), UUID(int=2)


@dataclass
class Admin:
    """Admin client of a cluster whose brokers tell ids of their own; what any of them is asked is answered by the first."""

    ids: Mapping[int, UUID]
    leaders: Mapping[int, int]
    asked: list[int] = field(default_factory=list)
    heal_after: int = 10**6

    @property
    def _manager(self) -> Any:
        return SimpleNamespace(run=self._run, send=self._send)

    def _run(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(ask())

    def _told(self, broker: int) -> UUID:
        self.asked.append(broker)
        return NEW if len(self.asked) > self.heal_after else self.ids[broker]

    async def _send(self, request: Any, node_id: int) -> Any:
        (asked,) = request.topics
        return SimpleNamespace(topics=[SimpleNamespace(error_code=0, name=asked.name, topic_id=self._told(node_id))])

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        parts = [{"partition_index": p, "leader_id": leader} for p, leader in self.leaders.items()]
        told = {"error_code": 0, "topic_id": self._told(min(self.ids)), "partitions": parts}
        return [{**told, "name": topic} for topic in topics]

    def list_partition_offsets(self, specs: Iterable[TopicPartition], **_: Any) -> dict[TopicPartition, Any]:
        return {tp: OffsetAndTimestamp(0, -1, 0) for tp in specs}

    def describe_configs(self, resources: Iterable[Any], **_: Any) -> dict[str, Any]:
        return {"topic": {each.name: {} for each in resources}}

    def close(self) -> None:
        pass


def kafka_of(admin: Admin, seconds: float = 0.2) -> Kafka:
    kafka = Kafka("broker:9092", timeout_seconds=seconds)
    kafka._admin = cast("Any", admin)
    return kafka


def test_an_id_that_the_leaders_do_not_have_is_never_believed() -> None:
    """[R-9] The broker that happened to be asked lags; who leads the partitions knows the topic of now."""
    with pytest.raises(StaleAnswer, match="go on to tell different things of topic orders") as caught:
        kafka_of(Admin({0: OLD, 1: NEW}, {0: 1})).read_topic_id("orders")
    assert caught.value.retriable
    agreeing = Admin({0: NEW, 1: NEW, 2: OLD}, {0: 0, 1: 1})
    assert kafka_of(agreeing).read_topic_id("orders") == str(NEW), "the control: who leads nothing is not asked"
    assert 2 not in agreeing.asked


def test_a_broker_that_catches_up_is_waited_for() -> None:
    lagging = Admin({0: OLD, 1: NEW}, {0: 1}, heal_after=3)
    seen = kafka_of(lagging, seconds=20).observe("orders", "read_committed")
    assert (seen.topic_id, seen.watermarks) == (str(NEW), {0: Watermarks(0, 0)})
    assert len(lagging.asked) > 3, "the fault: it was asked again"


@pytest.mark.parametrize(
    ("admin", "is_seen"),
    [
        (Admin({0: OLD}, {0: 0}, heal_after=2), False),
        (Admin({0: OLD, 1: NEW}, {0: 1}), False),
        (Admin({0: OLD}, {0: 0, 1: -1}), False),
        (Admin({0: OLD}, {0: 0}), True),
    ],
    ids=["created anew meanwhile", "leaders know another", "without a leader", "the control"],
)
def test_a_topic_of_which_a_glance_tells_nothing_certain_is_left_out(admin: Admin, is_seen: bool) -> None:
    """[R-30] It is asked alone, which waits until brokers agree, or says what is wrong."""
    assert look_at(cast("Any", admin), ["orders"]).keys() == ({"orders"} if is_seen else set())


class OldBrokers:
    """Cluster too old for topic ids and leader epochs, of which a leader of before answers some of the first times."""

    def __init__(self, ends: list[int]) -> None:
        self.ends = ends

    def read_topic_state(self, topic: str, tail: Tail, policy: Policy, now_ms: int) -> TopicState:
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        return TopicState(topic, None, {0: PartitionState(Watermarks(0, end))})

    def look_again(self, topic: str) -> None:
        """Nothing was seen at a glance."""


@pytest.mark.parametrize(("ends", "generation"), [([10, 4, 12], 0), ([10, 4], 1)], ids=["lags", "was cut off"])
def test_without_ids_and_epochs_a_shorter_log_is_believed_when_it_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[int], generation: int
) -> None:
    """[R-9] An old broker's answer cannot be told from one of a moment ago, so it is asked again for some time."""
    monkeypatch.setattr(planner, "SETTLE_SECONDS", 1.0)
    lake, policy = Lake(str(tmp_path)), Policy(records_per_range=100, max_age_seconds=0)
    kafka = cast("Any", OldBrokers(ends))
    times = iter((1, 2))
    for _ in range(2):
        Planner("orders", policy, lake, kafka, lambda: next(times, 2), "test").commit(through_end=True)
    assert lake.read_plan_log("orders").tail.generation == generation


READS: dict[str, Callable[[Kafka], object]] = {
    "id": lambda kafka: kafka.read_topic_id("orders"),
    "watermarks": lambda kafka: kafka.read_watermarks("orders", "read_committed"),
    "config": lambda kafka: kafka.read_config("orders"),
    "sizes": lambda kafka: kafka.read_sizes("orders", [0]),
    "ends": lambda kafka: kafka.read_open_transactions("orders", 0),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_glance_that_another_ends_in_the_middle_of_a_question_is_no_error(
    read: Callable[[Kafka], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-30] Sensors of a code location share the connection: what one looks up, another has just closed."""
    kafka = kafka_of(Admin({0: OLD}, {0: 0}))
    monkeypatch.setattr(Kafka, "_read_sizes", lambda *_: {"orders": {0: 1}})

    class Vanishing(dict[str, Any]):
        """What was seen, which is gone once it was looked up."""

        looks = 0

        def __contains__(self, topic: object) -> bool:
            return self._look(super().__contains__(topic))

        def get(self, topic: str, default: Any = None) -> Any:
            return self._look(super().get(topic, default))

        def _look(self, found: Any) -> Any:
            type(self).looks += 1
            kafka._glance = Glance()
            return found

    single = read(kafka)
    with kafka.glancing(["orders"]):
        assert {*kafka._glance.seen} == {"orders"}
        kafka._glance = Glance(Vanishing(kafka._glance.seen))
        assert read(kafka) == single
    assert Vanishing.looks > 0, "the fault"


def test_a_time_before_1970_is_no_question_of_another_kind() -> None:
    """[R-8] Kafka takes -1 for the end of the log: a topic would be left out from its beginning."""
    admin, asked = Admin({0: NEW}, {0: 0}), list[int]()

    def answer(specs: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, Any]:
        asked.extend(specs.values())
        return {tp: OffsetAndTimestamp(7, 0, 0) for tp in specs}

    admin.list_partition_offsets = answer  # type: ignore[assignment,method-assign]
    for moment_ms in (-1, -2_208_988_800_000, 5):
        assert kafka_of(admin).read_offsets_at("orders", {0: Watermarks(0, 9)}, moment_ms) == {0: 7}
    assert asked == [0, 0, 5]
