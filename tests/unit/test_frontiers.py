"""A lake that is read again and again: nothing that grows is listed, nothing is worked out twice, and every change is seen."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline_defs.adapters.lake.lake import STEPS_AHEAD, Lake
from pipeline_defs.adapters.lake.layout import data_path, manifest_path, range_path, step_path
from pipeline_defs.adapters.store.store import Store
from pipeline_defs.adapters.system import locks
from pipeline_defs.core.errors import BrokenPlanLog, LakeUnavailable
from pipeline_defs.core.log import settling
from pipeline_defs.core.log.coverage import State
from pipeline_defs.core.log.delivery import Acceptance, Delivery
from pipeline_defs.core.log.frontier import Frontier
from pipeline_defs.core.log.plan_step import Head, Link, LinkKind, PlanStep, Watermarks
from pipeline_defs.core.log.settling import sum_up
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.decoded_ranges import DecodedRanges
from pipeline_defs.core.tables.decoding import Decoding
from pipeline_defs.landing.mirror import mirror_frontier
from pipeline_defs.orchestration.pulse import ticking
from tests.support.decoded import decoded_ranges
from tests.support.interleaving import SmallWorld, Writer, beside
from tests.support.lakes import again, open_lake, planned_lake
from tests.support.redecoding import land_rows
from tests.support.strategies import EPOCH_MS, TOPIC, landed

LONG_MS = 10**12
STEPS, GRID, PARTITIONS, FAILING = 12, 10, 2, 60


@pytest.fixture(params=["disk", "bucket"])
def empty(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake that sums up every few steps."""
    monkeypatch.setattr(settling, "FRONTIER_EVERY", 4)
    return open_lake(request.param, tmp_path)


@pytest.fixture
def lake(empty: Lake) -> Lake:
    """A topic of two Kafka partitions and twelve steps, all landed, most of it summed up."""
    for seq in range(STEPS):
        plan_and_land(empty, [seq])
        empty.move_frontier(empty.recent(TOPIC), EPOCH_MS + seq, LONG_MS)
    assert empty.recent(TOPIC).log.base is not None
    return empty


def ranges_of(seq: int) -> list[OffsetRange]:
    return [OffsetRange(0, partition, seq * GRID, (seq + 1) * GRID) for partition in range(PARTITIONS)]


def step(lake: Lake, seq: int) -> None:
    end = (seq + 1) * GRID
    marks = dict.fromkeys(range(PARTITIONS), Watermarks(0, end))
    links = tuple(Link(LinkKind.RANGE, offsets) for offsets in ranges_of(seq))
    heads = dict.fromkeys(range(PARTITIONS), Head(end, EPOCH_MS))
    assert lake.commit_step(PlanStep(seq, TOPIC, 0, "id", EPOCH_MS + seq, {}, marks, links, heads))


def land(lake: Lake, offsets: OffsetRange) -> None:
    manifest = landed(offsets)
    assert manifest.file is not None
    log = lake.recent(TOPIC).log
    lake.begin(log, [log.ranges[offsets]])
    lake.commit_manifest(manifest)
    lake.store.put_new(data_path(TOPIC, offsets), b"x" * manifest.file.bytes, "staging/x")


def plan_and_land(lake: Lake, steps: Iterable[int]) -> None:
    for seq in steps:
        step(lake, seq)
        for offsets in ranges_of(seq):
            land(lake, offsets)


def test_nothing_that_grows_is_listed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-96] Neither by who has read before nor by who has not; whole history is listed, the control."""
    fresh = again(lake)
    for each in (lake, fresh):
        assert each.still_ends(each.recent(TOPIC).log), "the first time a process lists what is behind its log"
    watched: list[str] = []  # the folders of which all objects are listed
    for name in ("list", "versions", "entries"):
        beside(monkeypatch, Store, name, lambda store, prefix, *_: watched.append(prefix))
    for each in (lake, fresh):
        assert each.still_ends(each.recent(TOPIC).log)
    assert {path for path in watched if not path.startswith("frontier/")} == {f"begun/{TOPIC}", f"accepted/{TOPIC}"}
    assert len(lake.store.list(f"begun/{TOPIC}")) == 1
    lake.coverage(TOPIC)
    assert {f"plan/{TOPIC}", f"manifests/{TOPIC}", f"data/{TOPIC}"} <= {*watched}


def test_few_objects_are_read_however_long_the_history_is(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-96] A fresh process reads the document and what is newer; of an idle topic the next look reads nothing again."""
    fresh, read = again(lake), list[str]()
    beside(monkeypatch, Store, "get", lambda store, path: read.append(path))
    before = fresh.recent(TOPIC)
    assert len(before.log.ranges) < STEPS * PARTITIONS / 2
    assert len(read) <= 1 + len(before.log.steps) + len(before.manifests)
    read.clear()
    assert fresh.recent(TOPIC) is before
    assert read == []
    step(lake, STEPS)
    assert fresh.recent(TOPIC).pending() == ranges_of(STEPS)
    assert read == [step_path(TOPIC, STEPS)]


@pytest.fixture
def failing(empty: Lake) -> Lake:
    """A topic of which one Kafka partition is landed and the other never, step by step, and summed up."""
    for seq in range(FAILING):
        step(empty, seq)
        land(empty, ranges_of(seq)[0])
        empty.move_frontier(empty.recent(TOPIC), EPOCH_MS + seq, LONG_MS)
    return empty


def test_what_is_landed_is_summed_up_beside_a_partition_that_fails(failing: Lake) -> None:
    """[R-96] Of each step the ranges that wait are kept alone; once they are landed, they are summed up too."""
    waiting = [ranges_of(seq)[1] for seq in range(FAILING)]
    for lake in (failing, again(failing)):
        found = lake.recent(TOPIC)
        assert found.pending() == waiting
        assert len(found.log.ranges) <= FAILING + 5, "of those that are landed the newest few"
        old = ranges_of(2)[0]
        around = lake.around(TOPIC, 0, old.start)
        assert old not in found.log.ranges and around.states()[old] is State.LANDED
        assert around.log.base is not None and len(around.log.ranges) < FAILING * PARTITIONS, "without its history"
        assert 5 not in {each.partition for each in lake.around(TOPIC, 5, 0).states()}
    for offsets in waiting:
        land(failing, offsets)
    assert failing.move_frontier(failing.recent(TOPIC), EPOCH_MS + FAILING, LONG_MS)
    assert again(failing).recent(TOPIC).log.base == failing.recent(TOPIC).log.base
    assert len(failing.recent(TOPIC).log.ranges) <= 4 and failing.recent(TOPIC).pending() == []


def test_what_waits_in_a_row_is_listed_at_once(failing: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-96] And not looked up one by one: in an object store that is one request for up to a thousand names."""
    asked: dict[str, list[str]] = {"find": [], "find_in_row": []}
    fresh = again(failing)
    for name, paths in asked.items():
        beside(monkeypatch, type(fresh.store), name, lambda store, given, paths=paths: paths.extend(given))
    assert len(fresh.recent(TOPIC).pending()) == FAILING
    assert len(asked["find"]) < 20 and len(asked["find_in_row"]) > 4 * FAILING


@pytest.mark.parametrize("lost", [1, STEPS_AHEAD, 6 * STEPS_AHEAD])
def test_nothing_is_planned_into_a_hole_however_wide(lake: Lake, lost: int) -> None:
    """[R-96] Later steps are there; they are far away, so one of their ranges is landed."""
    for seq in range(STEPS, STEPS + lost + 2):
        step(lake, seq)
    land(lake, ranges_of(seq)[0])
    for seq in range(STEPS, STEPS + lost):
        lake.store.delete(step_path(TOPIC, seq))
    if lost > STEPS_AHEAD:
        assert lake.recent(TOPIC).log.state.seq == STEPS, "the fault: nobody looks so far ahead"
    with pytest.raises(BrokenPlanLog, match=f"expected plan step {STEPS}"):
        lake.still_ends(lake.recent(TOPIC).log)


def test_a_step_that_was_changed_in_its_place_is_read_again(lake: Lake) -> None:
    """[R-10] Whoever plans does not go round for ever between what it has kept and what is there."""
    reader = again(lake)
    log = reader.recent(TOPIC).log
    path = step_path(TOPIC, log.steps[-1].seq)
    other = replace(log.steps[-1], planner="another")
    reader._steps._kept[f"plan/{TOPIC}"][path] = (reader._steps._kept[f"plan/{TOPIC}"][path][0], other)
    assert not reader.still_ends(replace(log, steps=(*log.steps[:-1], other))), "the fault"
    assert reader.still_ends(reader.recent(TOPIC).log)


@pytest.mark.parametrize("lost", [STEPS - 1, STEPS, STEPS + 1], ids=["the last summed up", "the first since", "another"])
def test_a_log_with_a_hole_is_refused(lake: Lake, lost: int) -> None:
    """[R-96] Whoever reads names the step that is not there."""
    for seq in range(STEPS, STEPS + 4):
        step(lake, seq)
    lake.store.delete(step_path(TOPIC, lost))
    with pytest.raises(BrokenPlanLog, match=f"expected plan step {lost}"):
        again(lake).recent(TOPIC)


def test_a_newest_manifest_that_somebody_deletes_is_seen(lake: Lake) -> None:
    """[R-96] In what is not summed up."""
    plan_and_land(lake, [STEPS])
    offsets, _ = ranges_of(STEPS)
    assert lake.recent(TOPIC).pending() == []
    lake.store.delete(manifest_path(TOPIC, offsets, 0))
    assert lake.recent(TOPIC).pending() == [offsets]


def test_old_documents_go_and_the_newest_of_an_hour_ago_stays(lake: Lake) -> None:
    """[R-96] Who asks for the last hour reads from that one."""
    hour_ms = 3_600_000
    documents = sorted(lake.store.list(f"frontier/{TOPIC}"))
    assert len(documents) > 1
    plan_and_land(lake, range(STEPS, STEPS + 3))
    assert lake.move_frontier(lake.recent(TOPIC), EPOCH_MS + 2 * hour_ms, LONG_MS)
    assert min(lake.store.list(f"frontier/{TOPIC}")) == documents[-1]
    base = again(lake).recent(TOPIC, EPOCH_MS + hour_ms).log.base
    assert base is not None and base.made_at_ms <= EPOCH_MS + hour_ms
    newest = again(lake).recent(TOPIC).log.base
    assert newest is not None and newest.made_at_ms == EPOCH_MS + 2 * hour_ms


def test_documents_of_a_longer_log_are_passed_over_and_go(lake: Lake) -> None:
    """[R-96] As after a restore of an older lake beside newer documents."""
    newest = lake.recent(TOPIC).log.base
    assert newest is not None
    foreign = replace(newest, seq=STEPS + 50, steps_sha256="0" * 64, made_at_ms=newest.made_at_ms + 1)
    path = f"frontier/{TOPIC}/{foreign.seq:020d}.{foreign.made_at_ms:013d}.json"
    lake.store.put_new(path, foreign.to_json(), "staging/x")
    assert again(lake).recent(TOPIC).log.base == newest
    plan_and_land(lake, range(STEPS, STEPS + 3))
    assert lake.move_frontier(lake.recent(TOPIC), EPOCH_MS + 100, LONG_MS)
    assert path not in lake.store.list(f"frontier/{TOPIC}")
    assert len(lake.store.list(f"frontier/{TOPIC}")) > 1


def test_a_document_that_was_changed_is_not_believed(lake: Lake) -> None:
    """[R-96] One digit of any field of it is enough; the one before it does as well."""
    newest = lake.recent(TOPIC).log.base
    assert newest is not None
    data, path = newest.to_json(), max(lake.store.list(f"frontier/{TOPIC}"))
    assert Frontier.from_json(data) == newest
    for field in ("ends", "sums", "heads", "waits", "growths", "kept"):
        digit = next(place for place in range(data.index(f'"{field}"'.encode()), len(data)) if chr(data[place]).isdecimal())
        changed = data[:digit] + (b"7" if data[digit : digit + 1] != b"7" else b"3") + data[digit + 1 :]
        assert Frontier.from_json(changed) is None, field
        lake.store.delete(path)
        lake.store.put_new(path, changed, "staging/x")
        base = again(lake).recent(TOPIC).log.base
        assert base is None or base.seq < newest.seq, field


def test_a_topic_that_leaves_files_without_names_is_not_summed_up(lake: Lake) -> None:
    """[R-96] Files of attempts that died under `at_least_once` are found by listing them alone."""
    plan_and_land(lake, range(STEPS, STEPS + 4))
    coverage = lake.recent(TOPIC)
    assert sum_up(coverage, EPOCH_MS, LONG_MS) is not None, "the control"
    first = next(iter(coverage.manifests))
    manifests = {**coverage.manifests, first: replace(coverage.manifests[first], delivery=Delivery.AT_LEAST_ONCE)}
    assert sum_up(replace(coverage, manifests=manifests), EPOCH_MS, LONG_MS) is None
    assert sum_up(replace(coverage, doubles={"data/x": first}), EPOCH_MS, LONG_MS) is None
    lake.frontiers.forget(TOPIC)
    assert lake.recent(TOPIC).log.base is None


def test_decoded_ranges_are_told_from_those_that_were_replaced_since(lake: Lake) -> None:
    """[R-96] Of what is summed up: by what they were decoded from, not by how many there are."""
    coverage, whole = lake.recent(TOPIC), lake.coverage(TOPIC)

    def decoded(*changed: OffsetRange) -> DecodedRanges:
        digests = {each: manifest.digest if each not in changed else "cd" * 32 for each, manifest in whole.manifests.items()}
        known = [Decoding(TOPIC, o, digests[o], "", "", m.file, None, m.provenance) for o, m in whole.manifests.items()]
        return decoded_ranges(TOPIC, known)

    old = next(offsets for offsets in whole.log.ranges if offsets not in coverage.log.ranges)
    assert decoded().is_all_decoded(coverage)
    assert not decoded(old).is_all_decoded(coverage)
    assert decoded(next(iter(coverage.log.ranges))).is_all_decoded(coverage), "of the others the coverage says it"
    assert decoded(old).is_all_decoded(whole)


FIRST = OffsetRange(0, 0, 0, 10)


@pytest.fixture
def idle(tmp_path: Path) -> Lake:
    """A lake with two planned ranges."""
    return planned_lake(tmp_path, 20)


def test_of_an_idle_topic_only_the_lists_are_read_and_a_loss_where_another_took_its_place(idle: Lake, tmp_path: Path) -> None:
    """[R-56] A tick with nothing to do costs next to nothing, however many ranges there are, or losses were accepted."""
    land_rows(idle, FIRST, [b"v"] * len(FIRST))
    assert idle.coverage(TOPIC) is idle.coverage(TOPIC)
    accepted = Acceptance(TOPIC, FIRST, (0, 1), "operator", EPOCH_MS)
    assert idle.commit_acceptance(accepted)
    assert idle.read_accepted(TOPIC)[FIRST] is idle.read_accepted(TOPIC)[FIRST]
    (tmp_path / f"{range_path('accepted', TOPIC, FIRST)}.json").unlink()
    assert idle.read_accepted(TOPIC) == {}
    assert again(idle).commit_acceptance(replace(accepted, accepted_by="somebody"))
    assert idle.read_accepted(TOPIC)[FIRST].accepted_by == "somebody"


@pytest.mark.usefixtures("watched")
def test_a_committed_range_whose_staged_file_goes_away_is_unfinished_no_longer(tmp_path: Path) -> None:
    """No list tells that: so a coverage with unfinished ranges is never kept."""
    world = SmallWorld(tmp_path, "disk", records=3, grid=3)
    world.die("commit")
    assert world.coverage.unfinished == {world.first.offsets}
    world.drop_staging()
    assert world.coverage.unfinished == set()


def test_a_manifest_that_another_took_the_place_of_is_seen_by_who_wrote_it(idle: Lake, tmp_path: Path) -> None:
    """[R-16] Somebody deletes it before the writer lists, and the next attempt's is as large."""
    mine, other = landed(FIRST, attempt="a"), landed(FIRST, attempt="b")
    assert idle.commit_manifest(mine) == mine
    path = tmp_path / manifest_path(TOPIC, FIRST, 0)
    size = path.stat().st_size
    path.unlink()
    again(idle).commit_manifest(other)
    assert path.stat().st_size == size, "the fault"
    assert idle.coverage(TOPIC).manifests == {FIRST: other}


@pytest.mark.usefixtures("watched")
def test_who_stands_still_with_the_lock_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-60] What is published is published without it; else whoever waits is told, and publishes when it is gone."""
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.05)
    world = SmallWorld(tmp_path, "disk", records=6, grid=3)
    one, two = world.coverage.log.ranges
    world.land(only=one)
    world.die("commit", only=two)
    lake, (first, second) = world.lake, (world.coverage.manifests[each] for each in (one, two))
    with locks.hold(tmp_path / manifest_path(TOPIC, one, 0)), locks.hold(tmp_path / manifest_path(TOPIC, two, 0)):
        assert lake.publish(first) == first
        with pytest.raises(LakeUnavailable, match=r"another process holds the lock of .* nothing is lost"):
            lake.publish(second)
        assert world.coverage.pending() == [two]
    assert lake.publish(second) == second and world.coverage.pending() == []


@pytest.fixture
def world(tmp_path: Path, watched: object) -> SmallWorld:
    """A topic of two ranges, of which one is landed."""
    world = SmallWorld(tmp_path, "disk", records=8, grid=4)
    first, _ = world.coverage.log.ranges
    world.land(only=first)
    return world


@pytest.mark.parametrize("is_late", [True, False], ids=["overtaken", "the control"])
def test_the_newer_of_two_frontiers_stays_the_groups(world: SmallWorld, is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-36] U7: the first is about to write where it was, the second lands more and writes that; then the first writes."""
    kafka, moves = cast("Any", world.kafka), list[str]()

    def land_more(topic: str, frontier: object, group: str) -> None:
        moves.append(group)
        if len(moves) == 1 and is_late:
            world.land()
            mirror_frontier(TOPIC, "group", world.open(Writer()), kafka)

    beside(monkeypatch, kafka, "move_group", land_more)
    mirror_frontier(TOPIC, "group", world.lake, kafka)
    assert kafka.groups["group"] == ({0: 8} if is_late else {0: 4})
    assert moves.count("group") == (3 if is_late else 1)


def test_a_group_that_a_dying_run_has_moved_back_is_repaired_within_a_minute_though_nothing_arrives(world: SmallWorld) -> None:
    """[R-36] By the tick of a process that has moved it before; until then it is not moved at each tick, the control."""
    groups, now = world.kafka.groups, [EPOCH_MS]
    adapters = SimpleNamespace(mirrored={}, lake=world.lake, kafka=lambda topic: world.kafka, now_ms=lambda: now[0])
    topic = SimpleNamespace(name=TOPIC, group="group")

    def tick() -> Mapping[int, int]:
        assert ticking._mirror(cast("Any", topic), world.lake.recent(TOPIC), cast("Any", adapters)) is None
        return groups["group"]

    assert tick() == {0: 4}
    groups["group"] = {0: 0}
    assert tick() == {0: 0}, "the fault"
    now[0] += 61_000
    assert tick() == {0: 4}
