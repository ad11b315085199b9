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

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipeline_defs.auditing import check_completeness, check_published, check_tiling
from pipeline_defs.core.decoders import Decode
from pipeline_defs.core.decoding import Decided
from pipeline_defs.core.errors import OriginalsKept, SealedFileGone
from pipeline_defs.core.originals import Move
from pipeline_defs.core.seal import Seal
from pipeline_defs.core.sealing import SealOutcome
from pipeline_defs.core.verdicts import Outcome
from pipeline_defs.edges.lake import Lake
from pipeline_defs.edges.parquet import digest
from pipeline_defs.originals import plan_restoration, plan_retirement, restore_originals, retire_originals
from pipeline_defs.reports import trace_row
from pipeline_defs.resources import Edges
from pipeline_defs.sealing import _sweep_superseded, check_sealed
from pipeline_defs.settings import Settings
from pipeline_defs.swept import find_originals, plan_sweep, sweep_originals
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


def sweep(world: World) -> set[Move]:
    plans = plan_sweep(world.name, world.edges.lake, world.edges.now_ms(), 0)
    return {verdict.move for verdict in sweep_originals(world.edges.lake, plans, world.edges.now_ms())}


def restore(world: World, *keys: str) -> set[Move]:
    lake, files = world.edges.lake, world.tools().files
    plan = plan_restoration(world.name, lake, keys)
    return {verdict.move for verdict in restore_originals(lake, find_originals(lake, plan, files))}


def check_all(world: World) -> None:
    """Holds every check of the lake, read anew."""
    for check in (check_tiling, check_completeness, check_published, check_sealed):
        finding = check(world.name, Edges(world.settings).lake)
        assert finding.passed, finding.violations


def files_in(world: World, tree: str) -> list[Path]:
    return sorted((world.lake_folder / tree).rglob("*.parquet"))


def damage(path: Path) -> bytes:
    """Changes a byte of a file's footer; returns what it was."""
    before = path.read_bytes()
    path.write_bytes(before[:-9] + b"x" + before[-8:])
    return before


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
        CliRunner().invoke(getattr(command, f"{verb}_originals"), [world.name, *given]).stdout.replace("\n", " ")
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
    damage(first)
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
    damage(damaged)
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


def test_a_swept_original_is_read_in_the_sealed_file_and_made_again_byte_for_byte(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-74] AC12: shown first, then done, a reader in a loop beside it; no check, tick, landing or decoding misses a row."""
    command = importlib.import_module("pipeline_defs.cli.originals")
    monkeypatch.setattr(command, "open_edges", lambda: world.edges)
    monkeypatch.setattr(command, "find_topic", lambda name: world.topic)
    run: Callable[..., str] = lambda *given: (  # noqa: E731
        CliRunner().invoke(command.sweep_originals, [world.name, *given]).stdout.replace("\n", " ")
    )
    before, total, reader = originals(world), len(world.sent) + 1, Reader(world)
    retire(world)
    assert "would sweep 0" in run(), "what was sealed just now waits"
    moment = world.edges.now_ms() + 4 * 3_600_000
    world.edges.now_ms = lambda: moment
    with reader.reading():
        reader.wait_for_another()
        shown = run()
        assert f"would sweep {SEALED} retired originals" in shown and "give --yes" in shown
        assert len(files_in(world, "retired")) == SEALED
        document = json.loads(run("--yes", "--json"))
        assert [each["outcome"] for each in document["originals"]] == ["swept"] * SEALED
        assert not files_in(world, "retired") and not originals(world)
        reader.wait_for_another()
        assert run("--yes").count("swept 0 retired originals") == 1, "what is swept is swept"
        assert retire(world) == set()

        check_all(world)
        assert not world.coverage.pending() and not world.tick().requests and run_seal(world) == []
        found = trace_row(world.topic, 0, 60, world.edges)
        assert "/sealed/" in found["file"] and found["row"]["offset"] == 60 and found["sha256"] != found["file"]
        assert [v.outcome for v in world.land(["0-50-100"], redo=True)] == [Outcome.UNCHANGED]
        (changed,) = world.land([FIRST], redo=True)
        assert changed.outcome is Outcome.CHANGED, "the control: with other rows in Kafka it is said"
        assert "offsets" in changed.violations[0]
        world.topic = dataclasses.replace(world.topic, decode=Decode())
        assert [v.outcome for v in world.decode(["0-50-100"])] == [Decided.DECODED]
        assert [row for (row,) in world.query("decoded", '"offset"')] == list(range(50, 100))

        assert restore(world, FIRST) == {Move.RESTORED} and len(originals(world)) == 1
        reader.wait_for_another()
        assert restore(world) == {Move.RESTORED}
        reader.wait_for_another()
        assert originals(world) == before and len(world.rows()) == total
        assert retire(world) == {Move.RETIRED} and sweep(world) == {Move.SWEPT} and not originals(world), "and again"
        reader.wait_for_another()
    assert not reader.errors, reader.errors
    assert {seen[:2] for seen in reader.seen} == {(total, total)}
    assert not list((world.lake_folder / "staging").glob("restore-*")) and not list(
        (world.lake_folder / "staging").glob("cut-*")
    )


@pytest.mark.parametrize(
    ("action", "step", "nth"),
    [
        ("sweep", "sweep_said", 1),
        pytest.param("sweep", "original_swept", 3, marks=pytest.mark.long),
        pytest.param("restore", "original_restored", 3, marks=pytest.mark.long),
    ],
)
def test_sweeping_killed_at_any_step_is_finished_by_the_next(world: World, action: str, step: str, nth: int) -> None:
    """[R-74] SIGKILL between the word and the file, or among files: each row is seen once, there and afterwards."""
    before = originals(world)
    retire(world)
    if action == "restore":
        sweep(world)
    with stopped_at(world, action, step, nth):
        assert view(world) == landed(world)
    words, left = list((world.lake_folder / "swept").rglob("*.json")), files_in(world, "retired")
    if action == "sweep":
        assert words and left, "the fault: it is said of some that still have their file"
    else:
        assert len(originals(world)) == nth, "the fault: some are there again"
    assert view(world) == landed(world) and not world.pending
    check_all(world)
    if action == "sweep":
        assert sweep(world) == {Move.SWEPT} and not files_in(world, "retired") and not originals(world)
    assert restore(world) == {Move.RESTORED}
    assert originals(world) == before and view(world) == landed(world)


def test_a_range_whose_original_is_swept_is_replaced(world: World) -> None:
    """[R-75] Its siblings are read out of the stale sealed file, and sealed again from it; that goes when nothing needs it."""
    before = originals(world)
    retire(world)
    sweep(world)
    stale, *_ = files_in(world, "sealed")
    seen = []

    def look(step: str, **fields: object) -> None:
        if step in {"commit", "publish"}:
            seen.append((step, view(world)))

    (verdict,) = world.land([FIRST], redo=True, on_change="replace", on_step=look)
    assert verdict.outcome is Outcome.REPLACED
    assert seen == [("commit", landed(world)), ("publish", sent(world))], "the old rows until the new ones are there"
    check_all(world)
    world.topic = dataclasses.replace(world.topic, decode=Decode())
    assert [v.outcome for v in world.decode(["0-50-100"])] == [Decided.DECODED], "out of the stale one"

    moment = world.edges.now_ms() + 4 * 3_600_000
    world.edges.now_ms = lambda: moment
    again = [v.seal for v in run_seal(world) if v.seal is not None]
    assert [(seal.offsets.start, seal.revision) for seal in again] == [(0, 1)] and view(world) == sent(world)
    assert stale.exists(), "superseded just now"
    moment += 4 * 3_600_000
    run_seal(world)
    assert not stale.exists() and view(world) == sent(world), "another one has all of its swept rows"
    assert retire(world) == {Move.RETIRED} and sweep(world) == {Move.SWEPT} and not originals(world)
    check_all(world)
    assert restore(world) == {Move.RESTORED} and view(world) == sent(world)
    (replaced,) = [path for path in before if path.name.startswith(f"{0:020d}")]
    assert {path: content for path, content in originals(world).items() if path != replaced} == {
        path: content for path, content in before.items() if path != replaced
    }
    check_all(world)


def test_the_last_sealed_file_with_a_swept_row_is_kept_and_missed_by_name(world: World) -> None:
    """[R-75] A stale one is not deleted, however old. Taken away or changed by somebody, it is an error that says which."""
    retire(world)
    sweep(world)
    world.land([FIRST], redo=True, on_change="replace")
    moment = world.edges.now_ms() + 4 * 3_600_000
    world.edges.now_ms = lambda: moment
    stale, *_ = files_in(world, "sealed")
    _sweep_superseded(world.name, world.tools())
    assert stale.exists() and view(world) == sent(world)

    whole = damage(stale)
    found = check_published(world.name, world.edges.lake)
    assert not found.passed and "0 [50, 100)" in found.violations[0]
    world.topic = dataclasses.replace(world.topic, decode=Decode())
    (verdict,) = world.decode(["0-50-100"])
    assert verdict.outcome is Decided.FAILED and "was changed" in verdict.violations[0]
    assert {v.outcome for v in run_seal(world)} == {SealOutcome.FAILED}
    stale.unlink()
    with pytest.raises(SealedFileGone, match=r"/0 \[50, 100\) was swept.*restore .*sealed.* from a backup"):
        view(world)
    assert not check_published(world.name, world.edges.lake).passed
    stale.write_bytes(whole)
    assert view(world) == sent(world), "the control"
    check_all(world)

    stale.unlink()
    for word in sorted((world.lake_folder / "swept").rglob("*.json"))[:4]:  # of the ranges that the error is of
        word.unlink()
    assert [offsets.key for offsets in world.pending] == ["0-50-100", "0-100-150", "0-150-200"]
    world.land()
    assert view(world) == sent(world) and len(originals(world)) == 4, "landed again, while Kafka has them"
    check_all(world)


def test_what_a_sealed_file_does_not_have_is_not_swept(world: World) -> None:
    """[R-74] A changed sealed file, a changed original, one that was restored or replaced meanwhile: kept, and named."""
    retire(world)
    lake = world.edges.lake
    (sealed, *_), (first, *_) = files_in(world, "sealed"), files_in(world, "retired")
    plans = plan_sweep(world.name, lake, world.edges.now_ms(), 0)
    (document, *_) = sorted((world.lake_folder / "seals").rglob("*.json"))
    facts, right = json.loads(document.read_bytes()), sealed.read_bytes()
    table = pq.read_table(sealed)
    others = pa.array([b"other", *table["value"].to_pylist()[1:]], pa.binary())
    pq.write_table(table.set_column(table.schema.names.index("value"), "value", others), sealed)
    facts["file"] |= {"sha256": digest(sealed), "bytes": sealed.stat().st_size}
    liar = Seal.from_json(json.dumps(facts).encode(), "")
    (kept,) = [
        v for v in sweep_originals(lake, [dataclasses.replace(plans[0], seal=liar)], 0) if "rows" in str(v.reason)
    ]
    assert kept.offsets.key == FIRST and "other values in value" in str(kept.reason)
    sealed.write_bytes(right)
    for path in (sealed, first):
        whole = damage(path)
        kept = [v for v in sweep_originals(lake, plans[:1], 0) if v.move is Move.KEPT]
        assert kept and all("sha256" in (v.reason or "") for v in kept), path
        assert first.exists() and (path == first or len(kept) == len(plans[0].manifests))
        path.write_bytes(whole)

    meanwhile = [
        lambda: world.land([FIRST], redo=True, on_change="replace"),
        lambda: restore(world, "0-250-300"),
        lambda: None,
    ]

    def move(step: str, **fields: object) -> None:
        if step == "sweep_said":
            meanwhile.pop(0)()

    plans = plan_sweep(world.name, lake, world.edges.now_ms(), 0)
    assert [len(plan.manifests) for plan in plans] == [1, 4, 4], "the others of the first are swept"
    reasons = {v.offsets.key: v.reason for v in sweep_originals(lake, plans, 0, move) if v.reason}
    assert reasons == {FIRST: "its sealed file was superseded meanwhile", "0-250-300": "it was restored meanwhile"}
    assert view(world) == sent(world)
    check_all(world)
