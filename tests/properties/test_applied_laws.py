"""The set of ranges that went into a derived file, held against a plain mapping from offsets to revisions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.applied import Applied, Stretch
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import offset_ranges

Revisions = dict[OffsetRange, int]


@st.composite
def grids(draw: st.DrawFn) -> list[OffsetRange]:
    """Draws the disjoint ranges of a plan log: some lanes, each cut at some offsets, with gaps between."""
    found = []
    for lane in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), unique=True, max_size=3)):
        cuts = sorted(draw(st.sets(st.integers(0, 12), min_size=2)))
        pairs = itertools.pairwise(cuts)
        found += [OffsetRange(*lane, start, end) for start, end in pairs if draw(st.integers(0, 4))]
    return found


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Revisions, Revisions]:
    """Draws what went in and what there is now, of one plan log."""
    grid = draw(grids())
    before, now = (draw(st.dictionaries(st.sampled_from(grid), st.integers(0, 2))) if grid else {} for _ in range(2))
    return before, now


def model(revisions: Mapping[OffsetRange, int]) -> dict[tuple[int, int, int], int]:
    """Is the model: the revision of each single offset."""
    return {
        (offsets.generation, offsets.partition, offset): revision
        for offsets, revision in revisions.items()
        for offset in range(offsets.start, offsets.end)
    }


def as_ranges(applied: Applied) -> Revisions:
    return {OffsetRange(s.generation, s.partition, s.start, s.end): s.revision for s in applied.stretches}


@given(pairs())
def test_a_set_holds_exactly_the_offsets_of_its_ranges_at_their_revisions(pair: tuple[Revisions, Revisions]) -> None:
    applied = Applied.of(pair[0])
    assert model(as_ranges(applied)) == model(pair[0])


@given(pairs())
def test_stretches_are_as_few_as_can_be(pair: tuple[Revisions, Revisions]) -> None:
    """Neighbours that touch differ in revision; so the order in which ranges came, and how they are cut, leaves no trace."""
    stretches = Applied.of(pair[0]).stretches
    for one, other in itertools.pairwise(stretches):
        assert one < other
        touch = (one.generation, one.partition, one.end) == (other.generation, other.partition, other.start)
        assert not touch or one.revision != other.revision
    halves = {
        OffsetRange(r.generation, r.partition, at, at + 1): revision
        for r, revision in reversed(pair[0].items())
        for at in range(r.start, r.end)
    }
    assert Applied.of(halves) == Applied.of(pair[0])


@given(pairs())
def test_the_difference_is_that_of_the_plain_mappings(pair: tuple[Revisions, Revisions]) -> None:
    before, now = pair
    difference = Applied.of(before).compare(now)
    was, is_now = model(before), model(now)
    assert set(difference.new) == now.keys() - before.keys()
    assert set(difference.redone) == {each for each in now.keys() & before.keys() if now[each] != before[each]}
    assert model(dict.fromkeys(difference.gone, 0)).keys() == was.keys() - is_now.keys()
    assert [*difference.new] == sorted(difference.new)
    assert bool(difference) == (Applied.of(before) != Applied.of(now))
    assert difference.only_adds == (was.items() <= is_now.items())


@given(pairs())
def test_a_set_reads_back_as_itself(pair: tuple[Revisions, Revisions]) -> None:
    applied = Applied.of(pair[0])
    assert Applied.from_json(applied.to_json()) == applied
    assert Applied.from_json(applied.to_json().encode()).to_json() == applied.to_json()


@given(offset_ranges(), st.integers(0, 99))
def test_any_range_is_found_at_its_revision(offsets: OffsetRange, revision: int) -> None:
    applied = Applied.from_json(Applied.of({offsets: revision}).to_json())
    assert applied.revision_of(offsets) == revision
    assert applied.compare({offsets: revision + 1}).redone == (offsets,)


@given(pairs())
def test_the_revision_of_a_range_is_that_at_which_all_of_it_went_in(pair: tuple[Revisions, Revisions]) -> None:
    applied = Applied.of(pair[0])
    for offsets in {*pair[0], *pair[1]}:
        assert applied.revision_of(offsets) == pair[0].get(offsets)
    assert applied.revision_of(OffsetRange(3, 0, 0, 1)) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "7", "[7]", "[[0,0,0,1]]", "[[0,0,0,1,0,0]]", "[[0,0,1,1,0]]", "[[0,0,0,1,-1]]"),
        *('[["0",0,0,1,0]]', "[[0,0,0,1.0,0]]", "[[0,0,0,true,0]]"),
        "[[0,0,0,2,0],[0,0,1,3,0]]",  # overlap
        "[[0,0,4,5,0],[0,0,1,3,0]]",  # not sorted
        "[[0,0,0,2,0],[0,0,2,3,0]]",  # not maximal
    ],
)
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Applied.from_json(text)


def test_ranges_that_overlap_or_revisions_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        Applied.of({OffsetRange(0, 0, 0, 2): 0, OffsetRange(0, 0, 1, 3): 0})
    with pytest.raises(ValueError, match="no such revision"):
        Applied.of({OffsetRange(0, 0, 0, 2): -1})


def test_a_range_that_is_cut_otherwise_than_what_went_in_is_redone() -> None:
    """It cannot be while a plan log stands; where it is all the same, more is done again rather than too little."""
    applied = Applied((Stretch(0, 0, 0, 10, 0), Stretch(0, 0, 10, 20, 1)))
    across, inside = OffsetRange(0, 0, 5, 15), OffsetRange(0, 0, 2, 4)
    assert applied.compare({across: 0}).redone == (across,)
    assert (applied.revision_of(across), applied.revision_of(inside)) == (None, 0)
    assert applied.compare({inside: 0}).redone == ()
    assert applied.compare({inside: 1}).redone == (inside,)


def test_ranges_without_number_are_one_stretch() -> None:
    ranges = {OffsetRange(0, 0, n, n + 1): 0 for n in range(100_000)}
    applied = Applied.of(ranges)
    assert applied.to_json() == "[[0,0,0,100000,0]]"
    another = OffsetRange(0, 0, 100_000, 100_001)
    assert applied.compare({**ranges, another: 0}).new == (another,)
