"""Event days in Dagster: the sensor asks, runs bring days up to date and tell of them, checks prove them; and the command."""

from __future__ import annotations

from typing import Any

import dagster as dg

from pipeline_defs.core.day_dispatch import DayRequest
from pipeline_defs.day_due import DaysTick, day_run_request, run_days_tick
from pipeline_defs.days_checks import COMPLETE, OUTSIDE
from pipeline_defs.days_launching import LaunchedDays, update_through_dagster
from tests.support.daily import configure, digests, event, expected, shown
from tests.support.world import World


def tick(world: World) -> DaysTick:
    assert world.topic.days is not None
    return run_days_tick(world.topic, world.topic.days, world.instance, world.edges)


def run(world: World, request: DayRequest, *, redo: bool = False) -> LaunchedDays:
    """Does what Dagster does with a request, in this process."""
    (launched,) = update_through_dagster(
        world.topic, request.days, world.edges, world.instance, redo=redo, topics=world.definitions
    )
    return launched


def metadata(world: World, day: str) -> dict[str, Any]:
    """Is what Dagster shows of the newest event of a day."""
    records = world.instance.fetch_materializations(
        dg.AssetRecordsFilter(world.topic.days_key, asset_partitions=[day]), limit=1
    ).records
    event = records[0].asset_materialization
    assert event is not None
    assert event.tags is not None
    return {
        **{name: value.value for name, value in event.metadata.items()},
        "version": event.tags["dagster/data_version"],
    }


def test_the_sensor_turns_decoded_ranges_into_few_runs_that_tell_of_each_day(world: World) -> None:
    """AC22 in Dagster: near days are one run; what is not due between them is left alone; a lost database is told again."""
    configure(world)
    world.create_topic(1)
    days = ["2013-01-01", "2013-01-02", "2013-01-20", "2014-05-01"]
    world.send(event(days[n // 25], n) for n in range(100))
    world.plan_and_land()
    world.decode()
    asked = tick(world)
    assert [request.days for request in asked.requests] == [tuple(days[:3]), (days[3],)]
    one, other = (day_run_request(world.topic, request, asked.newest_ms) for request in asked.requests)
    assert (one.tags["dagster/asset_partition_range_start"], one.tags["dagster/asset_partition_range_end"]) == (
        days[0],
        days[2],
    )
    assert other.partition_key == days[3]
    assert one.run_key == day_run_request(world.topic, tick(world).requests[0], asked.newest_ms).run_key

    for request in asked.requests:
        launched = run(world, request)
        assert launched.succeeded, launched.reason
    assert world.instance.get_materialized_partitions(world.topic.days_key) == set(days)
    assert tick(world).requests == ()
    told = metadata(world, days[1])
    assert (told["rows"], told["added_rows"], told["late_rows"], told["ranges"]) == (25, 25, 25, 1)
    assert told["version"] == told["sha256"] == digests(world)[days[1]][0]
    for name in (COMPLETE, OUTSIDE):
        checks = world.instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(world.topic.days_key, name), limit=1
        )
        assert checks[0].status.value == "SUCCEEDED"

    world.send([event("2013-01-02", 100)])  # a late record: its own day, and no other
    world.plan_and_land()
    world.decode()
    before, asked = digests(world), tick(world)
    assert [request.days for request in asked.requests] == [("2013-01-02",)]
    assert run(world, asked.requests[0]).succeeded
    assert {day for day, found in digests(world).items() if found != before[day]} == {"2013-01-02"}
    assert metadata(world, "2013-01-02")["added_rows"] == 1
    assert shown(world) == expected(world)

    world.instance.wipe_assets([world.topic.days_key])
    assert (tick(world).told, tick(world).told) == (4, 0)
    assert world.instance.get_materialized_partitions(world.topic.days_key) == set(days)


def test_a_run_that_fails_is_red_and_asked_for_again_later(world: World) -> None:
    """What stood stands; the failed days are asked for again after a back-off, apart from those that have not failed."""
    configure(world)
    world.create_topic(1)
    world.send(event("2013-01-01", n) for n in range(20))
    world.plan_and_land()
    (verdict,) = world.decode()
    assert verdict.decoding is not None
    assert verdict.decoding.decoded is not None
    (file,) = (world.lake_folder / "decoded" / world.name).rglob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + b"\0" * (len(whole) - 4))
    (request,) = tick(world).requests
    launched = run(world, request)
    assert not launched.succeeded
    assert "1 of 1 days of topic" in launched.reason
    assert "Spark could not write 1 days from 1 decoded ranges" in launched.reason
    assert not (world.lake_folder / "days").exists()
    assert tick(world).requests == ()  # in back-off
    now_ms = world.edges.now_ms
    world.edges.now_ms = lambda: now_ms() + 11_000
    (again,) = tick(world).requests
    assert (again.days, again.attempt) == (("2013-01-01",), 2)
    file.write_bytes(whole)
    assert run(world, again).succeeded
    assert shown(world) == expected(world)
