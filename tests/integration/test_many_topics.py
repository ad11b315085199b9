"""A tick of many topics asks brokers and Dagster no more often than one of a few, and is as right."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
import sqlalchemy

from pipeline_defs.adapters.kafka import kafka_glance
from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.adapters.kafka.kafka_connection import Connection
from pipeline_defs.core.errors import BrokerUnavailable, UnknownTopic
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.plan_step import LogState, PlanStep
from pipeline_defs.landing.planner import Planner
from pipeline_defs.orchestration.pulse import ticking
from pipeline_defs.orchestration.pulse.pulse import tick_topics
from pipeline_defs.resources import Adapters
from pipeline_defs.topics import Topic
from tests.support.interleaving import beside
from tests.support.world import World


def worlds_of(world: World, count: int) -> list[World]:
    """Make so many topics of one lake and one Dagster instance, each with records that wait for their range's age."""
    found = []
    for number in range(count):
        each = world.beside(f"{world.name}-{number}")
        each.with_policy(max_age_seconds=600)
        each.fill(5, 0)
        found.append(each)
    return found


@contextmanager
def counted(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the questions to brokers and the statements to Dagster's database while the context is open."""
    counts = Counter[str]()

    def count_statement(*_: object) -> None:
        counts["statements"] += 1

    with monkeypatch.context() as patch:
        beside(patch, Connection, "_call", lambda *_: counts.update(["questions"]))
        sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", count_statement)
        try:
            yield counts
        finally:
            sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", count_statement)


def test_an_idle_tick_of_ten_topics_asks_no_more_often_than_one_of_two(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] H.4: each question, to brokers and to Dagster's database, is of all topics at once."""
    topics = [each.topic for each in worlds_of(world, 10)]
    found = []
    for some in (topics[:2], topics):
        tick_topics(some, world.instance, world.adapters)  # plans, and reads timestamps that are remembered
        with counted(world, monkeypatch) as counts:
            assert all(tick.error is None for tick in tick_topics(some, world.instance, world.adapters))
        found.append(counts)
    few, many = found
    assert few == many
    assert few["questions"] > 0 and few["statements"] > 0
    with counted(world, monkeypatch) as alone:
        for topic in topics:
            tick_topics([topic], world.instance, world.adapters)
    assert alone["questions"] >= 10 * few["questions"], "the control"


def test_a_topic_of_many_kafka_partitions_is_planned_by_as_few_questions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] Of each the oldest record that waits is asked for, at once: who leads is not asked again for each."""
    found = []
    for count in (2, 20):
        one = world.beside(f"{world.name}-{count}")
        one.fill(*[3] * count)
        kafka = one.adapters.kafka(one.topic)
        with counted(world, monkeypatch) as counts:
            state = kafka.read_topic_state(one.name, LogState(), one.topic.policy, 0)
        found.append(counts["questions"])
        assert {p: seen.oldest_ms for p, seen in state.partitions.items()} == {
            p: one.sent[p, 0].timestamp_ms for p in range(count)
        }
    assert found[0] == found[1]


def test_a_glance_says_what_single_answers_say(world: World) -> None:
    """[R-30] Whatever planning reads: ids, watermarks at both levels, configurations, sizes, timestamps."""
    one, two = worlds_of(world, 2)
    one.alter_topic(retention_ms="86400000")
    transaction = two.begin_transaction()
    transaction.send(two.name, partition=0, value=b"open")
    transaction.flush()
    kafka = world.adapters.kafka(world.topic)
    names = [one.name, two.name]

    def answers() -> list[object]:
        return [
            [kafka.read_ids(name).topic_id for name in names],
            [kafka.observe(name, level) for name in names for level in kafka_glance.ISOLATION],
            [kafka.read_config(name)["retention.ms"] for name in names],
            [kafka.read_sizes(name, [0, 1]) for name in names],
            [kafka.read_timestamps(name, {0: 0, 1: 0}, "read_committed") for name in names],
            [each.first_offset for name in names for each in kafka.read_open_transactions(name, 0)],
        ]

    single = answers()
    with kafka.glancing(names):
        assert answers() == single
        assert kafka._glance.seen.keys() == {*names}
    assert not kafka._glance.seen
    transaction.abort_transaction()
    transaction.close()
    assert single[-1] == [5], "the control: a transaction is open"


def test_what_changes_after_a_glance_is_seen_by_the_next(world: World) -> None:
    """[R-30] A remembered timestamp is none of a topic created anew; where a log seems to have shrunk, planning looks anew."""
    (one,) = worlds_of(world, 1)
    kafka = world.adapters.kafka(world.topic)

    def look() -> tuple[int, int | None]:
        with kafka.glancing([one.name]):
            marks = kafka.read_watermarks(one.name, "read_committed")
            return marks[0].end, kafka.read_timestamps(one.name, {0: 0}, "read_committed")[0]

    end, timestamp = look()
    assert (end, timestamp) == (5, one.sent[0, 0].timestamp_ms)
    assert look() == (end, timestamp)
    one.send_numbered(1)
    assert look() == (6, timestamp)
    with kafka.glancing([one.name]):
        one.send_numbered(1)
        assert kafka.read_watermarks(one.name, "read_committed")[0].end == 6
        kafka.look_again(one.name)
        assert kafka.read_watermarks(one.name, "read_committed")[0].end == 7
    one.recreate_topic(2)
    one.send([{"partition": 0, "value": b"new", "timestamp_ms": 1_000}])
    assert look() == (1, 1_000)


def test_a_topic_that_is_gone_or_sick_is_asked_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] It says what is wrong with it, and the others are planned from the glance."""
    topics = [each.topic for each in worlds_of(world, 2)]
    gone = dataclasses.replace(world.topic, name=f"{world.name}-gone")
    ticks = tick_topics([gone, *topics], world.instance, world.adapters)
    assert [type(tick.error) for tick in ticks] == [UnknownTopic, type(None), type(None)]
    seen: list[set[str]] = []
    look = kafka_glance.look_at

    def note(*asked: Any) -> Any:
        found = look(*asked)
        seen.append({*found})
        return found

    monkeypatch.setattr("pipeline_defs.adapters.kafka.kafka.look_at", note)
    tick_topics([gone, *topics], world.instance, world.adapters)
    assert seen == [{topic.name for topic in topics}]


def test_where_no_look_at_all_is_possible_each_topic_is_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] An error that comes at once may be of one topic; one that has kept a tick waiting is of the cluster."""
    topics = [each.topic for each in worlds_of(world, 2)]
    monkeypatch.setattr("pipeline_defs.adapters.kafka.kafka.look_at", Mock(side_effect=BrokerUnavailable("the fault")))
    ticks = tick_topics(topics, world.instance, world.adapters)
    assert [tick.error for tick in ticks] == [None, None]
    monkeypatch.setattr("pipeline_defs.adapters.kafka.kafka.PATIENCE_SECONDS", -1.0)
    ticks = tick_topics(topics, world.instance, world.adapters)
    assert [str(tick.error) for tick in ticks] == ["the fault"] * 2


@pytest.mark.parametrize("is_recreated", [False, True], ids=["grown", "recreated"])
def test_a_glance_that_is_older_than_the_log_opens_no_generation(world: World, is_recreated: bool) -> None:
    """[R-10] Between a tick's look at all topics and its turn of this one, another planner has seen and planned more."""
    (one,) = worlds_of(world, 1)
    kafka, other = (Kafka(world.adapters.bootstrap_servers(world.topic)) for _ in range(2))

    def plan(by: Kafka) -> PlanStep | None:
        now_ms = world.adapters.now_ms()
        return Planner(one.name, Policy(), world.adapters.lake, by, lambda: now_ms, "test").commit(through_end=True)

    with kafka, other:
        assert plan(other) is not None
        with kafka.glancing([one.name]):
            if is_recreated:
                one.recreate_topic(2)
            one.send_numbered(3)
            ahead = plan(other)
            assert ahead is not None and kafka.observe(one.name, "read_committed").watermarks[0].end == 5, "the fault"
            assert plan(kafka) is None
        assert world.adapters.lake.recent(one.name).log.state.seq == ahead.seq + 1
        assert world.adapters.lake.recent(one.name).log.state.generation == is_recreated


def test_ticks_compare_what_has_changed_alone_though_each_has_an_instance_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-34] As Dagster gives each. One of another database, as after a loss, is told all that the lake has."""
    world.fill(300)
    world.plan_and_land()
    adapters, compared = Adapters(world.settings), Mock(wraps=ticking.register_keys)
    monkeypatch.setattr(ticking, "register_keys", compared)

    def tick() -> int:
        with dg.DagsterInstance.from_ref(world.instance.get_ref()) as instance:
            (ticked,) = tick_topics([world.topic], instance, adapters)
        assert ticked.error is None
        return compared.call_count

    counts = [tick() for _ in range(4)]
    assert counts[0] == 1 and counts[-2] == counts[-1]
    world.lose_dagster()
    assert tick() == counts[-1] + 1 and len(world.materialized()) == 3


def test_what_somebody_wipes_in_dagster_is_told_again(world: World) -> None:
    """[R-34] Though nothing has changed in the lake, and the comparison of before has found nothing to tell."""
    world.fill(300)
    world.plan_and_land()
    adapters = Adapters(world.settings)

    def tick(topic: Topic) -> None:
        (ticked,) = tick_topics([topic], world.instance, adapters)
        assert ticked.error is None

    for _ in range(3):
        tick(world.topic)
    assert adapters.compared, "the control: from now on nothing is compared"
    world.instance.wipe_assets([world.topic.asset_key])
    assert world.materialized() == set(), "the fault"
    tick(world.topic)
    assert len(world.materialized()) == 3
