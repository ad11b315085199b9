"""Files of a range that no manifest names: landed where they have what Kafka has, deleted once that is proven safe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.lake.layout import manifest_path, published_path
from pipeline_defs.adapters.store.store import Store
from pipeline_defs.core.landing.verdicts import Outcome, Verdict
from pipeline_defs.core.log.coverage import State
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.log.losses import all_losses
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.landing.auditing import check_published, check_tiling
from tests.support.fake_log import COMMITTED, TOPIC
from tests.support.interleaving import Dead, SmallWorld, Writer, beside
from tests.support.redecoding import stop_at

pytestmark = pytest.mark.usefixtures("watched")


@pytest.fixture(params=["disk", "bucket"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> SmallWorld:
    """A planned range of four records that is to be landed at least once."""
    made = SmallWorld(tmp_path, request.param, records=4, grid=4)
    made.delivery = Delivery.AT_LEAST_ONCE
    return made


@pytest.fixture
def world(fresh: SmallWorld) -> SmallWorld:
    """The range is landed, and doubled by the file of an attempt that was overtaken while it was at work."""
    (verdict,) = fresh.land(on_step=stop_at("verify", lambda: fresh.land(lake=fresh.open(Writer()))))
    assert verdict.outcome is Outcome.SUPERSEDED
    fresh.lake = fresh.open(Writer())
    assert fresh.shown() == dict.fromkeys(range(4), 2), "the fault"
    assert fresh.coverage.pending() == [] and check_tiling(TOPIC, fresh.lake).passed, "what the policy allows"
    return fresh


def manifest_of(world: SmallWorld) -> Manifest:
    (manifest,) = world.coverage.manifests.values()
    return manifest


def lose(world: SmallWorld, path: str) -> None:
    """Have the landed file or its manifest be deleted by somebody."""
    world.lake.store.delete(path)
    world.lake = world.open(Writer())
    assert len(world.coverage.pending()) == 1, "the fault"


def go_on(world: SmallWorld, then: str, percent: int) -> None:
    """Have Kafka compact the topic, or delete some of it, or nothing."""
    if then == "compacted":
        world.kafka.compact(100)
    if then == "expired":
        world.kafka.expire(0, percent)


@contextmanager
def no_deleting(world: SmallWorld, error: BaseException) -> Iterator[None]:
    """Have each deletion of a file below `data/` end by an error."""

    def fail(store: Store, prefix: str) -> None:
        with store.explained("delete", prefix):
            if prefix.startswith("data/"):
                raise error

    with pytest.MonkeyPatch.context() as patch:
        beside(patch, type(world.lake.store), "delete", fail)
        yield


def rewrite(world: SmallWorld, path: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Have other bytes stand at a path, with the rows that a function makes of those that stand there."""
    sink = pa.BufferOutputStream()
    pq.write_table(change(pq.read_table(pa.BufferReader(world.files()[path]))), sink, compression="gzip")
    world.lake.store.delete(path)
    world.lake.store.put_new(path, sink.getvalue().to_pybytes(), "staging/rewritten")
    world.lake = world.open(Writer())


def with_other_values(rows: pa.Table) -> pa.Table:
    at = rows.schema.get_field_index("value")
    return rows.set_column(at, rows.schema.field(at), pc.binary_join_element_wise(rows["value"], b"x", b""))


def the_double(world: SmallWorld) -> str:
    (path,) = world.coverage.doubles
    return path


def assert_whole(world: SmallWorld, offsets: set[int] | None = None) -> None:
    assert world.shown() == dict.fromkeys(world.in_kafka() if offsets is None else offsets, 1)
    assert world.coverage.pending() == [] and check_tiling(TOPIC, world.lake).passed
    assert check_published(TOPIC, world.lake).passed


def assert_refused(verdicts: list[Verdict], path: str, why: str) -> None:
    (verdict,) = verdicts
    assert verdict.outcome is Outcome.FAILED
    assert path in verdict.violations[0] and why in verdict.violations[0]
    assert "move it out of `data/` and keep it" in verdict.violations[0]


STEPS, MODES = ["double_deleted", "commit", "publish"], ["land", "redo", "replace"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", STEPS)
def test_a_replace_deletes_doubles_before_it_takes_rows_away(world: SmallWorld, at: str, mode: str) -> None:
    """[R-37] Dead anywhere after that, it has left none; the next run finishes it as any other replace, under each policy."""
    policy = list(Delivery)[(STEPS.index(at) + MODES.index(mode)) % 3]
    world.kafka.compact(100)
    assert len(world.in_kafka()) < 4
    world.die(at, "replace")
    assert world.coverage.doubles == {} and set(world.shown().values()) == {1}
    world.land(mode, delivery=policy)
    assert world.shown() == dict.fromkeys(world.in_kafka() if at != "double_deleted" or mode == "replace" else range(4), 1)
    assert world.coverage.pending() == [] and check_tiling(TOPIC, world.lake).passed


def test_a_replace_that_dies_or_fails_before_it_deleted_a_double_has_changed_nothing(world: SmallWorld) -> None:
    """[R-37] It finds the same rows, and so makes no revision: the state is as before, and said as before.

    [R-15] Where a double cannot be deleted, its range fails, the run goes on and says so, and the next replace deletes it.
    """
    before, said = world.files(), check_tiling(TOPIC, world.lake).violations
    with no_deleting(world, Dead()), pytest.raises(Dead):
        world.land("replace")
    world.lake = world.open(Writer())
    assert world.files() == before and check_tiling(TOPIC, world.lake).violations == said and manifest_of(world).revision == 0
    with no_deleting(world, PermissionError(13, "not yours")):
        (verdict,) = world.land("replace")
    assert verdict.outcome is Outcome.FAILED and "not yours" in verdict.violations[0]
    assert [verdict.outcome for verdict in world.land("replace")] == [Outcome.UNCHANGED]
    assert_whole(world)


def test_a_replace_deletes_doubles_of_what_kafka_no_longer_has(world: SmallWorld) -> None:
    """[R-37] Nothing is read for it: the landed file has each of their rows."""
    world.kafka.expire(0, 100)
    assert [verdict.outcome for verdict in world.land("replace")] == [Outcome.EXPIRED]
    assert_whole(world, {*range(4)})


def test_a_double_with_rows_that_the_landed_file_lacks_is_kept_and_named(world: SmallWorld) -> None:
    """[R-37] A stale attempt publishes after a replace; each run that replaces refuses, and moving it away ends it."""
    path, data = the_double(world), world.files()[the_double(world)]
    world.kafka.compact(100)
    world.land("replace")
    assert_whole(world)
    world.lake.store.put_new(path, data, "staging/stale")
    shown = world.shown()
    assert set(shown) == {*range(4)}, "the fault: nothing else has these rows"
    (violation,) = check_tiling(TOPIC, world.lake).violations
    assert path in violation and "--on-change replace` deletes it where the landed file has each of its rows" in violation
    assert world.coverage.pending() == [], "no run is asked for that could do nothing"
    world.land()
    assert_refused(world.land("replace"), path, "offsets are not there")
    assert world.shown() == shown and world.files()[path] == data
    world.lake.store.delete(path)  # a person has moved it away
    assert_whole(world)


@pytest.mark.parametrize("rewritten", ["double", "landed file"])
def test_a_double_of_equal_rows_is_deleted(world: SmallWorld, rewritten: str) -> None:
    """[R-37] The control: rows are compared, not bytes, and once the landed file is mended, which was damaged before."""
    if rewritten == "double":
        rewrite(world, the_double(world), lambda rows: rows)
    else:
        rewrite(world, published_path(manifest_of(world)), with_other_values)
    world.land("replace")
    assert_whole(world)


@pytest.mark.parametrize("then", ["compacted", "expired"])
def test_a_landed_file_that_is_gone_is_published_again_from_its_double(world: SmallWorld, then: str) -> None:
    """[R-23] Somebody deleted it, and Kafka has less by now: the rows stand in a file with the very same bytes."""
    lose(world, published_path(manifest_of(world)))
    assert set(world.shown()) == {*range(4)}
    go_on(world, then, 75)
    assert [verdict.outcome for verdict in world.land(on_loss="record")] == [Outcome.ROLLED_FORWARD]
    assert all_losses(world.coverage, world.kafka.read_watermarks(TOPIC, COMMITTED)) == []
    world.land("replace", on_loss="record")
    assert {*range(4)} >= set(world.shown()) >= world.in_kafka() and max(world.shown().values()) == 1
    assert check_tiling(TOPIC, world.lake).passed


@pytest.mark.parametrize("then", ["compacted", "expired"])
def test_no_landing_deletes_the_only_file_that_has_rows(world: SmallWorld, then: str) -> None:
    """[R-37] The landed file is gone, its double has other bytes, and the next revision has what Kafka has by now."""
    rewrite(world, the_double(world), lambda rows: rows)
    path = the_double(world)
    lose(world, published_path(manifest_of(world)))
    go_on(world, then, 75)
    for mode in ("land", "land", "replace"):
        verdicts = world.land(mode, on_loss="record")
        assert set(world.shown()) == {*range(4)}, "each row is shown yet"
    assert_refused(verdicts, path, "offsets are not there")


@pytest.mark.parametrize(("at", "lost"), [("publish", []), ("verify", [(0, 2)])])
def test_a_dead_attempts_file_is_landed_with_its_later_losses(fresh: SmallWorld, at: str, lost: list[tuple[int, int]]) -> None:
    """[R-42] [R-49] It died before its commit: no row is lost, and none is doubled. The control had published nothing yet."""
    fresh.die(at, "land")
    before = fresh.files()
    assert fresh.shown() == ({} if lost else dict.fromkeys(range(4), 1)) and not fresh.coverage.manifests, "the fault"
    fresh.kafka.expire(0, 50)
    (verdict,) = fresh.land(on_loss="record")
    assert lost or (verdict.outcome is Outcome.ROLLED_FORWARD and fresh.files() == before)
    losses = all_losses(fresh.coverage, fresh.kafka.read_watermarks(TOPIC, COMMITTED))
    assert [(each.offsets.start, each.offsets.end) for each in losses] == lost
    assert_whole(fresh, None if lost else {*range(4)})


@pytest.mark.parametrize("policy", Delivery)
@pytest.mark.parametrize("then", ["nothing", "compacted", "expired"])
def test_a_file_whose_manifest_is_deleted_is_landed_again_as_it_is(fresh: SmallWorld, policy: Delivery, then: str) -> None:
    """[R-16] Landed at least once, under its attempt's name: nothing is doubled, under whatever policy."""
    fresh.land()
    before = fresh.files()
    lose(fresh, manifest_path(TOPIC, manifest_of(fresh).offsets, 0))
    go_on(fresh, then, 50)
    fresh.land(delivery=policy, on_loss="record")
    assert fresh.files() == before
    assert_whole(fresh, {*range(4)})


def test_a_file_that_has_not_what_kafka_has_is_not_landed(fresh: SmallWorld) -> None:
    """[R-16] [R-37] Its manifest is gone, and its rows were changed: Kafka's are landed beside it, and it stays.

    It is a double with other values then: its offsets are all in the landed file, and are no proof.
    """
    fresh.land()
    lose(fresh, manifest_path(TOPIC, manifest_of(fresh).offsets, 0))
    (path,) = fresh.files()
    rewrite(fresh, path, with_other_values)
    fresh.land()
    assert fresh.coverage.doubles.keys() == {path} and published_path(manifest_of(fresh)) != path
    before = fresh.files()
    assert_refused(fresh.land("replace"), path, "other values in value")
    assert fresh.files() == before


def test_of_several_files_the_one_with_most_rows_is_landed(world: SmallWorld) -> None:
    """[R-16] The other one is a double then, and proven to be one."""
    rewrite(world, published_path(manifest_of(world)), lambda rows: rows.slice(0, 2).take([0, 1]))
    lose(world, manifest_path(TOPIC, manifest_of(world).offsets, 0))
    world.kafka.expire(0, 50)
    world.land("replace", on_loss="record")
    assert_whole(world, {*range(4)})


def test_what_is_left_of_a_lost_range_is_named_and_asks_for_no_run(world: SmallWorld) -> None:
    """[R-37] A replace was committed and never published, its files are gone, and so is the topic; a double stands."""
    path = the_double(world)
    data = world.files()[path]
    world.kafka.compact(100)
    world.die("commit", "replace")
    world.drop_staging()
    world.lake.store.delete(published_path(manifest_of(world)))
    world.lake.store.put_new(path, data, "staging/stale")
    world.kafka.recreate(1, 3)
    world.plan()
    world.land()
    world.lake = world.open(Writer())
    assert State.LOST in world.coverage.states().values(), "the fault"
    assert world.coverage.pending() == []
    (violation, *_) = check_tiling(TOPIC, world.lake).violations
    assert path in violation and "move it out of `data/` and keep it" in violation
    world.land("replace")
    assert world.files()[path] == data
