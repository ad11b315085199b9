"""Event days held against a full recomputation: whatever is decoded, redone, late or cut short, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from random import Random

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from pipeline_defs.core.applied import Applied
from pipeline_defs.core.calendar import FIRST, NO_DAY, day_at, day_of, days_between, number_of, parse_day
from pipeline_defs.core.calendar import LAST as LAST_NUMBER
from pipeline_defs.core.day_dispatch import plan_day_requests
from pipeline_defs.core.days import (
    Counts,
    Days,
    DayState,
    DayUpdate,
    EventTime,
    find_held_up,
    find_updates,
    sources_of,
    split_jobs,
)
from pipeline_defs.core.decoding import Decoding
from pipeline_defs.core.dispatch import Tried
from pipeline_defs.core.errors import BrokenManifest
from pipeline_defs.core.manifest import StagedFile
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import TOPIC, provenance

START = date(2013, 1, 1)
DAYS = Days(START.isoformat())
NOW_MS = 1_357_603_200_000  # 2013-01-08
LAST = "2013-01-08"
NAMES = [(START + timedelta(days=number)).isoformat() for number in range(-1, 9)]  # one before, one to come
GRID = [OffsetRange(generation, 0, 4 * at, 4 * at + 4) for generation in (0, 1) for at in range(3)]
Row = tuple[OffsetRange, int, str, int]
"""Range, place in it, its day, and at which revision it was decoded."""


@dataclass
class World:
    """Is a topic with its days: what ranges are decoded to, and of each day's file its state and rows."""

    contents: dict[OffsetRange, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    states: dict[str, DayState] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)

    def decode(self, offsets: OffsetRange, days: tuple[str, ...], *, afresh: bool) -> None:
        """Decodes a range, once more perhaps; afresh where its documents were deleted, which begin at 0 then."""
        known = self.contents.get(offsets)
        self.contents[offsets] = (0 if known is None or afresh else known[0] + 1, days)

    def rows_of(self, offsets: OffsetRange) -> list[Row]:
        revision, days = self.contents[offsets]
        return [(offsets, place, day, revision) for place, day in enumerate(days)]

    @property
    def decodings(self) -> dict[OffsetRange, Decoding]:
        return {offsets: decoding(offsets, *content) for offsets, content in self.contents.items()}

    @property
    def counts(self) -> dict[OffsetRange, Counts]:
        return {offsets: {day: days.count(day) for day in days} for offsets, (_, days) in self.contents.items()}

    def updates(self) -> list[DayUpdate]:
        return find_updates(DAYS, self.decodings, self.counts, self.states, NOW_MS)

    def run(self, job: list[DayUpdate], finished: int) -> None:
        """Does what one Spark job does: reads each range once, and is killed after so many days."""
        read = [row for offsets in {offsets for each in job for offsets in each.reads} for row in self.rows_of(offsets)]
        for update in job[:finished]:
            standing = [] if update.is_whole else self.rows[update.day]
            rows = [*standing, *(row for row in read if row[2] == update.day)]
            assert len(rows) == update.rows, "what the documents count is what is written"
            self.rows[update.day] = rows
            self.states[update.day] = update.state(TOPIC, DAYS.event_time)

    def expected(self, day: str) -> list[Row]:
        return sorted(row for offsets in self.contents for row in self.rows_of(offsets) if row[2] == day)


def decoding(offsets: OffsetRange, revision: int, days: tuple[str, ...]) -> Decoding:
    digest = f"{days}"
    file = StagedFile("staged", 1, digest, len(days), offsets.start, offsets.start, None, None) if days else None
    return Decoding(TOPIC, offsets, "source", "json", "json", file, None, provenance(offsets), revision)


contents = st.lists(st.sampled_from([*NAMES, NO_DAY]), max_size=4).map(tuple)
decoded = st.tuples(st.sampled_from(GRID), contents, st.booleans())
rounds = st.lists(
    st.tuples(st.lists(decoded, max_size=3), st.integers(1, 4), st.integers(0, 6), st.sets(st.sampled_from(NAMES))),
    max_size=6,
)


@given(rounds)
def test_days_are_what_a_full_recomputation_gives(
    history: list[tuple[list[tuple[OffsetRange, tuple[str, ...], bool]], int, int, set[str]]],
) -> None:
    """After any history of decoding, redoing, deleted documents, chosen days and kills between days: each row once."""
    world = World()
    for decodes, days_per_job, finished, chosen in history:
        for offsets, days, afresh in decodes:
            world.decode(offsets, days, afresh=afresh)
        updates = [update for update in world.updates() if update.day in chosen]
        for job in split_jobs(updates, days_per_job):
            world.run(job, finished)
        due = {update.day for update in world.updates()}
        for day in world.states.keys() - due:
            assert sorted(row[:3] for row in world.rows[day]) == [row[:3] for row in world.expected(day)]
    for job in split_jobs(world.updates(), 3):
        world.run(job, len(job))
    assert world.updates() == []
    touched = {day for _, days in world.contents.values() for day in days}
    held = {day for day in touched if START.isoformat() <= day <= LAST}
    assert held <= world.states.keys()
    assert not world.states.keys() & {NO_DAY, NAMES[0], NAMES[-1]}
    for day in world.states:
        assert sorted(row[:3] for row in world.rows[day]) == [row[:3] for row in world.expected(day)]


@given(st.lists(decoded, min_size=1, max_size=6), decoded)
def test_only_days_that_a_range_touches_or_touched_become_due(
    decodes: list[tuple[OffsetRange, tuple[str, ...], bool]], late: tuple[OffsetRange, tuple[str, ...], bool]
) -> None:
    """A late record makes its own day due, and no other."""
    world = World()
    for offsets, days, afresh in decodes:
        world.decode(offsets, days, afresh=afresh)
    for job in split_jobs(world.updates(), 64):
        world.run(job, len(job))
    offsets, days, afresh = late
    _, before = world.contents.get(offsets, (0, ()))
    world.decode(offsets, days, afresh=afresh)
    due = world.updates()
    assert {update.day for update in due} <= {*days, *before}
    if not before:
        assert all(not update.is_whole or update.day not in world.states for update in due), "its rows are added"


ONE, TWO, THREE = "2013-01-01", "2013-01-02", "2013-01-03"


def brought_up_to_date(*decodes: tuple[OffsetRange, tuple[str, ...]]) -> World:
    world = World()
    for offsets, days in decodes:
        world.decode(offsets, days, afresh=False)
    for job in split_jobs(world.updates(), 64):
        world.run(job, len(job))
    assert world.updates() == []
    return world


@pytest.mark.parametrize("is_visible", [True, False])
def test_a_range_that_is_being_decoded_again_holds_up_its_days_only(is_visible: bool) -> None:
    """Those that its file is of now, where that is seen, and those that it went into before."""
    world = brought_up_to_date((GRID[0], (ONE,)), (GRID[1], (TWO,)))
    world.decode(GRID[1], (THREE,), afresh=False)
    world.decode(GRID[2], (ONE, TWO, THREE), afresh=False)
    decodings, counts = world.decodings, world.counts
    if not is_visible:
        del decodings[GRID[1]], counts[GRID[1]]
    due = find_updates(DAYS, decodings, counts, world.states, NOW_MS, moving=frozenset({GRID[1]}))
    assert [update.day for update in due] == ([ONE] if is_visible else [ONE, THREE])


@pytest.mark.parametrize("afresh", [True, False])
def test_other_rows_of_the_same_day_make_it_anew(afresh: bool) -> None:
    """By a later revision, and by a document that was deleted and made anew, which says the same revision."""
    world = brought_up_to_date((GRID[0], (ONE, ONE)), (GRID[1], (ONE,)))
    world.decode(GRID[0], (ONE, NO_DAY), afresh=afresh)
    (update,) = world.updates()
    assert (update.day, update.is_whole, update.rows) == (ONE, True, 2)
    world.decode(GRID[0], (ONE, ONE), afresh=False)  # the same rows again, as a later revision: nothing is due
    assert world.updates() == []


def test_rows_are_not_added_twice_where_a_job_reads_a_range_for_another_day() -> None:
    """A kill has left one day with a range that another day lacks; both are due for the sake of a third range."""
    world = brought_up_to_date((GRID[0], (ONE, TWO)))
    world.decode(GRID[1], (ONE, TWO), afresh=False)
    (job,) = split_jobs(world.updates(), 64)
    world.run(job, 1)
    world.decode(GRID[2], (ONE, TWO), afresh=False)
    assert [(each.day, each.is_whole, each.added) for each in world.updates()] == [
        (ONE, False, (GRID[2],)),
        (TWO, False, (GRID[1], GRID[2])),
    ]
    adding, anew = split_jobs(world.updates(), 64)
    assert [(each.day, each.is_whole) for each in (*adding, *anew)] == [(TWO, False), (ONE, True)]


@given(st.lists(st.sampled_from(GRID), unique=True), st.randoms())
def test_what_went_in_is_one_number_whatever_the_order(ranges: list[OffsetRange], chance: Random) -> None:
    decodings = [decoding(offsets, 0, (ONE,)) for offsets in ranges]
    shuffled = chance.sample(decodings, len(decodings))
    assert sources_of(shuffled) == sources_of(decodings)
    for number, each in enumerate(decodings):
        others = decodings[:number] + decodings[number + 1 :]
        other = decoding(each.offsets, 0, (ONE, TWO))
        assert len({sources_of(decodings), sources_of(others), sources_of([*others, other])}) == 3


@pytest.mark.parametrize("is_moving", [True, False])
def test_a_day_that_is_asked_for_anew_is_made_anew_of_all_its_ranges_or_waits(is_moving: bool) -> None:
    """Made anew without what it says of itself, it would not know that it holds a range that is decoded again."""
    world = brought_up_to_date((GRID[0], (ONE,)), (GRID[1], (ONE, TWO)))
    decodings, counts = world.decodings, world.counts
    moving = frozenset({GRID[1]} if is_moving else ())
    for offsets in moving:
        del decodings[offsets], counts[offsets]
    due = find_updates(DAYS, decodings, counts, world.states, NOW_MS, moving=moving, anew=[ONE])
    assert [(each.day, each.is_whole, each.rows) for each in due] == ([] if is_moving else [(ONE, True, 2)])
    assert find_held_up(world.states, moving) == (dict.fromkeys((ONE, TWO), (GRID[1],)) if is_moving else {})


def test_a_day_without_rows_is_made_anew_by_what_comes() -> None:
    """Its file has the columns of rows that are gone: what comes may not fit together with them."""
    world = brought_up_to_date((GRID[0], (ONE,)))
    world.decode(GRID[0], (TWO,), afresh=False)
    for job in split_jobs(world.updates(), 64):
        world.run(job, len(job))
    assert (world.states[ONE].rows, world.updates()) == (0, [])
    world.decode(GRID[1], (ONE,), afresh=False)
    assert [(each.day, each.is_whole, each.added) for each in world.updates()] == [(ONE, True, (GRID[1],))]


def test_event_times_that_differ_by_a_colon_have_texts_of_their_own() -> None:
    assert (
        len({each.text for each in (EventTime("value.a:s"), EventTime("value.a", "s"), EventTime("value.a:s", "s"))})
        == 3
    )


def test_another_event_time_makes_every_day_anew() -> None:
    world = World()
    world.decode(GRID[0], ("2013-01-01", "2013-01-02"), afresh=False)
    for job in split_jobs(world.updates(), 64):
        world.run(job, len(job))
    other = replace(DAYS, event_time=EventTime("value.at"))
    due = find_updates(other, world.decodings, {GRID[0]: {"2013-01-02": 1, "2013-01-03": 1}}, world.states, NOW_MS)
    assert [(update.day, update.rows, update.is_whole) for update in due] == [
        ("2013-01-01", 0, True),
        ("2013-01-02", 1, True),
        ("2013-01-03", 1, True),
    ]


@given(st.lists(decoded, max_size=4))
def test_what_a_day_says_of_itself_is_read_back(decodes: list[tuple[OffsetRange, tuple[str, ...], bool]]) -> None:
    decodings = {offsets: decoding(offsets, 0, days) for offsets, days, _ in decodes}
    state = DayState(
        TOPIC, LAST, "value.at", Applied.of(dict.fromkeys(decodings, 0)), sources_of(decodings.values()), 7
    )
    assert DayState.from_json(state.to_json(), "a file") == state


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "applied": [[0]], "sources": "0"}'])
def test_what_is_no_state_is_refused_by_name(text: str) -> None:
    with pytest.raises(BrokenManifest, match="day a file does not say which ranges it holds"):
        DayState.from_json(text, "a file")


@given(st.one_of(st.dates(), st.dates(date(1969, 1, 1), date(1971, 1, 1))))
def test_days_are_those_of_the_calendar(day: date) -> None:
    """Python's own calendar says the same, there and back."""
    number = (day - date(1970, 1, 1)).days
    assert day_of(number) == day.isoformat()
    assert number_of(day.isoformat()) == number
    assert day_at(number * 86_400_000) == day_at(number * 86_400_000 + 86_399_999) == day.isoformat()


def test_the_calendar_has_an_end_on_both_sides() -> None:
    assert (day_of(FIRST), day_of(LAST_NUMBER)) == (date.min.isoformat(), date.max.isoformat())
    assert {day_of(FIRST - 1), day_of(LAST_NUMBER + 1)} == {NO_DAY}


@pytest.mark.parametrize(
    "text",
    [
        "0000-01-01",
        "2013-00-10",
        "2013-13-01",
        "2013-01-00",
        "1900-02-29",
        "2013-1-1",
        "20130101",
        "2013-02-30",
        "",
        "none",
        "2013-01-01T00:00:00",
    ],
)
def test_only_a_day_is_a_day(text: str) -> None:
    with pytest.raises(ValueError, match="expected a day such as"):
        parse_day(text)


day_sets = st.sets(st.integers(0, 120).map(lambda number: (START + timedelta(days=number)).isoformat()), max_size=20)


@given(day_sets, day_sets, day_sets, st.integers(1, 40), st.integers(1, 60))
def test_runs_cover_what_is_due_and_nothing_that_is_held(
    due: set[str], held: set[str], failed: set[str], gap: int, most: int
) -> None:
    """Each due day is in one run; runs do not overlap, span no held day, and are no longer than they may be."""
    tried = {day: Tried(1, NOW_MS - 60_000, NOW_MS, "run") for day in failed}
    waiting = {day: Tried(1, NOW_MS, NOW_MS, "run") for day in list(failed)[:2]}
    requests = plan_day_requests(due, held, {**tried, **waiting}, NOW_MS, gap_days=gap, days_per_run=most)
    assert sorted(day for request in requests for day in request.days) == sorted(due - held - waiting.keys())
    days = [day for request in requests for day in days_between(request.days[0], request.days[-1])]
    covered = set(days)
    assert len(days) == len(covered)
    assert held.isdisjoint(covered)
    assert waiting.keys().isdisjoint(covered & due), "a run that spans a day in back-off fails with it"
    for request in requests:
        assert len([*days_between(request.days[0], request.days[-1])]) <= most
        assert len({day in failed for day in request.days}) == 1
        assert request.attempt == (2 if request.days[0] in failed else 1)


def test_a_run_spans_no_day_that_is_due_and_in_back_off() -> None:
    """It would fail with that day, and count as a failure of its others; what is not due between two days it may span."""
    tried = {TWO: Tried(1, NOW_MS, NOW_MS, "run")}
    for due, runs in (([ONE, TWO, THREE], [(ONE,), (THREE,)]), ([ONE, THREE], [(ONE, THREE)])):
        assert [request.days for request in plan_day_requests(due, frozenset(), tried, NOW_MS)] == runs


definition = st.tuples(st.text(":ab.", min_size=1), st.sampled_from([None, "s", "ms"]))


@given(st.lists(definition, min_size=2, max_size=2, unique=True))
def test_every_event_time_has_a_text_of_its_own(definitions: list[tuple[str, str | None]]) -> None:
    """A name may have a colon in it; what was counted by one event time is never taken for another one's."""
    try:
        one, other = (EventTime(path, unit) for path, unit in definitions)
    except ValueError:  # such as a path that ends with a dot
        reject()
    assert one.text != other.text
