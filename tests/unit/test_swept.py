"""Swept originals, over real files without Spark: who stands still, who comes twice, and what is missing or was changed."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.attempt import Attempt, Tools
from pipeline_defs.auditing import check_published
from pipeline_defs.core.errors import LakeUnavailable, Refused, SealedFileGone
from pipeline_defs.core.holes import Cause, Interval
from pipeline_defs.core.manifest import Manifest
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.originals import Move, MoveVerdict
from pipeline_defs.core.planlog import Tail
from pipeline_defs.core.planning import Policy, plan
from pipeline_defs.core.seal import Original
from pipeline_defs.core.sealing import SealOutcome, SealVerdict
from pipeline_defs.edges import locks, parquet
from pipeline_defs.edges.duck import Duck
from pipeline_defs.edges.footer import canonicalize
from pipeline_defs.edges.lake import Lake
from pipeline_defs.edges.layout import published_path
from pipeline_defs.edges.seals import Seals, sealed_path
from pipeline_defs.originals import plan_restoration, plan_retirement, restore_originals, retire_originals
from pipeline_defs.redo import verify_expired
from pipeline_defs.sealing import _sweep_superseded, check_sealed, seal
from pipeline_defs.staging import stage_empty
from pipeline_defs.standing import landed_files
from pipeline_defs.steps import StepWatcher, no_step
from pipeline_defs.swept import find_originals, plan_sweep, sweep_originals
from tests.support.strategies import EPOCH_MS, TOPIC, World, provenance

HOUR_MS = 3_600_000
R = [OffsetRange(0, 0, start, start + 10) for start in range(0, 60, 10)]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Is a lake with six planned ranges."""
    lake, topic = Lake(str(tmp_path)), World()
    topic.grow(0, 60)
    step = plan(Tail(), topic.observe(Tail()), Policy(records_per_range=10), EPOCH_MS)
    assert step is not None and step.ranges == tuple(R)
    lake.commit_step(step)
    return lake


def land(lake: Lake, offsets: OffsetRange, revision: int = 0, value: bytes = b"v") -> Manifest:
    """Lands ten rows, as a revision."""
    count = len(offsets)
    at = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
    rows = pa.table(
        {
            "topic": [TOPIC] * count,
            "generation": pa.array([offsets.generation] * count, pa.int32()),
            "partition": pa.array([offsets.partition] * count, pa.int32()),
            "offset": range(offsets.start, offsets.end),
            "timestamp": pa.array([at] * count, pa.timestamp("us", "UTC")),
            "value": pa.array([value] * count, pa.binary()),
        }
    )
    staged = f"staging/land{revision}-{offsets.key}/part.parquet"
    path = root(lake) / staged
    path.parent.mkdir(parents=True)
    pq.write_table(rows, path)
    canonicalize(path)
    (part,) = parquet.read_parts(path.parent)
    file = parquet.staged_file(part, staged)
    manifest = Manifest(TOPIC, offsets, file, (), provenance(offsets), revision, schema=part.schema)
    assert lake.commit_manifest(manifest) == manifest and lake.publish(manifest) == manifest
    return manifest


class ArrowFiles:
    """Merges and cuts as Spark does, in this process."""

    def merge(self, what: str, sources: Sequence[Path], generation: int, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        rows = pa.concat_tables([pq.read_table(source) for source in sources]).sort_by("offset")
        pq.write_table(rows, Path(folder) / "part.parquet")

    def cut(self, what: str, source: Path, ranges: Sequence[OffsetRange], folder: Path) -> dict[OffsetRange, Path]:
        folder.mkdir(parents=True)
        files = {offsets: folder / f"{offsets.key}.parquet" for offsets in ranges}
        for offsets, rows in parquet.read_ranges(source, sorted(ranges)):
            pq.write_table(rows, files[offsets])
        return files


class Writer:
    writer = "arrow"


def tools(lake: Lake, hours: float = 0) -> Tools:
    now_ms = EPOCH_MS + int(hours * HOUR_MS)
    return Tools(lake, cast("Any", None), cast("Any", Writer()), cast("Any", ArrowFiles()), lambda: now_ms)


def run_seal(lake: Lake, hours: float = 0, *, every: bool = True, target: int = 10**9) -> list[SealVerdict]:
    attempt = Attempt(f"seal-{uuid.uuid4().hex[:6]}", "no-run", "test")
    return list(seal(TOPIC, attempt, tools(lake, hours), target, every=every))


def retire(lake: Lake) -> list[MoveVerdict]:
    return list(retire_originals(lake, plan_retirement(TOPIC, lake, EPOCH_MS, 0)))


def sweep(lake: Lake, on_step: StepWatcher = no_step) -> list[MoveVerdict]:
    return list(sweep_originals(lake, plan_sweep(TOPIC, lake, EPOCH_MS, 0), EPOCH_MS, on_step))


def restore(lake: Lake) -> list[MoveVerdict]:
    originals = find_originals(lake, plan_restoration(TOPIC, lake), cast("Any", ArrowFiles()))
    return list(restore_originals(lake, originals))


def moves(verdicts: Sequence[MoveVerdict]) -> list[Move]:
    return [verdict.move for verdict in verdicts]


def view(lake: Lake) -> list[int]:
    """Are the offsets that a view shows that is opened now."""
    rows = Duck(another(lake), [TOPIC]).query(f'SELECT "offset" FROM "{TOPIC}" ORDER BY ALL')[1]
    return [offset for (offset,) in rows]


def root(lake: Lake) -> Path:
    assert lake.store.local_root is not None
    return lake.store.local_root


def another(lake: Lake) -> Lake:
    """Is the lake as another process has it, which has read nothing yet."""
    return Lake(str(root(lake)))


def sealed(lake: Lake, count: int = 3) -> list[Manifest]:
    """Has the first ranges landed and sealed in one file."""
    manifests = [land(lake, offsets) for offsets in R[:count]]
    assert [verdict.outcome for verdict in run_seal(lake)] == [SealOutcome.SEALED]
    return manifests


def swept(lake: Lake, count: int = 3) -> tuple[list[Manifest], Path]:
    """Has the first ranges landed, sealed and swept; returns where the sealed file is, too."""
    manifests = sealed(lake, count)
    retire(lake)
    assert set(moves(sweep(lake))) == {Move.SWEPT}
    (path,) = lake.store.list("sealed")
    return manifests, root(lake) / path


def damage(path: Path) -> None:
    before = path.read_bytes()
    path.write_bytes(before[:-9] + b"x" + before[-8:])


def test_a_sweeper_that_stands_still_never_deletes_the_last_rows(lake: Lake) -> None:
    """[R-75] After its word, before it looks again, a range is replaced, its sealed file long stale, a sealing runs."""
    sealed(lake)
    retire(lake)

    def stand_still(step: str, **fields: object) -> None:
        if step == "sweep_said":
            other = another(lake)
            land(other, R[0], 1, b"w")
            run_seal(other, 9, every=False)
            assert len(other.store.list("sealed")) == 1, "it has rows of which no file is in data/"

    assert moves(sweep(lake, stand_still)) == [Move.KEPT] * 3
    assert len(lake.store.list("retired")) == 3 and view(lake) == [*range(30)]


def test_nothing_is_decided_while_somebody_deletes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-75] A sweeper or sealer that stands still between deciding and deleting: the other waits, and is told so."""
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.05)
    sealed(lake, 2)
    land(lake, R[2])
    run_seal(lake)
    retire(lake)
    told = []

    def stand_still(path: str, delete: Callable[[str], None] = lake.store.delete_folder) -> None:
        if path.startswith("sealed/"):
            other = another(lake)
            land(other, R[2], 1, b"w")
            with pytest.raises(LakeUnavailable, match="another process holds the lock") as error:
                sweep(other)
            told.append(error)
        delete(path)

    monkeypatch.setattr(lake.store, "delete_folder", stand_still)
    _sweep_superseded(TOPIC, tools(lake, 9))
    monkeypatch.undo()
    assert told and len(lake.store.list("sealed")) == 1 and len(lake.store.list("retired")) == 3
    assert view(lake) == [*range(30)]
    _sweep_superseded(TOPIC, tools(another(lake), 18))
    assert view(lake) == [*range(30)]


@pytest.mark.parametrize("tree", ["data", "retired"])
def test_the_sealed_file_of_a_lost_landed_file_stays(lake: Lake, tree: str) -> None:
    """[R-65] What is lost in `data/` or `retired/` is in the sealed file still, however long ago that was made."""
    sealed(lake)
    if tree == "retired":
        retire(lake)
    (root(lake) / next(iter(lake.store.list(tree)))).unlink()
    run_seal(lake, 240, every=False)
    assert len(lake.store.list("sealed")) == 1


def test_who_sweeps_or_restores_what_another_did_says_what_became_of_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-74] The other was there before, or comes while the file is looked at."""
    sealed(lake)
    retire(lake)
    plans = plan_sweep(TOPIC, lake, EPOCH_MS, 0)
    right, done = parquet.digest, []

    def digest(path: Path) -> str:
        if "retired" in path.parts and not done:
            done.append(path)
            assert moves(sweep(another(lake))) == [Move.SWEPT] * 3
        return right(path)

    monkeypatch.setattr(parquet, "digest", digest)
    assert moves([*sweep_originals(lake, plans, EPOCH_MS)]) == [Move.SWEPT] * 3
    assert done and moves([*sweep_originals(lake, plans, EPOCH_MS)]) == [Move.SWEPT] * 3
    planned = plan_restoration(TOPIC, lake)
    assert moves(restore(another(lake))) == [Move.RESTORED] * 3
    again = restore_originals(lake, find_originals(lake, planned, cast("Any", ArrowFiles())))
    assert moves([*again]) == [Move.RESTORED] * 3 and view(lake) == [*range(30)]


def test_an_original_without_rows_is_not_swept(lake: Lake) -> None:
    """[R-74] A range that was replaced by no record has a file that no rows tell; the others come back beside it."""
    manifests = [land(lake, offsets) for offsets in R[:3]]
    attempt = Attempt("empty", "no-run", "test")
    file = stage_empty(R[1].key, R[1], attempt, lake, published_path(manifests[1]))
    holes = (Interval(10, 20, Cause.COMPACTED),)
    newer = Manifest(TOPIC, R[1], file, holes, provenance(R[1]), 1, schema=manifests[1].schema)
    lake.commit_manifest(newer)
    lake.publish(newer)
    run_seal(lake)
    assert moves(retire(lake)) == [Move.RETIRED] * 3 and moves(sweep(lake)) == [Move.SWEPT] * 2
    assert view(lake) == [*range(10), *range(20, 30)]
    assert moves(restore(lake)) == [Move.RESTORED] * 3 and len(lake.store.list("data")) == 3


def test_restoring_says_which_originals_are_nowhere_and_restores_the_others(lake: Lake) -> None:
    """[R-75] The sealed file is gone: the retired one comes back, those that were swept are named."""
    sealed(lake)
    retire(lake)
    (whole,) = plan_sweep(TOPIC, lake, EPOCH_MS, 0)
    some = type(whole)(whole.seal, whole.manifests[:2])
    list(sweep_originals(lake, [some], EPOCH_MS))
    (root(lake) / next(iter(lake.store.list("sealed")))).unlink()
    verdicts = restore(lake)
    assert moves(verdicts) == [Move.RESTORED, Move.KEPT, Move.KEPT]
    assert all("was swept, and no sealed file" in str(verdict.reason) for verdict in verdicts[1:])
    assert len(lake.store.list("data")) == 1


def test_nobody_is_told_to_delete_what_only_a_sealed_file_has(lake: Lake) -> None:
    """[R-75] Audit and replay name the sealed file that was changed; only where originals are there may it be deleted."""
    manifests, path = swept(lake)
    damage(path)
    (said,) = check_sealed(TOPIC, lake).violations
    assert "do not delete it" in said and "readers take its ranges" not in said
    published = check_published(TOPIC, lake).violations
    assert len(published) == 3 and all(str(path) in each for each in published)
    assert str(path) in str(verify_expired(R[0], manifests[0], "Kafka has deleted it", lake).violations)
    for word in (root(lake) / "swept").rglob("*.json"):
        word.unlink()
    for manifest in manifests:  # the control: landed again, its own files are there
        land_again = root(lake) / published_path(manifest)
        land_again.parent.mkdir(parents=True, exist_ok=True)
        land_again.write_bytes(bytes(manifest.file.bytes if manifest.file else 0))
    assert "readers take its ranges again" in check_sealed(TOPIC, lake).violations[0]


def test_of_two_sealed_files_the_whole_one_is_read_and_kept(lake: Lake) -> None:
    """[R-75] The wider one, which views use, was changed; the narrower one, superseded long ago, still has the rows."""
    sealed(lake, 2)
    land(lake, R[2])
    run_seal(lake)
    retire(lake)
    sweep(lake)
    narrow, wide = sorted(Seals(lake).read_published(TOPIC), key=lambda each: len(each.offsets))
    damage(root(lake) / sealed_path(wide))
    manifests = another(lake).read_manifests(TOPIC)
    with landed_files([manifests[R[0]]], another(lake)) as files:
        assert pq.read_table(files[R[0]].path)["offset"].to_pylist() == [*range(10)]
    _sweep_superseded(TOPIC, tools(another(lake), 9))
    assert (root(lake) / sealed_path(narrow)).exists()
    with pytest.raises(SealedFileGone, match="it was changed; restore it"), landed_files([manifests[R[2]]], lake):
        pass


def test_a_topic_that_cannot_be_read_is_named_and_others_can(lake: Lake) -> None:
    """[R-75] Its view is missing, with the reason; other topics and the tables are there."""
    _, path = swept(lake)
    path.unlink()
    duck = Duck(lake, [TOPIC, "other"])
    assert duck.query("SELECT count(*) FROM other")[1] == [(0,)]
    assert duck.query("SELECT state, count(*) FROM ranges GROUP BY ALL")[1] == [("landed", 3), ("pending", 3)]
    with pytest.raises(SealedFileGone, match="was swept, and no sealed file has its rows"):
        duck.query(f'SELECT * FROM "{TOPIC}"')
    with pytest.raises(Refused, match="Referenced column"):
        duck.query(f'SELECT "{TOPIC}" FROM other')


@pytest.mark.parametrize("names", [["Flights", "flights"], ["ranges"], ["Losses"]])
def test_a_topic_that_duckdb_cannot_tell_from_another_has_no_view(lake: Lake, names: list[str]) -> None:
    """Identifiers are read without case: instead of the wrong rows there is an error that says so."""
    duck = Duck(lake, [*names, "other"])
    assert duck.query("SELECT count(*) FROM other")[1] == [(0,)]
    with pytest.raises(Refused, match=f"(?i)topic {names[-1]} has no view: DuckDB cannot tell it from"):
        duck.query(f'SELECT * FROM main."{names[-1]}"' if len(names) > 1 else f'SELECT * FROM decoded."{names[-1]}"')


def test_a_view_takes_no_column_from_the_folder_of_the_lake(tmp_path: Path) -> None:
    """A lake below `env=prod` has the columns that any other has."""
    lake, topic = Lake(str(tmp_path / "env=prod")), World()
    topic.grow(0, 10)
    step = plan(Tail(), topic.observe(Tail()), Policy(records_per_range=10), EPOCH_MS)
    assert step is not None
    lake.commit_step(step)
    land(lake, R[0])
    assert "env" not in Duck(lake, [TOPIC]).query(f'SELECT * FROM "{TOPIC}"')[0]


def test_a_lost_revision_is_not_taken_for_a_swept_one_of_before(lake: Lake) -> None:
    """[R-75] Revision 0 was swept, its sealed file is gone since, and revision 1's file is lost: that is a gap, not a sweep."""
    swept(lake, 2)
    newer = land(lake, R[0], 1, b"w")
    run_seal(lake)
    _sweep_superseded(TOPIC, tools(another(lake), 9))
    for each in Seals(lake).read_published(TOPIC):
        if each.revision == 0:
            (root(lake) / sealed_path(each)).unlink()
    (root(lake) / published_path(newer)).unlink()
    assert view(lake) == [*range(10, 20)]
    assert check_published(TOPIC, another(lake)).violations[0].endswith("the published file is not there")


def test_a_group_never_ends_inside_a_sealed_file_that_is_read(lake: Lake) -> None:
    """[R-61] Sealed with `--all` while a range before it waited, which weighs nearly the target: once more, then no more."""
    for offsets in R[1:4]:
        land(lake, offsets)
    run_seal(lake, target=20_000)
    target = Original.of(land(lake, R[0], value=random.Random(0).randbytes(30_000))).weight_bytes + 1
    assert [verdict.offsets for verdict in run_seal(lake, every=False, target=target)] == [OffsetRange(0, 0, 0, 40)]
    assert run_seal(lake, every=False, target=target) == []
