"""Which days are news after which ranges were decoded; days of the calendar; and event times, each with a text of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from pipeline_defs.core.log.manifest import StagedFile
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.calendar import FIRST, LAST, NO_DAY, clamped_moment, day_at, day_of, number_of, parse_day
from pipeline_defs.core.tables.days import SHOWN, DayFacts, Days, EventTime, add_days, days_of
from pipeline_defs.core.tables.decoded_table import EVENT_TIME, with_events
from pipeline_defs.core.tables.decoding import Decoding
from tests.support.strategies import TOPIC, provenance

AT = EventTime("value.at")
RANGES = [OffsetRange(0, partition, at, at + 9) for partition in (0, 1) for at in (0, 9, 18)]
DAYS = st.sampled_from(["2013-01-01", "2013-01-02", "2013-01-03", NO_DAY])
COUNTS = st.dictionaries(DAYS, st.integers(1, 3), max_size=3)


def decoded(offsets: OffsetRange, counts: dict[str, int], digest: str, event_time: EventTime = AT) -> Decoding:
    rows = sum(counts.values())
    file = StagedFile("", 1, digest, rows, offsets.start, offsets.start, 0, offsets.start) if rows else None
    return Decoding(TOPIC, offsets, "", "", "", file, None, provenance(offsets), event_days=counts, event_time=event_time.text)


def find_days(known: Iterable[Decoding], event_time: EventTime) -> dict[str, DayFacts]:
    """Return the days of some ranges, of each half by itself and then together, as a compacted file's are."""
    found = list(known)
    halves = (days_of(some).get(event_time.text, {}) for some in (found[::2], found[1::2]))
    return add_days(*halves)


@given(st.lists(st.tuples(st.sampled_from(RANGES), COUNTS), max_size=12))
def test_a_range_makes_the_days_news_that_it_has_rows_of_or_had_and_no_other(
    steps: list[tuple[OffsetRange, dict[str, int]]],
) -> None:
    """[R-89] Decoded in any order, or again: a day's rows, ranges and newest record are those of all ranges."""
    known: dict[OffsetRange, Decoding] = {}
    for number, (offsets, counts) in enumerate(steps):
        before, was = find_days(known.values(), AT), known.get(offsets)
        known[offsets] = decoded(offsets, counts, f"{number}")
        after = find_days(known.values(), AT)
        touched = {*counts, *(was.event_days if was else ())}
        assert {day for day in before.keys() | after.keys() if before.get(day) != after.get(day)} == touched
        for day, facts in after.items():
            having = sorted(each for each, decoding in known.items() if day in decoding.event_days)
            assert facts.rows == sum(known[each].event_days[day] for each in having)
            assert (facts.ranges, list(facts.last_ranges)) == (len(having), having[-SHOWN:])
            assert facts.newest_ms == max(each.start for each in having)
            assert DayFacts.from_list(json.loads(json.dumps(facts.to_list()))) == facts
        backwards = find_days(reversed(known.values()), AT)
        assert backwards == after == days_of(known.values()).get(AT.text, {}), "whatever the order"


@given(st.integers(-(10**15), 10**15), st.integers(0, 10**15))
@example(253_402_300_799_999, 1)  # the last millisecond that a calendar has, rounded up
def test_the_log_says_of_event_times_what_delta_can_read(first_ms: int, more_ms: int) -> None:
    """[R-89] Of each file with rows, as delta-rs takes no word for null in all rows; no bound lies beyond the calendar."""
    stats = {"numRecords": 9, "minValues": {}, "maxValues": {}, "nullCount": {}}
    ends = [(first_ms + more_ms, first_ms + more_ms), (first_ms, first_ms), (first_ms, first_ms + more_ms)]
    some = [
        replace(decoded(offsets, {NO_DAY: 2, "2013-01-01": 1}, ""), first_event_ms=first, last_event_ms=last)
        for offsets, (first, last) in zip(RANGES, ends, strict=False)
    ]
    found = with_events(stats, some)
    low, high = (number * 86_400_000 for number in (FIRST, LAST + 1))
    clamped = [min(max(ms, low), high - 1) for ms in (first_ms, first_ms + more_ms)]
    assert [datetime.fromisoformat(found[name][EVENT_TIME]) for name in ("minValues", "maxValues")] == [
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms) for ms in clamped
    ]
    assert found["nullCount"] == {EVENT_TIME: 6}
    without = decoded(RANGES[3], {}, "")
    assert with_events(stats, [without]) == with_events(stats, []) == {**stats, "nullCount": {EVENT_TIME: 9}}
    beyond = [replace(each, event_days={NO_DAY: 3}) for each in some]
    assert with_events(stats, beyond)["nullCount"] == {EVENT_TIME: 8}, "there is a row with a time"


def test_what_was_counted_by_another_event_time_is_of_no_day() -> None:
    known = [decoded(RANGES[0], {"2013-01-01": 1}, "a"), decoded(RANGES[1], {"2013-01-01": 2}, "b", EventTime())]
    assert [(day, facts.rows) for day, facts in find_days(known, AT).items()] == [("2013-01-01", 1)]


@pytest.mark.parametrize(
    ("day", "place"),
    [("2013-01-01", "before"), ("2013-01-02", "held"), ("2013-01-03", "held"), ("2013-01-04", "future"), (NO_DAY, "none")],
)
def test_days_from_the_first_to_today_are_told(day: str, place: str) -> None:
    now_ms = number_of("2013-01-03") * 86_400_000 + 86_399_999
    assert Days("2013-01-02", AT).place(day, now_ms) == place


@given(st.one_of(st.dates(), st.dates(date(1969, 1, 1), date(1971, 1, 1))))
def test_days_are_those_of_the_calendar(day: date) -> None:
    """Python's own calendar says the same, there and back."""
    number = (day - date(1970, 1, 1)).days
    assert day_of(number) == day.isoformat()
    assert number_of(day.isoformat()) == number
    assert day_at(number * 86_400_000) == day_at(number * 86_400_000 + 86_399_999) == day.isoformat()


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_a_moment_is_written_as_delta_writes_it(moment_ms: int) -> None:
    said = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=moment_ms)
    assert clamped_moment(moment_ms) == said.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_the_calendar_has_an_end_on_both_sides() -> None:
    assert (day_of(FIRST), day_of(LAST)) == (date.min.isoformat(), date.max.isoformat())
    assert {day_of(FIRST - 1), day_of(LAST + 1)} == {NO_DAY}


@pytest.mark.parametrize(
    "text",
    [
        *("0000-01-01", "2013-00-10", "2013-13-01", "2013-01-00", "1900-02-29", "2013-1-1", "20130101", ""),
        *("none", "2013-01-01T00:00"),
    ],
)
def test_only_a_day_is_a_day(text: str) -> None:
    with pytest.raises(ValueError, match="expected a day such as"):
        parse_day(text)


definition = st.tuples(st.text(":ab.", min_size=1), st.sampled_from([None, "s", "ms"]))


@given(st.lists(definition, min_size=2, max_size=2, unique=True))
def test_every_event_time_has_a_text_of_its_own(definitions: list[tuple[str, str | None]]) -> None:
    """A name may have a colon in it; what was counted by one event time is never taken for another one's."""
    try:
        one, other = (EventTime(path, unit) for path, unit in definitions)
    except ValueError:  # such as a path that ends with a dot
        reject()
    assert one.text != other.text
