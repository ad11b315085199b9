"""Event days in Dagster: the sensor asks, runs bring days up to date and tell of them, checks prove them; and the command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner, Result

from pipeline_defs.cli.commands import cli
from pipeline_defs.core.day_dispatch import DayRequest
from pipeline_defs.core.errors import BadKey
from pipeline_defs.day_due import DaysTick, day_run_request, run_days_tick
from pipeline_defs.days_checks import COMPLETE, OUTSIDE
from pipeline_defs.days_launching import LaunchedDays, update_through_dagster
from pipeline_defs.edges.decodings import path_of
from pipeline_defs.project import plan_project, write_project
from tests.support.daily import AT, SCHEMA, START, configure, digests, event, expected, shown
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


def check_statuses(world: World) -> list[str]:
    """Is how the last execution of each check has ended."""
    history = world.instance.event_log_storage.get_asset_check_execution_history
    keys = [dg.AssetCheckKey(world.topic.days_key, name) for name in (COMPLETE, OUTSIDE)]
    return [history(key, limit=1)[0].status.value for key in keys]


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
    one, other = (day_run_request(world.topic, request, asked.newest_ms, world.instance) for request in asked.requests)
    assert (one.tags["dagster/asset_partition_range_start"], one.tags["dagster/asset_partition_range_end"]) == (
        days[0],
        days[2],
    )
    assert other.partition_key == days[3]
    assert one.run_key == day_run_request(world.topic, tick(world).requests[0], asked.newest_ms, world.instance).run_key

    for request in asked.requests:
        launched = run(world, request)
        assert launched.succeeded, launched.reason
        assert check_statuses(world) == ["SUCCEEDED", "SUCCEEDED"], (
            "of a run of many days too, whose checks Dagster skips"
        )
    assert world.instance.get_materialized_partitions(world.topic.days_key) == set(days)
    assert tick(world).requests == ()
    told = metadata(world, days[1])
    assert (told["rows"], told["added_rows"], told["late_rows"], told["ranges"]) == (25, 25, 25, 1)
    assert told["version"] == told["sha256"] == digests(world)[days[1]][0]

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
    file = world.lake_folder / path_of(verdict.decoding)
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


@pytest.fixture
def command(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Runs `offsetlake` in a project whose topic has days, as a person types it."""
    write_project(plan_project(tmp_path / "shop", [world.name], None))
    (file,) = (tmp_path / "shop").rglob("defs.yaml")
    decode = f"{{key: {{format: string}}, value: {{format: json, inline_schema: '{SCHEMA}'}}}}"
    days = f"{{start: {START}, event_time: {AT.path}}}"
    file.write_text(f"{file.read_text()}  decode: {decode}\n  days: {days}\n")
    monkeypatch.chdir(tmp_path / "shop")
    monkeypatch.setattr(sys, "path", [*sys.path])
    settings = {
        "OFFSETLAKE_HOME": world.settings.home,
        "OFFSETLAKE_LAKE": world.settings.lake,
        "OFFSETLAKE_BOOTSTRAP_SERVERS": world.settings.bootstrap_servers,
        "DAGSTER_HOME": world.settings.dagster_home,
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    return lambda *arguments: CliRunner().invoke(cli, [*arguments])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster's, as it reads YAML
def test_the_command_brings_days_up_to_date_and_makes_them_anew(world: World, command: Callable[..., Result]) -> None:
    """Through Dagster, in its own process; SQL has the days as a view; what is no day of the topic is refused."""
    configure(world)
    world.create_topic(1)
    world.send(event(f"2013-01-0{1 + n % 3}", n) for n in range(60))
    world.plan_and_land()
    world.decode()
    first = command("days", world.name)
    assert first.exit_code == 0, (first.output, first.exception)
    assert "brought up to date 3 days from 2013-01-01 to 2013-01-03 in run" in first.stdout
    assert shown(world) == expected(world)
    assert f"no day of {world.name} is due; 3 are up to date" in command("days", world.name).stdout
    before = digests(world)
    again = command("days", world.name, "--day", "2013-01-02")
    assert "brought up to date 2013-01-02 in run" in again.stdout
    assert metadata(world, "2013-01-02")["outcome"] == "unchanged"
    assert "3 days from 2013-01-01 to 2013-01-03" in command("days", world.name, "--whole").stdout
    assert {day: digest for day, (digest, _) in digests(world).items()} == {day: d for day, (d, _) in before.items()}
    found = command(
        "sql", f'SELECT event_time::DATE AS day, count(*) FROM days."{world.name}" GROUP BY ALL ORDER BY ALL'
    )
    assert "2013-01-02 │           20" in found.stdout, found.stdout
    refused = command("days", world.name, "--day", "2012-12-31")
    assert isinstance(refused.exception, BadKey)
    assert "day '2012-12-31' is none of this topic's: expected one from 2013-01-01 to today" in str(refused.exception)
