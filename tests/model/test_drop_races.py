"""Who drops a range file, or publishes one, and stands still meanwhile: on a disk, and in a bucket, where nobody has a lock."""

from collections.abc import Callable

import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import given_up_paths, published_path
from pipeline_defs.adapters.tables.topic_rows import find_rows
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.tables.decoding import Decided
from pipeline_defs.landing.appending import Doubts, append_landed
from pipeline_defs.landing.auditing import check_published, check_table, check_tiling
from tests.support.fake_log import TOPIC
from tests.support.interleaving import Dead, Glob, SmallWorld, Writer, beside
from tests.support.redecoding import OffsetDecoder, decode_by, stop_at
from tests.support.strategies import EPOCH_MS

pytestmark = pytest.mark.usefixtures("watched")


def compacted(world: SmallWorld) -> None:
    world.has_raw_table = True
    world.land()
    world.compact()


def assert_all_is_well(world: SmallWorld, glob: Glob) -> None:
    lake = world.open(Writer())
    append_landed(TOPIC, lake, lambda: EPOCH_MS)
    assert glob.wrong == []
    assert world.landed_offsets() == world.in_table() == dict.fromkeys(world.in_kafka(), 1)
    for check in (check_tiling, check_published, check_table):
        assert check(TOPIC, lake).violations == ()


def test_a_dropper_that_stood_still_takes_nothing_of_a_later_revision(world: SmallWorld) -> None:
    """[R-73] Between its mark and its delete the range is replaced, dropped again and replaced again."""
    compacted(world)
    glob, meanwhile = Glob(world), list[str]()

    def replace_twice() -> None:
        for offset in (0, 1):
            world.lose_a_row(offset)
            world.land("replace", world.open(Writer(after=glob.look)))
            meanwhile.append(published_path(world.first))
            if not offset:
                world.compact(world.open(Writer()))
                world.drop(world.open(Writer(after=glob.look)))

    world.drop(world.open(Writer(after=glob.look)), on_step=stop_at("drop_marked", replace_twice))
    assert [path.split(".")[1] for path in meanwhile] == ["d001", "d002"], "the control: each drop gives a name up"
    assert world.shown() == {2: 1}, "the newest of the first range; the other was dropped"
    assert_all_is_well(world, glob)


@pytest.mark.parametrize("world", ["bucket"], indirect=True)  # on a disk it would hold a lock by then: nobody publishes
@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("is_replacing", [False, True])
def test_a_publisher_that_stood_still_brings_nothing_back(world: SmallWorld, is_replaced: bool, is_replacing: bool) -> None:
    """[R-73] Before it copied its file within the bucket others published, compacted, dropped and replaced it."""
    world.has_raw_table = True
    if is_replacing:
        compacted(world)
        world.drop()
        world.lose_a_row(2)
    glob, stood = Glob(world), list[int]()

    def stand(number: int) -> None:
        if writer.calls[-1] == "copy" and not stood:
            stood.append(number)
            for mode in ("land", "replace") if is_replaced else ("land",):
                world.land(mode, world.open(Writer(after=glob.look)))
                world.compact(world.open(Writer()))
                world.drop(world.open(Writer(after=glob.look)))
                world.lose_a_row(0)
            if is_replaced:
                world.lose_a_row(1)
                world.land("replace", world.open(Writer(after=glob.look)))

    writer = Writer(before=stand, after=glob.look)
    verdicts = world.land("replace" if is_replacing else "land", world.open(writer))
    assert stood and world.first.revision == is_replacing + 2 * is_replaced, "the fault"
    ours = min(verdicts, key=lambda each: each.offsets).outcome
    assert ours is (Outcome.SUPERSEDED if is_replaced else Outcome.REPLACED if is_replacing else Outcome.LANDED)
    world.land("replace")
    assert_all_is_well(world, glob)


def test_what_a_drop_has_given_up_is_neither_mended_nor_published(world: SmallWorld) -> None:
    """[R-73] By who saw a damaged file before, has staged what belongs there, and publishes it now.

    From a file that the drop does not know of nobody can stop a copy in a bucket: whose it is looks again, and deletes it.
    """
    compacted(world)
    stale = world.first
    data, glob = world.files()[published_path(stale)], Glob(world)
    glob.look()
    world.drop()
    glob.look()
    assert not world.lake.is_replaced(stale) and world.lake.own_path(stale) is None
    lake, staged = world.open(Writer(after=glob.look)), "staging/mend/part.parquet"
    lake.store.put_new(staged, data, "staging/scratch")
    for manifest in (stale, world.first):
        assert lake.publish(manifest, staged, mend=True) == world.first
    assert lake.publish(world.first, staged) == world.first
    assert world.shown() == {} and glob.wrong == []
    glob = Glob(world)
    lake = world.open(Writer(after=glob.look))
    lake.store.put_new("staging/other/part.parquet", data, "staging/scratch")
    assert lake.publish(stale, "staging/other/part.parquet") == world.first and world.shown() == {}
    assert (glob.seen != set()) == (world.bucket is not None), "the control: on a disk it is not even linked"


def test_what_is_about_to_give_way_to_a_later_revision_is_no_alarm(world: SmallWorld) -> None:
    """[R-73] A half dropped file, and the next revision committed and not published: the next run shows that alone."""
    compacted(world)
    world.lose_a_row(0)
    with pytest.raises(Dead):
        world.drop(on_step=stop_at("drop_marked"))
    world.die("commit", "replace")
    stale = given_up_paths(world.first)
    assert stale == [path for path in world.files() if path in stale], "the control: it is there"
    lake = world.open(Writer())
    assert lake.coverage(TOPIC).doubles == {} and check_tiling(TOPIC, lake).violations == ()
    assert lake.coverage(TOPIC).pending() == [world.first.offsets]
    glob = Glob(world)
    world.land(lake=world.open(Writer(after=glob.look)))
    assert sorted(world.shown()) == [1, 2, 3, 4, 5]
    assert_all_is_well(world, glob)


def test_a_file_under_a_name_that_was_given_up_is_named_and_goes(world: SmallWorld) -> None:
    """[R-73] Brought back from a backup, say: the next drop deletes it; once the range is replaced, the audit names it."""
    compacted(world)
    path, data = published_path(world.first), world.files()[published_path(world.first)]
    world.drop()
    world.lake.store.put_new(path, data, "staging/scratch")
    assert len(world.drop()) == 1 and world.shown() == {}
    world.lose_a_row(0)
    world.land("replace")
    world.lake.store.put_new(path, data, "staging/scratch")
    (violation,) = check_tiling(TOPIC, world.open(Writer())).violations
    assert path in violation and "--on-change replace" in violation
    assert Outcome.FAILED in {each.outcome for each in world.land("replace")}, "it has a row that the landed file has not"
    assert path in world.files()


def test_what_gives_way_while_trees_are_listed_is_no_double(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-73] Listed in `data/`, and dropped and replaced before the manifests are."""
    compacted(world)
    world.lose_a_row(0)
    other, listed = world.open(Writer()), list[str]()

    def drop_and_replace(prefix: str, *_: object) -> None:
        if prefix == f"data/{TOPIC}" and not listed:
            listed.extend(world.files())
            world.drop(world.open(Writer()))
            world.land("replace", world.open(Writer()))

    beside(monkeypatch, other.store, "list", after=drop_and_replace)
    coverage = other.coverage(TOPIC)
    assert given_up_paths(world.first)[0] in listed, "the control"
    assert coverage.doubles == {} and coverage.pending() == []


@pytest.mark.parametrize("on_loss", ["fail", "record"])
def test_a_replace_of_a_dropped_range_that_nobody_can_finish_leaves_the_tables_rows(world: SmallWorld, on_loss: str) -> None:
    """[R-74] It died before it published, its staged file was swept, and Kafka has nothing of the range any more."""
    compacted(world)
    world.drop()
    world.lose_a_row(1)
    world.lake = world.open(Writer())
    world.die("commit", "replace")
    world.drop_staging()
    world.kafka.expire(0, 50)
    assert [offsets.key for offsets in world.coverage.pending()] == ["0-0-3"], "the fault"
    for _ in range(2):
        assert {each.outcome for each in world.land(on_loss=on_loss)} <= {Outcome.ALREADY_LANDED}
    append_landed(TOPIC, world.open(Writer()), lambda: EPOCH_MS)
    assert world.landed_offsets() == world.in_table() == dict.fromkeys(range(6), 1)
    assert world.shown() == {} and world.coverage.pending() == []
    for check in (check_tiling, check_published, check_table):
        assert check(TOPIC, world.lake).violations == ()


def overtaken(world: SmallWorld, act: Callable[[], object], patch: pytest.MonkeyPatch) -> Lake:
    """Return the lake of somebody who stands still after the first look at the coverage, while another one acts."""
    lake, acts = world.open(Writer()), [act]
    beside(patch, lake, "coverage", after=lambda topic: acts and acts.pop()())
    return lake


def test_a_range_replaced_while_looked_for_is_read_as_it_is_then(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-85] No error sends anybody to a backup: who reads looks again, and who decodes says what happened."""
    compacted(world)
    world.drop()
    world.lose_a_row(1)
    lake = overtaken(world, lambda: world.land("replace", world.open(Writer())), monkeypatch)
    assert find_rows(lake.coverage(TOPIC), lake).coverage.manifests[min(world.coverage.manifests)].revision == 1
    assert world.compact() and world.drop()
    world.lose_a_row(2)
    lake = overtaken(world, lambda: world.land("replace", world.open(Writer())), monkeypatch)
    failed, decoded = decode_by(OffsetDecoder("id BIGINT"), lake, list(world.coverage.log.ranges))
    assert failed.violations[0].startswith("range orders/0 [0, 3) was landed anew while it was decoded")
    assert decoded.outcome is Decided.DECODED


def test_an_append_asleep_while_its_range_was_dropped_looks_again(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-81] Another one has appended, compacted and dropped it since: its landed file is gone, and nothing is amiss."""
    world.land()
    done = list[str]()

    def compact_and_drop() -> None:
        world.compact(world.open(Writer()))
        world.drop(world.open(Writer()))
        done.append("dropped")

    assert append_landed(TOPIC, overtaken(world, compact_and_drop, monkeypatch), lambda: EPOCH_MS) >= 1
    assert done and world.in_table() == dict.fromkeys(range(6), 1)


def test_a_table_continued_before_the_lake_is_read_is_no_lost_one(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-81] What they have appended, compacted and dropped in between is not in the version that was read."""
    world.has_raw_table = False
    world.land()
    lake, other, gone_on = world.open(Writer()), world.open(Writer()), list[int]()
    is_behind_the_table = iter([False, True])  # what is recent is read first

    def go_on(_: str) -> None:
        if next(is_behind_the_table, False):
            gone_on.append(append_landed(TOPIC, other, lambda: EPOCH_MS))
            world.compact(other)
            world.drop(other)

    beside(monkeypatch, lake, "coverage", before=go_on)
    assert append_landed(TOPIC, lake, lambda: EPOCH_MS, Doubts(world.coverage.log.ranges)) >= 1
    assert gone_on == [0] and world.in_table() == dict.fromkeys(range(6), 1)
