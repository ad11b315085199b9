"""Where a topic stands, on a real broker: lag in offsets, bytes and seconds, what stands still, what to do; and its map."""

import dataclasses
import os
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.adapters.kafka.kafka_glance import Observation
from pipeline_defs.adapters.lake.layout import data_path
from pipeline_defs.adapters.system.locks import share
from pipeline_defs.adapters.telemetry.prometheus import metrics_text
from pipeline_defs.cli.look import glance
from pipeline_defs.core.advice import NOTHING
from pipeline_defs.core.errors import BrokerRefuses, NoLeader
from pipeline_defs.core.landing.picture import CAUSES, NOT_LANDED, UNDECODED, LinkLook
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.planning import plan
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.operate.metrics import read_metrics
from pipeline_defs.operate.reports import check_broker
from pipeline_defs.operate.status import find_instance, read_left_behind, read_statuses
from pipeline_defs.orchestration.assets.checks import MAPPED
from pipeline_defs.orchestration.choosing import select_times
from pipeline_defs.orchestration.home.run_locks import CODE_SERVER
from pipeline_defs.orchestration.map.page import read_picture, summary
from pipeline_defs.orchestration.runs import progress
from pipeline_defs.orchestration.runs.ledger import Endangered, accept_loss, check_expiry, read_endangered, read_ledger
from pipeline_defs.orchestration.runs.moments import time_text
from pipeline_defs.orchestration.runs.tries import UPDATE, trying, trying_all
from pipeline_defs.orchestration.topic_set import TopicFiles
from pipeline_defs.resources import Adapters
from pipeline_defs.topics import LAND_PENDING, NOTHING_LOST, PROGRESS, TIME_TO_LOSS
from tests.support.pulse import audited, check_of, said
from tests.support.world import World

HOUR_MS = 3600 * 1000


def test_from_waiting_to_landed_every_number_and_sentence_follows(world: World) -> None:
    """Lag is counted against what the producer sent; the sentence names the command that brings it on."""
    world.create_topic(2)
    real_now = world.adapters.now_ms
    world.send([{"partition": 0, "value": bytes(1000), "timestamp_ms": real_now() - 600_000}] * 150)
    world.send_numbered(30, partition=1)
    now = world.status()
    assert [row["lag"] for row in now["partitions"]] == [150, 30] and now["lag"] == 180
    assert 600 <= now["lag_seconds"] < 660
    sizes = world.adapters.kafka(world.topic).read_sizes(world.name, [0, 1])
    assert now["lag_bytes"] == sum(sizes.values()), "all of the log waits"
    assert now["next_action"].startswith(f"plan 180 offsets: `offsetlake plan {world.name} --through-end --apply`")
    world.hear_daemon("SENSOR")
    assert world.status()["next_action"] == (f"{NOTHING}: 180 records wait for a full range, the oldest for 10 min, cut at 0 s")
    world.plan()
    said = world.status()["next_action"]
    assert said.startswith("wait: 3 ranges pending since ") and said.endswith(": the next run takes them")
    by_hand = f"land 3 ranges: `offsetlake land {world.name} --pending`"
    descriptor = share(Path(world.instance.root_directory) / CODE_SERVER)
    assert not world.status()["next_action"].startswith(by_hand), "the control: Dagster's code server is there"
    ranges = [offsets for offsets in world.pending if offsets.partition == 1]
    in_the_way = world.lake_folder / "data" / world.name / "g0"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("in the way")
    assert not world.try_launch(ranges)[0].succeeded, "the fault"
    now = world.status()
    assert (now["failed_ranges"], now["pending_ranges"], now["lag"]) == (1, 3, 180)
    assert now["next_action"].startswith("1 range failed and is tried again")
    in_the_way.unlink()
    os.close(descriptor)
    assert world.status()["next_action"].startswith(by_hand), "it was killed: its daemon goes on, and asks for nothing"
    world.hear_daemon("SENSOR", ago_seconds=600)
    assert world.status()["next_action"].startswith(by_hand)

    world.launch(ranges)
    now = world.status()
    assert (now["failed_ranges"], now["lag"], now["pending_ranges"], now["landed_ranges"]) == (0, 150, 2, 1)
    assert now["landed_per_second"] > 0
    assert [row["lag_seconds"] is None for row in now["partitions"]] == [False, True]
    world.land()
    now = world.status()
    assert (now["lag"], now["lag_bytes"], now["lag_seconds"], now["seconds_to_loss"]) == (0, 0, None, None)
    assert now["next_action"] == f"{NOTHING}: everything is landed"
    assert abs(now["last_landed_at_ms"] - real_now()) < 60_000
    world.adapters.now_ms = lambda: real_now() + 3_600_000
    assert world.status()["landed_per_second"] == 0


def test_looking_at_a_topic_that_the_broker_lacks_says_so_and_creates_no_instance(world: World, tmp_path: Path) -> None:
    home = tmp_path / "no-dagster"
    with find_instance(home) as instance:
        ((answer, _),) = read_statuses([world.topic], world.adapters, instance)
        assert isinstance(instance, dg.DagsterInstance)
    assert f"topic {world.name} does not exist" in answer["error"]
    assert answer["next_action"].startswith(f"create the topic {world.name} on the broker, or delete its defs.yaml")
    assert not home.exists()


def test_ranges_that_nothing_lands_for_want_of_a_defs_yaml_are_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """It was renamed, say: with its defs.yaml, or once all is landed, nothing is said."""
    world.create_topic(1)
    world.send_numbered(1, 0)
    world.plan()
    without = TopicFiles(Mock(), {})
    assert not [*read_left_behind(TopicFiles(Mock(), {world.name: world.topic}), world.adapters)], "the control"
    (left,) = read_left_behind(without, world.adapters)
    assert left["topic"] == world.name
    assert left["next_action"].startswith(
        "no defs.yaml names it, or it is excluded, so what is planned, 1 range, does not land;"
    )
    glance.print_status([left], 0, by_partition=False)
    assert f"{world.name}: no defs.yaml names it" in capsys.readouterr().out
    world.land()
    assert not [*read_left_behind(without, world.adapters)]
    (world.lake_folder / "plan" / world.name / "x.json").write_text("{")
    (left,) = read_left_behind(without, world.adapters)
    assert "and cannot be read: " in left["next_action"], "a topic that nobody configures ends no command"


def test_what_is_wrong_with_a_topic_or_a_partition_of_it_hides_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-90] Of what nobody leads the lake's part is told, and that nobody does; a refusal is its topic's alone."""
    other, observe = world.beside(), Kafka.observe
    world.fill(30, 20)
    other.fill(10)
    world.plan_and_land()
    world.send_numbered(7)

    def without_leader(kafka: Kafka, topic: str, level: str) -> Observation:
        seen = observe(kafka, topic, level)
        if topic == other.name:
            raise BrokerRefuses("not allowed")
        led = {p: marks for p, marks in seen.watermarks.items() if p != 1}
        return dataclasses.replace(seen, watermarks=led, leaderless=(1,))

    monkeypatch.setattr(Kafka, "observe", without_leader)
    for topics in ([other.topic, world.topic], [world.topic, other.topic]):
        found = {each["topic"]: each for each, _ in read_statuses(topics, world.adapters, world.instance)}
        now = found[world.name]
        assert [(row["landed_offset"], row["lag"]) for row in now["partitions"]] == [(30, 7), (20, None)] and now["lag"] == 7
        assert f"{world.name}/1: no broker that answers us leads it" in now["next_action"]
        assert found[other.name]["kind"] == "broker_refuses"
        text = metrics_text(read_metrics(topics, world.adapters, world.instance))
        ups = {line.rpartition(" ")[0]: line[-3:] for line in text.splitlines() if line.startswith("offsetlake_up{")}
        assert ups == {f'offsetlake_up{{topic="{world.name}"}}': "1.0", f'offsetlake_up{{topic="{other.name}"}}': "0.0"}


def test_what_is_lost_stays_lost_while_nobody_leads_its_partition(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] Else a broker that is silent would make a loss green, and a choice by time would leave out what waits."""
    observe = Kafka.observe
    world.fill(30, 20)
    world.plan_and_land()
    world.send_numbered(9, 1)
    world.plan()
    (waiting,) = world.pending
    world.delete_records(1, 25)

    def is_lost() -> bool:
        world.tick()
        return not check_of(world, world.topic.check_key(NOTHING_LOST)).passed

    def without_leader(kafka: Kafka, topic: str, level: str) -> Observation:
        seen = observe(kafka, topic, level)
        return dataclasses.replace(seen, watermarks={0: seen.watermarks[0]}, leaderless=(1,))

    assert is_lost(), "the control"
    monkeypatch.setattr(Kafka, "observe", without_leader)
    assert is_lost(), "nobody can say that it is no loss any more"
    for ask in (
        lambda: read_ledger(world.topic, world.adapters),
        lambda: accept_loss(world.topic, waiting.key, world.adapters, "ada"),
        lambda: select_times(world.topic, world.coverage, 0, world.adapters.now_ms(), world.adapters),
    ):
        with pytest.raises(NoLeader, match=f"leads {world.name}/1; nothing was written"):
            ask()
    assert f"{world.name}/1: no broker that answers us" in check_broker(world.topic, world.adapters).violations[0]


def endangered(world: World) -> list[Endangered]:
    marks = world.adapters.kafka(world.topic).read_watermarks(world.name, world.topic.policy.isolation_level)
    return read_endangered(world.topic, world.coverage, marks, world.adapters)


def test_the_alarm_warns_then_fails_and_the_records_are_still_there(world: World) -> None:
    """[R-43] As retention comes closer the check passes, warns, fails, each before the first record goes."""
    world.create_topic(2, retention_ms=str(10 * HOUR_MS))
    real_now = world.adapters.now_ms
    began_ms = real_now()  # the clock stands but for whole hours, however slow the machine is
    world.send([{"partition": 0, "value": b"old", "timestamp_ms": began_ms - HOUR_MS}])
    seen = []
    for hours in (1, 6, 8):
        world.adapters.now_ms = lambda hours=hours: began_ms + (hours - 1) * HOUR_MS
        world.tick()
        alarm = world.checked(world.topic.check_key(TIME_TO_LOSS))
        seen.append(alarm and (alarm.passed, alarm.severity))
        (waiting,) = endangered(world)
        assert waiting.partition == 0 and waiting.seconds is not None
        assert abs(waiting.seconds - (10 - hours) * 3600) < 60
        assert alarm is None or abs(float(str(alarm.metadata["seconds_to_loss"].value)) - (10 - hours) * 3600) < 60
    assert seen == [None, (False, WARN), (False, ERROR)], "that all is well is not news"
    assert alarm is not None
    assert f"{world.name}/0: offset 0 is not landed and may be deleted in 12" in str(alarm.metadata["offsets"].value)
    assert world.watermarks(0).earliest == 0, "the alarm came before the loss"
    world.adapters.now_ms = real_now
    world.land()
    world.assert_all_landed_once()
    world.tick()
    last = world.checked(world.topic.check_key(TIME_TO_LOSS))
    assert last is not None and last.passed, "the control: what is landed is not endangered"
    assert endangered(world) == []


def test_retention_by_bytes_is_foreseen_from_how_fast_the_log_grows(world: World) -> None:
    """[R-43] The rate is that of the plan log's own watermarks."""
    world.create_topic(1, retention_bytes=str(10_000_000))
    world.send_numbered(1000)
    world.plan()
    world.send({"partition": 0, "value": bytes(1000)} for _ in range(1000))
    (waiting,) = endangered(world)
    assert waiting.seconds is not None and waiting.share is not None
    assert waiting.seconds > 0 and 0 < waiting.share < 1
    world.alter_topic(retention_bytes="1000")
    (waiting,) = endangered(world)
    assert waiting.seconds == 0.0
    assert not check_expiry(world.topic, [waiting]).is_warning


def test_the_most_endangered_partition_is_planned_first(world: World) -> None:
    """[R-7] A budget too small for all goes first to whose records the broker deletes first."""
    world.create_topic(3, retention_ms=str(10 * HOUR_MS))
    now = world.adapters.now_ms()
    for partition, hours in ((0, 2), (1, 7), (2, 4)):
        world.send([{"partition": partition, "value": b"v", "timestamp_ms": now - hours * HOUR_MS}])
    kafka, lake = world.adapters.kafka(world.topic), world.adapters.lake
    world.with_policy(budget=1)
    log_state = lake.read_plan_log(world.name).state
    state = kafka.read_topic_state(world.name, log_state, world.topic.policy, now)
    assert [round(part.seconds_to_loss or 0) for _, part in sorted(state.partitions.items())] == [28800, 10800, 21600]
    step = plan(log_state, state, world.topic.policy, now)
    assert step is not None
    assert [offsets.partition for offsets in step.ranges] == [1]


def test_a_record_of_the_future_hides_nobodys_waiting(world: World) -> None:
    """[R-55] It is told since when its range is planned: a lag of 0 would have an alert sleep; an honest one says it itself."""
    now = world.adapters.now_ms()
    world.create_topic(2)
    world.send([{"partition": p, "value": b"v", "timestamp_ms": now + ahead} for p, ahead in ((0, 1_800_000), (1, 0))])
    world.plan()
    world.later(60_000)
    status = world.status()
    assert [60 <= row["lag_seconds"] < 100 for row in status["partitions"]] == [True, True], status["partitions"]


MINUTE_MS = 60_000
ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


def told(world: World) -> list[dg.AssetCheckEvaluation]:
    """Return what Dagster was told of the check, oldest first."""
    records = world.instance.event_log_storage.get_asset_check_execution_history(world.topic.check_key(PROGRESS), limit=100)
    found: list[Any] = [each.event.dagster_event.event_specific_data for each in records if each.event]  # type: ignore[union-attr]
    return list(reversed(found))


def test_publishing_that_fails_thrice_is_red_and_the_sensor_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-56] [R-33] In the failed run's own words; of another range that fails meanwhile people are told too."""
    world.fill(100)
    world.tick()
    real_now = world.adapters.now_ms
    in_the_way = world.lake_folder / "data" / world.name / "g0"  # staging and committing go on, publishing fails
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("in the way")
    for number in range(3):
        assert not told(world), "twice may be bad luck"
        (run,) = world.try_launch()
        assert not run.succeeded
        assert str(in_the_way) in run.reason, "the fault"
        if number < 2:
            assert "stalled" not in said(world)
    first, *_, last = sorted(world.instance.get_run_records(), key=lambda record: record.end_time or 0)
    sentence = said(world)
    (red,) = told(world)
    assert (red.passed, red.severity, red.metadata["concerns"].value) == (False, ERROR, "0-0-100")
    assert sentence.count("stalled: ") == 1
    for text in (sentence, *(str(each.metadata["offsets"].value) for each in (red, audited(world, PROGRESS)))):
        assert f"range {world.name}/0 [0, 100) has failed 3 times in a row since" in text
        ended = int((first.end_time or 0) * 1000)  # it is noted just before, which may be another second
        since = {
            f"since {time_text(ms)}, last in run {last.dagster_run.run_id[:8]}" for ms in range(ended - 10_000, ended + 1, 500)
        }
        assert any(each in text for each in since)
        assert str(in_the_way) in text
    world.tick()
    assert len(told(world)) == 2, "the tick's and the audit's: the same again is no news"
    world.send_numbered(100)
    world.tick()
    for _ in range(3):
        world.try_launch()
    world.tick()
    world.tick()
    assert [each.metadata["concerns"].value for each in told(world)][1:] == ["0-0-100", "0-0-100, 0-100-200"]
    monkeypatch.setattr(progress, "REASONS", 1)
    found = progress.read_progress(world.topic, world.coverage, world.adapters, world.known)
    texts = progress.check_progress(world.topic, found, world.instance, world.adapters.now_ms()).violations
    assert [str(in_the_way) in text for text in texts] == [True, False], "of many the first ones say why"
    in_the_way.unlink()
    world.later(60_000)
    assert world.tick().due, "stalled is still due"
    world.adapters.now_ms = real_now
    world.launch()
    world.assert_all_landed_once()
    assert world.tick().stalled == ()
    assert [each.passed for each in told(world)] == [False, False, False, True]
    assert audited(world, PROGRESS).passed


def test_what_is_derived_and_fails_thrice_is_red_and_says_why_once_the_run_has(world: World) -> None:
    """[R-56] [R-33] In the words that the run has for it alone: others failed in it as well."""
    world.derive("id BIGINT", latest=Latest())
    world.fill(30)
    world.plan_and_land()
    (offsets,) = world.coverage.manifests
    runs = [create_run_for_test(world.instance, job_name=LAND_PENDING, status=dg.DagsterRunStatus.STARTED) for _ in range(2)]
    duties = {world.topic.decoding: [offsets.key], world.topic.upserting: [UPDATE]}

    def derive(run: dg.DagsterRun, *well: str) -> None:
        with trying_all(world.instance, duties, run.run_id, world.adapters.now_ms) as done:
            for each in done.values():
                each.update(well)

    for _ in range(3):
        derive(runs[0])
    assert not world.tick().stalled and not told(world), "it has not said why"
    others = [f"range {name}/0 [0, 30): theirs" for name in (f"eu.{world.name}", "other")] + ["topic other: theirs"]
    ours = [f"range {world.name}/0 [0, 30): ours", f"topic {world.name}: full"]
    reasons = ["5 failed", *others, *ours, f"range {world.name}/0 [0, 300): later"]
    world.instance.report_run_failed(runs[0], "\n  - ".join(reasons))
    decoding, updating = world.tick().stalled
    assert decoding.startswith(f"decoding range {world.name}/0 [0, 30) has failed 3 times in a row since ")
    assert decoding.endswith(f", last in run {runs[0].run_id[:8]}: {' '.join(ours)}")
    assert updating.startswith(f"updating latest/{world.name} has failed 3 times in a row since ")
    assert updating.endswith(f", last in run {runs[0].run_id[:8]}: {ours[1]}")
    (red,) = told(world)
    assert (red.passed, red.severity, red.metadata["concerns"].value) == (False, ERROR, f"decoding {offsets.key}, updating")
    assert world.status()["next_action"].startswith(decoding)
    derive(runs[1], offsets.key, UPDATE)
    assert not world.tick().stalled and [each.passed for each in told(world)] == [False, True]


def test_a_folder_in_the_place_of_a_file_is_a_failure_and_no_success(world: World) -> None:
    """[R-56] To put-if-absent it is as if the file were there: the range must not pass for landed."""
    world.fill(100)
    world.plan()
    (offsets,) = world.pending
    in_the_way = world.lake_folder / data_path(world.name, offsets)
    in_the_way.mkdir(parents=True)
    for _ in range(2):  # committed and not published, then not rolled forward
        (verdict,) = world.land()
        assert verdict.outcome is Outcome.FAILED
        assert f"cannot publish {in_the_way}: what stands there is no file" in verdict.violations[0]
    in_the_way.rmdir()
    world.land()
    world.assert_all_landed_once()


def test_a_range_that_nobody_lands_is_named_with_since_when(world: World) -> None:
    """[R-56] Planned, asked for, and nothing happens: after 15 minutes an error; while a run is at work, a warning."""
    world.fill(100)
    world.tick()
    planned_at_ms = world.coverage.log.ranges[world.pending[0]].planned_at_ms
    world.later(14 * MINUTE_MS)
    assert world.tick().stalled == () and not told(world), "the control: not yet"
    world.later(2 * MINUTE_MS)
    (sentence,) = world.tick().stalled
    since = f"range {world.name}/0 [0, 100) waits and nothing of {world.name}/0 has landed since {time_text(planned_at_ms)}"
    assert sentence.startswith(since)
    assert "no run is landing it" in sentence
    run = create_run_for_test(world.instance, status=dg.DagsterRunStatus.STARTED)
    at_it = trying(world.instance, world.topic.landing, ["0-0-100"], run.run_id, world.adapters.now_ms)
    at_it.__enter__()
    (sentence,) = world.tick().stalled
    assert f"run {run.run_id[:8]} (STARTED) is landing it" in sentence
    assert [(each.passed, each.severity) for each in told(world)] == [(False, ERROR), (False, WARN)]
    world.instance.report_run_failed(run)
    world.land()
    world.tick()
    assert told(world)[-1].passed


def test_records_that_nobody_plans_are_found_by_the_audit(world: World) -> None:
    """[R-56] The sensor does not run: the nightly audit says which partition waits, and since when."""
    world.fill(100)
    world.later(14 * MINUTE_MS)
    assert audited(world, PROGRESS).passed, "the control: not yet"
    world.later(2 * MINUTE_MS)
    red = audited(world, PROGRESS)
    assert (red.passed, red.severity) == (False, ERROR)
    arrived_ms = min(row.timestamp_ms for row in world.sent.values())
    text = str(red.metadata["offsets"].value)
    assert f"{world.name}/0: offset 0 is in no range, waits" in text
    assert f"has landed since {time_text(arrived_ms)}" in text
    assert "have the sensor land_pending run" in text


@pytest.mark.parametrize("count", [0, 100])
def test_an_idle_topic_makes_no_event_and_no_alarm(world: World, count: int) -> None:
    """[R-56] Empty, or landed and then quiet for a month: nothing is told, nothing is asked for."""
    world.fill(count)
    world.tick()
    world.launch()
    world.later(61_000)  # the last word on its lag, which is told once a minute at most
    world.tick()
    storage = world.instance.event_log_storage
    before = storage.get_maximum_record_id()
    for _ in range(3):
        world.later(10 * 24 * 60 * MINUTE_MS)
        tick = world.tick()
        assert (tick.stalled, tick.due, tick.planned) == ((), (), 0)
        assert "stalled" not in said(world)
    assert not told(world)
    assert storage.get_maximum_record_id() == before
    assert audited(world, PROGRESS).passed


def test_the_map_shows_what_is_landed_failed_lost_and_still_to_come(world: World) -> None:
    world.create_topic(2)
    with world.begin_transaction() as producer:
        world.send([{"partition": 0, "value": b"x"}] * 80, producer)
        producer.commit_transaction()
    world.send_numbered(130, partition=1)
    world.wait_until(lambda: world.watermarks(0).end == 81)
    world.plan()
    (landed,) = world.launch([offsets for offsets in world.pending if offsets.partition == 0])
    in_the_way = world.lake_folder / "data" / world.name / "g0" / "p0001"
    in_the_way.write_text("in the way")
    first = [offsets for offsets in world.pending if offsets.key == "1-0-100"]
    (failed,) = world.try_launch(first)
    assert not failed.succeeded, "the fault"
    in_the_way.unlink()
    world.delete_records(1, 110)
    world.wait_for_earliest(1, 110)
    world.send_numbered(7, partition=1)

    picture, remark = read_picture(world.topic, world.adapters, world.instance)
    assert remark == ""
    assert [(line.partition, line.count, line.earliest, line.end) for line in picture.lines] == [
        *((0, 1, 0, 81), (1, 2, 110, 137))
    ]
    assert [LinkLook(look) for look in picture.looks] == [LinkLook.LANDED, LinkLook.FAILED, LinkLook.PLANNED]
    assert [picture.run_ids[run] for run in picture.runs] == [landed.run_id, failed.run_id, ""]
    gone = Counter({(at, CAUSES[cause].value): count for at, cause, count in picture.totals})
    assert gone == {(0, "transaction_marker"): 1, (1, "lost"): 100, (2, "lost"): 10}
    assert picture.notes[1].startswith("failed 1 times in a row; 100 offsets deleted by the broker")

    away = Adapters(dataclasses.replace(world.settings, bootstrap_servers="127.0.0.1:1"), kafka_timeout_seconds=1)
    alone, remark = read_picture(world.topic, away, world.instance)
    assert "From the lake alone: the Kafka broker at 127.0.0.1:1 does not answer" in remark
    assert alone.looks == picture.looks and {line.end for line in alone.lines} == {None}


def test_the_audit_writes_the_map_of_the_longest_name_and_shows_it_in_words(world: World) -> None:
    """Of 249 characters, which Dagster allows in no name: runs, keys, checks and the map's file work as ever."""
    world.topic = dataclasses.replace(world.topic, name=f"{world.name}{'-._' * 79}-")
    assert len(world.name) == 249
    world.fill(250)
    world.plan()
    world.launch(world.pending[:2])
    assert world.materialized() == {"0-0-100", "0-100-200"}
    assert world.rows() == sorted(row for (_, offset), row in world.sent.items() if offset < 200)
    world.settings = world.adapters.settings = dataclasses.replace(
        world.settings, home=world.folder, pages_url="http://127.0.0.1:9308"
    )
    check = audited(world, MAPPED)
    path, words = check.metadata["map"].value, check.metadata["coverage"].value
    assert check.passed and isinstance(check.metadata["map"], dg.PathMetadataValue)
    assert Path(str(path)) == world.folder / "maps" / f"{world.name}.html"
    assert f"<title>coverage of {world.name}</title>" in Path(str(path)).read_text()
    assert check.metadata["open_the_map"] == dg.MetadataValue.url(f"http://127.0.0.1:9308/map/{world.name}")
    assert "p 0 " + "█" * 40 + "░" * 10 in str(words)
    assert "| p 0 | 2 | 1 | 0 | 0 | 0 | 0 |" in str(words)


def test_the_map_shows_what_is_decoded_what_waits_and_what_was_set_aside(world: World) -> None:
    """[R-90] A decoded table that cannot be read takes the rest of the map not along."""
    world.derive("n BIGINT")
    world.create_topic()
    world.send({"partition": 0, "value": b"{cut off" if n in {3, 5} else b'{"n": 1}'} for n in range(400))
    world.plan()
    world.land(["0-0-100", "0-100-200", "0-200-300"])
    world.decode(["0-0-100", "0-100-200"])
    picture, _ = read_picture(world.topic, world.adapters, world.instance)
    assert picture.dead_letters.tolist() == [2, 0, UNDECODED, NOT_LANDED]
    assert "| ranges of | landed | planned |" in summary(picture) and "| decoded | not decoded yet | dead letters |" in (
        summary(picture)
    )
    assert "| p 0 | 3 | 1 | 0 | 0 | 0 | 0 | 2 | 1 | 2 |" in summary(picture)
    (world.lake_folder / "tables" / "decoded" / world.name / "_delta_log" / f"{1:020d}.json").write_text("{torn")
    broken, remark = read_picture(world.topic, Adapters(world.settings), world.instance)
    assert "What is decoded cannot be read: " in remark and f"{1:020d}.json" in remark
    assert not broken.dead_letters and broken.looks == picture.looks
    assert "| p 0 | 3 | 1 | 0 | 0 | 0 | 0 |\n" in f"{summary(broken)}\n"
