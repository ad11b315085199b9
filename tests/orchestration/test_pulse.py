"""The pulse: one sensor plans all topics, one run lands what is pending of them, decodes it and updates latest tables.

Or a run of each lane does.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster import DagsterRun
from dagster._core.execution.api import create_execution_plan
from dagster._core.instance.config import PoolGranularity
from dagster._core.snap import snapshot_from_execution_plan
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.adapters.spark.spark import Spark
from pipeline_defs.adapters.system.locks import own_name, share
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.core.advice import NOTHING
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import BrokerUnavailable, JobStuck, LakeUnavailable, TopicsFailed
from pipeline_defs.core.landing.dispatch import APART, lane_of
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.steps import no_step
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.orchestration.assets.checks import QUICK, build_checks
from pipeline_defs.orchestration.assets.latest_asset import RECOMPUTED
from pipeline_defs.orchestration.home.daemons import FOLDER
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.pulse import pulse, pulse_run
from pipeline_defs.orchestration.pulse.pulse import LOCATION_TAG, build_pulse
from pipeline_defs.orchestration.runs.ledger import accept_loss
from pipeline_defs.orchestration.runs.moments import time_text
from pipeline_defs.orchestration.runs.progress import check_progress, read_progress
from pipeline_defs.orchestration.runs.siblings import BACKFILL_TAG
from pipeline_defs.orchestration.runs.tries import read_all_tries, read_tries, trying
from pipeline_defs.resources import Adapters
from pipeline_defs.topics import DID, DID_TAG, LAND_PENDING, LANE_TAG, PROGRESS
from tests.integration.test_decoding import configure, event
from tests.support.pulse import ask, check_of, is_asked, queue_run, reasons, refuse, refuse_tools, run_job, run_pulse, said
from tests.support.pulse import said as sensor_says
from tests.support.world import World


def test_one_run_lands_two_topics_decodes_and_updates(world: World, other: World) -> None:
    """[R-30] With checks and events. [R-34] A latest table of which a dead run did not tell is told by the next tick."""
    world.topic = dataclasses.replace(world.topic, decode=Decode(value=Side(Format.JSON, "id INT")), latest=Latest())
    for each in (world, other):
        each.create_topic(2)
        each.send({"partition": n % 2, "key": b"%d" % (n % 7), "value": b'{"id": %d}' % n} for n in range(250))
    (request,) = ask(world, other.topic).run_requests or ()
    assert request.run_key is None, "a used run key is dead for ever"
    assert request.tags["dagster/max_retries"] == "0", "the next tick asks again; a retry would be a second run"
    assert int(request.tags["dagster/priority"]) > 0

    result = run_pulse(world, other.topic)
    assert result.success, reasons(result)
    lines = [event.user_message for event in world.instance.all_logs(result.run_id)]
    assert lines.count("step=publish times=8") == 1, "a line for each range would cost as much as its file"
    for each in (world, other):
        each.assert_all_landed_once()
        assert each.materialized() == {offsets.key for offsets in each.coverage.log.ranges}
        assert all(check_of(world, each.topic.check_key(name)).passed for name in QUICK)
    decoded = world.instance.get_materialized_partitions(world.topic.decoded_key)
    assert decoded == world.materialized()
    assert check_of(world, dg.AssetCheckKey(world.topic.latest_key, RECOMPUTED)).passed
    assert said(world, other.topic) == "nothing waits"

    def told_keys() -> list[object]:
        return [event.metadata["keys"].value for event in world.events(world.topic.latest_key)]

    assert told_keys() == [7]
    world.lose_dagster()
    assert told_keys() == [], "the fault"
    ask(world)
    assert told_keys() == [7]


def test_a_run_takes_what_arrives_after_it_was_asked_for(world: World) -> None:
    """[R-31] What is pending is read when the run starts; while one waits or is at work, nothing is asked for."""
    world.fill(100)
    others = queue_run(world.instance, LAND_PENDING, tags={LOCATION_TAG: "another"})
    assert is_asked(world), "the run of another location keeps nobody from asking"
    world.instance.delete_run(others.run_id)
    waiting = queue_run(world.instance, LAND_PENDING, tags={LOCATION_TAG: ""})
    for _ in range(3):
        world.send_numbered(20)
        assert not is_asked(world)
    assert f"run {waiting.run_id[:8]} of {LAND_PENDING} is queued since" in said(world)
    assert run_pulse(world).success
    world.assert_all_landed_once()
    world.instance.report_run_canceled(waiting)
    world.send_numbered(20)
    assert "ended before it had done anything" in said(world), "one that was cancelled backs off, as one that died"
    world.later(11_000)
    assert is_asked(world), "the control"


def test_runs_that_die_early_back_off(world: World) -> None:
    """[R-33] Where the lake cannot be written, say: not a red run for each tick; and one that got through is no such run."""
    world.fill(100)
    start_ms = world.adapters.now_ms()
    for number, wait in enumerate([10, 20, 40], 1):
        world.adapters.now_ms = lambda number=number: start_ms + number * 3_600_000  # type: ignore[misc]
        assert is_asked(world)
        run = queue_run(world.instance, LAND_PENDING, tags={LOCATION_TAG: ""})
        world.instance.report_run_failed(run)
        ended_ms = int((world.instance.get_run_records(limit=1)[0].end_time or 0) * 1000)
        for seconds, asked in ((wait - 1, False), (wait, True)):
            world.adapters.now_ms = lambda at=ended_ms + seconds * 1000: at  # type: ignore[misc]
            assert is_asked(world) is asked
    descriptor = share((lock := world.settings.dagster_home / FOLDER / "daemon"), own_name())
    for seconds, asked in ((-3600, False), (3600, True)):
        os.utime(lock, (ended_ms / 1000 + seconds,) * 2)
        world.adapters.now_ms = lambda: ended_ms + 10_000
        assert is_asked(world) is asked, "after a power cut it does not, however often the plug was pulled"
    os.close(descriptor)
    world.instance.add_run_tags(run.run_id, {DID_TAG: DID})
    world.adapters.now_ms = lambda: ended_ms
    assert is_asked(world), "the control"


def test_a_wholly_failed_topic_backs_off_whatever_arrives(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-33] Each tick has a new range, which has never failed: not a red run for each; the other topic is landed."""
    world.later(0)
    for each in (world, other):
        each.fill(100)
        each.tick()

    refuse_tools(monkeypatch, world.name)
    assert not run_pulse(world, other.topic).success, "the fault"
    other.assert_all_landed_once()
    world.send_numbered(100)
    assert not is_asked(world, other.topic), "the new range waits with the others"
    assert "2 ranges pending" in (text := said(world, other.topic)) and "could be done, and it is tried again in" in text
    world.later(11_000)
    assert is_asked(world, other.topic)
    monkeypatch.undo()
    assert run_pulse(world, other.topic).success
    world.assert_all_landed_once()
    world.send_numbered(100)
    assert is_asked(world), "one that was done ends it"


def test_a_run_that_takes_nothing_is_red_and_a_dead_decoder_tried_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] What only the run cannot read does not go on in green for ever; nor does a run spin on what always raises."""
    world.later(0)
    world.topic = dataclasses.replace(world.topic, decode=Decode(value=Side(Format.JSON, "id INT")))
    world.create_topic()
    world.send([{"partition": 0, "value": b'{"id": 1}'}])
    fail = Mock(side_effect=ImportError("the fault"))
    monkeypatch.setattr(Adapters, "decode_tools", fail)
    assert is_asked(world)
    assert not run_pulse(world).success
    assert world.materialized() == {"0-0-1"} and fail.call_count == 1
    assert not is_asked(world), "decoding backs off"
    monkeypatch.setattr(pulse_run, "read_undecoded", fail)
    result = run_pulse(world)
    assert not result.success and "ImportError" in reasons(result)


@pytest.mark.parametrize("broken", ["broker", "plan log", "refused"])
def test_a_broken_topic_stops_no_other(world: World, other: World, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """[R-30] It makes the tick red once nothing else is due; what is refused of one topic says nothing of the cluster."""
    for each in (world, other):
        each.fill(100)
    topic = other.topic
    if broken == "refused":
        refuse(monkeypatch, Kafka, "read_topic_state", topic.name, BrokerUnavailable("the fault"))
    if broken == "broker":
        topic = dataclasses.replace(topic, bootstrap_servers="127.0.0.1:1")
        world.adapters.kafka_timeout_seconds = 1
        other.plan()
    if broken == "plan log":
        other.plan()
        (step,) = (world.lake_folder / "plan" / other.name).rglob("*.json")
        step.write_text("{torn")
    assert is_asked(world, topic)
    result = run_pulse(world, topic)
    assert result.success is (broken != "broker"), "of which nothing was taken"
    assert broken != "broker" or other.name in reasons(result)
    world.assert_all_landed_once()
    with pytest.raises(TopicsFailed) as told:
        ask(world, topic)
    assert other.name in str(told.value) and f"{world.name}:" not in str(told.value)


def test_a_range_that_ends_each_run_keeps_no_other_waiting(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] [R-33] It kills the process, say: what shared its job is landed without it, also of its own topic."""
    world.later(0)
    world.fill(100)
    other.fill(100, 100)
    real = pulse_run.land_topics

    def land_topics(keys: Mapping[str, Sequence[str]], *rest: Any) -> Any:
        if "0-0-100" in keys.get(other.name, ()):
            raise RuntimeError("the fault")
        return real(keys, *rest)

    monkeypatch.setattr(pulse_run, "land_topics", land_topics)
    for runs in range(1, 6):
        world.later(60_000)
        assert is_asked(world, other.topic)
        run_pulse(world, other.topic)
        assert runs > 1 or len(world.pending) + len(other.pending) == 3, "the fault takes all of its job along"
        for each in (world, other):
            each.send_numbered(100)
            each.plan()
    left = {each.key for each in other.pending}
    assert "0-0-100" in left and left.isdisjoint({"1-0-100", "0-100-200"}) and len(world.pending) == 1
    last = read_tries(world.instance, other.topic.landing).tried[OffsetRange(0, 0, 0, 100)]
    assert last.fatal == last.attempts > 1, "and is tried still"
    monkeypatch.undo()
    world.later(700_000)
    run_pulse(world, other.topic)
    assert not other.pending


def test_ticks_wait_for_one_another_unless_one_hangs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] One that Dagster has given up goes on; beside it others would each make all of them slower."""
    world.fill(100)
    told: list[str] = []

    def watch(step: str, **_: object) -> None:
        if step == "keys_registered":
            world.adapters.watch_step = no_step
            told.append(said(world))

    world.adapters.watch_step = watch
    assert is_asked(world) and "the tick before is at work for" in told[0]
    monkeypatch.setattr(pulse, "HUNG_SECONDS", 0.0)
    with world.adapters.tick_turn:
        assert is_asked(world), "nobody waits for one that hangs"
        monkeypatch.undo()
        assert is_asked(world), "nor do those that come later"


def test_a_range_that_fails_is_red_in_dagster_and_tried_again_later(world: World) -> None:
    """[R-33] Its neighbour is landed; the partition shows as failed; back-off, then the second try."""
    world.later(0)
    world.fill(100, 100)
    world.tick()
    world.delete_records(0, 40)
    result = run_pulse(world)
    assert not result.success
    assert "40 offsets [0, 40) are gone" in reasons(result)
    assert world.materialized() == {"1-0-100"}
    ((failed, tried),) = read_tries(world.instance, world.topic.landing).tried.items()
    assert (failed.key, tried.attempts, tried.failed_run) == ("0-0-100", 1, result.run_id)
    status = world.instance.get_status_by_partition(world.topic.asset_key, ["0-0-100", "1-0-100"], world.topic.partitions)
    assert status is not None
    assert {key: each.value if each else None for key, each in status.items()} == {
        "0-0-100": "FAILED",
        "1-0-100": "MATERIALIZED",
    }
    assert not is_asked(world), "the back-off holds it"
    world.later(11_000)
    assert is_asked(world)
    run_pulse(world)
    assert next(iter(read_tries(world.instance, world.topic.landing).tried.values())).attempts == 2


def test_what_fails_and_is_landed_later_in_the_run_does_not_fail_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] A run is red only for what it leaves undone; `test_a_range_that_fails_is_red_in_dagster...` is the control."""
    world.later(0)
    world.fill(100, 100)
    world.tick()
    world.delete_records(0, 40)

    def accept(step: str, **fields: Any) -> None:
        if step == "failed":
            accept_loss(world.topic, fields["key"], world.adapters, "ada")

    def look_later(*asked: Any) -> Any:
        world.later(11_000)
        return read_all_tries(*asked)

    world.adapters.watch_step = Mock(side_effect=accept)
    monkeypatch.setattr(pulse_run, "read_all_tries", look_later)
    result = run_pulse(world)
    assert ("failed", {"key": "0-0-100"}) in [(each.args[0], each.kwargs) for each in world.adapters.watch_step.call_args_list]
    assert result.success and not world.pending


@pytest.mark.parametrize("order", ["oldest_first", "newest_first"])
def test_a_batch_of_lost_ranges_keeps_no_whole_one_waiting(world: World, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """[R-32] Else the broker would delete these in turn, while the same batch fails again and again."""
    monkeypatch.setattr(pulse_run, "RANGES_AT_ONCE", 2)
    world.with_policy(order=order)
    world.create_topic(2)
    for partition in (0, 1) if order == "oldest_first" else (1, 0):  # so that those which are lost come first
        world.later(1_000)
        world.send_numbered(200 if partition else 500, partition)
        world.plan()
    world.delete_records(0, 500)
    began = []
    world.adapters.watch_step = lambda step, **fields: began.append((step, fields.get("key")))
    result = run_pulse(world)
    assert not result.success and reasons(result).count("are gone") == 5
    assert [step for step, _ in began if step in {"failed", "landed"}][:2] == ["failed", "failed"], "the fault: a whole batch"
    assert {offsets.partition for offsets in world.coverage.manifests} == {1} and len(world.coverage.manifests) == 2
    assert {each.attempts for each in read_tries(world.instance, world.topic.landing).tried.values()} == {1}


def test_a_topic_with_a_backlog_keeps_no_other_waiting(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-32] Batches take turns: the quiet topic is landed by the first one."""
    monkeypatch.setattr(pulse_run, "RANGES_AT_ONCE", 4)
    monkeypatch.setattr(pulse_run, "RANGES_PER_RUN", 6)
    for each, records in ((world, 3000), (other, 100)):
        each.fill(records)
        each.tick()
    assert run_pulse(world, other.topic).success
    assert not other.pending
    assert len(world.coverage.manifests) == 5, "and the run ends when it has had its share"


@pytest.mark.parametrize("at_step", ["landed", "reported_decoded"])
def test_arrivals_land_between_backlog_jobs(world: World, other: World, monkeypatch: pytest.MonkeyPatch, at_step: str) -> None:
    """[R-95] A quiet topic waits for the end of a job, or of a batch that is decoded, and not of the backlog."""
    monkeypatch.setattr(pulse_run, "FIRST_OFFSETS", 200)
    monkeypatch.setattr(pulse_run, "JOB_SECONDS", 0.0)
    monkeypatch.setattr(pulse_run, "RANGES_AT_ONCE", 4)
    world.topic = dataclasses.replace(world.topic, decode=Decode(value=Side(Format.STRING)))
    other.create_topic()
    world.fill(1200)
    world.plan()
    passed: list[str] = []

    def watch(step: str, **fields: object) -> None:
        if step == at_step and step not in passed:
            other.send_numbered(50)
            other.plan()
        passed.append(step if step != "landed" or fields["key"] != "0-0-50" else "quiet")

    world.adapters.watch_step = watch
    run_pulse(world, other.topic)
    other.assert_all_landed_once()
    first, quiet = passed.index(at_step), passed.index("quiet")
    last = len(passed) - 1 - passed[::-1].index(at_step)
    assert first < quiet < last and passed[first:quiet].count(at_step) <= 4, "after the batch in which it arrived"


@pytest.mark.parametrize(("later_ms", "is_behind"), [(11_000, True), (-86_400_000, False)])
def test_a_topic_whose_decoding_fails_goes_behind_those_that_wait(
    world: World, other: World, monkeypatch: pytest.MonkeyPatch, later_ms: int, is_behind: bool
) -> None:
    """[R-95] One that hangs may take a run's whole time: the next run begins with the topic that has waited longest since.

    A try by a clock that was ahead is none: its topic would come last until that moment.
    """
    world.topic, other.topic = (
        dataclasses.replace(each.topic, decode=Decode(value=Side(Format.STRING))) for each in (world, other)
    )
    turns, decode = list[str](), pulse_run.decode

    def stick(topic: str, *rest: Any) -> Any:
        turns.append(topic)
        if topic == world.name:
            raise JobStuck("the decoder hangs")
        return decode(topic, *rest)

    monkeypatch.setattr(pulse_run, "decode", stick)
    world.fill(100)
    world.plan()
    assert not run_pulse(world).success
    other.fill(100)
    other.plan()
    world.later(later_ms)
    assert not run_pulse(world, other.topic).success
    assert turns == [world.name, *((other.name, world.name) if is_behind else (world.name, other.name))]


@pytest.mark.parametrize("order", ["oldest_first", "newest_first"])
def test_a_topic_is_landed_in_the_order_of_its_policy(world: World, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """[R-93] Each batch has the oldest ranges that wait, or the newest ones."""
    monkeypatch.setattr(pulse_run, "RANGES_AT_ONCE", 2)
    world.with_policy(order=order)
    world.fill(600)
    world.plan()
    landed = run_pulse(world).asset_materializations_for_node("land_and_derive")
    starts = [int(str(event.metadata["start_offset"].value)) for event in landed]
    batches = [sorted(starts[at : at + 2]) for at in range(0, 6, 2)]
    oldest = [[0, 100], [200, 300], [400, 500]]
    assert batches == (oldest if order == "oldest_first" else oldest[::-1])


def test_ranges_that_another_run_is_at_are_left_to_it(world: World) -> None:
    """[R-31] Whoever asked for that run; it tells of them."""
    world.fill(200)
    world.tick()
    run = queue_run(world.instance, world.topic.landing.job)
    with trying(world.instance, world.topic.landing, ["0-0-100"], run.run_id, world.adapters.now_ms):
        assert run_pulse(world).success
        assert world.materialized() == {"0-100-200"}
        assert [offsets.key for offsets in world.pending] == ["0-0-100"]
        assert check_of(world, world.topic.check_key("tiling")).passed, "what a run is at is no gap"


def test_what_somebody_else_says_of_a_kafka_topic_ends_no_tick(world: World) -> None:
    """[R-30] Dagster takes observations of an asset from anybody; after a restart the last one is read."""
    world.fill(100)
    world.instance.report_runless_asset_event(dg.AssetObservation(world.topic.source_key, metadata={"lag": "none"}))
    assert is_asked(world)


def test_without_topics_there_is_no_pulse() -> None:
    assert not build_pulse([]).sensors and not build_pulse([]).jobs


@pytest.fixture
def second(world: World) -> World:
    """A topic of another of two lanes, of the same lake and Dagster instance; both have something to land."""
    names = (f"{world.name}-{number}" for number in count())
    name = next(each for each in names if lane_of(each, 2, 0) != lane_of(world.name, 2, 0))
    world.settings = world.adapters.settings = dataclasses.replace(world.settings, lanes=2)
    second = world.beside(name)
    for each in (world, second):
        each.fill(100)
        each.plan()
    return second


def lane(world: World) -> str:
    return lane_of(world.name, 2, 0)


def asked_lanes(world: World, other: World) -> list[str | None]:
    return sorted(str(each.tags.get(LANE_TAG)) for each in ask(world, other.topic).run_requests or ())


def run_lane(world: World, other: World, lane: str) -> dg.ExecuteInProcessResult:
    return run_job(world, LAND_PENDING, other.topic, tags={LANE_TAG: lane})


def slow_down(monkeypatch: pytest.MonkeyPatch, world: World, *names: str) -> None:
    """Have each job that reads one of these topics take as long as a slow broker takes."""
    real = Spark.stage

    def stage(self: Spark, scan: Any, *rest: Any) -> Any:
        world.later(90_000 if {*names} & {*scan.topics} else 0)
        return real(self, scan, *rest)

    monkeypatch.setattr(Spark, "stage", stage)


def test_each_lane_has_a_run_of_its_own_and_lands_its_topics_alone(world: World, second: World) -> None:
    """[R-97] One that is at work keeps its own lane from asking, and one that a person launched all of them."""
    assert asked_lanes(world, second) == ["0", "1"]
    run = queue_run(world.instance, LAND_PENDING, tags={LOCATION_TAG: "", LANE_TAG: lane(world)})
    assert asked_lanes(world, second) == [lane(second)]
    world.instance.delete_run(run.run_id)
    run = queue_run(world.instance, LAND_PENDING)
    assert asked_lanes(world, second) == []
    world.instance.delete_run(run.run_id)
    assert run_lane(world, second, lane(second)).success
    second.assert_all_landed_once()
    assert len(world.pending) == 1, "the other lane's"
    assert asked_lanes(world, second) == [lane(world)]
    world.adapters.settings = dataclasses.replace(world.settings, lanes=1)
    assert asked_lanes(world, second) == ["None"], "the control: one lane needs no name"


def test_a_topic_that_fails_is_moved_out_of_the_way(world: World, second: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-97] By itself, to a run of its own, while all that is tried of it fails; once something lands it is back."""
    refuse_tools(monkeypatch, world.name)
    world.later(0)
    for _ in range(2):
        assert lane(world) in asked_lanes(world, second)
        assert not run_lane(world, second, lane(world)).success, "the fault"
        world.later(120_000)
    assert asked_lanes(world, second) == sorted([APART, lane(second)])
    assert run_lane(world, second, lane(world)).success, "its lane has nothing to do with it any more"
    assert not run_lane(world, second, APART).success
    monkeypatch.undo()
    world.later(700_000)
    assert run_lane(world, second, APART).success
    world.assert_all_landed_once()
    world.send_numbered(100)
    assert lane(world) in asked_lanes(world, second)


def test_a_topic_that_is_slow_is_moved_out_of_the_way(world: World, second: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-97] By the time that its job takes: for ten minutes, and it says so; what shared that job goes with it at first."""
    world.later(0)
    slow_down(monkeypatch, world, world.name)
    assert run_lane(world, second, lane(world)).success, "slow is no failure"
    world.assert_all_landed_once()
    world.send_numbered(100)
    assert asked_lanes(world, second) == sorted([APART, lane(second)])
    assert run_lane(world, second, lane(second)).success
    assert run_lane(world, second, lane(world)).success
    assert len(world.pending) == 1, "its lane has nothing to do with it any more"
    assert run_lane(world, second, APART).success
    world.assert_all_landed_once()
    expected = f"slow, so apart for ten minutes, or until a job of its own is quick: raw/{world.name};"
    assert expected in said(world, second.topic)

    monkeypatch.undo()
    world.send_numbered(100)
    world.later(700_000)
    assert asked_lanes(world, second) == [lane(world)]


def test_the_topics_apart_are_read_one_by_one(world: World, second: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-97] Else nobody could say which of them is the slow one; one that is not goes back at once."""
    world.later(0)
    with monkeypatch.context() as slow:
        slow_down(slow, world, world.name, second.name)
        for each in (world, second):
            assert run_lane(world, second, lane(each)).success
            each.send_numbered(100)
    assert asked_lanes(world, second) == [APART], "the fault"
    scans = []
    world.adapters.watch_step = lambda step, **fields: scans.append(fields["topic"]) if step == "scan" else None
    assert run_lane(world, second, APART).success
    assert sorted(scans) == sorted([world.name, second.name])
    for each in (world, second):
        each.assert_all_landed_once()
        each.send_numbered(100)
    assert asked_lanes(world, second) == ["0", "1"]


def test_decoding_that_is_slow_is_moved_out_of_the_way(world: World, second: World) -> None:
    """[R-97] As a decoder may be slow that reads quickly."""
    world.topic = dataclasses.replace(world.topic, decode=Decode())
    world.later(0)

    def watch(step: str, **_: Any) -> None:
        world.later(90_000 if step == "read_landed" else 0)

    world.adapters.watch_step = watch
    assert run_lane(world, second, lane(world)).success
    world.send_numbered(100)
    assert asked_lanes(world, second) == sorted([APART, lane(second)])


@pytest.mark.parametrize("lanes", [2, 1])
def test_failed_decoding_stops_no_landing(world: World, second: World, monkeypatch: pytest.MonkeyPatch, lanes: int) -> None:
    """[R-97] By the run of whichever lane it is in; one lane is the control."""
    world.settings = world.adapters.settings = dataclasses.replace(world.settings, lanes=lanes)
    world.topic = dataclasses.replace(world.topic, decode=Decode())
    world.later(0)
    monkeypatch.setattr(Adapters, "decode_tools", Mock(side_effect=LakeUnavailable("the fault")))
    lanes_of_runs = set()
    for _ in range(4):
        world.send_numbered(100)
        for request in ask(world, second.topic).run_requests or ():
            if request.job_name == LAND_PENDING:
                lanes_of_runs.add(request.tags.get(LANE_TAG))
                run_job(world, LAND_PENDING, second.topic, tags=dict(request.tags))
        assert not world.pending
        world.later(700_000)
    assert (APART in lanes_of_runs) is (lanes > 1), "the fault moves it"


def test_a_pool_that_a_wipe_left_without_slots_has_them_again(world: World) -> None:
    """[R-34] L3: `dagster run wipe` leaves limits, and no slots: whatever is in such a pool would be queued for ever."""
    world.create_topic()
    chosen, closed = "somebody_else", "closed"
    ask(world)
    storage = world.instance.event_log_storage
    pool = world.topic.landing.pool
    storage.set_concurrency_slots(chosen, 3)
    storage.set_concurrency_slots(closed, 0)

    def slots() -> dict[str, int]:
        return {name: found.slot_count for name, found in storage.get_concurrency_infos([pool, chosen, closed]).items()}

    before = slots()
    assert before == {pool: 1, chosen: 3, closed: 0}
    assert world.instance.get_concurrency_config().pool_config.pool_granularity is PoolGranularity.RUN
    world.instance.wipe()
    assert slots() == dict.fromkeys(before, 0) and pool in storage.get_concurrency_keys(), "the fault"
    ask(world)
    assert slots() == before


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_backfill_of_many_runs_keeps_those_of_other_topics_from_no_slot(tmp_path: Path, *, is_ours: bool) -> None:
    """[R-34] Nor landing from the last one. The control has no limit for each backfill."""
    config = (PROJECT / "dagster.yaml").read_text()
    for_each = "      - {key: dagster/backfill, value: {applyLimitPerUniqueValue: true}, limit: 1}\n"
    assert for_each in config
    (tmp_path / "dagster.yaml").write_text(config if is_ours else config.replace(for_each, ""))
    with open_instance(tmp_path) as instance:

        def queue(topic: str, **tags: str) -> DagsterRun:
            land = dg.OpDefinition(lambda _: None, name="land", pool=topic)
            job = dg.GraphDefinition(topic, node_defs=[land]).to_job()
            plan = snapshot_from_execution_plan(create_execution_plan(job), job.get_job_snapshot_id())
            return queue_run(instance, tags=tags, job_snapshot=job.get_job_snapshot(), execution_plan_snapshot=plan)

        first, *_ = [queue("large", **{BACKFILL_TAG: "large"}) for _ in range(5)]
        others = [queue(topic, **{BACKFILL_TAG: topic}) for topic in "bcd"]
        landing = queue("all")
        for _ in range(2):  # the first time it makes the pools
            chosen = QueuedRunCoordinatorDaemon(1)._get_runs_to_dequeue(instance, instance.get_concurrency_config(), None)
    expected = [first, *(others[:2] if is_ours else []), landing]
    assert [run.run_id for run in chosen] == [run.run_id for run in expected]


ASKED = {LOCATION_TAG: ""}
QUEUE = "QUEUED_RUN_COORDINATOR"


@pytest.fixture
def filled(world: World) -> World:
    """A topic with planned ranges, over which Dagster's daemon watches."""
    world.fill(250)
    world.hear_daemon("SENSOR", QUEUE)
    return world


def start(world: World, run: DagsterRun) -> None:
    for kind in (dg.DagsterEventType.RUN_STARTING, dg.DagsterEventType.RUN_START):
        world.instance.report_dagster_event(dg.DagsterEvent(kind.value, run.job_name), run.run_id)


def fill_slots(world: World) -> tuple[list[DagsterRun], DagsterRun]:
    """Have runs of others take each slot; return them, and one of the pulse that waits for one."""
    holders = [queue_run(world.instance, "others") for _ in range(4)]
    for run in holders:
        start(world, run)
    return holders, queue_run(world.instance, LAND_PENDING, tags=ASKED)


def since(world: World, run: DagsterRun) -> str:
    record = world.instance.get_run_record_by_id(run.run_id)
    assert record is not None
    return time_text(int((record.start_time or record.update_timestamp.timestamp()) * 1000))


def all_say(world: World) -> list[str]:
    tick = sensor_says(world)
    found = read_progress(world.topic, world.coverage, world.adapters, world.known)
    finding = check_progress(world.topic, found, world.instance, world.adapters.now_ms())
    return [tick, finding.looked_at, world.status()["next_action"]]


def test_a_persons_queued_backfill_does_not_keep_out_what_arrives(filled: World) -> None:
    """[R-31] However long it is; and the pulse's run goes before it in the queue."""
    for _ in range(5):
        queue_run(filled.instance, "__ASSET_JOB", tags={**filled.topic.landing.tags, BACKFILL_TAG: "b"})
    (request,) = ask(filled).run_requests or ()
    assert int(request.tags["dagster/priority"]) > 0


def test_full_run_slots_are_named_with_who_holds_them_and_since_when(filled: World) -> None:
    """L1: never that there is nothing to do."""
    filled.tick()
    holders, own = fill_slots(filled)
    for text in all_say(filled):
        assert NOTHING not in text
        assert f"run {own.run_id[:8]} of {own.job_name} is queued since {since(filled, own)}" in text
        assert "4 of 4 run slots are taken by " in text
        assert all(f"run {run.run_id[:8]} of others (started since {since(filled, run)})" in text for run in holders)


def test_a_run_that_lands_nothing_and_a_daemon_that_is_silent_are_named(filled: World) -> None:
    filled.tick()
    own = queue_run(filled.instance, LAND_PENDING, tags=ASKED)
    filled.hear_daemon(QUEUE, ago_seconds=600)
    assert all("Dagster's daemon, which would start it, is silent" in text for text in all_say(filled))
    start(filled, own)
    filled.with_policy(max_age_seconds=10**6)
    found = read_progress(filled.topic, filled.coverage, filled.adapters, filled.known)
    assert " is at work since " in found.blocked and found.blocked.endswith(" and has landed nothing yet")
    filled.land()
    assert not read_progress(filled.topic, filled.coverage, filled.adapters, filled.known).blocked


def test_what_is_derived_says_what_blocks_it_and_since_when(world: World) -> None:
    """L1: decoding and latest in the words of landing; for decoding `status` and the progress check say it too."""
    configure(world)
    world.topic = dataclasses.replace(world.topic, latest=Latest())
    world.create_topic()
    world.hear_daemon("SENSOR", QUEUE)
    world.send(event("2013-01-01", n) for n in range(50))
    world.plan_and_land()
    holders, own = fill_slots(world)
    blocked = (
        f"run {own.run_id[:8]} of {LAND_PENDING} is queued since {since(world, own)}: 4 of 4 run slots are taken by run "
        f"{holders[0].run_id[:8]} of others"
    )

    key = world.topic.check_key(PROGRESS)
    (progress,) = (each for each in build_checks(world.topic) if key in each.check_keys)
    result = progress(dg.build_asset_check_context(instance=world.instance), adapters=world.adapters)
    advice = world.status()["next_action"]
    landed = time_text(min(each.provenance.landed_at_ms for each in world.coverage.manifests.values()))
    for text in (sensor_says(world), str(result.metadata["looked_at"].value), advice):
        assert f"to be decoded since {landed}: {blocked}" in text
        assert NOTHING not in text
    world.decode()
    assert "to be decoded" not in sensor_says(world), "the control"
    assert f"for an update: {blocked}" in sensor_says(world)


def test_a_tail_that_waits_for_its_age_says_so(world: World) -> None:
    """U18, U22: 0 pending ranges are not nothing."""
    world.create_topic()
    world.hear_daemon("SENSOR", QUEUE)
    world.with_policy(max_age_seconds=3600)
    world.later(0)
    world.send([{"partition": 0, "value": b"v", "timestamp_ms": world.adapters.now_ms() - 100_000}] * 40)
    for text in all_say(world):
        assert "40 records wait for a full range, the oldest for 100 s, cut at 60 min" in text
