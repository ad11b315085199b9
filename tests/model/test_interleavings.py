"""Two who change a lake, handed over at each call of the store; one that dies there, or whose answer is lost.

Of landing a range, of the raw table and of the decoded one: a few of all the ways, always the same; `HUNT=3000` draws 3,000 of
them at random, each time others.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import published_path
from pipeline_defs.adapters.tables.decodings import Decodings, decoded_table_log
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.core.landing.verdicts import Outcome, Verdict
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.core.tables.decoding import Decided, completeness_of
from pipeline_defs.landing.appending import append_landed, try_append
from pipeline_defs.landing.auditing import check_table
from pipeline_defs.tables.deleting import vacuum
from tests.support.fake_log import TOPIC
from tests.support.interleaving import FAULTS, Glob, SmallWorld, Writer, assert_all_is_in_order, draw, strike, take_turns
from tests.support.redecoding import OffsetDecoder, compact_decoded, decode_by, decode_due
from tests.support.strategies import EPOCH_MS

KINDS = ["disk", "bucket"]
DELIVERIES = [Delivery.EFFECTIVELY_ONCE] * 3 + [Delivery.AT_LEAST_ONCE] * 2
CALLS, TO_ITS_END = range(60), 10_000
OLD = OffsetDecoder("id BIGINT")
MENDED = OffsetDecoder("id BIGINT NOT NULL", is_mended=True)
pytestmark = pytest.mark.usefixtures("watched")


class Contested(SmallWorld):
    """A lake that two change at once, or one who is struck: how it begins, what they do, and what holds at the end."""

    starts: ClassVar[list[tuple[Any, ...]]]
    acts: ClassVar[list[str]]
    struck: ClassVar[list[str]]
    seconds: ClassVar[list[int]] = [*CALLS]
    most_writes: ClassVar[int]
    each: ClassVar[int] = 20

    def note(self) -> None:
        """Note what there is before anybody acts."""

    def look(self) -> None:
        """Look at what a change has left."""

    def act(self, name: str, writer: Writer) -> None:
        raise NotImplementedError

    def assert_ends_well(self, acts: Collection[str]) -> None:
        raise NotImplementedError


class OneRange(Contested):
    """A topic with one range, landed so far as `start` says."""

    starts: ClassVar = [
        *product(KINDS, ["planned", "committed", "landed", "compacted", "lost", "damaged"], DELIVERIES, [False, True])
    ]
    acts: ClassVar = ["land", "redo", "replace", "sweep"]
    struck: ClassVar = ["land", "replace"]
    most_writes = 8  # of a writer of one range: of few it makes more
    each = 60

    def __init__(self, folder: Path, kind: str, start: str, delivery: Delivery, has_raw_table: bool) -> None:
        super().__init__(folder, kind, records=4, grid=4)
        self.start, self.delivery, self.has_raw_table = start, delivery, has_raw_table
        if start == "committed":
            self.die("commit")
        elif start != "planned":
            self.land()
        if start in {"compacted", "lost", "damaged"}:
            self.kafka.compact(100)
            assert self.in_kafka() == {0, 1, 3}
        if start in {"lost", "damaged"}:
            path = published_path(self.first)
            data = self.files()[path]
            self.lake.store.delete(path)
        if start == "damaged":
            other = pa.BufferOutputStream()  # a whole Parquet file, and not the one that was landed
            pq.write_table(pq.read_table(pa.BufferReader(data)).slice(0, 1), other)
            self.lake.store.put_new(path, other.getvalue().to_pybytes(), "staging/careless")

    def note(self) -> None:
        self.kept = set[int]() if self.start in {"lost", "damaged"} else {*self.shown()}

    def act(self, name: str, writer: Writer) -> None:
        """Do what a writer does, and hold it to what it says."""
        lake = self.open(writer)
        if name == "sweep":
            self.sweep(lake)
            return

        def believe(verdict: Verdict) -> None:
            now = self.open(Writer()).coverage(TOPIC)
            if not verdict.outcome.is_landed or verdict.manifest is None:
                return
            newest = now.manifests[verdict.offsets]
            if newest.serial <= verdict.manifest.serial:  # else a replace beside it has committed since
                assert now.is_landed(verdict.offsets), verdict
                assert verdict.outcome is Outcome.ALREADY_LANDED or verdict.manifest == newest

        self.land(name, lake, on_verdict=believe)

    def assert_ends_well(self, acts: Collection[str]) -> None:
        """Show what is to be kept and Kafka has, then land what is pending, undisturbed.

        Where Kafka has other rows than were landed, a person's replace decides.
        """
        self.lake = self.open(Writer())
        assert {*self.shown()} >= self.kept & self.in_kafka()
        assert max(self.in_table().values(), default=1) == 1
        assert self.delivery is Delivery.AT_LEAST_ONCE or max(self.shown().values(), default=1) == 1
        self.land()
        if self.coverage.pending():
            self.land("replace")
        assert_all_is_in_order(self.lake)
        shown = self.shown()
        assert self.in_kafka() <= set(shown) <= {0, 1, 2, 3}
        if self.delivery is not Delivery.AT_LEAST_ONCE:
            assert max(shown.values()) == 1
        if "replace" in acts:
            self.land("replace")
            assert self.shown() == dict.fromkeys(self.in_kafka(), 1)
        if self.has_raw_table:
            append_landed(TOPIC, self.lake, lambda: EPOCH_MS)  # as the next tick does
            assert check_table(TOPIC, self.lake).violations == ()
            assert self.in_table() == self.landed()


def vacuum_later(lake: Lake) -> None:
    vacuum(lake, EPOCH_MS + 8 * 24 * 3_600_000)


class ThreeRanges(Contested):
    """A topic of three ranges of two rows, of which tables are made so far as `start` says, and a fourth, not landed yet.

    Kafka has one row less of the second range than was landed.
    """

    def __init__(self, folder: Path, kind: str, start: str) -> None:
        super().__init__(folder, kind, records=6, grid=2)
        self.begin(start)
        self.lose_a_row(2)
        self.grow(2)
        assert self.in_kafka() == {0, 1, 3, 4, 5, 6, 7}

    def begin(self, start: str) -> None:
        raise NotImplementedError

    def does(self) -> Mapping[str, Callable[[Lake], object]]:
        """Return what else is done than landing, by its name."""
        raise NotImplementedError

    def act(self, name: str, writer: Writer) -> None:
        """Do one after the other."""
        lake, does = self.open(writer), self.does()
        for each in name.split(", "):
            does.get(each, partial(self.land, each))(lake)


class RawTable(ThreeRanges):
    """The raw table of a topic, whose range files may be dropped; what a glob shows is looked at after each change."""

    starts: ClassVar = [*product(KINDS, ["landed", "compacted", "half compacted", "half dropped", "dropped"])]
    acts: ClassVar = ["compact", "drop", "replace", "land", "vacuum", "land, compact, drop", "drop, replace, compact, drop"]
    struck: ClassVar = acts
    seconds: ClassVar = [*CALLS, *[TO_ITS_END] * (len(CALLS) // 2)]  # so that the first stood still for all the other did
    most_writes = 10

    def begin(self, start: str) -> None:
        self.has_raw_table = True
        first, second, _ = self.coverage.pending()
        for only in (first, second) if "half" in start else (None,):
            self.land(only=only)
        if start != "landed":
            self.compact()
        if "dropped" in start:
            self.drop()
        self.land()

    def note(self) -> None:
        self.glob = Glob(self)

    def look(self) -> None:
        self.glob.look()

    def does(self) -> Mapping[str, Callable[[Lake], object]]:
        return {"compact": self.compact, "drop": self.drop, "vacuum": vacuum_later}

    def act(self, name: str, writer: Writer) -> None:
        """Do one after the other; on a disk it may end at a lock with which the other writer stands still."""
        try:
            super().act(name, writer)
        except LakeUnavailable as error:
            if self.bucket is not None or "holds the lock" not in str(error):
                raise

    def assert_ends_well(self, acts: Collection[str]) -> None:
        """Do all of it once more, undisturbed."""
        assert self.glob.wrong == []
        self.lake = self.open(Writer())
        self.assert_nothing_is_twice_or_missing()
        self.land()
        append_landed(TOPIC, self.lake, lambda: EPOCH_MS)  # as the next tick does
        assert_all_is_in_order(self.lake)
        assert check_table(TOPIC, self.lake).violations == ()
        self.compact()
        self.drop()
        vacuum_later(self.lake)
        self.land("replace")
        assert self.landed_offsets() == self.in_table() == dict.fromkeys(self.in_kafka(), 1)
        self.assert_nothing_is_twice_or_missing()

    def assert_nothing_is_twice_or_missing(self) -> None:
        """At any moment: each landed row stands somewhere, a version has none twice, and a glob none twice."""
        assert max(self.in_table().values(), default=1) == 1
        assert max(self.shown().values(), default=1) == 1
        assert max(self.landed_offsets().values()) == 1
        assert {0, 1, 3, 4, 5} <= {*self.in_table(), *self.shown()}
        if self.bucket is None:
            found = Duck(Lake(str(self.folder)), [TOPIC]).query(f'SELECT "offset" FROM "{TOPIC}"')[1]
            offsets = [offset for (offset,) in found]
            assert {0, 1, 3, 4, 5} <= set(offsets) and len(offsets) == len(set(offsets)), "a view shows each once"


def in_decoded(world: SmallWorld) -> Counter[int]:
    return world.in_table(decoded_table_log(TOPIC, world.open(Writer())))


class DecodedTable(ThreeRanges):
    """The decoded table of a topic."""

    starts: ClassVar = [*product(KINDS, ["landed", "decoded", "half decoded", "compacted"])]
    acts: ClassVar = ["decode", "mend", "compact", "replace", "land", "vacuum"]
    struck: ClassVar = ["decode", "mend", "compact"]
    most_writes = 14

    def begin(self, start: str) -> None:
        self.land()
        if start != "landed":
            ranges = list(self.coverage.log.ranges)
            decode_by(OLD, self.lake, ranges[:2] if start == "half decoded" else ranges)
        if start == "compacted":
            compact_decoded(self.lake, TOPIC)

    def note(self) -> None:
        self.before = {*in_decoded(self)}

    def does(self) -> Mapping[str, Callable[[Lake], object]]:
        compact = partial(compact_decoded, topic=TOPIC)
        return {"decode": partial(decode_due, OLD), "mend": self.mend, "compact": compact, "vacuum": vacuum_later}

    def mend(self, lake: Lake) -> None:
        coverage = lake.coverage(TOPIC)
        decode_by(MENDED, lake, [offsets for offsets in coverage.log.ranges if coverage.is_landed(offsets)], redo=True)

    def assert_ends_well(self, acts: Collection[str]) -> None:
        """No row is twice, none that was decoded is gone but those of a replaced range, and the next run does the rest."""
        found = in_decoded(self)
        assert max(found.values(), default=1) == 1
        assert self.before - {2} <= found.keys() or any(each.revision for each in self.coverage.manifests.values())
        self.lake = self.open(Writer())
        self.land()
        decode_due(OLD, self.lake)
        lake = self.open(Writer())
        assert {each.outcome for each in compact_decoded(lake, TOPIC)} <= {CompactionOutcome.COMPACTED}
        assert len(decoded_table_log(TOPIC, lake).read().files) <= 2
        coverage, decodings = lake.coverage(TOPIC), Decodings(lake).read_ranges(TOPIC)
        assert decodings.find_due(coverage) == [] and Decodings(lake).find_lacking(decodings) == []
        assert completeness_of(TOPIC, coverage.manifests, decodings.known) == []
        assert in_decoded(self) == self.landed()


@pytest.mark.parametrize("changed", [OneRange, RawTable, DecodedTable])
def test_two_who_hand_over_anywhere_leave_each_row_once(begin: Callable[..., Contested], changed: type[Contested]) -> None:
    """[R-17] [R-25] [R-48] [R-62] [R-63] [R-68] [R-69] [R-73] [R-81] Whatever the two do, always.

    Writers of one range, whose verdicts are true when given, but where a replace has gone on since; two who compact a table or
    drop what it has, two decoders, of one mind or of two, each of them also beside a landing, a replace or a vacuum. At the end
    the audit is green.
    """
    handed_over = 0
    starts = [start for start in changed.starts if Delivery.AT_LEAST_ONCE not in start]  # of two it promises nothing
    drawn = draw(changed.each, f"two of {changed.__name__}", starts, changed.acts, changed.acts, CALLS, changed.seconds)
    for start, one, other, first, second in drawn:
        world = begin(changed, *start)
        world.note()
        acts, check = [partial(world.act, name) for name in (one, other)], partial(world.assert_ends_well, {one, other})
        turns, told = [(0, first), (1, second)], f"{start}: {one}, {other}"
        writers = take_turns(acts, turns, check, told, world.look)
        handed_over += len(writers[0].calls) > first and len(writers[1].calls) > second
    assert handed_over > len(drawn) // 10, "the control: some do hand over"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("changed", [OneRange, RawTable, DecodedTable])
def test_who_dies_or_gets_no_answer_is_made_good(begin: Callable[..., Contested], changed: type[Contested], fault: str) -> None:
    """[R-18] [R-47] [R-62] [R-63] [R-68] [R-69] [R-73] [R-81] At each call of the store: each row is once, what was shown is
    shown, and who comes next ends it well.
    """
    struck = 0
    numbers = CALLS if fault == "dies" else range(changed.most_writes)
    drawn = draw(changed.each, f"{changed.__name__} {fault}", changed.starts, changed.struck, numbers)
    for start, name, number in drawn:
        world = begin(changed, *start)
        world.note()
        check = partial(world.assert_ends_well, {name})
        struck += strike(partial(world.act, name), fault, number, check, f"{start}: {name}", world.look)
    assert struck > len(drawn) // 20, "the control: some are struck"


def files_beside_tables(world: SmallWorld) -> set[str]:
    return {path for tree in ("plan", "manifests", "data", "begun") for path in world.lake.store.list(f"{tree}/{TOPIC}")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("records", [1, 4])
def test_tables_newer_than_the_plan_log_double_nothing_and_say_what_to_do(tmp_path: Path, kind: str, records: int) -> None:
    """[R-67] [R-81] As in a backup that was copied while runs were at work: what was planned anew has other boundaries."""
    world = SmallWorld(tmp_path / "lake", kind, records=6, grid=2)
    world.has_raw_table = True
    world.land()
    decode_due(OLD, world.lake)
    kept = files_beside_tables(world)
    world.grow(records - records // 2)
    world.grow(records // 2)
    world.land()
    decode_due(OLD, world.lake)
    for path in files_beside_tables(world) - kept:
        world.lake.store.delete(path)
    world.lake = world.open(Writer())
    world.policy = replace(world.policy, records_per_range=3)
    world.grow(8)
    ranges = list(world.coverage.log.ranges)
    world.land()
    refused = decode_by(OLD, world.lake, ranges)
    why = try_append(TOPIC, world.lake, lambda: EPOCH_MS)
    assert why is not None and "in its place, which no plan step has" in why
    said = [each.violations for each in refused if each.outcome is Decided.FAILED]
    assert said and all("away, and all ranges are decoded again" in each for (each,) in said)
    assert max(in_decoded(world).values()) == max(world.in_table().values()) == 1
    assert {*range(ranges[-1].start, ranges[-1].end)} <= in_decoded(world).keys(), "one range keeps no other from being decoded"
    for folder in (f"tables/raw/{TOPIC}", f"tables/decoded/{TOPIC}"):
        world.lake.store.delete(folder)
    world.lake = world.open(Writer())
    decode_due(OLD, world.lake)
    assert try_append(TOPIC, world.lake, lambda: EPOCH_MS) is None
    assert in_decoded(world) == world.in_table() == world.landed()
