"""Originals that sealed files stand for leave `data/` and come back; readers, landing, decoding and audits see all of them.

One topic is landed and sealed once; each test goes on with a copy of its lake.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from pipeline_defs.auditing import check_completeness, check_published, check_tiling
from pipeline_defs.core.decoders import Decode
from pipeline_defs.core.decoding import Decided
from pipeline_defs.core.errors import OriginalsKept
from pipeline_defs.core.originals import Move
from pipeline_defs.core.verdicts import Outcome
from pipeline_defs.edges.lake import Lake
from pipeline_defs.originals import plan_restoration, plan_retirement, restore_originals, retire_originals
from pipeline_defs.reports import trace_row
from pipeline_defs.resources import Edges
from pipeline_defs.sealing import check_sealed
from pipeline_defs.settings import Settings
from tests.faults.test_sealing import Reader, data_tree, run_seal, sent, view, with_an_aborted_record
from tests.support.killing import stopped_at
from tests.support.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = "0-0-50"  # of which the aborted record is landed, too
SEALED = 12  # ranges; behind them is one more, which nothing is sealed with: it stays as it is


@pytest.fixture(scope="module")
def sealed(settings: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Is a topic of which all is landed, the aborted record too, and sealed."""
    with World(settings, tmp_path_factory.mktemp("sealed"), f"t{uuid.uuid4().hex[:10]}") as world:
        with_an_aborted_record(world)
        run_seal(world)
        yield world


@pytest.fixture
def world(sealed: World, tmp_path: Path) -> Iterator[World]:
    """Is the sealed topic with a lake and a Dagster instance of the test's own."""
    with World(sealed.settings, tmp_path, sealed.name, sealed.topic.policy) as fresh:
        shutil.copytree(sealed.lake_folder, fresh.lake_folder)
        fresh.sent = sealed.sent
        yield fresh


def retire(world: World) -> set[Move]:
    plans = plan_retirement(world.name, world.edges.lake, world.edges.now_ms(), 0)
    return {verdict.move for verdict in retire_originals(world.edges.lake, plans)}


def restore(world: World, *keys: str) -> set[Move]:
    plan = plan_restoration(world.name, world.edges.lake, keys)
    return {verdict.move for verdict in restore_originals(world.edges.lake, plan)}


def originals(world: World) -> dict[Path, bytes]:
    """Are the files in `data/` of ranges that are sealed."""
    return {path: content for path, content in data_tree(world).items() if not path.name.startswith(f"{600:020d}")}


def landed(world: World) -> list[tuple[int, bytes | None, bytes | None]]:
    """Is what was landed, and so what a view must show: what was sent, and the record that was aborted."""
    return [(0, b"never", b"aborted"), *sent(world)]


def test_originals_leave_the_glob_and_come_back_byte_for_byte(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-72] AC12: a reader of the views sees each row once all the while; the command shows first, then does."""
    command = importlib.import_module("pipeline_defs.cli.originals")
    monkeypatch.setattr(command, "open_edges", lambda: world.edges)
    monkeypatch.setattr(command, "find_topic", lambda name: world.topic)
    run: Callable[..., str] = lambda verb, *given: (  # noqa: E731
        CliRunner().invoke(getattr(command, f"{verb}_originals"), [world.name, *given]).output.replace("\n", " ")
    )
    before, total, reader = originals(world), len(world.sent) + 1, Reader(world)
    assert "would retire 0 originals" in run("retire"), "what was sealed just now waits"
    moment = world.edges.now_ms() + 4 * 3_600_000
    world.edges.now_ms = lambda: moment
    with reader.reading():
        reader.wait_for_another()
        shown = run("retire")
        assert f"would retire {SEALED} originals" in shown and "give --yes" in shown and originals(world) == before
        document = json.loads(run("retire", "--yes", "--json"))
        assert [each["outcome"] for each in document["originals"]] == ["retired"] * SEALED
        reader.wait_for_another()
        assert not originals(world) and view(world) == landed(world)
        assert [row[1] for row in world.rows()] == [600, 601], (
            "the control: the glob shows what was not sealed, and no more"
        )
        assert "would restore" in run("restore") and not originals(world)
        assert "restored 1 originals" in run("restore", "--key", FIRST, "--yes")
        reader.wait_for_another()
        assert len(originals(world)) == 1
        assert f"restored {SEALED - 1} originals" in run("restore", "--yes")
        reader.wait_for_another()
        assert originals(world) == before and len(world.rows()) == total
        assert "shows these rows no more" in run("retire", "--yes") and not originals(world)
        reader.wait_for_another()
    assert not reader.errors, reader.errors
    assert {seen[:2] for seen in reader.seen} == {(total, total)}
    (first, *_) = sorted((world.lake_folder / "retired").rglob("*.parquet"))
    first.write_bytes(first.read_bytes()[:-9] + b"x" + first.read_bytes()[-8:])
    done = CliRunner().invoke(command.restore_originals, [world.name, "--yes"])
    assert (
        isinstance(done.exception, OriginalsKept) and "1 of" in str(done.exception) and "sha256" in str(done.exception)
    )
    assert len(originals(world)) == SEALED - 1 and view(world) == landed(world)


@pytest.mark.parametrize(
    ("action", "step"),
    [
        ("retire", "original_kept"),
        pytest.param("retire", "original_retired", marks=pytest.mark.long),
        ("restore", "original_restored"),
    ],
)
def test_killed_at_any_step_each_row_is_seen_once_and_the_next_finishes(world: World, action: str, step: str) -> None:
    """[R-73] SIGKILL in the middle: the views are right there and afterwards; the same command again does the rest."""
    before = originals(world)
    if action == "restore":
        retire(world)
    with stopped_at(world, action, step, 3):
        assert view(world) == landed(world)
    kept = {path.name.split(".")[0] for path in (world.lake_folder / "retired").rglob("*.parquet")}
    there = {path.name.split(".")[0] for path in originals(world)}
    assert there and there != {path.name.split(".")[0] for path in before}, "the fault: it is in the middle"
    assert bool(kept & there) == (step != "original_retired"), "at these steps one file is in both trees"
    assert view(world) == landed(world) and not world.pending
    for check in (check_tiling, check_completeness, check_published):
        assert check(world.name, world.edges.lake).passed
    move = retire if action == "retire" else restore
    assert move(world) == {Move.RETIRED if action == "retire" else Move.RESTORED}
    assert originals(world) == ({} if action == "retire" else before)
    assert view(world) == landed(world)


def test_what_is_retired_is_audited_traced_read_again_and_decoded(world: World) -> None:
    """[R-72] Nothing takes it for a gap: no check, no tick, no landing; Kafka and every reader are held against it."""
    retire(world)
    coverage = world.coverage
    assert len(coverage.retired) == SEALED and not coverage.pending()
    for check in (check_tiling, check_completeness, check_published, check_sealed):
        assert check(world.name, world.edges.lake).passed
    assert not world.tick().requests and run_seal(world) == []
    found = trace_row(world.topic, 0, 60, world.edges)
    assert found["range"] == "0-50-100" and "/retired/" in found["file"] and found["row"]["offset"] == 60
    assert Path(found["file"]).exists() and "sealed_file" in found
    assert [v.outcome for v in world.land(["0-50-100"])] == [Outcome.ALREADY_LANDED]
    assert [v.outcome for v in world.land(["0-50-100"], redo=True)] == [Outcome.UNCHANGED]
    (changed,) = world.land([FIRST], redo=True)
    assert changed.outcome is Outcome.CHANGED, "the control: with other rows in Kafka it is said"
    world.topic = dataclasses.replace(world.topic, decode=Decode())
    assert [v.outcome for v in world.decode(["0-50-100"])] == [Decided.DECODED]
    assert [row for (row,) in world.query("decoded", '"offset"')] == list(range(50, 100))
    assert not originals(world)
    damaged = Path(trace_row(world.topic, 0, 60, world.edges)["file"])
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"x" + damaged.read_bytes()[-8:])
    assert "0 [50, 100)" in check_published(world.name, world.edges.lake).violations[0], "the control"


def test_a_range_whose_original_is_retired_is_replaced(world: World) -> None:
    """[R-73] Its new revision goes to `data/`, the others are read where they lie, until they are sealed again together."""
    retire(world)
    seen = []

    def look(step: str, **fields: object) -> None:
        if step in {"commit", "publish"}:
            seen.append((step, view(world)))

    (verdict,) = world.land([FIRST], redo=True, on_change="replace", on_step=look)
    assert verdict.outcome is Outcome.REPLACED
    assert seen == [("commit", landed(world)), ("publish", sent(world))], "the old rows until the new ones are there"
    assert len(originals(world)) == 1 and view(world) == sent(world) and not world.pending
    restore(world, "0-50-100")
    assert len(originals(world)) == 2 and view(world) == sent(world)
    again = [v for v in run_seal(world) if v.seal is not None]
    assert [(v.offsets.start, v.seal.revision) for v in again if v.seal] == [(0, 1)]
    assert view(world) == sent(world)
    assert retire(world) == {Move.RETIRED} and not originals(world) and view(world) == sent(world)
    assert restore(world) == {Move.RESTORED}
    assert len(world.rows()) == len(world.sent), "the aborted one does not come back"
    for check in (check_tiling, check_completeness, check_published, check_sealed):
        assert check(world.name, Edges(world.settings).lake).passed


def test_a_sealed_file_that_is_gone_leaves_nothing_out(world: World) -> None:
    """[R-73] Originals are never deleted, so without the sealed file they are read where they lie."""
    retire(world)
    for path in (world.lake_folder / "sealed").rglob("*.parquet"):
        path.unlink()
    assert view(world) == landed(world)
    assert plan_retirement(world.name, Lake(world.settings.lake), world.edges.now_ms(), 0) == []
