"""What keeps Dagster usable and its people informed: retiring old keys, rebuilding, alerts, sweeping on a schedule."""

import dataclasses
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import dagster as dg
import pytest
from dagster import DagsterRun
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.test_utils import create_run_for_test

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.cli.launching import choose_ranges
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import BadSetting
from pipeline_defs.core.landing.selection import retired
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.tables.days import Days, EventTime
from pipeline_defs.core.tables.decoding import Budget
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.operate import alerts
from pipeline_defs.operate.alerts import build_failure_sensor, build_watch, watch_tables
from pipeline_defs.operate.reports import trace_row
from pipeline_defs.orchestration.assets.checks import QUICK
from pipeline_defs.orchestration.assets.decoded_asset import report_days
from pipeline_defs.orchestration.backfilling import BackfillRequest, launch_backfill
from pipeline_defs.orchestration.pulse.rebuilding import rebuild_topic
from pipeline_defs.orchestration.runs.ledger import accept_loss, acceptance_text, read_ledger
from pipeline_defs.orchestration.runs.projection import RANGE_END, RANGE_START
from pipeline_defs.orchestration.runs.siblings import BACKFILL_TAG, TRIED_BY_TAG, end_siblings, read_landed_by, read_siblings
from pipeline_defs.orchestration.runs.tries import trying
from pipeline_defs.orchestration.topic_set import Broken
from pipeline_defs.orchestration.upkeep import pruning
from pipeline_defs.orchestration.upkeep.housekeeping import RETIRE, SWEEP
from pipeline_defs.tables.deleting import SWEEP_AFTER_SECONDS, sweep_orphans
from pipeline_defs.topics import REDO_TAG, TOPIC_TAG, Topic
from tests.support.commands import commands_of
from tests.support.killing import stopped_at
from tests.support.pulse import evaluate, queue_asset_run, refuse, requests_of, run_job
from tests.support.registry import Answering, recording, serving
from tests.support.world import World


def fill(world: World, ranges: int, max_keys: int) -> list[str]:
    """Plan so many ranges of 10 records and register them; Dagster is to show `max_keys` of them."""
    world.with_policy(records_per_range=10)
    world.topic = dataclasses.replace(world.topic, max_keys=max_keys)
    world.fill(10 * ranges)
    world.tick()
    return [offsets.key for offsets in world.coverage.log.ranges]


def test_old_landed_keys_are_retired_and_brought_back_by_command(world: World) -> None:
    """Audit and trace see them; no tick brings one back, `land --key` does; the lake alone says which they are."""
    keys = fill(world, 8, max_keys=3)
    assert world.keys == keys, "the control: what is not landed is never retired"
    assert requests_of(world, RETIRE) == []
    (launched,) = world.launch()
    said = [entry.user_message for entry in world.instance.all_logs(launched.run_id)]
    assert any(text.startswith("step=progress 8 of 8 in ") for text in said), "a run says how far it is"
    checks = world.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [world.topic.check_key(name) for name in QUICK]
    )
    assert {check.status.value for check in checks.values()} == {"SUCCEEDED"}, "a range run has its checks too"
    assert {check.run_id for check in checks.values()} == {launched.run_id} and len(checks) == len(QUICK)
    assert len(requests_of(world, RETIRE)) == 1
    assert run_job(world, RETIRE).success
    assert world.keys == keys[5:]
    assert requests_of(world, RETIRE) == []

    world.send_numbered(10)
    assert [offsets.key for offsets in world.tick().due] == ["0-80-90"]
    world.launch()
    assert world.keys == [*keys[5:], "0-80-90"]
    world.assert_proven()
    assert trace_row(world.topic, 0, 25, world.adapters)["row"]["offset"] == 25

    (launched,) = world.launch(choose_ranges(world.topic, [keys[2]], world.adapters), redo=True)
    assert [offsets.key for offsets in launched.ranges] == [keys[2]]
    assert world.keys[-1] == keys[2]
    world.send_numbered(20)
    assert [offsets.key for offsets in world.tick().due] == ["0-90-100", "0-100-110"]
    world.launch()
    world.assert_all_landed_once()

    world.lose_dagster()
    rebuilt = rebuild_topic(world.topic, world.adapters, world.instance)
    assert (rebuilt.keys, rebuilt.events) == (3, 3)
    planned = list(world.coverage.log.ranges)
    assert world.keys == [offsets.key for offsets in planned[-3:]]
    assert world.materialized_after_tick() == {*world.keys}
    assert retired(world.coverage, 3) == {*planned[:-3]}


def test_what_is_held_or_failed_is_not_retired(world: World) -> None:
    """By a queued run, by the last try that failed, by any backfill that is under way."""
    fill(world, 8, max_keys=2)
    world.land()
    ranges = list(world.coverage.log.ranges)
    assert pruning.find_retirable(world.topic, world.coverage, world.instance) == ranges[:6], "the control"
    held = create_run_for_test(
        world.instance,
        job_name=world.topic.landing.job,
        status=dg.DagsterRunStatus.STARTED,
        tags={TOPIC_TAG: world.name, RANGE_START: ranges[1].key, RANGE_END: ranges[2].key},
    )
    failed = create_run_for_test(world.instance, status=dg.DagsterRunStatus.STARTED)
    with trying(world.instance, world.topic.landing, [ranges[4].key], failed.run_id, world.adapters.now_ms):
        pass
    expected = [ranges[0], ranges[3], ranges[5]]
    assert pruning.find_retirable(world.topic, world.coverage, world.instance) == expected
    world.instance.delete_run(held.run_id)
    without_run = [*ranges[:4], ranges[5]]
    assert pruning.find_retirable(world.topic, world.coverage, world.instance) == without_run
    world.hear_daemon("BACKFILL")
    world.topic = dataclasses.replace(world.topic, decode=Decode(value=Side(Format.JSON, "n INT")))
    for duty, status, expected in (
        (world.topic.landing, BulkActionStatus.REQUESTED, []),
        (world.topic.landing, BulkActionStatus.CANCELING, []),
        (world.topic.decoding, BulkActionStatus.REQUESTED, []),
        (world.topic.landing, BulkActionStatus.CANCELED, without_run),
    ):
        request = BackfillRequest(ranges[7:], redo=True, duty=duty)
        backfill = launch_backfill(world.topic, request, world.adapters, world.instance)
        found = world.instance.get_backfill(backfill)
        assert found is not None
        world.instance.update_backfill(found.with_status(status))
        assert pruning.find_retirable(world.topic, world.coverage, world.instance) == expected, (duty, status)
        world.instance.update_backfill(found.with_status(BulkActionStatus.CANCELED))
    other = dataclasses.replace(world.topic, name="another")
    launch_backfill(other, BackfillRequest(ranges[:1], redo=True), world.adapters, world.instance)
    assert pruning.find_retirable(world.topic, world.coverage, world.instance) == without_run, "of another topic"


def test_a_retirement_that_died_is_finished_beside_ticks_and_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tick brings back what is gone, however many are at it; what each tick asks for stays what is pending."""
    keys = fill(world, 8, max_keys=2)
    world.land()
    monkeypatch.setattr(pruning, "KEYS_AT_ONCE", 2)

    with pytest.raises(KeyboardInterrupt), patch.object(pruning, "has_backfill", Mock(side_effect=[False, KeyboardInterrupt])):
        pruning.retire_keys(world.topic, world.coverage, world.instance)
    assert world.keys == keys[2:], "the fault: half of it is done"
    world.tick()
    assert world.keys == keys[2:]
    coverage = world.coverage
    with ThreadPoolExecutor(3) as pool:
        both = [pool.submit(pruning.retire_keys, world.topic, coverage, world.instance) for _ in range(2)]
        ticks = [pool.submit(world.tick) for _ in range(2)]
    assert {offsets.key for each in both for offsets in each.result()} == set(keys[2:6])
    assert [tick.result().due for tick in ticks] == [()] * 2
    assert world.keys == keys[6:]


def test_a_key_is_not_retired_before_its_range_is_decoded(world: World) -> None:
    """What is due to be decoded is asked for by its key."""
    world.topic = dataclasses.replace(world.topic, decode=Decode())
    keys = fill(world, 3, max_keys=1)
    world.land()
    assert requests_of(world, RETIRE) == [], "all of them are due"
    assert run_job(world, RETIRE).success and world.keys == keys
    world.decode([keys[0]])
    assert len(requests_of(world, RETIRE)) == 1
    assert run_job(world, RETIRE).success and world.keys == keys[1:]


def test_a_rebuild_that_is_killed_is_finished_by_the_next(world: World) -> None:
    """[R-34] From the lake alone; also of a version that Dagster missed, where a replace was killed after it had published."""
    keys = fill(world, 4, max_keys=100)
    world.launch()
    versions = {key: manifest.digest for key, manifest in zip(keys, world.coverage.manifests.values(), strict=True)}
    world.lose_dagster()
    world.operations.delete_group(world.topic.group)
    kafka = world.adapters.kafka(world.topic)
    assert kafka.read_group(world.name, world.topic.group) == {}, "the control: it is really gone"
    with stopped_at(world, "rebuild", "restored", 2):
        pass
    assert len(world.materialized()) == 2, "the fault: half of it is there"
    rebuilt = rebuild_topic(world.topic, world.adapters, world.instance)
    assert (rebuilt.keys, rebuilt.events, dict(rebuilt.group)) == (0, 2, {0: 40})
    assert kafka.read_group(world.name, world.topic.group) == {0: 40}
    events = world.events(world.topic.asset_key)
    shown = {each.partition: each.tags["dagster/data_version"] for each in events}
    assert shown == versions and len(events) == 4
    assert rebuild_topic(world.topic, world.adapters, world.instance).events == 0, "once is enough"
    old = dg.AssetMaterialization(world.topic.asset_key, partition=keys[0], tags={"dagster/data_version": "old"})
    world.instance.report_runless_asset_event(old)
    assert [rebuild_topic(world.topic, world.adapters, world.instance).events for _ in range(2)] == [1, 0]


def test_a_run_takes_the_waiting_runs_that_ask_for_the_same(world: World) -> None:
    """One with a range that failed is left to its own try; the others are told who landed theirs."""
    fill(world, 8, max_keys=100)
    ranges = list(world.coverage.log.ranges)

    def run(first: int, last: int, config: dict[str, Any] | None = None, backfill: str = "one", **tags: str) -> DagsterRun:
        own = {BACKFILL_TAG: backfill, **tags}
        return queue_asset_run(world, ranges[first], ranges[last], tags=own, run_config=config or {})

    own, one, two = run(0, 0), run(2, 2), run(4, 5)
    run(6, 6, config={"ops": {}}), run(6, 6, backfill="other")
    has_begun = run(6, 6)
    world.instance.report_dagster_event(dg.DagsterEvent("PIPELINE_START", "__ASSET_JOB"), has_begun.run_id)
    run(6, 6, **{TRIED_BY_TAG: "x"}), run(6, 6, **{REDO_TAG: "no"})
    world.instance.add_dynamic_partitions(f"{world.name}__ranges", ["typed by somebody"])
    planned = world.coverage.log.ranges

    def found(room: int) -> list[str]:
        return [*read_siblings(world.instance, own, world.topic, lambda: planned, room)]

    assert found(200) == [one.run_id, two.run_id]
    assert (found(2), found(0)) == ([one.run_id], [])
    siblings = read_siblings(world.instance, own, world.topic, lambda: planned, 200)
    assert [*siblings.values()] == [[ranges[2]], [ranges[4], ranges[5]]]
    assert read_landed_by(world.instance, two) is None
    end_siblings(world.instance, own, siblings, {ranges[2]})
    assert (read_landed_by(world.instance, one), read_landed_by(world.instance, two)) == (None, own.run_id)
    assert world.run(two.run_id).status is dg.DagsterRunStatus.CANCELED
    assert found(200) == []


@pytest.fixture
def told(world: World) -> Iterator[list[dict[str, Any]]]:
    """What a webhook of our own on loopback was told, to which this world's alerts go."""
    with recording("/hook") as (address, told):
        world.adapters.settings = dataclasses.replace(world.adapters.settings, alert_urls=(f"json://{address}/hook",))
        yield told


class Watch:
    """The sensor that alerts, which goes on from its cursor."""

    def __init__(self, world: World) -> None:
        self.world, self.cursor = world, ""

    def look(self, *others: Topic) -> str:
        """Have it look once at the world's topic and others; return what it says."""
        ticked = evaluate(self.world, build_watch([self.world.topic, *others]), self.cursor or None)
        self.cursor = ticked.cursor or ""
        return ticked.skip_message or ""


def test_a_loss_is_alerted_once_while_the_planning_sensor_stands_still(world: World, told: list[dict[str, Any]]) -> None:
    """And that it is over. Two checks see it: what is lost, and what could not be kept for long enough."""
    watch = Watch(world)
    world.fill(100)
    world.tick()
    assert watch.look() == "0 troubles, 0 of them new"
    world.delete_records(0, 40)
    assert watch.look() == "2 troubles, 2 of them new"
    (message,) = told
    assert world.name in message["message"] and "[0, 40)" in message["message"]
    assert (watch.look(), len(told)) == ("2 troubles, 0 of them new", 1)
    world.send_numbered(100)
    world.plan()
    world.delete_records(0, 150)
    assert (watch.look(), len(told)) == ("2 troubles, 1 of them new", 2), "the same check, of another range"
    assert "[100, 150)" in told[1]["message"] and "[0, " not in told[1]["message"], "and of that alone"
    for key in ("0-0-100", "0-100-200"):
        accept_loss(world.topic, key, world.adapters, "test")
    said = f"1 troubles, 0 of them new; over: nothing_lost of {world.name}"
    assert watch.look() == said, "accepted, and not landed yet"
    (loss, *_) = read_ledger(world.topic, world.adapters)
    assert acceptance_text(world.topic, loss) == "accepted by test"
    world.land()
    assert watch.look() == f"0 troubles, 0 of them new; over: time_to_loss of {world.name}", "and landed"
    assert [each["message"] for each in told[2:]] == [
        f"over: {each} of {world.name}" for each in ("nothing_lost", "time_to_loss")
    ]


def test_a_broken_file_is_alerted_once_and_ends_no_other_trouble(world: World, told: list[dict[str, Any]]) -> None:
    """[R-90] Its topic is not looked at, so nobody knows that a loss is over; the control: once it is mended."""
    watch = Watch(world)
    world.fill(100)
    world.tick()
    world.delete_records(0, 40)
    watch.look()
    broken = [Broken(world.name, world.lake_folder, BadSetting("defs.yaml names no such delivery"))]
    for new in (1, 0):
        ticked = evaluate(world, build_watch([], broken), watch.cursor)
        assert ticked.skip_message == f"1 troubles, {new} of them new"
        watch.cursor = ticked.cursor or ""
    assert [each["message"] for each in told[1:]] == ["defs.yaml names no such delivery"]
    assert watch.look() == f"2 troubles, 0 of them new; over: defs.yaml of {world.name}"


def test_a_receiver_that_takes_nothing_is_told_later_and_no_other_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-90] Of topics, and of failed runs, whose reason is an observation of the raw asset too."""
    told: dict[str, list[str]] = {"/first": [], "/second": []}
    is_down = True

    class Handler(Answering):
        def do_POST(self) -> None:  # noqa: N802 (as http.server names it)
            message = self.told()["message"]
            if self.path == "/second" and is_down:
                self.answer(500)
            else:
                told[self.path].append(message)
                self.answer(200)

    with serving(Handler) as port:
        urls = tuple(f"json://127.0.0.1:{port}{path}" for path in told)
        world.adapters.settings = dataclasses.replace(world.adapters.settings, alert_urls=urls)
        world.fill(100)
        world.tick()
        world.delete_records(0, 40)
        run_id = fail_and_tell(world)
        watch = Watch(world)
        for _ in range(3):
            watch.look()
        assert [len(each) for each in told.values()] == [2, 0], (
            "the fault: the second takes nothing, and the first heard it once"
        )
        assert run_id in told["/first"][0] and "40 offsets [0, 40) are gone" in told["/first"][0]
        observed, *_ = world.instance.fetch_observations(world.topic.asset_key, limit=5).records
        assert observed.asset_observation is not None
        assert "[0, 40)" in str(observed.asset_observation.metadata["reason"].value)
        assert "[0, 40)" in told["/first"][1]
        accept_loss(world.topic, "0-0-100", world.adapters, "test")
        world.land()
        watch.look()
        assert told["/first"][2].startswith("over: ") and not told["/second"]
        is_down = False
        for _ in range(2):
            watch.look()
        assert len(told["/first"]) == 3 and len(told["/second"]) == 1, told
        assert {*told["/second"][0].splitlines()} == {line for each in told["/first"] for line in each.splitlines()}
        assert not any(str(port) in text for text in (watch.cursor, str(world.instance.get_runs())))


def test_what_cannot_be_looked_at_is_a_trouble_too_and_hides_none_of_another_topic(
    world: World, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-90] What was told before a broker was down is not told again: meanwhile nothing was known of it."""
    there = world.adapters.settings
    world.fill(100)
    world.tick()
    world.delete_records(0, 40)
    watch = Watch(world)
    watch.look()
    world.adapters.settings = dataclasses.replace(there, bootstrap_servers="127.0.0.1:1")
    world.adapters.kafka_timeout_seconds = 1
    other = dataclasses.replace(world.topic, name=f"{world.name}-other")
    assert watch.look(other) == "2 troubles, 2 of them new"
    _, message = told
    assert message["message"].count("Kafka broker at 127.0.0.1:1 does not answer") == 1, "one text for all its topics"
    world.adapters.settings = there
    said = f"2 troubles, 0 of them new; over: unreachable of {world.name}, {other.name}"
    assert watch.look() == said, "of what is watched no more too"

    watch = Watch(world)
    assert watch.look(other) == "3 troubles, 3 of them new"
    refuse(monkeypatch, Lake, "coverage", other.name, RuntimeError("the fault"))
    assert watch.look(other) == "3 troubles, 1 of them new", "unforeseen, where it was a topic that does not exist"


@pytest.mark.parametrize("table", ["raw", "decoded", "latest", "days"])
def test_any_table_may_stand_still(table: str) -> None:
    """[R-90] It is one trouble of the topic, with what to do."""
    topic = Topic("orders", Policy())
    waiting = {"table": table, "version": 3, "days": 2, "newest_day": None, "untold_days": 1}
    document = waiting | {"waiting_ranges": 2, "waiting_since_ms": 0}
    _, _, seen = watch_tables(topic, [document], {}, 0)
    still, _, _ = watch_tables(topic, [document], seen, 3_600_000)
    assert still.concerns == (table,) and " orders" in still.violations[0].partition("or `offsetlake")[2]


def test_tables_that_stand_still_and_records_set_aside_are_alerted_once(world: World, told: list[dict[str, Any]]) -> None:
    """[R-90] What waits for 15 minutes without a new version, however long it had waited; dead letters when they rise."""
    time_of_event, watch, heard = EventTime(), Watch(world), 0
    world.topic = dataclasses.replace(
        world.topic,
        decode=Decode(Side(Format.STRING), Side(Format.JSON, "n BIGINT"), Budget(10, 1.0), time_of_event),
        latest=Latest(),
        days=Days("2020-01-01", time_of_event),
    )

    def look(minutes: int) -> tuple[str, list[str]]:
        """Return what the sensor says so many minutes later, and what people are told."""
        nonlocal heard
        world.later(minutes * 60_000)
        said = watch.look()
        before, heard = heard, len(told)
        return said, [each["message"] for each in told[before:]]

    world.later(0)
    world.create_topic()
    world.send({"partition": 0, "key": b"k", "value": b'{"n": %d}' % n} for n in range(150))
    world.plan_and_land()
    assert look(100) == ("0 troubles, 0 of them new", []), "the control: what was landed long ago has only been seen to wait"
    world.decode([next(iter(world.coverage.log.ranges)).key])
    assert look(16) == ("0 troubles, 0 of them new", []), "the control: there is a new version"
    assert look(14) == ("0 troubles, 0 of them new", []), "the control: it has not been there for long"
    words, (message,) = look(2)
    assert words == "1 troubles, 1 of them new"
    decoded, latest, days = message.splitlines()
    assert (
        f"{world.name}: decoded: version 0, 100 rows of 1 range, 1 range waits for 2 h; nothing has been done since" in decoded
    )
    assert decoded.endswith(f"see the runs of land_pending, have its sensor run, or `offsetlake decode {world.name} --due`")
    assert "latest: not there yet, 1 range waits for 32 min" in latest
    assert latest.endswith(f"have its sensor run, or `offsetlake latest {world.name}`")
    assert "days: Dagster was told of 0; 1 wait to be told" in days and days.endswith(f"`offsetlake rebuild {world.name}`")
    assert look(1) == ("1 troubles, 0 of them new", [])
    world.send([{"partition": 0, "key": b"k", "value": b"{cut off"}])
    world.plan_and_land()
    world.decode()
    report_days(world.topic, world.instance, world.adapters)
    words, (message,) = look(0)
    assert words == "2 troubles, 1 of them new", "latest stands still all the same"
    assert message == (
        f"{world.name}: 1 records could not be decoded, some of them lately: `offsetlake dead-letters {world.name}`"
    )
    over = f"over: dead_letters of {world.name}"
    assert look(16) == (f"1 troubles, 0 of them new; {over}", [over])
    log = world.lake_folder / "tables" / "decoded" / world.name / "_delta_log"
    torn = log / f"{len(list(log.glob('*.json'))):020d}.json"
    torn.write_text("{torn")
    words, (message,) = look(1)
    assert words == "1 troubles, 1 of them new" and message.startswith(f"{world.name}: decoded: {log / torn.name}")
    torn.unlink()
    over = f"over: tables of {world.name}"
    assert look(1) == (f"0 troubles, 0 of them new; {over}", [over]), "the count of dead letters is what it was"


def test_old_records_of_a_new_topic_are_no_trouble_before_it_could_be_planned(world: World) -> None:
    """[R-90] Whoever points it at topics that are there for long is not alerted on each; that nobody plans is told."""
    watch = Watch(world)
    world.fill(100)
    world.later(3_600_000)
    assert watch.look() == "0 troubles, 0 of them new"
    world.later(14 * 60_000)
    assert watch.look() == "0 troubles, 0 of them new"
    world.later(2 * 60_000)
    assert watch.look() == "1 troubles, 1 of them new"


def test_a_backfill_that_dagster_gave_up_is_alerted_once(world: World, told: list[dict[str, Any]]) -> None:
    """[R-90] Its keys are those of ranges that no run was asked for, so that no run fails."""
    watch = Watch(world)
    world.fill(100)
    world.tick()
    watch.look()
    backfill = PartitionBackfill("given_up", BulkActionStatus.FAILED, False, {}, 1.0, asset_selection=[world.topic.asset_key])
    world.instance.add_backfill(backfill)
    for _ in range(2):
        watch.look()
    (message,) = told
    assert message["message"].startswith(f"backfill given_up of {world.name} was given up by Dagster: it does not say why")


def test_troubles_beyond_a_message_follow_and_those_of_a_gone_topic_are_over(world: World, told: list[dict[str, Any]]) -> None:
    """[R-90] None is left unnamed, however many there are at once; nor is one that nobody looks at any more."""
    world.fill(100)
    world.tick()
    others = [dataclasses.replace(world.topic, name=f"{world.name}-none-{n:02d}") for n in range(30)]
    watch = Watch(world)
    watch.look(*others)
    assert told[0]["message"].endswith("10 more follow") and len(told) == 1
    watch.look(*others)
    lines = [line for each in told for line in each["message"].splitlines() if line != "10 more follow"]
    assert len(told) == 2 and len(lines) == 30 and all(any(each.name in line for line in lines) for each in others)
    watch.look(*others[1:])
    assert told[2]["message"] == f"over: unreachable of {others[0].name}"


def test_runs_that_fail_by_the_same_reason_are_told_once_an_hour(
    world: World, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-90] A range is tried again every ten minutes, for days; another reason, or an hour later the same, is told."""
    world.fill(100)
    world.tick()
    world.delete_records(0, 40)
    first = fail_and_tell(world)
    fail_and_tell(world)
    assert len(told) == 1 and first in told[0]["message"]
    monkeypatch.setattr(alerts, "AGAIN_SECONDS", 0.0)
    third = fail_and_tell(world)
    assert len(told) == 2 and third in told[1]["message"]
    monkeypatch.undo()
    world.delete_records(0, 60)
    assert fail_and_tell(world) in told[2]["message"] and len(told) == 3


def fail_and_tell(world: World) -> str:
    """Have a run fail and the sensor of failed runs tell it; return its id."""
    (launched,) = world.try_launch()
    assert not launched.succeeded
    run = world.instance.get_run_by_id(launched.run_id)
    (event,) = world.instance.all_logs(launched.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert run is not None and event.dagster_event is not None
    context = dg.build_run_status_sensor_context(
        "run_failures", event.dagster_event, world.instance, run, resources={"adapters": world.adapters}
    ).for_run_failure()
    for _ in range(2):  # a tick that Dagster gives up comes again
        build_failure_sensor()(context)
    return launched.run_id


LATER_MS = int((SWEEP_AFTER_SECONDS + 60) * 1000)  # from then on nothing that is in staging now can be of a living run


@pytest.fixture
def orphan(world: World) -> Path:
    """What a crash left in staging just now."""
    orphan = world.lake_folder / "staging" / "dead" / "part.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(bytes(10))
    return orphan


def age(orphan: Path) -> None:
    for path in (orphan, orphan.parent):
        os.utime(path, (time.time() - 4 * 3600,) * 2)


def test_any_number_may_sweep_at_once(world: World) -> None:
    """[R-58] Every topic's nightly audit does, at the same minute: what another has deleted is as good."""
    for number in range(40):
        folder = world.lake_folder / "staging" / f"dead-{number}" / "0-0-100_1" / "_temporary"
        folder.mkdir(parents=True)
        (folder / ".part.crc").write_bytes(b"x")
    (world.lake_folder / "staging" / "plan-dead").write_bytes(b"a planner died")
    with ThreadPoolExecutor(8) as pool:
        swept = list(pool.map(lambda _: sweep_orphans(world.adapters.lake, world.adapters.now_ms() + LATER_MS), range(8)))
    assert {name for found in swept for name in found} == {"plan-dead", *(f"dead-{n}" for n in range(40))}
    assert list((world.lake_folder / "staging").iterdir()) == []


def test_a_sweep_waits_for_longer_than_any_run_may_last() -> None:
    """[R-58] The longest is what dagster.yaml lets run monitoring end."""
    longest = re.search(r"max_runtime_seconds: (\d+)", (PROJECT / "dagster.yaml").read_text())
    assert longest is not None and int(longest[1]) < SWEEP_AFTER_SECONDS


def test_the_command_shows_first_and_then_deletes(world: World, orphan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-58] `offsetlake sweep`, then with --apply."""
    commands = commands_of("work.compact", world, monkeypatch)
    run: Callable[..., str] = lambda *arguments: commands("sweep", *arguments).stdout  # noqa: E731
    run("--apply")
    assert orphan.exists(), "the control: it was written just now"
    world.later(LATER_MS)
    assert "would sweep 1 orphan of" in run()
    assert orphan.exists()
    assert "swept 0 orphans of" in run("--apply"), "by the clock of the lake it was written just now"
    age(orphan)
    run("--older-than", "24", "--apply")
    assert orphan.exists()
    assert "swept 1 orphan of" in run("--apply")
    assert not orphan.parent.exists()


def test_the_job_runs_where_there_is_something(world: World, orphan: Path) -> None:
    """[R-58] Its schedule launches nothing for what was written just now."""
    assert requests_of(world, SWEEP) == [], "the control: it was written just now"
    assert run_job(world, SWEEP).success and orphan.exists()
    world.later(LATER_MS)
    assert len(requests_of(world, SWEEP)) == 1
    assert run_job(world, SWEEP).success and orphan.exists(), "by the clock of the lake it was written just now"
    age(orphan)
    assert run_job(world, SWEEP).success and not orphan.exists()
