"""Event days on a real broker and real Spark: late records, redone ranges, what is in no day, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline_defs.core.day_verdicts import DayDecided
from pipeline_defs.core.days import EventTime
from pipeline_defs.core.errors import BadSetting
from pipeline_defs.days_checks import check_days, check_outside
from pipeline_defs.resources import Edges
from tests.support.daily import SCHEMA, configure, digests, event, expected, outcomes, shown, update
from tests.support.world import World

CREATED, UPDATED = DayDecided.CREATED, DayDecided.UPDATED


def told(world: World, day: str) -> tuple[dict[str, Any], list[dict[str, Any]], bytes]:
    """Is what a day's file has, in the order in which a difference is best understood: footer, rows, bytes."""
    path = world.lake_folder / "days" / world.name / f"{day}.parquet"
    table = pq.read_table(path)
    return pq.read_metadata(path).to_dict(), table.to_pylist(), path.read_bytes()


def test_late_event_times_do_not_multiply_files(world: World) -> None:
    """AC22: late records, days old, in each of many ranges: one file per day, each row once, only touched days rewritten."""
    configure(world)
    world.with_policy(records_per_range=10)
    world.create_topic(2)
    late = ["2013-01-01", "2013-01-02", "2013-03-05"]
    for partition in (0, 1):
        world.send(
            event(late[n // 10 % 3] if n % 10 == 9 else f"2014-06-{1 + n // 25:02d}", n, partition) for n in range(100)
        )
    world.plan_and_land()
    keys = [offsets.key for offsets in world.coverage.log.ranges]
    world.decode(keys[:8])
    assert set(outcomes(update(world)).values()) == {CREATED}
    assert shown(world) == expected(world)

    for batch in (keys[8:9], keys[9:]):  # each of these ranges brings a late record
        before = digests(world)
        found = [verdict.decoding.event_days for verdict in world.decode(batch) if verdict.decoding]
        touched = {day for days in found for day in days}
        assert all(set(late) & days.keys() for days in found)
        updated = update(world)
        assert outcomes(updated) == {day: UPDATED if day in before else CREATED for day in touched}
        after = digests(world)
        assert {day for day in before if after[day] != before[day]} == touched & before.keys()
        assert {day: each.added for day, each in updated.items()} == {
            day: sum(days.get(day, 0) for days in found) for day in touched
        }
    assert sorted(digests(world)) == sorted({*late, *(f"2014-06-0{n}" for n in range(1, 5))})
    assert shown(world) == expected(world)
    assert len(shown(world)) == 200
    assert update(world) == {}  # the control: nothing new, nothing due
    stood = {day: told(world, day) for day in late}
    again = update(world, late, redo=True)
    assert {day: told(world, day) for day in late} == stood
    assert set(outcomes(again).values()) == {DayDecided.UNCHANGED}  # made anew from all their ranges: the same files


def test_a_redone_range_moves_its_records_between_days(world: World) -> None:
    """By a decoder that sets records aside the day that they leave changes, and the other one does not."""
    configure(world, schema="at DATE, n BIGINT")
    world.create_topic(2)
    first, second = "2013-01-01", "2013-01-02"

    def sent(partition: int, times: list[str]) -> list[dict[str, object]]:
        values = [json.dumps({"at": at, "n": n}).encode() for n, at in enumerate(times)]
        return [{"partition": partition, "key": b"k", "value": value} for value in values]

    def decode_as(schema: str, *keys: str) -> None:
        assert world.topic.decode is not None
        side = dataclasses.replace(world.topic.decode.value, schema=schema)
        world.topic = dataclasses.replace(world.topic, decode=dataclasses.replace(world.topic.decode, value=side))
        world.decode(keys, redo=True)

    world.send(sent(0, [first] * 80) + sent(1, [first] * 19 + [second]))
    world.plan_and_land()
    one, other = world.decode()
    assert outcomes(update(world)) == {first: CREATED, second: CREATED}
    assert Counter(row[0] for row in shown(world)) == {first: 99, second: 1}

    decode_as("at DATE, n BIGINT, more STRING NOT NULL", one.offsets.key)  # which sets all of its records aside
    assert outcomes(update(world)) == {first: UPDATED}
    assert Counter(row[0] for row in shown(world)) == {first: 19, second: 1}
    decode_as(SCHEMA, one.offsets.key, other.offsets.key)
    assert outcomes(update(world)) == {first: UPDATED, second: UPDATED}
    assert Counter(row[0] for row in shown(world)) == {first: 99, second: 1}
    assert shown(world) == expected(world)


def test_what_is_in_no_day_is_named_and_put_into_it_once_it_has_come(world: World) -> None:
    """No event time, before the first day, days to come: in the decoded ranges as ever, counted and explained by a check."""
    configure(world, EventTime("value.at", "s"), "at BIGINT, n BIGINT")
    world.create_topic(2)
    first, before, coming = 1_357_041_600, 1_325_419_200, 4_070_952_000
    times = [*[first] * 40, None, None, before, coming]
    values = [json.dumps({"at": at, "n": n}).encode() for n, at in enumerate(times)]
    world.send([{"partition": n % 2, "key": b"k", "value": value} for n, value in enumerate([*values, None])])
    world.plan_and_land()
    one, other = (verdict.offsets for verdict in world.decode())
    assert outcomes(update(world)) == {"2013-01-01": CREATED}
    assert [row[0] for row in shown(world)] == ["2013-01-01"] * 40

    days = world.topic.days
    assert days is not None
    outside = check_outside(world.topic, days, Edges(world.settings))
    assert outside.facts == {"none": 3, "before": 1, "future": 1}
    assert outside.concerns == (one.key, one.key, other.key, other.key)
    assert f"range {one.text(world.name)}: 2 rows have no event time" in outside.violations[0]
    assert check_days(world.topic, days, Edges(world.settings)).passed

    world.edges.now_ms = lambda: coming * 1_000
    assert outcomes(update(world)) == {"2099-01-01": CREATED}
    assert len(shown(world)) == 41

    folder = world.lake_folder / "days" / world.name  # what a person put there by hand
    (folder / "copy.parquet").hardlink_to(folder / "2013-01-01.parquet")
    found = check_days(world.topic, days, Edges(world.settings))
    assert [text.split(":")[0] for text in found.violations] == [
        f"days/{world.name}/copy.parquet is no day of {world.name}",
        f"day 2099-01-01 of {world.name} is not one of those since 2013-01-01",
    ]


def test_days_of_what_was_decoded_before_there_were_days(world: World) -> None:
    """Ranges whose documents say no days are counted from their files, once; a wrong column is refused before a write."""
    configure(world)
    days, decode = world.topic.days, world.topic.decode
    assert days is not None
    assert decode is not None
    world.topic = dataclasses.replace(world.topic, decode=dataclasses.replace(decode, event_time=None))
    world.create_topic(1)
    world.send(event(f"2013-01-0{1 + n // 70}", n) for n in range(200))
    world.plan_and_land()
    assert [verdict.decoding and verdict.decoding.event_days for verdict in world.decode()] == [{}, {}]
    for wrong, found in (
        (EventTime("value.when"), "found no column when in value, which is of at, n"),
        (EventTime("value.n"), "expected a TIMESTAMP or DATE, found int64"),
        (EventTime("value.at", "s"), r"expected an integer, as unit s says, found timestamp\[us, tz=UTC\]"),
    ):
        world.topic = dataclasses.replace(world.topic, days=dataclasses.replace(days, event_time=wrong))
        with pytest.raises(BadSetting, match=found):
            update(world)
    assert not list(world.lake_folder.glob("*days*"))
    world.topic = dataclasses.replace(world.topic, days=days)
    assert set(outcomes(update(world))) == {"2013-01-01", "2013-01-02", "2013-01-03"}
    assert shown(world) == expected(world)
    assert len(list((world.lake_folder / "event_days").rglob("*.json"))) == 2


def test_a_range_that_is_decoded_again_while_it_is_read_is_read_again(world: World) -> None:
    """What Spark has read may be of before or after: it is thrown away, and the day is made from what is decoded now."""
    configure(world)
    world.create_topic(1)
    world.send(event("2013-01-01", n) for n in range(20))
    world.plan_and_land()
    (verdict,) = world.decode()
    staged: list[str] = []

    def meanwhile(step: str, **_: Any) -> None:
        if step == "stage_days":
            staged.append(step)
            if len(staged) == 1:
                configure(world, schema=f"{SCHEMA} NOT NULL, new STRING")
                world.decode([verdict.offsets.key], redo=True)

    assert outcomes(update(world, on_step=meanwhile)) == {"2013-01-01": CREATED}
    assert len(staged) == 2
    assert world.decodings[verdict.offsets].revision == 1, "the fault has happened"
    assert shown(world) == expected(world)
    assert world.query("days", "value.new") == [(None,)] * 20
    assert update(world) == {}


def test_two_updaters_at_once_lose_and_double_nothing(world: World) -> None:
    """Both have written the same day from what they saw; the second one begins again from what the first has left."""
    configure(world)
    world.create_topic(2)
    for partition in (0, 1):
        world.send(event("2013-01-01" if n % 2 else "2013-01-02", n, partition) for n in range(100))
    world.plan_and_land()
    one, other = (offsets.key for offsets in world.coverage.log.ranges)
    world.decode([one])
    both, steps = Barrier(2), Counter[str]()

    def meet(step: str, **_: Any) -> None:
        steps[step] += 1
        if step == "stage_days" and steps[step] <= 2:
            both.wait(120)

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(update, world, on_step=meet) for _ in range(2)]
        verdicts = [each.result() for each in found]
    ended = Counter(verdict.outcome for each in verdicts for verdict in each.values())
    assert ended[CREATED] == 2, "each day was put in place once"
    assert not ended[DayDecided.FAILED]
    assert shown(world) == expected(world)
    world.decode([other])
    between: dict[str, DayDecided] = {}

    def be_first(step: str, **_: Any) -> None:
        if step == "find_days" and not between:
            between.update(outcomes(update(world)))

    second = update(world, on_step=be_first)  # what it has found due is up to date when it looks again
    assert set(outcomes(second).values()) == {DayDecided.UP_TO_DATE}
    assert between == {"2013-01-01": UPDATED, "2013-01-02": UPDATED}
    assert shown(world) == expected(world)
