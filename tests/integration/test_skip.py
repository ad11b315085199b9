"""Skipping ahead with real parts: who is days behind and wants now; what is left out can be landed all the same."""

from __future__ import annotations

import importlib
import json
import threading

import pytest
from click.testing import CliRunner

from pipeline_defs.core.errors import Refused
from pipeline_defs.core.log.coverage import State
from pipeline_defs.core.log.losses import find_skips
from pipeline_defs.core.log.plan_step import PlanStep
from pipeline_defs.landing.auditing import check_tiling
from pipeline_defs.operate.skipping import LATEST, commit_skip, find_skip
from pipeline_defs.orchestration.assets.checks import lake_result
from pipeline_defs.orchestration.runs.moments import time_text
from pipeline_defs.orchestration.runs.tries import read_tries, trying
from pipeline_defs.orchestration.upkeep.retirement import find_retirable
from tests.support.queued import queue_run
from tests.support.world import Row, World

HOUR_MS = 3_600_000
commands = importlib.import_module("pipeline_defs.cli.work.losses")  # the package has a command itself by this name


@pytest.fixture
def behind(world: World) -> World:
    """Has 350 records, of which the first 150 are planned and not landed; each is an hour younger than the one before."""
    world.create_topic(1)
    began = world.edges.now_ms() - 400 * HOUR_MS
    world.send({"partition": 0, "key": b"k", "value": b"%d" % n, "timestamp_ms": began + n * HOUR_MS} for n in range(150))
    world.plan()
    world.send({"partition": 0, "key": b"k", "value": b"%d" % n, "timestamp_ms": began + n * HOUR_MS} for n in range(150, 350))
    return world


def skip(world: World, to: str) -> PlanStep | None:
    return commit_skip(world.topic, find_skip(world.topic, to, "ada", world.edges), world.edges)


def rows_from(world: World, first: int) -> list[Row]:
    return sorted(row for (_, offset), row in world.sent.items() if offset >= first)


def test_what_waits_is_left_out_and_what_comes_now_is_landed_at_once(behind: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-92] By the command, which shows first, and writes nothing without --apply; it says how to land what it has left out.

    Afterwards `losses` names what was left out, and no loss.
    """
    name = behind.name
    monkeypatch.setattr(commands, "open_edges", lambda: behind.edges)
    monkeypatch.setattr(commands, "find_topic", lambda name: behind.topic)
    monkeypatch.setattr(commands, "find_topics", lambda name: ([behind.topic], ()))

    def offsetlake(verb: str, *arguments: str) -> str:
        ended = CliRunner().invoke(getattr(commands, verb), [name, *arguments])
        assert ended.exit_code == 0, (ended.exception, ended.output)
        return ended.stdout

    steps = behind.coverage.log.steps
    whole = {"partition": 0, "start": 0, "end": 350, "offsets": 350}
    expected = {"topic": name, "to": "latest", "applied": False, "offsets": 350, "skips": [whole]}
    assert json.loads(offsetlake("skip", "--to", "latest", "--json")) == expected
    assert "would skip 350 offsets" in offsetlake("skip", "--to", "latest")
    assert behind.coverage.log.steps == steps, "nothing is written"
    assert "skipped 350 offsets" in offsetlake("skip", "--to", "latest", "--apply", "--by", "ada")
    assert behind.pending == []
    behind.send_numbered(40)
    behind.plan_and_land()
    assert behind.rows() == rows_from(behind, 350)
    steps = behind.coverage.log.steps
    assert f"nothing of {name} waits before latest" in offsetlake("skip", "--to", "latest", "--apply")
    assert behind.coverage.log.steps == steps
    status = behind.status()
    assert (status["lag"], status["pending_ranges"], status["not_accepted_offsets"]) == (0, 0, 0)
    (left_out,) = find_skips(behind.coverage)
    assert left_out.text(name) == f"{name}/0 [0, 350): 350 offsets left out on purpose, by ada: skip --to latest"
    (told,) = json.loads(offsetlake("losses", "--json"))
    assert (told["kind"], told["offsets"], told["cause"]) == ("skipped", 350, "by ada: skip --to latest")
    assert f"offsetlake backfill {name} --offsets 0:0-350 --apply" in told["standing"]
    assert "left out on purpose" in offsetlake("losses")
    behind.assert_proven()


def test_what_was_left_out_is_landed_where_somebody_asks_for_it(behind: World) -> None:
    """[R-92] By its key, while Kafka has it; then it is left out no more. Nothing else asks for it."""
    behind.keep_raw_table()
    assert skip(behind, LATEST) is not None
    behind.tick()
    assert behind.tick().due == () and behind.instance.get_dynamic_partitions(str(behind.topic.partitions.name)) == []
    wanted = sorted(behind.coverage.skipped())[1]
    behind.launch([wanted], redo=True)
    assert behind.coverage.states()[wanted] is State.LANDED
    assert [(s.offsets.start, s.offsets.end) for s in find_skips(behind.coverage)] == [(0, wanted.start), (wanted.end, 350)]
    assert behind.rows() == [row for row in rows_from(behind, wanted.start) if row[1] < wanted.end]
    assert wanted.key in behind.materialized()
    behind.assert_proven()


def test_a_skip_to_a_time_leaves_out_what_is_older(behind: World) -> None:
    """[R-92] A range planned already that goes beyond the time is landed, older records included."""
    first = next(row for row in rows_from(behind, 180))
    assert skip(behind, time_text(first[5])) is not None
    assert {o.end for o in behind.coverage.skipped()} == {100, 150, 180}
    behind.plan_and_land()
    assert behind.rows() == rows_from(behind, 180)
    behind.assert_proven()


def test_a_range_that_had_failed_goes_from_dagster_once_it_is_skipped(behind: World) -> None:
    """[R-92] Before, the control, its key stays: it is tried again."""
    behind.tick()
    failed = behind.pending[0]
    run = queue_run(behind.instance, behind.topic.land_job)
    with trying(behind.instance, behind.topic.landing, [failed.key], run.run_id, behind.edges.now_ms):
        pass
    behind.instance.report_run_canceled(run)
    assert failed in read_tries(behind.instance, behind.topic.landing).tried, "the fault"
    assert find_retirable(behind.topic, behind.coverage, behind.instance) == [], "the control"
    assert skip(behind, LATEST) is not None
    assert failed in find_retirable(behind.topic, behind.coverage, behind.instance)


def test_a_range_that_a_run_is_at_is_landed_whatever_is_skipped_meanwhile(behind: World) -> None:
    """[R-92] It was committed, or is about to be: it is landed, and not left out."""
    skipped: list[PlanStep | None] = []

    def at(step: str, **facts: object) -> None:
        if step == "commit" and not skipped:
            thread = threading.Thread(target=lambda: skipped.append(skip(behind, LATEST)))
            thread.start()
            thread.join()

    behind.land(on_step=at)
    assert skipped and skipped[0] is not None, "the fault: skipped as the run was at it"
    assert [row[:2] for row in behind.rows()] == [(0, offset) for offset in range(150)]
    assert {o.start for o in behind.coverage.skipped()} == {150, 200, 300}
    behind.assert_proven()


def test_what_cannot_be_skipped_is_refused_and_nothing_is_written(behind: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-92] Also a grid of few records over a backlog of millions, which would make a step that nobody can read."""
    steps = behind.coverage.log.steps
    for to in ("tomorrow", "2026-11-25T06:00", "", "0"):
        with pytest.raises(Refused, match="nothing was written"):
            skip(behind, to)
    monkeypatch.setattr("pipeline_defs.core.log.planning.MOST_SKIPPED", 1)
    with pytest.raises(Refused, match="more than 1 ranges of 100 offsets; nothing was written"):
        skip(behind, LATEST)
    assert behind.coverage.log.steps == steps


def test_the_newest_ranges_are_landed_first_where_the_policy_says_so(behind: World) -> None:
    """[R-93] And what waits behind them is no gap; under the other order, the control, it is one."""
    behind.plan_and_land()
    behind.send_numbered(300)
    behind.plan()
    newest = behind.pending[-1]
    behind.land([newest.key])
    lake = behind.edges.lake
    assert not check_tiling(behind.name, lake).passed, "the control"
    assert not lake_result(behind.topic, "tiling", behind.edges).passed, "the control"
    behind.with_policy(order="newest_first")
    assert lake_result(behind.topic, "tiling", behind.edges).passed, "also before anything more is planned"
