"""The decoded asset in real Dagster: asked for by its sensor, run by its job, its checks, its failures."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import dagster as dg
import pytest

from pipeline_defs.cli.launching import Launched
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import EmptySelection, Refused
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.decoding import Budget
from pipeline_defs.orchestration.backfill.backfilling import BackfillRequest, launch_backfill
from pipeline_defs.orchestration.backfill.choosing import Choice, find_decoded, select_ranges
from pipeline_defs.orchestration.pulse.rebuilding import rebuild_topic
from pipeline_defs.orchestration.pulse.ticking import DerivedTick, is_backlog, run_derive_tick
from tests.support.commands import commands_of
from tests.support.pulse import check_of
from tests.support.world import World


@pytest.fixture
def decoded(world: World) -> World:
    """Is a topic of two partitions with landed ranges, one of them with a poison record, that is to be decoded."""
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
    return run_derive_tick(world.topic, world.instance, world.edges)


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
    """[R-70] Every landed range is asked for in one run, once; it shows rows and dead letters; checks name the poison.

    A rebuild gives back versions, dead letters and all else that was said of each range, from the lake alone; once is enough.
    """
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
    rebuilt = rebuild_topic(decoded.topic, decoded.edges, decoded.instance)
    assert (rebuilt.keys, rebuilt.events) == (4, 8)
    assert [events(decoded, key) for key in keys] == [raw, before]
    assert sorted(each["dead_letters"] for each in before.values()) == [0, 0, 0, 1]
    assert rebuild_topic(decoded.topic, decoded.edges, decoded.instance).events == 0
    old = dg.AssetMaterialization(keys[1], partition=min(before), tags={"dagster/data_version": "old"})
    decoded.instance.report_runless_asset_event(old)
    assert rebuild_topic(decoded.topic, decoded.edges, decoded.instance).events == 1, "decoded again, and died untold"


def test_events_that_a_crash_took_are_told_by_the_next_tick(decoded: World) -> None:
    """[R-70] What is decoded and unknown to Dagster is told outside of any run; nothing is decoded again.

    A backfill of dead letters is then one of the decoded asset, of just these ranges, and of no raw one.
    """
    decoded.decode()
    assert told(decoded) == set()
    assert tick(decoded) == DerivedTick()
    assert len(told(decoded)) == 4
    (poisoned,) = (offsets for offsets, each in decoded.decodings.items() if each.dead)
    decoded.hear_daemon("BACKFILL")
    request = BackfillRequest([poisoned], redo=True, duty=decoded.topic.decoding)
    backfill = decoded.instance.get_backfill(launch_backfill(decoded.topic, request, decoded.edges, decoded.instance))
    assert backfill is not None
    assert backfill.asset_selection == [decoded.topic.decoded_key]
    assert backfill.tags["offsetlake/decodes"] == decoded.name
    assert "offsetlake/topic" not in backfill.tags


def test_a_range_above_its_budget_waits_and_a_selection_of_decoded_ranges_is_what_people_mean(decoded: World) -> None:
    """[R-67] The run says which range failed and why; others are decoded; the failed one is asked for again, later.

    [R-70] What waits, what failed, dead letters, an older decoder, a schema id: each chooses its ranges, or none.
    """

    def chosen(**said: Any) -> set[OffsetRange]:
        choice = Choice(decoded=True, **said)
        return {*select_ranges(choice, decoded.topic, decoded.coverage, decoded.edges, decoded.instance).ranges}

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
    assert find_decoded(choice, decoded.topic, decoded.edges) == [*decoded.coverage.log.ranges], "the control"
    decoded.decode()
    nothing = f"nothing of {decoded.name} is to be decoded"
    dead = f"; 1 dead letter: offsetlake dead-letters {decoded.name}\n"
    for options in ("--due",), ():
        assert run(*options).stdout == f"{nothing}{dead}", "what is due, where nothing is said"
    before, decoded.topic = decoded.topic, dataclasses.replace(decoded.topic, decode=Decode())
    assert run().stdout == f"{nothing}; 4 ranges by older settings: offsetlake decode {decoded.name} --outdated{dead}"
    decoded.topic = before
    choice = Choice(dead=True, said_in="decode")
    assert [199 in each for each in find_decoded(choice, decoded.topic, decoded.edges)] == [True]


def test_what_is_made_of_decoded_ranges_waits_for_a_backlog_but_not_for_long(decoded: World) -> None:
    """Days and latest records are not written anew for each batch of a backlog, and never wait for more than two minutes."""
    edges = decoded.edges

    def waits(last_ended_ms: int) -> bool:
        return is_backlog(edges.decodings.read_ranges(decoded.name), edges, last_ended_ms)

    assert not waits(0), "nothing is decoded yet: there is nothing to wait for"
    first, *others = (offsets.key for offsets in decoded.coverage.log.ranges)
    decoded.decode([first])
    assert waits(0)
    assert waits(edges.now_ms())
    assert not waits(edges.now_ms() - 121_000), "the last update is old"
    decoded.later(121_000)
    assert not waits(0), "it has waited for long enough"
    decoded.decode(others)
    assert not waits(edges.now_ms()), "the backlog is gone"


def test_a_type_that_is_changed_is_decoded_in_one_run_however_many_ranges_there_are(
    decoded: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-66] New ranges fail and say what is to be done; in runs of their own the old ones stand in each other's way."""
    monkeypatch.setattr("pipeline_defs.cli.launching.RANGES_PER_RUN", 2)
    ranges = list(decoded.coverage.log.ranges)
    assert all(each.succeeded for each in launch(decoded, ranges))
    decode = Decode(value=Side(Format.JSON, "id STRING"), budget=Budget(5, 1.0))
    decoded.topic = dataclasses.replace(decoded.topic, decode=decode)
    apart = launch(decoded, ranges, redo=True)
    assert [each.succeeded for each in apart] == [False, False], "the fault"
    assert f"`offsetlake decode {decoded.name} --outdated`" in apart[0].reason
    assert decoded.query("decoded", "typeof(value.id)")[0] == ("INTEGER",), "what stood stands"
    through = decoded.in_process.decode([ranges[0], ranges[-1]], redo=True, in_one_run=True)
    assert [(len(each.ranges), each.succeeded) for each in through] == [(len(ranges), True)]
    assert decoded.query("decoded", "typeof(value.id)")[0] == ("VARCHAR",)
