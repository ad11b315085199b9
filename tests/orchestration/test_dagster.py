"""Dagster as the face of the lake: sensor, runs, red runs, events, the decoded asset, and a database that may be lost."""

import dataclasses
import logging
import re
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest

from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.adapters.tables.latest_table import LatestSnapshot
from pipeline_defs.cli.launching import Launched
from pipeline_defs.cli.terminal import Shown
from pipeline_defs.cli.work.read import run_audit
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import EmptySelection, LakeUnavailable, Refused
from pipeline_defs.core.landing.verdicts import Verdict, failed
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.decoding import Budget
from pipeline_defs.landing.auditing import check_table
from pipeline_defs.orchestration.assets import raw_asset
from pipeline_defs.orchestration.backfilling import BackfillRequest, launch_backfill
from pipeline_defs.orchestration.choosing import Choice, find_decoded, select_ranges
from pipeline_defs.orchestration.pulse.rebuilding import rebuild_topic
from pipeline_defs.orchestration.pulse.ticking import DerivedTick, is_backlog, rewriting_pause, run_derive_tick, run_tick
from pipeline_defs.orchestration.runs import projection
from pipeline_defs.orchestration.runs.known import read_known
from pipeline_defs.orchestration.runs.projection import RANGE_END, RANGE_START, find_untold
from pipeline_defs.resources import Adapters
from pipeline_defs.topics import op_name
from tests.support.commands import commands_of
from tests.support.pulse import check_of, reasons, run_job
from tests.support.redecoding import Killed, stop_at
from tests.support.world import World


def land(world: World, **how: Any) -> dg.ExecuteInProcessResult:
    return run_job(world, world.topic.landing.job, **how)


def materializations(world: World) -> dict[str, dg.AssetMaterialization]:
    return {str(event.partition): event for event in world.events(world.topic.asset_key)}


def test_500_ranges_due_are_500_keys_all_due(world: World) -> None:
    """[R-30] None is dropped by a limit."""
    world.with_policy(records_per_range=1, budget=500)
    world.fill(500)
    tick = world.tick()
    assert len(world.keys) == 500
    assert sorted(tick.due) == [*world.coverage.log.ranges]


def test_one_key_shows_its_facts(world: World) -> None:
    """[R-35] After a click on one key. [R-21] Read again it has an equal data version: nothing downstream goes stale."""
    world.fill(100)
    world.tick()
    result = land(world, partition_key="0-0-100")
    assert result.success
    event = materializations(world)["0-0-100"]
    shown = {name: value.value for name, value in event.metadata.items()}
    assert (shown["rows"], shown["start_offset"], shown["end_offset"], shown["holes"]) == (100, 0, 100, {})
    assert shown["landed_by_run"] == result.run_id
    (manifest,) = world.coverage.manifests.values()
    assert shown["digest"] == manifest.digest
    assert event.tags is not None and event.tags["dagster/data_version"] == manifest.digest
    assert {"bytes", "file", "min_timestamp", "max_timestamp", "seconds", "records_per_second", "attempt"} <= set(shown)
    evaluations = {e.check_name: e.passed for e in result.get_asset_check_evaluations()}
    assert evaluations == {"tiling": True, "completeness": True, "nothing_lost": True, "time_to_loss": True}
    world.launch(world.coverage.log.ranges, redo=True)
    again = materializations(world)["0-0-100"]
    assert again.tags is not None and again.tags["dagster/data_version"] == manifest.digest
    assert again.metadata["outcome"].value == "unchanged"


def test_what_is_no_selection_of_ranges_makes_a_red_run(world: World) -> None:
    """[R-11] Any text may be a key; and Dagster calls a range from a later to an earlier key a success of no partitions."""
    world.fill(200)
    world.tick()
    world.instance.add_dynamic_partitions(f"{world.name}__ranges", ["flights", "0-5-6"])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"partition_key": "flights"}, "is not a range: expected <kafka partition>-<start>-<end>"),
        ({"partition_key": "0-5-6"}, "not in the plan log"),
        ({"tags": {RANGE_START: "0-100-200", RANGE_END: "0-0-100"}}, "the second comes before the first"),
    ]
    for how, words in wrong:
        result = land(world, **how)
        assert not result.success and words in reasons(result), how
    assert world.rows() == []


def test_a_landed_range_is_green_again_after_a_run_that_was_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-34] Dagster calls its partition failed: the next tick that compares tells it anew, once no run is at it."""
    world.fill(200)
    world.tick()
    world.launch()
    world.instance.add_dynamic_partitions(f"{world.name}__ranges", ["flights"])
    assert not land(world, tags={RANGE_START: "0-0-100", RANGE_END: "flights"}).success

    def red() -> set[str]:
        storage = world.instance.event_log_storage
        return {*storage.get_latest_asset_partition_materialization_attempts_without_materializations(world.topic.asset_key)}

    def untold() -> list[str]:
        return [offsets.key for offsets in find_untold(world.instance, world.topic.asset_key, [*world.coverage.log.ranges])]

    assert red() == {"0-0-100", "0-100-200", "flights"}, "the fault"
    with monkeypatch.context() as patched:
        patched.setattr(projection, "ACTIVE", [dg.DagsterRunStatus.FAILURE])
        assert untold() == [], "the control: a run that has not ended may land them"
    assert untold() == ["0-0-100", "0-100-200"]
    world.send_numbered(100)
    world.tick()
    assert red() == {"flights"} and untold() == ["0-200-300"]


def test_what_a_tick_has_no_time_to_tell_is_told_by_the_next(world: World) -> None:
    """[R-34] Dagster gives up a tick of more than a minute, which goes on beside the next one; it is not taken for told."""
    world.fill(300)
    world.tick()
    world.launch()
    world.lose_dagster()
    known = dataclasses.replace(read_known(world.instance, [world.topic], world.adapters.now_ms()), began=-1e9)
    run_tick(world.topic, world.instance, world.adapters, known)
    assert world.materialized() == set(), "its time is over"
    world.tick()
    assert world.materialized() == {"0-0-100", "0-100-200", "0-200-300"}


def test_a_broker_that_is_down_makes_a_red_run_and_loses_nothing(world: World) -> None:
    """[R-20] One clear error; the ranges stay planned and land when the broker is back."""
    world.fill(100)
    world.tick()
    there = world.adapters.settings
    world.adapters.settings = dataclasses.replace(there, bootstrap_servers="127.0.0.1:1")
    world.adapters.kafka_timeout_seconds = 2
    result = land(world, partition_key="0-0-100")
    assert not result.success
    assert "Kafka broker at 127.0.0.1:1 does not answer" in reasons(result)
    log = world.instance.all_logs(result.run_id)
    texts = [entry.user_message for entry in log if entry.level == logging.ERROR]
    told = next(text for text in texts if text.startswith("broker_unavailable: the Kafka broker at 127.0.0.1:1 "))
    assert told.endswith("offsetlake explain broker_unavailable")
    failed = f'Execution of step "{op_name(world.topic.asset_key)}" failed.'
    assert texts.index(told) < texts.index(failed), "U21: said before the stack trace, below which the UI shows it"
    assert world.rows() == []
    world.adapters.settings = there
    world.launch()
    world.assert_all_landed_once()


def test_a_fault_nobody_foresaw_is_an_error_in_a_runs_log_as_any_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-15] A red run whose log has none of ours has died; it has nothing of the fault's own words, which may be records'."""
    world.fill(100)
    world.tick()
    monkeypatch.setattr(Adapters, "check_lake", Mock(side_effect=RuntimeError("secret")))
    result = land(world, partition_key="0-0-100")
    errors = [entry.user_message for entry in world.instance.all_logs(result.run_id) if entry.level == logging.ERROR]
    assert re.match(r"unforeseen: run \S+: RuntimeError was raised at \S+, line \d+", errors[0]) and "secret" not in errors[0]


def test_a_range_that_failed_is_told_beside_an_error_of_its_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-15] The run ends with the topic's error, and its log has both."""
    world.fill(100)
    world.tick()
    (offsets,) = world.pending

    def land_less(*_: object) -> Iterator[Verdict]:
        yield failed(offsets, "40 offsets are gone")
        raise LakeUnavailable("the fault")

    monkeypatch.setattr(raw_asset, "land", land_less)
    result = land(world, partition_key=offsets.key)
    errors = [entry.user_message for entry in world.instance.all_logs(result.run_id) if entry.level == logging.ERROR]
    assert errors[0] == f"range {offsets.text(world.name)}: 40 offsets are gone"
    assert errors[1].startswith("lake_unavailable: the fault")


def lags(world: World) -> list[tuple[Any, Any]]:
    """Lag and end offset as the Kafka topic's asset was told them, oldest first."""
    records = world.instance.fetch_observations(world.topic.source_key, limit=100).records
    told = [record.asset_observation.metadata for record in reversed(records) if record.asset_observation]
    return [(each["lag"].value, each["end_offset"].value) for each in told]


def test_lag_is_told_where_it_changes_and_an_idle_topic_is_silent(world: World) -> None:
    """[R-56] The plot of lag gets a point a minute at most, its last one is true, and then there is no noise."""
    world.later(0)
    world.fill(250)
    world.tick()
    assert lags(world) == [(250, 250)]
    world.launch()
    world.tick()
    assert lags(world) == [(250, 250)], "less than a minute ago"
    for minutes in (2, 11, 11):
        world.later(minutes * 60_000)
        world.tick()
    assert lags(world) == [(250, 250), (0, 250)]


def test_a_tick_appends_what_a_dead_run_left_out_and_a_table_that_is_broken_is_told_and_holds_nothing_up(world: World) -> None:
    """[R-81] A torn version stops the table, not the landing: ticks and the audit say what to do, and it helps."""
    world.keep_raw_table()
    world.fill(250)
    world.tick()
    world.launch()
    table = check_table(world.name, world.adapters.lake)
    assert (table.violations, table.facts["rows"]) == ((), 250)
    world.send_numbered(100)
    world.plan()
    with pytest.raises(Killed):
        world.land(on_step=stop_at("link_to_table"))
    world.assert_all_landed_once()
    assert "landed, and not in the table" in check_table(world.name, world.adapters.lake).violations[0]
    assert check_table(world.name, world.adapters.lake, {*world.coverage.log.ranges}).passed, "while a run is at it"
    world.tick()
    found = check_table(world.name, world.adapters.lake)
    assert (found.violations, found.facts) == ((), {"version": table.facts["version"] + 1, "rows": 350})
    world.tick()
    assert check_table(world.name, world.adapters.lake).facts == found.facts, "what is whole is left alone"

    folder = world.folder / "lake" / raw_table_log(world.name, world.adapters.lake.store).folder
    newest = max((folder / "_delta_log").iterdir())
    newest.write_bytes(newest.read_bytes()[:-20])
    world.send_numbered(50)
    tick = world.tick()
    assert any("move the table's folder away" in each for each in tick.stalled)
    world.launch()
    world.assert_all_landed_once()
    shown = Shown("audit", None)
    (audited,) = [each for each in run_audit(world.topic, world.adapters, "none", "", shown) if each.check == "raw_table"]
    assert not audited.passed and "is no commit of a Delta log" in audited.violations[0]
    folder.rename(folder.with_name("broken"))
    assert world.tick().stalled == ()
    assert check_table(world.name, world.adapters.lake).facts == {"version": 0, "rows": 400}


@pytest.fixture
def decoded(world: World) -> World:
    """A topic of two partitions with landed ranges, one of them with a poison record, that is to be decoded."""
    decode = Decode(value=Side(Format.JSON, "id INT"), budget=Budget(5, 1.0))
    world.topic = dataclasses.replace(world.topic, decode=decode)
    world.create_topic(2)
    for partition in (0, 1):
        world.send({"partition": partition, "value": b'{"id": %d}' % n} for n in range(199))
    world.send([{"partition": 0, "value": b"{}"}, {"partition": 1, "value": b"poison"}])
    world.plan()
    world.land()
    world.tick()
    return world


def tick(world: World) -> DerivedTick:
    return run_derive_tick(world.topic, world.instance, world.adapters, world.known)


def launch(world: World, ranges: list[OffsetRange], *, redo: bool = False) -> list[Launched]:
    return list(world.in_process.decode(ranges, redo=redo))


def told(world: World) -> set[str]:
    return world.instance.get_materialized_partitions(world.topic.decoded_key)


def check(world: World, name: str) -> dg.AssetCheckEvaluation:
    return check_of(world, dg.AssetCheckKey(world.topic.decoded_key, name))


def events(world: World, key: dg.AssetKey) -> dict[str, dict[str, Any]]:
    """Return version and metadata of each range's one materialisation, as Dagster has them; not how a run found it."""
    found = {
        str(event.partition): {name: value.value for name, value in event.metadata.items() if name != "outcome"}
        | {"version": event.tags["dagster/data_version"]}
        for event in world.events(key)
    }
    assert len(found) == len(world.events(key)), "each once"
    return found


def test_what_is_landed_is_asked_for_decoded_and_shown_and_a_rebuild_gives_it_back(decoded: World) -> None:
    """[R-70] Once, in one run; checks name the poison; a rebuild gives back all that was said, from the lake alone."""
    first = tick(decoded)
    ranges = list(first.due)
    assert set(ranges) == set(decoded.coverage.log.ranges)
    (launched,) = launch(decoded, ranges)
    assert launched.succeeded, launched.reason
    assert tick(decoded) == DerivedTick()
    assert told(decoded) == {offsets.key for offsets in ranges}

    poisoned = next(offsets for offsets in ranges if 199 in offsets and offsets.partition == 1)
    keys = decoded.topic.asset_key, decoded.topic.decoded_key
    raw, before = (events(decoded, key) for key in keys)
    shown = before[poisoned.key]
    assert (shown["rows"], shown["dead_letters"]) == (len(poisoned) - 1, 1)
    assert shown["error_classes"] == {"json_malformed": 1}
    assert check(decoded, "decoded_completeness").passed
    letters = check(decoded, "dead_letters")
    assert not letters.passed
    assert letters.severity is dg.AssetCheckSeverity.WARN
    assert poisoned.text(decoded.name) in str(letters.description)

    decoded.lose_dagster()
    assert [events(decoded, key) for key in keys] == [{}, {}], "the fault: nothing is left"
    rebuilt = rebuild_topic(decoded.topic, decoded.adapters, decoded.instance)
    assert (rebuilt.keys, rebuilt.events) == (4, 8)
    assert [events(decoded, key) for key in keys] == [raw, before]
    assert sorted(each["dead_letters"] for each in before.values()) == [0, 0, 0, 1]
    assert rebuild_topic(decoded.topic, decoded.adapters, decoded.instance).events == 0
    old = dg.AssetMaterialization(keys[1], partition=min(before), tags={"dagster/data_version": "old"})
    decoded.instance.report_runless_asset_event(old)
    assert rebuild_topic(decoded.topic, decoded.adapters, decoded.instance).events == 1, "decoded again, and died untold"
    for key in keys:  # as somebody does with "Report materialization"
        decoded.instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=min(before)))
    assert rebuild_topic(decoded.topic, decoded.adapters, decoded.instance).events == 2


def test_events_that_a_crash_took_are_told_by_the_next_tick(decoded: World) -> None:
    """[R-70] Outside of any run; a backfill of dead letters is then one of just these ranges, and of no raw one."""
    decoded.decode()
    assert told(decoded) == set()
    assert tick(decoded) == DerivedTick()
    assert len(told(decoded)) == 4
    (poisoned,) = (offsets for offsets, each in decoded.decodings.items() if each.dead)
    decoded.hear_daemon("BACKFILL")
    request = BackfillRequest([poisoned], redo=True, duty=decoded.topic.decoding)
    backfill = decoded.instance.get_backfill(launch_backfill(decoded.topic, request, decoded.adapters, decoded.instance))
    assert backfill is not None
    assert backfill.asset_selection == [decoded.topic.decoded_key]
    assert backfill.tags["offsetlake/decodes"] == decoded.name
    assert "offsetlake/topic" not in backfill.tags


def test_a_range_above_its_budget_waits_and_a_selection_of_decoded_ranges_is_what_people_mean(decoded: World) -> None:
    """[R-67] The failed one is asked for again, later. [R-70] Each way to choose finds its ranges, or none."""

    def chosen(**said: Any) -> set[OffsetRange]:
        choice = Choice(decoded=True, **said)
        return {*select_ranges(choice, decoded.topic, decoded.coverage, decoded.adapters, decoded.instance).ranges}

    everything = set(decoded.coverage.log.ranges)
    poisoned = {offsets for offsets in everything if 199 in offsets and offsets.partition == 1}
    assert chosen(missing=True) == everything
    failing = dataclasses.replace(decoded.topic, decode=Decode(value=Side(Format.JSON, "id INT"), budget=Budget(0, 0.0)))
    mended, decoded.topic = decoded.topic, failing
    (launched,) = launch(decoded, list(everything))
    assert not launched.succeeded
    assert "of 4 ranges of topic " + decoded.name + " 3 are decoded and 1 failed" in launched.reason
    assert "1 of 100 records cannot be decoded (1 json_malformed), the budget is 0 and 0.00%" in launched.reason
    assert len(told(decoded)) == 3
    waiting = tick(decoded)
    assert waiting.due == () and "1 range waits to be decoded" in waiting.waiting, "its back-off is not over"
    decoded.later(60_000)
    assert len(tick(decoded).due) == 1
    assert chosen(failed=True) == chosen(missing=True) == poisoned
    decoded.topic = mended
    launch(decoded, list(poisoned))
    assert chosen(dead=True) == poisoned
    for nothing, words in ({"missing": True}, "waits to be decoded"), ({"schema_id": "7"}, "with that schema id"):
        with pytest.raises(EmptySelection, match=words):
            chosen(**nothing)
    decoded.topic = dataclasses.replace(mended, decode=Decode(value=Side(Format.JSON, "id BIGINT")))
    assert chosen(outdated=True) == everything
    assert chosen(every=True) == everything


@pytest.mark.parametrize("is_done_elsewhere", [False, True])
def test_what_somebody_else_has_decoded_is_red_no_more(decoded: World, *, is_done_elsewhere: bool) -> None:
    """[R-33] Another host, or a run that was killed between the table's commit and its own end."""
    poisoned = [each for each in decoded.coverage.log.ranges if 199 in each and each.partition == 1]
    mended = decoded.topic
    decoded.topic = dataclasses.replace(mended, decode=Decode(value=Side(Format.JSON, "id INT"), budget=Budget(0, 0.0)))
    for _ in range(3):
        launch(decoded, poisoned)
        decoded.later(700_000)
    decoded.tick()
    decoded.topic = mended
    if is_done_elsewhere:
        decoded.decode()
    decoded.later(1_000)
    decoded.tick()
    assert decoded.checked(decoded.topic.check_key("progress")).passed is is_done_elsewhere


def test_the_command_chooses_as_a_backfill_does(decoded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One way exactly, called as its options are; where that finds nothing, the command says so and is content."""
    run = partial(commands_of("work.decode", decoded, monkeypatch), "decode", decoded.name)
    refused = run("--due", "--key", "0-0-100").exception
    assert isinstance(refused, Refused)
    expected = "chosen by due and partition, expected exactly one of --due, --key, --dead, --outdated or"
    assert expected in str(refused)
    for options in ("--dead",), ("--outdated",), ("--schema", "7"):
        found = run(*options)
        assert (found.exit_code, found.stdout) == (0, f"nothing of {decoded.name} is to be decoded\n")
    choice = Choice(missing=True, decoded=True, said_in="decode")
    assert find_decoded(choice, decoded.topic, decoded.adapters) == [*decoded.coverage.log.ranges], "the control"
    decoded.decode()
    nothing = f"nothing of {decoded.name} is to be decoded"
    dead = f"; 1 dead letter: offsetlake dead-letters {decoded.name}\n"
    for options in ("--due",), ():
        assert run(*options).stdout == f"{nothing}{dead}", "what is due, where nothing is said"
    before, decoded.topic = decoded.topic, dataclasses.replace(decoded.topic, decode=Decode())
    assert run().stdout == f"{nothing}; 4 ranges by older settings: offsetlake decode {decoded.name} --outdated{dead}"
    decoded.topic = before
    choice = Choice(dead=True, said_in="decode")
    assert [199 in each for each in find_decoded(choice, decoded.topic, decoded.adapters)] == [True]


def test_what_is_made_of_decoded_ranges_waits_for_a_backlog_but_not_for_long(decoded: World) -> None:
    """Days and latest records are not written anew for each batch of a backlog, and never wait for more than two minutes."""
    adapters = decoded.adapters

    def waits(last_ended_ms: int) -> bool:
        return is_backlog(adapters.decodings.read_ranges(decoded.name), adapters, last_ended_ms)

    assert not waits(0), "nothing is decoded yet: there is nothing to wait for"
    first, *others = (offsets.key for offsets in decoded.coverage.log.ranges)
    decoded.decode([first])
    assert waits(0)
    assert waits(adapters.now_ms())
    assert not waits(adapters.now_ms() - 121_000), "the last update is old"
    assert not waits(adapters.now_ms() + 3_600_000), "a clock that was set back"
    for size, seconds in (
        (1 << 20, 4),
        (1 << 40, 300),
    ):  # a larger table is written anew less often: replaced files stay a week
        snapshot = LatestSnapshot(files={"a": size})
        assert rewriting_pause(snapshot, 10**12, 10**12 + seconds * 1000) is None
        assert f"waits {seconds} s" in str(rewriting_pause(snapshot, 10**12, 10**12 + seconds * 1000 - 1))
    decoded.later(121_000)
    assert not waits(0), "it has waited for long enough"
    decoded.decode(others)
    assert not waits(adapters.now_ms()), "the backlog is gone"


def test_a_changed_type_is_decoded_in_one_run_however_many_the_ranges(decoded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-66] In runs of their own the old ones stand in each other's way; keys that somebody typed stand between theirs."""
    monkeypatch.setattr("pipeline_defs.cli.launching.RANGES_PER_RUN", 2)
    typed = ["no range", "0-77777-88888"]
    decoded.tick()  # the first one takes away what somebody has typed before
    decoded.instance.add_dynamic_partitions(decoded.topic.ranges_name, typed)
    decoded.send([{"partition": 0, "value": b"{}"}] * 100)
    decoded.plan_and_land()
    decoded.tick()
    ranges = list(decoded.coverage.log.ranges)
    assert decoded.instance.get_dynamic_partitions(decoded.topic.ranges_name)[-3:-1] == typed, "the fault: between ranges"
    assert all(each.succeeded for each in launch(decoded, ranges))
    decode = Decode(value=Side(Format.JSON, "id STRING"), budget=Budget(5, 1.0))
    decoded.topic = dataclasses.replace(decoded.topic, decode=decode)
    apart = launch(decoded, ranges, redo=True)
    assert len(apart) > 1 and not any(each.succeeded for each in apart), "the fault"
    assert f"`offsetlake decode {decoded.name} --outdated`" in apart[0].reason
    assert decoded.query("decoded", "typeof(value.id)")[0] == ("INTEGER",), "what stood stands"
    decoded.send([{"partition": 0, "value": b"{}"}] * 200)
    decoded.plan()
    waiting, last = decoded.pending
    assert all(each.succeeded for each in decoded.in_process.land([last], redo=False))
    through = decoded.in_process.decode([ranges[0], last], redo=True, in_one_run=True)
    assert [(len(each.ranges), each.succeeded) for each in through] == [(len(ranges) + 2, True)]
    assert decoded.pending == [waiting], "the control: one between them is not landed, and no failure"
    assert decoded.query("decoded", "typeof(value.id)")[0] == ("VARCHAR",)
