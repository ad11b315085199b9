"""Ranges, their key, and the algebra of intervals, held against a model of sets of integers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BadKey
from pipeline_defs.core.offsets import OffsetRange, check_topic, merge_intervals, parse_key, subtract_intervals
from tests.support.strategies import intervals, offset_ranges, offsets_in

# ---- the key


@given(offset_ranges())
def test_a_key_reads_back_as_its_range(offsets: OffsetRange) -> None:
    assert parse_key(offsets.key) == offsets


@given(st.text(alphabet="0123-+g _\n.٣²a", max_size=14) | st.from_regex(r"[0-9]{1,3}-[0-9]{1,3}-[0-9]{1,3}(-g[0-9]{1,2})?"))
@example("0-0-1-g01")
def test_a_text_is_refused_or_is_exactly_the_key_of_its_range(text: str) -> None:
    """[R-11] One range, one key: Dagster lets people type any text, and a second spelling would be a second partition."""
    try:
        offsets = parse_key(text)
    except BadKey:
        return
    assert offsets.key == text


@pytest.mark.parametrize("text", ["", "03-0-1", "+3-0-1", "\u0663-0-1", "3-0-1\n", "3-1-1", "3-0-1-g0", "9" * 5000 + "-0-1"])
def test_a_key_that_is_not_canonical_is_refused_in_words_that_say_what_to_type(text: str) -> None:
    with pytest.raises(BadKey, match=r"expected <kafka partition>-<start>-<end>\[-g<generation>\]") as caught:
        parse_key(text)
    assert caught.value.fields == {"key": text}
    assert repr(text) in str(caught.value)


# ---- the range


@pytest.mark.parametrize(
    "numbers", [(0, 0, 5, 5), (0, 0, 6, 5), (0, 0, -1, 5), (0, -1, 0, 5), (-1, 0, 0, 5), (0, 0, 0, 2**63), (0, 2**31, 0, 5)]
)
def test_a_bad_range_cannot_exist(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="no such range"):
        OffsetRange(*numbers)


@given(offset_ranges(most=10**6), st.integers(-5, 10**6 + 5))
def test_a_range_is_half_open_and_its_length_counts_offsets(offsets: OffsetRange, offset: int) -> None:
    assert len(offsets) == offsets.end - offsets.start
    assert (offset in offsets) == (offset in range(offsets.start, offsets.end))


@given(offset_ranges(), offset_ranges())
def test_names_in_the_lake_sort_as_offsets_do_and_are_unique(one: OffsetRange, other: OffsetRange) -> None:
    """Padded as Kafka's own segment files, so that a listing is in order."""
    assert (one.stem < other.stem) == ((one.start, one.end) < (other.start, other.end))
    assert ((one.folder, one.stem) == (other.folder, other.stem)) == (one == other)
    assert (one.key == other.key) == (one == other)
    assert (one.text("orders") == other.text("orders")) == (one == other)


def test_the_text_forms_are_those_of_the_design() -> None:
    first, second = OffsetRange(0, 3, 1000, 2000), OffsetRange(1, 12345, 0, 7)
    assert [first.key, first.folder, first.text("orders")] == ["3-1000-2000", "g0/p0003", "orders/3 [1000, 2000)"]
    assert [second.key, second.folder, second.text("a.b")] == ["12345-0-7-g1", "g1/p12345", "a.b/12345 g1 [0, 7)"]
    assert first.stem == "00000000000000001000-00000000000000002000"


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "ä", "a\n", "a" * 250, "a:b", "../x", "a\\b"])
def test_a_topic_that_kafka_does_not_allow_is_refused(topic: str) -> None:
    """A topic is a folder of the lake: `..` would leave it."""
    with pytest.raises(ValueError, match="is not one Kafka allows"):
        check_topic(topic)


@pytest.mark.parametrize("topic", ["orders", "a.b_c-D9", "...", "a" * 249])
def test_a_topic_that_kafka_allows_is_taken(topic: str) -> None:
    assert check_topic(topic) == topic


# ---- intervals


@given(intervals())
def test_merged_intervals_are_the_same_offsets_sorted_disjoint_and_apart(found: list[tuple[int, int]]) -> None:
    merged = merge_intervals(found)
    assert offsets_in(merged) == offsets_in(found)
    assert all(start < end for start, end in merged)
    assert all(end < start for (_, end), (start, _) in pairwise(merged))
    assert merge_intervals(merged) == merged


@given(intervals(), intervals())
def test_subtracting_intervals_is_subtracting_their_offsets(whole: list[tuple[int, int]], gone: list[tuple[int, int]]) -> None:
    left = subtract_intervals(merge_intervals(whole), gone)
    assert offsets_in(left) == offsets_in(whole) - offsets_in(gone)
    assert all(start < end for start, end in left)
    assert left == sorted(left)
    assert sum(end - start for start, end in left) == len(offsets_in(left))
