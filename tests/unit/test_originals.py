"""Retired originals, over files alone: where each lies at every moment, and what landing makes of a name that is free."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline_defs.core.coverage import State, tiling_violations
from pipeline_defs.core.errors import Refused
from pipeline_defs.core.manifest import Manifest
from pipeline_defs.core.originals import Move, MoveVerdict, SealedOriginals
from pipeline_defs.core.seal import Original, Seal, SealProvenance
from pipeline_defs.edges.lake import Lake
from pipeline_defs.edges.layout import find_retired, published_path, retired_path
from pipeline_defs.edges.seals import Seals, sealed_path
from pipeline_defs.originals import plan_restoration, plan_retirement, restore_originals, retire_originals
from pipeline_defs.redo import roll_forward
from pipeline_defs.standing import Digests
from pipeline_defs.sweeping import find_orphans
from tests.support.strategies import EPOCH_MS, TOPIC
from tests.unit.test_lake_coverage import CONTENT, FIRST, SECOND, lake, stage

__all__ = ["lake"]  # the fixture
OLD = 1e9  # an age in seconds that nothing has


def landed(lake: Lake) -> list[Manifest]:
    """Has both ranges landed; what was staged is still there."""
    manifests = []
    for offsets in (FIRST, SECOND):
        manifest = stage(lake, offsets)
        assert manifest.file is not None
        sha256 = hashlib.sha256(CONTENT).hexdigest()
        manifest = replace(manifest, file=replace(manifest.file, sha256=sha256))
        lake.commit_manifest(manifest)
        lake.publish(manifest)
        manifests.append(manifest)
    return manifests


def sealed(lake: Lake) -> tuple[Seal, list[Manifest]]:
    """Has both ranges landed and sealed, in a file that nobody opens."""
    manifests = landed(lake)
    offsets = replace(FIRST, end=SECOND.end)
    file = replace(stage(lake, offsets, "s").file, rows=20, sha256=hashlib.sha256(CONTENT).hexdigest())  # type: ignore[type-var]
    assert file is not None
    originals = tuple(Original.of(manifest) for manifest in manifests)
    seal = Seal(TOPIC, offsets, originals, file, SealProvenance("s", "r", "c", "w", EPOCH_MS, 0.1), 1, 0, {})
    assert Seals(lake).commit(seal) == seal and Seals(lake).publish(seal)
    return seal, manifests


def retire(lake: Lake) -> list[MoveVerdict]:
    return list(retire_originals(lake, plan_retirement(TOPIC, lake, EPOCH_MS, 0)))


def restore(lake: Lake, *keys: str) -> list[MoveVerdict]:
    return list(restore_originals(lake, retired_sources(plan_restoration(TOPIC, lake, keys))))


def retired_sources(manifests: Iterable[Manifest]) -> list[tuple[Manifest, str]]:
    return [(manifest, retired_path(manifest)) for manifest in manifests]


def in_data(lake: Lake) -> list[str]:
    return list(lake.store.list("data"))


def test_a_retired_original_is_landed_and_comes_back(lake: Lake) -> None:
    """[R-72] Nothing is a gap, nothing due; its digest is found where it lies."""
    _, manifests = sealed(lake)
    before = in_data(lake)
    assert [v.move for v in retire(lake)] == [Move.RETIRED, Move.RETIRED]
    coverage = lake.coverage(TOPIC)
    assert in_data(lake) == [] and coverage.retired == {FIRST: 0, SECOND: 0}
    assert set(coverage.states().values()) == {State.LANDED} and tiling_violations(coverage) == []
    assert [Digests(lake).of(m) for m in manifests] == [m.digest for m in manifests]
    assert [lake.own_path(m) for m in manifests] == list(lake.store.list("retired"))
    assert retire(lake) == [], "what is retired is retired"
    assert [v.move for v in restore(lake, SECOND.key)] == [Move.RESTORED]
    assert in_data(lake) == [published_path(manifests[1])]
    with pytest.raises(Refused, match=r"no original of topic .* is retired or swept of 0-10-20"):
        restore(lake, SECOND.key)
    assert [v.move for v in restore(lake)] == [Move.RESTORED]
    assert in_data(lake) == before and lake.coverage(TOPIC).retired == {}
    assert [v.move for v in retire(lake)] == [Move.RETIRED, Move.RETIRED], "and again"


def test_an_original_is_in_one_of_the_trees_at_every_moment(lake: Lake) -> None:
    """[R-73] A reader who lists `data/` first finds it, wherever the command stands."""
    sealed(lake)
    steps: list[str] = []

    def look(step: str, **fields: object) -> None:
        steps.append(step)
        assert lake.coverage(TOPIC).published.keys() == {FIRST, SECOND}
        assert not lake.coverage(TOPIC).pending()

    list(retire_originals(lake, plan_retirement(TOPIC, lake, EPOCH_MS, 0), look))
    list(restore_originals(lake, retired_sources(plan_restoration(TOPIC, lake)), look))
    assert steps == ["original_kept", "original_retired"] * 2 + ["original_restored"] * 2


def test_what_is_moved_while_trees_are_listed_is_found(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-73] Retired after `data/` was listed, or restored between the two lists: seen either way."""
    sealed(lake)
    listing = lake.store.list

    def list_then(act: str) -> None:
        def list_and_move(prefix: str) -> dict[str, int]:
            found = listing(prefix)
            if prefix == f"data/{TOPIC}":
                monkeypatch.setattr(lake.store, "list", listing)
                (retire if act == "retire" else restore)(lake)
            return found

        monkeypatch.setattr(lake.store, "list", list_and_move)

    for act in ("retire", "restore"):
        list_then(act)
        assert lake.coverage(TOPIC).published.keys() == {FIRST, SECOND}, act


def test_what_is_swept_while_trees_are_listed_is_found(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-74] Given up, or restored and retired again, between two of the lists: seen either way, and in this revision."""
    _, manifests = sealed(lake)
    retire(lake)
    listing = lake.store.list

    def give_up() -> None:
        for manifest in manifests:
            lake.give_up(manifest, b"{}")
            lake.store.delete_folder(retired_path(manifest))

    def list_and_move(prefix: str) -> dict[str, int]:
        found = listing(prefix)
        if prefix == f"data/{TOPIC}":
            monkeypatch.setattr(lake.store, "list", listing)
            give_up()
        return found

    monkeypatch.setattr(lake.store, "list", list_and_move)
    coverage = lake.coverage(TOPIC)
    assert coverage.swept == {FIRST, SECOND} and coverage.retired == {FIRST: 0, SECOND: 0}
    assert set(coverage.states().values()) == {State.LANDED} and tiling_violations(coverage) == []
    assert [lake.own_path(manifest) for manifest in manifests] == [None, None]
    assert lake.publish(manifests[0]) == manifests[0] and in_data(lake) == [], "no stale attempt brings it back"
    assert lake.store.local_root is not None
    again = lake.store.local_root / retired_path(manifests[0])
    again.parent.mkdir(parents=True, exist_ok=True)
    again.write_bytes(CONTENT)
    assert lake.coverage(TOPIC).swept == {SECOND}, "the word stays, and counts only where there is no file"


def test_landing_never_publishes_again_what_was_retired(lake: Lake) -> None:
    """[R-73] Not by roll-forward, not by an attempt that stood still meanwhile; what it staged is an orphan."""
    _, (first, second) = sealed(lake)
    retire(lake)
    assert lake.is_published(first) and not lake.coverage(TOPIC).unfinished
    assert roll_forward(first, lake) and lake.publish(second) == second
    assert in_data(lake) == []
    assert {orphan.name for orphan in find_orphans(lake, 2**60, 0)} >= {"a"}
    assert lake.store.local_root is not None
    (lake.store.local_root / retired_path(first)).unlink()
    assert lake.coverage(TOPIC).unfinished == {FIRST}, "the control: without the retired file the range is owed"
    assert roll_forward(first, lake) and in_data(lake) == [published_path(first)]


def test_a_revision_takes_the_place_of_a_retired_original(lake: Lake) -> None:
    """[R-73] It is published into `data/`; neither it nor the one before ever comes back once it is retired, too."""
    _, (first, _) = sealed(lake)
    retire(lake)
    newer = replace(stage(lake, FIRST, "b"), revision=1)
    assert newer.file is not None
    newer = replace(newer, file=replace(newer.file, sha256=hashlib.sha256(CONTENT).hexdigest()))
    lake.commit_manifest(newer)
    coverage = lake.coverage(TOPIC)
    assert coverage.states()[FIRST] is State.PENDING and coverage.retired[FIRST] == 0, (
        "readers still find the one before"
    )
    assert plan_restoration(TOPIC, lake) and [v.offsets for v in restore(lake)] == [SECOND]
    assert lake.publish(first) is None and published_path(first) not in in_data(lake)
    assert lake.store.local_root is not None
    (lake.store.local_root / newer.file.path).unlink()
    assert lake.coverage(TOPIC).states()[FIRST] is State.PENDING, "the file of the one before is not the newer one's"
    stage(lake, FIRST, "b")
    assert lake.publish(newer) == newer and published_path(newer) in in_data(lake)
    assert lake.coverage(TOPIC).states()[FIRST] is State.LANDED
    (verdict,) = retire_originals(lake, [SealedOriginals(Seals(lake).read(TOPIC)[0], (newer,))])
    assert verdict.move is Move.RETIRED and published_path(first) not in in_data(lake)
    stage(lake, FIRST, "a")  # both attempts are still there, and stage what they would publish
    stage(lake, FIRST, "b")
    lake.publish(first)
    lake.publish(newer)
    assert published_path(first) not in in_data(lake)
    assert find_retired(TOPIC, lake.store.list(f"retired/{TOPIC}"), (), ())[FIRST][0] == 1


def newer_of(lake: Lake, manifest: Manifest) -> Manifest:
    """Has a range replaced by a revision of the same content, which is published."""
    newer = replace(stage(lake, manifest.offsets, "b"), revision=1)
    assert newer.file is not None and manifest.file is not None
    newer = replace(newer, file=replace(newer.file, sha256=manifest.file.sha256))
    lake.commit_manifest(newer)
    assert lake.publish(newer) == newer
    return newer


def test_a_name_that_a_later_revision_left_is_not_taken(lake: Lake) -> None:
    """[R-73] Of a range that was replaced first and retired then, a stale attempt brings nothing back."""
    seal, (first, _) = sealed(lake)
    newer = newer_of(lake, first)
    assert [v.move for v in retire_originals(lake, [SealedOriginals(seal, (newer,))])] == [Move.RETIRED]
    stage(lake, FIRST, "a")
    assert lake.publish(first) == newer and published_path(first) not in in_data(lake)


def test_what_is_replaced_after_it_was_planned_stays(lake: Lake) -> None:
    """[R-73] The plan was of the revision before: neither retired nor restored in the place of the newer one."""
    seal, (first, second) = sealed(lake)
    plans = plan_retirement(TOPIC, lake, EPOCH_MS, 0)
    newer_of(lake, first)
    verdicts = list(retire_originals(lake, plans))
    assert [(v.move, v.reason) for v in verdicts] == [(Move.KEPT, "it was replaced meanwhile"), (Move.RETIRED, None)]
    restoring = plan_restoration(TOPIC, lake)
    newer = newer_of(lake, second)
    assert [v.move for v in restore_originals(lake, retired_sources(restoring))] == [Move.KEPT]
    assert published_path(newer) in in_data(lake) and seal.ranges == (FIRST, SECOND)


def test_what_is_not_what_it_should_be_stays(lake: Lake, tmp_path: Path) -> None:
    """[R-72] Another sealed file, another published or retired file than their documents say: named, and not moved."""
    seal, (first, second) = sealed(lake)
    other = b"garquet"
    for path, moves in (
        (sealed_path(seal), [Move.KEPT, Move.KEPT]),
        (retired_path(first), [Move.KEPT, Move.KEPT]),
        (published_path(first), [Move.KEPT, Move.RETIRED]),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        before = (tmp_path / path).read_bytes() if (tmp_path / path).exists() else None
        (tmp_path / path).unlink(missing_ok=True)
        (tmp_path / path).write_bytes(other)
        if path == retired_path(first):
            (tmp_path / published_path(second)).write_bytes(other)
        verdicts = retire(lake)
        assert [v.move for v in verdicts] == moves, path
        assert all("sha256" in (v.reason or "") for v in verdicts if v.move is Move.KEPT)
        assert (tmp_path / published_path(first)).exists()
        assert path == retired_path(first) or not (tmp_path / retired_path(first)).exists(), (
            "nothing of it is taken along"
        )
        (tmp_path / path).unlink()
        (tmp_path / published_path(second)).write_bytes(CONTENT)
        if before is not None:
            (tmp_path / path).write_bytes(before)


def test_only_what_was_sealed_long_enough_ago_is_retired(lake: Lake) -> None:
    """[R-72] Somebody may be at work on files of `data/` that were listed before."""
    sealed(lake)
    assert plan_retirement(TOPIC, lake, EPOCH_MS + 999, 1) == []
    (plan,) = plan_retirement(TOPIC, lake, EPOCH_MS + 1000, 1)
    assert [manifest.offsets for manifest in plan.manifests] == [FIRST, SECOND] and plan.bytes == 2 * len(CONTENT)


def test_without_a_seal_that_is_read_nothing_is_retired(lake: Lake, tmp_path: Path) -> None:
    """[R-72] Unsealed, or the sealed file is gone: retired originals are then read where they lie."""
    landed(lake)
    assert plan_retirement(TOPIC, lake, EPOCH_MS, 0) == []
    seal, _ = sealed(lake)
    (tmp_path / sealed_path(seal)).unlink()
    assert plan_retirement(TOPIC, lake, EPOCH_MS, 0) == []


def test_an_object_store_is_refused() -> None:
    """[R-72] It cannot give a file another name in one step."""
    with pytest.raises(Refused, match="is an object store"):
        plan_retirement(TOPIC, Lake("s3://bucket/lake"), EPOCH_MS, 0)
