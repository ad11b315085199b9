"""What an update of latest records reads, held against a full recomputation by a plain model of the merge without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BadSetting
from pipeline_defs.core.log.manifest import StagedFile
from pipeline_defs.core.offsets import OffsetRange, merge_ranges
from pipeline_defs.core.tables.decoded_ranges import DecodedRanges
from pipeline_defs.core.tables.decoded_table import find_groups, read_contents, replace_ranges
from pipeline_defs.core.tables.decoding import Decoding
from pipeline_defs.core.tables.delta import Snapshot, apply
from pipeline_defs.core.tables.latest import Latest, Placed, compare, find_fresh, place_ranges
from tests.properties.test_decoding_laws import Documents, compacted, rest
from tests.support.strategies import TOPIC, provenance

Rows = Mapping[int, tuple[int, int | None, int]]
"""Of each offset its key, its value (none: a tombstone) and its timestamp."""

Place = tuple[Any, ...]
Winners = dict[int, tuple[Place, int | None]]
CUT = 3  # the second range of a Kafka partition is of the second epoch, where partitions were added in between
RANGES = [OffsetRange(g, p, at, at + 3) for g, p in [(0, 0), (0, 1), (1, 0)] for at in (0, 3, 6)]
ROWS = st.dictionaries(st.integers(0, 2), st.tuples(st.integers(0, 3), st.none() | st.integers(0, 9), st.integers(0, 6)))
STEPS = st.lists(st.tuples(st.sampled_from(RANGES), ROWS, st.booleans()), max_size=14)


def decoding_of(offsets: OffsetRange, rows: Rows, revision: int) -> Decoding:
    newest = max((at_ms for _, _, at_ms in rows.values()), default=None)
    file = StagedFile("", 1, f"{revision}", len(rows), offsets.start, offsets.end - 1, newest, newest) if rows else None
    return Decoding(TOPIC, offsets, "", "", "", file, None, provenance(offsets), revision)


def epoch_of(offsets: OffsetRange) -> int:
    return int(offsets.start >= CUT)


def positioned(offsets: OffsetRange, rows: Rows, placed: Placed) -> Iterable[tuple[int, Place, int | None]]:
    """Yield key, place and value of each row, as adapters/tables/latest_winners.py finds them."""
    reached = placed.reached_ms if placed.reached_ms is not None else -1
    for at, (key, value, at_ms) in sorted(rows.items()):
        reached = max(reached, at_ms)
        yield key, (offsets.generation, placed.epoch, reached, offsets.partition, offsets.start + at), value


def recomputed(decoded: Mapping[OffsetRange, Rows]) -> Winners:
    """Return the winners by the rule alone, row by row over each Kafka partition and epoch."""
    reached: dict[tuple[int, int, int], int] = {}
    winners: Winners = {}
    for offsets, rows in sorted(decoded.items()):
        lane = (offsets.generation, offsets.partition, epoch_of(offsets))
        for at, (key, value, at_ms) in sorted(rows.items()):
            reached[lane] = max(reached.get(lane, -1), at_ms)
            place = (lane[0], lane[2], reached[lane], lane[1], offsets.start + at)
            if key not in winners or place > winners[key][0]:
                winners[key] = place, value
    return winners


def update(
    standing: Winners,
    before: Mapping[OffsetRange, Placed],
    after: Mapping[OffsetRange, Placed],
    decoded: Mapping[OffsetRange, Rows],
) -> Winners:
    """Merge as adapters/tables/latest_winners.py and the table's MERGE do, in their order."""
    change = compare(before, after)
    changed = merge_ranges(change.changed)
    lost = {key for key, (place, _) in standing.items() if any(_lies_in(place, each) for each in changed)}
    winners: Winners = {}
    for offsets, placed in after.items():
        for key, place, value in positioned(offsets, decoded[offsets], placed):
            if (key in lost or offsets in change.fresh) and (key not in winners or place > winners[key][0]):
                winners[key] = place, value
    kept = {key: found for key, found in standing.items() if key not in lost}
    return kept | {key: found for key, found in winners.items() if key not in kept or found[0] > kept[key][0]}


def _lies_in(place: Place, stretch: OffsetRange) -> bool:
    generation, _, _, partition, at = place
    return (generation, partition) == stretch.place and stretch.start <= at < stretch.end


@given(STEPS)
def test_updates_come_to_what_a_recomputation_comes_to(steps: list[tuple[OffsetRange, Rows, bool]]) -> None:
    """[R-87] Ranges that come late, or again with other rows, times in no order, a second epoch and generation."""
    decoded: dict[OffsetRange, Rows] = {}
    known: dict[OffsetRange, Decoding] = {}
    standing: Winners = {}
    before: Mapping[OffsetRange, Placed] = {}
    for number, (offsets, rows, is_updated) in enumerate([*steps, (RANGES[0], {}, True)]):
        decoded[offsets], known[offsets] = rows, decoding_of(offsets, rows, number)
        if is_updated:
            after = place_ranges(known.values(), epoch_of, lambda each: "")
            standing, before = update(standing, before, after, decoded), after
            assert standing == recomputed(decoded)
            assert compare(after, after) == compare({}, {}), "what has gone in is not due again"


HISTORY = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(RANGES), st.integers(0, 2), st.integers(0, 9)),  # decoded: rows, and the newest timestamp
        st.just("next"),  # the next range of all is decoded
        st.just("compact"),
    ),
    max_size=20,
)


@given(HISTORY)
@example([(RANGES[0], 1, 9), (RANGES[1], 1, 5), "compact", "next"])  # a compacted file of two epochs
def test_what_is_new_alone_is_found_without_the_rest(history: list[Any]) -> None:
    """[R-100] Between any two versions: what is found is what both as a whole come to, or nothing is said."""
    documents, versions, following = Documents(), [DecodedRanges(TOPIC, Snapshot(), read_contents)], count(9, 3)
    for number, event in enumerate(history):
        table = versions[-1].table
        if event == "compact":
            commits = [compacted(group, number, documents) for group in find_groups(table, 10**9, every=True)]
        else:
            offsets = OffsetRange(0, 0, at := next(following), at + 3) if event == "next" else event[0]
            rows, newest = (1, at) if event == "next" else event[1:]
            file = StagedFile(f"{number}", 1, f"{number:064}", rows, offsets.start, offsets.end - 1, newest, newest)
            decoding = replace(decoding_of(offsets, {}, number), decoded=file, source="5" * 64)
            left = versions[-1].find_left([offsets])
            rests = {
                path: rest(table.files[path], some, dict(versions[-1].known), number, documents)
                for path, some in left.items()
                if some.ranges
            }
            commits = [replace_ranges([decoding], left, rests, number)]
        for commit in commits:
            table = apply(commit, table)
            versions.append(DecodedRanges(TOPIC, table, documents.of))
    for at, before in enumerate(versions):
        for after in versions[at:]:
            fresh = find_fresh(before, after, epoch_of)
            was, now = (place_ranges(each.known.values(), epoch_of, each.path_of) for each in (before, after))
            change = compare(was, now)
            if fresh is not None:
                assert (fresh, change.changed) == ({each: now[each] for each in change.fresh}, ())
                assert [each.path for each in fresh.values()] == [now[each].path for each in fresh]
    if set(history) <= {"next", "compact"}:
        assert all(find_fresh(one, versions[-1], epoch_of) is not None for one in versions), "what is behind all others"


def test_a_late_range_moves_those_behind_it_only_where_its_times_are_newer() -> None:
    """[R-87]"""
    first, second, third = RANGES[:3]

    def placed(newest_ms: Mapping[OffsetRange, int]) -> Mapping[OffsetRange, Placed]:
        known = [decoding_of(offsets, {0: (1, 1, at_ms)}, 0) for offsets, at_ms in newest_ms.items()]
        return place_ranges(known, lambda offsets: 0, lambda each: "")

    one = placed({third: 9, first: 5})
    assert compare(one, placed({third: 9, first: 5, second: 5})).fresh == (second,)
    other = placed({first: 5, second: 7, third: 9})
    assert compare(one, other) == compare({third: one[third]}, {second: other[second], third: other[third]})
    assert compare(one, other).changed == (third,)


def test_stretches_join_neighbours() -> None:
    assert merge_ranges(RANGES) == [OffsetRange(0, 0, 0, 9), OffsetRange(0, 1, 0, 9), OffsetRange(1, 0, 0, 9)]


@pytest.mark.parametrize("path", ["", "version", "key.id", "value", "value.", "value.a b", "value.`x`"])
def test_a_sequence_that_is_no_path_of_a_value_is_refused(path: str) -> None:
    with pytest.raises(BadSetting, match=r"expected the path of a field such as value\.version"):
        Latest(path)


def test_an_order_has_a_number_of_its_own() -> None:
    assert len({Latest().order, Latest("value.a").order, Latest("value.b").order}) == 3
