"""What an update plans, held against a full recomputation by a plain model of the merge: dictionaries instead of Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_defs.core.applied import Applied
from pipeline_defs.core.errors import BadSetting, BrokenManifest, LatestOutdated
from pipeline_defs.core.latest import BucketFacts, Latest, check_layout, plan_update, stretches_of
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import TOPIC

Place = tuple[int, int, int]
Winner = tuple[Place, int | None]  # none: a tombstone
Rows = dict[int, tuple[int, int | None]]  # of each offset, its key and its value
RANGES = [
    OffsetRange(generation, partition, at, at + 3)
    for generation, partition in [(0, 0), (0, 1), (1, 0)]
    for at in (0, 3)
]
BUCKETS = 2


@dataclass
class Bucket:
    """Is a bucket as its file is: which ranges went in, and what has won, tombstones among it."""

    applied: Applied | None = None
    winners: dict[int, Winner] = field(default_factory=dict)


def rows_of(offsets: OffsetRange, rows: Rows, bucket: int) -> list[tuple[int, Winner]]:
    lane = (offsets.generation, offsets.partition)
    return [(key, ((*lane, at), value)) for at, (key, value) in rows.items() if key % BUCKETS == bucket]


def fold(found: list[tuple[int, Winner]]) -> dict[int, Winner]:
    """Is the full recomputation: of each key what has the greatest place."""
    best: dict[int, Winner] = {}
    for key, winner in found:
        if key not in best or winner[0] > best[key][0]:
            best[key] = winner
    return best


def merge(
    bucket: int,
    standing: Bucket,
    decoded: dict[OffsetRange, Rows],
    fresh: list[OffsetRange],
    changed: list[OffsetRange],
) -> dict[int, Winner]:
    """Is what edges/spark_latest.py does, in its order."""

    def is_changed(place: Place) -> bool:
        return any(place[:2] == (o.generation, o.partition) and place[2] in o for o in changed)

    rows = [row for offsets in fresh for row in rows_of(offsets, decoded[offsets], bucket)]
    again = {(key, place) for key, (place, _) in rows}
    lost = {k for k, (place, _) in standing.winners.items() if is_changed(place) and (k, place) not in again}
    kept = [(key, winner) for key, winner in standing.winners.items() if not is_changed(winner[0])]
    history = [row for offsets, each in decoded.items() for row in rows_of(offsets, each, bucket) if row[0] in lost]
    return fold([*kept, *rows, *history])


@st.composite
def decodings(draw: st.DrawFn) -> Rows:
    offsets = draw(st.sets(st.integers(0, 2)))
    return {at: (draw(st.integers(0, 4)), draw(st.one_of(st.none(), st.integers(0, 9)))) for at in sorted(offsets)}


Event = tuple[str, OffsetRange, Rows]
KINDS = ["decode", "decode", "forget", "lose", "update", "full"]
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(RANGES), decodings()), min_size=12, max_size=30)


LOSES_ITS_WINNER: list[Event] = [
    ("decode", RANGES[0], {0: (1, 5)}),
    ("decode", RANGES[1], {0: (1, 6)}),
    ("update", RANGES[0], {}),
    ("decode", RANGES[1], {}),
]


@dataclass
class Model:
    """Is what is decoded of a topic, and the buckets of its latest state."""

    buckets: dict[int, Bucket] = field(default_factory=lambda: {number: Bucket() for number in range(BUCKETS)})
    decoded: dict[OffsetRange, Rows] = field(default_factory=dict)
    revisions: dict[OffsetRange, int] = field(default_factory=dict)

    @property
    def applied(self) -> dict[int, Applied | None]:
        return {number: bucket.applied for number, bucket in self.buckets.items()}

    @property
    def seen(self) -> dict[OffsetRange, int]:
        return {offsets: self.revisions[offsets] for offsets in self.decoded}

    def recomputed(self, number: int) -> dict[int, Winner]:
        return fold([row for offsets, rows in self.decoded.items() for row in rows_of(offsets, rows, number)])

    def happen(self, what: str, offsets: OffsetRange, rows: Rows) -> None:
        decoded = {offsets.start + at: row for at, row in rows.items()}
        if what == "decode":
            self.revisions[offsets] = self.revisions.get(offsets, -1) + 1
            self.decoded[offsets] = decoded
        elif what == "forget":
            self.decoded.pop(offsets, None)
        elif what == "lose":
            self.buckets[offsets.partition] = Bucket()

    def update(self, *, full: bool = False, dies: bool = False) -> None:
        """Updates; dies before the last bucket is exchanged."""
        standing = {number: Bucket() for number in self.buckets} if full else dict(self.buckets)
        plan = plan_update({number: bucket.applied for number, bucket in standing.items()}, self.seen)
        fresh = [offsets for offsets in plan.fresh if offsets in self.decoded]
        for number, target in plan.targets.items():
            if not (dies and number == BUCKETS - 1):
                winners = merge(number, standing[number], self.decoded, fresh, [*plan.changed])
                self.buckets[number] = Bucket(target, winners)


@given(EVENTS, st.randoms(use_true_random=False))
@example(LOSES_ITS_WINNER, Random(0))
def test_whatever_happened_an_update_is_equal_to_a_full_recomputation(events: list[Event], draw: Random) -> None:
    """Late, redone, empty, and forgotten ranges; buckets that another update has left behind, or that are lost."""
    model = Model()
    for what, offsets, rows in events:
        if what in {"update", "full"}:
            model.update(full=what == "full", dies=draw.random() < 0.3)
        else:
            model.happen(what, offsets, rows)
    model.update()
    for number, bucket in model.buckets.items():
        assert bucket.winners == model.recomputed(number)
        assert bucket.applied == Applied.of(model.seen)
    assert not plan_update(model.applied, model.seen).targets


@given(st.sets(st.sampled_from(RANGES)))
def test_stretches_hold_the_offsets_of_their_ranges(ranges: set[OffsetRange]) -> None:
    stretches = stretches_of(ranges)
    assert {(s.generation, s.partition, at) for s in stretches for at in range(s.start, s.end)} == {
        (o.generation, o.partition, at) for o in ranges for at in range(o.start, o.end)
    }
    assert len(stretches) <= len({(o.generation, o.partition) for o in ranges})


def facts(bucket: int = 0, buckets: int = 16) -> BucketFacts:
    return BucketFacts(TOPIC, bucket, buckets, "string", Applied.of({RANGES[0]: 3}), 5, 2, 700, 300, "a", "r", "c")


def test_facts_read_back_as_themselves() -> None:
    assert BucketFacts.from_json(facts().to_json(), "somewhere") == facts()


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"format": 2}', '{"format": 1, "applied": [[0]]}'])
def test_what_says_nothing_is_named(text: str | None) -> None:
    with pytest.raises(BrokenManifest, match=r"b0001\.parquet does not say what it holds"):
        BucketFacts.from_json(text, "b0001.parquet")


def test_another_number_of_buckets_is_refused() -> None:
    """One file exchanged for another layout would show keys twice."""
    check_layout(TOPIC, 16, [facts(), facts(1)])
    with pytest.raises(LatestOutdated, match=r"has files of 8 buckets, defs\.yaml says 16"):
        check_layout(TOPIC, 16, [facts(), facts(1, 8)])


@pytest.mark.parametrize("buckets", [0, 501])
def test_a_number_of_buckets_that_cannot_be_is_refused(buckets: int) -> None:
    with pytest.raises(BadSetting, match="expected 1 to 500"):
        Latest(buckets)
