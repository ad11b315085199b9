"""A pipeline that stands still is found, with range, since when and why; an idle topic makes no noise."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from pipeline_defs.adapters.lake.layout import data_path
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.orchestration.runs.moments import time_text
from pipeline_defs.orchestration.runs.tries import trying
from pipeline_defs.topics import PROGRESS
from tests.support.pulse import audited, said
from tests.support.world import World

MINUTE_MS = 60_000
ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


def told(world: World) -> list[dg.AssetCheckEvaluation]:
    """Is what Dagster was told of the check, oldest first."""
    records = world.instance.event_log_storage.get_asset_check_execution_history(world.topic.check_key(PROGRESS), limit=100)
    found: list[Any] = [each.event.dagster_event.event_specific_data for each in records if each.event]  # type: ignore[union-attr]
    return list(reversed(found))


def test_publishing_that_fails_three_times_is_a_red_run_a_red_check_and_the_sensor_says_so(world: World) -> None:
    """Range, since when, how often and why, in the failed run's own words; green when the obstacle is gone.

    Another range that fails meanwhile is told: the result stays the same, the ranges concerned do not.

    [R-56] [R-33]
    """
    world.fill(100)
    world.tick()
    real_now = world.edges.now_ms
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
    in_the_way.unlink()
    world.later(60_000)
    assert world.tick().due, "stalled is still due"
    world.edges.now_ms = real_now
    world.launch()
    world.assert_all_landed_once()
    assert world.tick().stalled == ()
    assert [each.passed for each in told(world)] == [False, False, False, True]
    assert audited(world, PROGRESS).passed


def test_a_folder_in_the_place_of_a_file_is_a_failure_and_no_success(world: World) -> None:
    """[R-56] To put-if-absent it is as if the file were there: the range must not pass for landed."""
    world.fill(100)
    world.plan()
    (offsets,) = world.pending
    in_the_way = world.lake_folder / data_path(world.name, offsets)
    in_the_way.mkdir(parents=True)
    for outcome in (Outcome.FAILED, Outcome.FAILED):  # committed and not published, then not rolled forward
        (verdict,) = world.land()
        assert verdict.outcome is outcome
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
    assert "no run holds it" in sentence
    run = create_run_for_test(world.instance, status=dg.DagsterRunStatus.STARTED)
    at_it = trying(world.instance, world.topic.landing, ["0-0-100"], run.run_id, world.edges.now_ms)
    at_it.__enter__()
    (sentence,) = world.tick().stalled
    assert f"run {run.run_id[:8]} (STARTED) holds it" in sentence
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
    arrived_ms = min(row[5] for row in world.sent.values())
    text = str(red.metadata["offsets"].value)
    assert f"{world.name}/0: offset 0 is in no range, waits" in text
    assert f"has landed since {time_text(arrived_ms)}" in text
    assert "have the sensor land_pending run" in text


@pytest.mark.parametrize("count", [0, 100])
def test_an_idle_topic_makes_no_event_and_no_alarm(world: World, count: int) -> None:
    """[R-56] Empty, or landed and then quiet for a month: nothing is told, nothing is asked for."""
    world.create_topic()
    world.send_numbered(count)
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
