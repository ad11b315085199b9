"""Laws of decodings, and of what is made of them.

Each landed row is in one of two files, once, at each version; what is due; selections; round trips. What an update of latest
records reads is held against a full recomputation by a plain model of the merge without Spark. Which days are news.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import count, pairwise, takewhile
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import BadSetting, BrokenTable
from pipeline_defs.core.log.document import plain, read_plain
from pipeline_defs.core.log.manifest import Manifest, Provenance, StagedFile
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.offsets import OffsetRange, merge_ranges
from pipeline_defs.core.tables import days, decoded_table
from pipeline_defs.core.tables.compaction import FOOTER_BYTES, MANY_FILES
from pipeline_defs.core.tables.days import (
    FIRST,
    LAST,
    NO_DAY,
    TOMBSTONE,
    DayFacts,
    EventTime,
    day_at,
    day_of,
    days_of,
    number_of,
)
from pipeline_defs.core.tables.decoded_ranges import DecodedRanges
from pipeline_defs.core.tables.decoded_sums import sum_up
from pipeline_defs.core.tables.decoded_table import (
    EVENT_TIME,
    compacted_file,
    find_groups,
    read_contents,
    read_document,
    replace_ranges,
    with_events,
)
from pipeline_defs.core.tables.decoding import (
    Budget,
    Decoding,
    choose_dead,
    choose_outdated,
    choose_schema,
    completeness_of,
    find_due,
    verify_decoding,
)
from pipeline_defs.core.tables.delta import Commit, File, Snapshot, apply, check, from_json, to_json
from pipeline_defs.core.tables.latest import Latest, Placed, compare, find_fresh, place_ranges
from tests.support.strategies import TOPIC, covered, landed, runs_of, step_of


def file_of(rows: int, sha256: str = "a" * 64) -> StagedFile:
    return StagedFile("staging/a/b", 10, sha256, rows, 0, max(0, rows - 1), 1, 2)


WHO = Provenance("attempt", "run", "1", "spark", 0, None, 1, 0.1)


def decoding_of(offsets: OffsetRange, rows: int, dead: int, source: str = "a" * 64) -> Decoding:
    letters = file_of(dead) if dead else None
    return Decoding("t", offsets, source, "d", "c", file_of(rows) if rows else None, letters, WHO)


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), unique_by=lambda each: each[0], max_size=40))
def test_every_split_of_the_landed_rows_is_right_and_every_other_is_not(rows: list[tuple[int, bool]]) -> None:
    """[R-67] A row left out, in both files, or of another range is named, and rows that go back; a split is not."""
    landed = sorted(offset for offset, _ in rows)
    good = sorted(offset for offset, is_good in rows if is_good)
    bad = sorted(offset for offset, is_good in rows if not is_good)
    offsets = OffsetRange(0, 0, 0, 100)

    def check(decoded: list[int], dead: list[int]) -> list[str]:
        return verify_decoding("t", offsets, runs_of(landed), runs_of(decoded), runs_of(dead))

    assert check(good, bad) == []
    assert check([*good, 99], bad), "a row that was never landed"
    if good:
        assert check(good[1:], bad), "a row that is nowhere"
        assert check(good, sorted([*bad, good[0]])), "a row in both"
        assert check(good[1:], sorted([*bad, 99])), "as many rows, another one"
    for name, back in (("decoded rows", check(good[::-1], bad)), ("dead letters", check(good, bad[::-1]))):
        assert len(back) == max(0, len(good if name == "decoded rows" else bad) - 1)
        assert all(each.startswith(f"{name} of") and each.endswith("strictly increasing") for each in back)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 10), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_a_budget_is_a_count_and_a_share(dead: int, rest: int, records: int, share: float) -> None:
    """[R-67] Both must allow; without dead letters any budget does."""
    rows = dead + rest
    is_within = dead <= share * rows or (dead == 1 and share > 0)
    assert Budget(records, share).allows(dead, rows) == (dead <= records and is_within)
    assert Budget(0, 0.0).allows(0, rows)


def test_one_record_is_within_every_share_but_none() -> None:
    """[R-67] By default one poison record stops nothing, however few there are; a share of 0 allows none."""
    assert [Budget().allows(1, rows) for rows in (1, 2, 99, 100)] == [True] * 4
    assert [Budget().allows(dead, rows) for dead, rows in ((2, 2), (2, 199), (2, 200))] == [False, False, True]
    assert not Budget(10, 0.0).allows(1, 1) and not Budget(0, 1.0).allows(1, 1)


@given(st.integers(0, 5), st.integers(0, 5), st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=3))
def test_a_document_reads_back_as_it_was_written(rows: int, dead: int, ids: dict[str, int]) -> None:
    """[R-66] Round trip, and equal bytes for an equal document."""
    before = replace(decoding_of(OffsetRange(1, 2, 0, 10), rows, dead), schema_ids=ids, error_classes=ids)
    after = read_plain(Decoding, json.loads(before.to_json()))
    assert after == before
    assert after.to_json() == before.to_json()


@pytest.mark.parametrize("data", ["", "{}", "[3]", '[{"format": 2}]', "null", '"x"', "[" * 100_000])
@pytest.mark.parametrize("tag", ["decoding", "range", "packed"])
def test_what_the_log_says_and_cannot_be_read_is_named(data: str, tag: str) -> None:
    """[R-66] With where it lies and what to do."""
    file = File("here", 1, 1, {"numRecords": 1}, {"range": "0-0-10"}, {"_dead": "false"})
    assert read_contents(file).ranges == (OffsetRange(0, 0, 0, 10),), "the control"
    with pytest.raises(BrokenTable, match=r"what the log says of here cannot be read.*decoded again"):
        (decoded_table.read_packed if tag == "packed" else read_contents)(replace(file, tags=file.tags | {tag: data}))


@pytest.mark.parametrize("change", [b"", b"{}", b"[" * 100_000])
def test_a_document_that_is_gone_or_was_changed_is_named(change: bytes) -> None:
    """[R-100] And nothing of it is believed."""
    (own,) = apply(replace_ranges([decoding_of(OffsetRange(0, 0, 0, 10), 10, 0)], {}, {}, 0), Snapshot()).files.values()
    contents = read_contents(own)
    file = compacted_file("here", file_of(9), contents, 0, 0, is_dead=False)
    assert read_document(contents.to_json(), file) == contents, "the control"
    for data in (change, contents.to_json() + b" ", contents.to_json().replace(b"attempt", b"another")):
        with pytest.raises(BrokenTable, match=r"what the log says of here cannot be read.*gone, or was changed"):
            read_document(data, file)


@given(st.lists(st.sampled_from(["none", "current", "other_source", "empty", "pending"]), max_size=12))
def test_due_is_what_is_landed_and_not_decoded_as_it_is_landed_now(states: list[str]) -> None:
    """[R-70] In log order; what is not landed, or has no rows, is never due; a decoder that has changed makes nothing due."""
    ranges = [OffsetRange(0, 0, 10 * n, 10 * n + 10) for n in range(len(states))]
    log = PlanLog(TOPIC, (step_of(0, *((each.start, each.end) for each in ranges), head=10 * len(ranges)),))
    by_range = dict(zip(ranges, states, strict=True))
    manifests = [landed(each, () if state == "empty" else None) for each, state in by_range.items() if state != "pending"]
    sources = {each.offsets: each.file.sha256 for each in manifests if each.file}
    decodings = {
        offsets: decoding_of(offsets, 10, 0, "b" * 64 if state == "other_source" else sources[offsets])
        for offsets, state in by_range.items()
        if state in {"current", "other_source"}
    }
    due = find_due(covered(log, manifests), decodings.get)
    assert due == [offsets for offsets, state in by_range.items() if state in {"none", "other_source"}]


EVENTS = st.one_of(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)),  # a range is decoded, to rows and dead letters
    st.tuples(st.just("compact"), st.integers(1, 12), st.booleans()),  # to a target, the last files too
    # of a range is decoded whose compacted file is damaged: that of its rows, or that of its dead letters
    st.tuples(st.just("damage"), st.integers(0, 5), st.booleans()),
)


class Documents:
    """What stands beside a table: the documents of compacted files, by path; and which of them were read."""

    def __init__(self) -> None:
        self.by_path: dict[str, bytes] = {}
        self.read: list[str] = []

    def of(self, file: File) -> decoded_table.Contents:
        self.read.append(file.path)
        return read_document(self.by_path[file.path], file)


@given(st.lists(EVENTS, max_size=30), st.booleans())
def test_at_each_version_a_range_has_its_newest_files_and_no_other(events: list[tuple[Any, int, int]], is_cached: bool) -> None:
    """[R-69] Any history of decoding, again, and compaction between, read back with and without a memory."""
    table, documents, expected = Snapshot(), Documents(), dict[OffsetRange, Decoding]()
    decoded = DecodedRanges("t", table, documents.of)
    for number, (what, first, second) in enumerate(events):
        commits = list[Commit]()
        if what == "compact":
            groups = find_groups(table, first, epoch_of, every=bool(second))
            commits = [compacted(group, number, documents) for group in groups]
        else:
            at, rows, dead = (first, 1, 0) if what == "damage" else (what, first, second)
            offsets = OffsetRange(0, at % 2, 10 * at, 10 * at + 10)
            files = {name: replace(file_of(n), path=f"{number}-{name}") for name, n in (("a", rows), ("b", dead))}
            decoding = decoding_of(offsets, rows, dead)
            decoding = replace(decoding, decoded=files["a"], dead_letters=files["b"] if dead else None, decoder=str(number))
            lost = set[OffsetRange]()
            damaged = decoded.file_of(offsets, is_dead=bool(second)) if what == "damage" else None
            if damaged is not None:
                lost = {*decoded.contents_of(damaged.path).ranges} - {offsets}
            left = decoded.find_left([offsets, *lost])
            rests = {at: rest(table.files[at], some, expected, number, documents) for at, some in left.items() if some.ranges}
            commits = [replace_ranges([decoding], left, rests, number)]
            for each in lost:
                expected.pop(each)
            expected[offsets] = decoding
            assert decoded.columns_beside(left) == {it.columns for at, it in expected.items() if at != offsets and it.columns}
        for commit in commits:
            check(commit, table, "t")
            table = apply(from_json(to_json(commit, "id", 0), "t"), table)
        decoded = DecodedRanges("t", table, documents.of, decoded if is_cached else None)
        places = [(offsets, dead) for offsets, each in expected.items() for dead in (False, True) if each.dead or not dead]
        for _ in range(2):  # as it is looked up one by one, and once all is read
            assert {offsets: decoded.get(offsets) for offsets in expected} == expected
            assert all(decoded.file_of(offsets, is_dead=is_dead) for offsets, is_dead in places)
            assert not any(decoded.file_of(o, is_dead=True) for o, each in expected.items() if not each.dead)
            assert decoded.get(OffsetRange(0, 5, 0, 10)) is None
            assert decoded.sums == sum_up(expected.values()), "summed up in part"
            assert decoded.known == dict(sorted(expected.items()))
        assert {file.partition["_dead"] for file in table.files.values()} <= {"true", "false"}
        dead = {file.path: file.partition["_dead"] == "true" for file in table.files.values()}
        found = [(offsets, dead[path]) for path in dead for offsets in decoded.contents_of(path).ranges]
        assert sorted(found) == sorted(places), "a range is in one file"
        if all(what != "damage" for what, *_ in events):
            assert sum(file.rows for file in table.files.values()) == decoded.sums.rows + decoded.sums.dead


def test_documents_are_read_of_what_is_asked_for_alone() -> None:
    """[R-100] What is newer than all compacted files is known without them, and so is what all comes to."""
    documents = Documents()
    old = [OffsetRange(0, 0, at, at + 10) for at in range(0, 100, 10)]
    table = apply(replace_ranges([named(each) for each in old], {}, {}, 0), Snapshot())
    (group,) = find_groups(table, 10**9, in_one_epoch, every=True)
    table = apply(compacted(group, 1, documents), table)
    new = OffsetRange(0, 0, 100, 110)
    table = apply(replace_ranges([named(new)], {}, {}, 0), table)
    documents.read.clear()
    decoded = DecodedRanges("t", table, documents.of)
    assert decoded.get(new) == named(new) and decoded.get(OffsetRange(0, 0, 110, 120)) is None
    assert decoded.find_left([new, OffsetRange(0, 0, 110, 120)]).keys() == {f"{new.key}.parquet"}
    assert decoded.sums == sum_up(map(named, [*old, new])) and not documents.read
    assert decoded.get(old[3]) == named(old[3]) and len(documents.read) == 1
    assert [*decoded.known] == [*old, new] and len(documents.read) == 1


def named(offsets: OffsetRange) -> Decoding:
    """Return a range that is decoded to a file of its own name."""
    return replace(decoding_of(offsets, 1, 0), decoded=replace(file_of(1), path=f"{offsets.key}.parquet"), columns="c")


@pytest.mark.parametrize("seed", range(3))
def test_small_files_are_compacted_by_their_event_times(seed: int) -> None:
    """[R-91] Whatever order they came in: no two groups have the same times, and a thousand that weigh little do not stay."""
    draw, weight = Random(seed), 10**6
    firsts = draw.sample(range(1, 10_000), 1_200)
    decodings = [
        replace(
            decoding_of(OffsetRange(0, 0, at, at + 1), 1, 0),
            decoded=replace(file_of(1), path=f"{at}.parquet", bytes=FOOTER_BYTES + weight),
            event_time="value.at",
            first_event_ms=first,
            last_event_ms=first,
        )
        for at, first in enumerate(firsts)
    ]
    table = apply(replace_ranges(decodings, {}, {}, 0), Snapshot())
    groups = find_groups(table, 100 * weight, in_one_epoch)
    times = [[each.first_event_ms or 0 for f in group.files for each in read_contents(f).decodings] for group in groups]
    spans = sorted((min(some), max(some)) for some in times)
    assert len(spans) == 12 and all(one[1] < other[0] for one, other in pairwise(spans))
    assert find_groups(table, 10**12, in_one_epoch), "more than a thousand wait"
    some = apply(replace_ranges(decodings[:MANY_FILES], {}, {}, 0), Snapshot())
    assert find_groups(some, 10**12, in_one_epoch) == [], "the control: a thousand may"


def compacted(group: decoded_table.DecodedGroup, number: int, documents: Documents) -> Commit:
    """Return the commit of a compaction, whose document is written."""
    path = f"{number}-{group.is_dead}-{group.key}"
    staged = StagedFile("staging/x", 10 * group.rows, "c" * 64, group.rows, 0, 9, 1, 2)
    contents = decoded_table.merge(documents.of(it) if decoded_table.is_packed(it) else read_contents(it) for it in group.files)
    documents.by_path[path] = contents.to_json()
    file = compacted_file(path, staged, contents, 0, group.weight_bytes, is_dead=group.is_dead)
    return Commit([file], {each.path: 0 for each in group.files}, is_compaction=True)


def rest(
    file: File, left: decoded_table.Contents, known: dict[OffsetRange, Decoding], number: int, documents: Documents
) -> File:
    """Return what a file is cut down to."""
    is_dead = file.partition["_dead"] == "true"
    found = [known[offsets] for offsets in left.ranges]
    rows = sum(each.dead if is_dead else each.rows for each in found)
    staged, path = StagedFile("staging/x", 10, "d" * 64, rows, 0, 9, 1, 2), f"{number}-rest-{file.path}"
    documents.by_path[path] = left.to_json()
    return compacted_file(path, staged, left, 0, 0, is_dead=is_dead)


def test_selections_choose_by_what_documents_say() -> None:
    """[R-70] By dead letters, by another configuration, by a registry id of either side or of one."""
    one, two = OffsetRange(0, 0, 0, 10), OffsetRange(0, 0, 10, 20)
    known = {
        one: replace(decoding_of(one, 9, 1), schema_ids={"value:7": 9}),
        two: replace(decoding_of(two, 10, 0), schema_ids={"key:7": 5, "value:8": 10}, configured="new"),
    }
    assert choose_dead(known) == [one]
    assert choose_outdated(known, "new") == [one]
    assert choose_schema(known, "7") == [one, two]
    assert choose_schema(known, "value:7") == [one]
    assert choose_schema(known, "9") == []


def test_completeness_names_what_does_not_add_up() -> None:
    """[R-67] Rows and dead letters are the landed rows; another source, and no manifest, are named too."""
    offsets = OffsetRange(0, 0, 0, 10)
    manifests = {offsets: Manifest("t", offsets, file_of(10), (), WHO)}
    assert completeness_of("t", manifests, {offsets: decoding_of(offsets, 9, 1)}) == []
    (short,) = completeness_of("t", manifests, {offsets: decoding_of(offsets, 8, 1)})
    assert short == "range t/0 [0, 10): 8 rows + 1 dead letters + 0 holes and lost, expected 10 offsets in all"
    (other,) = completeness_of("t", manifests, {offsets: decoding_of(offsets, 9, 1, "b" * 64)})
    assert "another landed file" in other
    (gone,) = completeness_of("t", {}, {offsets: decoding_of(offsets, 9, 1)})
    assert "its manifest is gone" in gone


def test_a_fingerprint_changes_with_what_decides_rows_and_not_with_the_budget() -> None:
    """[R-66] Schema, format and what a registry gave decide rows; how many may be set aside does not."""
    decode = Decode(value=Side(Format.JSON, "a INT"))
    assert decode.fingerprint == replace(decode, budget=Budget(1, 0.5)).fingerprint
    assert decode.fingerprint != Decode(value=Side(Format.JSON, "a BIGINT")).fingerprint
    assert decode.fingerprint != Decode(key=Side(Format.JSON, "a INT")).fingerprint
    assert decode.fingerprint_with({}) == decode.fingerprint
    assert decode.fingerprint_with({"value:7": "x"}) != decode.fingerprint_with({"value:7": "y"})


Rows = Mapping[int, tuple[int, int | None, int]]
"""Of each offset its key, its value (none: a tombstone) and its timestamp."""

Place = tuple[Any, ...]
Winners = dict[int, tuple[Place, int | None]]
CUT = 3  # the second range of a Kafka partition is of the second epoch, where partitions were added in between
RANGES = [OffsetRange(g, p, at, at + 3) for g, p in [(0, 0), (0, 1), (1, 0)] for at in (0, 3, 6)]
ROWS = st.dictionaries(st.integers(0, 2), st.tuples(st.integers(0, 3), st.none() | st.integers(0, 9), st.integers(0, 6)))
STEPS = st.lists(st.tuples(st.sampled_from(RANGES), ROWS, st.booleans()), max_size=14)


def decoded_to(offsets: OffsetRange, rows: Rows, revision: int) -> Decoding:
    newest = max((at_ms for _, _, at_ms in rows.values()), default=None)
    file = replace(file_of(len(rows), f"{revision}"), max_timestamp_ms=newest) if rows else None
    return replace(decoding_of(offsets, 0, 0), decoded=file, revision=revision)


def epoch_of(offsets: OffsetRange) -> int:
    return int(offsets.start >= CUT)


def in_one_epoch(_: OffsetRange) -> int:
    return 0


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
    latest: Winners,
    before: Mapping[OffsetRange, Placed],
    after: Mapping[OffsetRange, Placed],
    decoded: Mapping[OffsetRange, Rows],
) -> Winners:
    """Merge as adapters/tables/latest_winners.py and the table's MERGE do, in their order."""
    change = compare(before, after)
    changed = merge_ranges(change.changed)
    lost = {key for key, (place, _) in latest.items() if any(_lies_in(place, each) for each in changed)}
    winners: Winners = {}
    for offsets, placed in after.items():
        for key, place, value in positioned(offsets, decoded[offsets], placed):
            if (key in lost or offsets in change.fresh) and (key not in winners or place > winners[key][0]):
                winners[key] = place, value
    kept = {key: found for key, found in latest.items() if key not in lost}
    return kept | {key: found for key, found in winners.items() if key not in kept or found[0] > kept[key][0]}


def _lies_in(place: Place, stretch: OffsetRange) -> bool:
    generation, _, _, partition, at = place
    return (generation, partition) == stretch.place and stretch.start <= at < stretch.end


@given(STEPS)
def test_updates_come_to_what_a_recomputation_comes_to(steps: list[tuple[OffsetRange, Rows, bool]]) -> None:
    """[R-87] Ranges that come late, or again with other rows, times in no order, a second epoch and generation."""
    decoded: dict[OffsetRange, Rows] = {}
    known: dict[OffsetRange, Decoding] = {}
    winners: Winners = {}
    before: Mapping[OffsetRange, Placed] = {}
    for number, (offsets, rows, is_updated) in enumerate([*steps, (RANGES[0], {}, True)]):
        decoded[offsets], known[offsets] = rows, decoded_to(offsets, rows, number)
        if is_updated:
            after = place_ranges(known.values(), epoch_of, lambda each: "")
            winners, before = update(winners, before, after, decoded), after
            assert winners == recomputed(decoded)
            assert compare(after, after) == compare({}, {}), "what has gone in is not due again"


AGAIN = st.tuples(st.sampled_from(RANGES), st.integers(0, 2), st.integers(0, 9))  # decoded: rows, and the newest timestamp
HISTORY = st.lists(st.one_of(AGAIN, st.just("next"), st.just("compact")), max_size=20)  # next: of all ranges, to be decoded


@given(HISTORY)
@example([*((each, 1, 9) for each in RANGES), "compact", "next", "next"])  # of all epochs
@example([(RANGES[1], 1, 9), (RANGES[2], 1, 5), "next"])  # the newest time is not the last one
def test_what_is_new_alone_is_found_without_the_rest(history: list[Any]) -> None:
    """[R-100] Between any two versions: what is found is what both as a whole come to, or nothing is said."""
    documents, versions, following = Documents(), [DecodedRanges(TOPIC, Snapshot(), read_contents)], count(9, 3)
    for number, event in enumerate(history):
        table = versions[-1].table
        if event == "compact":
            commits = [compacted(group, number, documents) for group in find_groups(table, 10**9, epoch_of, every=True)]
        else:
            offsets = OffsetRange(0, 0, at := next(following), at + 3) if event == "next" else event[0]
            rows, newest = (1, at) if event == "next" else event[1:]
            file = replace(file_of(rows, f"{number:064}"), path=f"{number}", max_timestamp_ms=newest)
            decoding = replace(decoding_of(offsets, 0, 0), decoded=file, revision=number)
            left = versions[-1].find_left([offsets])
            known = dict(versions[-1].known)
            rests = {at: rest(table.files[at], some, known, number, documents) for at, some in left.items() if some.ranges}
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
    new = len([*takewhile(lambda event: event == "next", reversed(history))])
    assert find_fresh(versions[-1 - new], versions[-1], epoch_of) is not None, "whatever was compacted before"


def test_stretches_join_neighbours() -> None:
    assert merge_ranges(RANGES) == [OffsetRange(0, 0, 0, 9), OffsetRange(0, 1, 0, 9), OffsetRange(1, 0, 0, 9)]


@pytest.mark.parametrize("path", ["", "version", "key.id", "value", "value.", "value.a b", "value.`x`"])
def test_a_sequence_that_is_no_path_of_a_value_is_refused(path: str) -> None:
    with pytest.raises(BadSetting, match=r"expected the path of a field such as value\.version"):
        Latest(path)


def test_an_order_has_a_number_of_its_own() -> None:
    assert len({Latest().order, Latest("value.a").order, Latest("value.b").order}) == 3


AT = EventTime("value.at")
DAYS = st.sampled_from(["2013-01-01", "2013-01-02", "2013-01-03", NO_DAY, TOMBSTONE])
COUNTS = st.dictionaries(DAYS, st.integers(1, 3), max_size=3)


def decoded(offsets: OffsetRange, counts: dict[str, int], digest: str, event_time: EventTime = AT) -> Decoding:
    file = replace(file_of(sum(counts.values()), digest), max_timestamp_ms=offsets.start) if counts else None
    return replace(decoding_of(offsets, 0, 0), decoded=file, event_days=counts, event_time=event_time.text)


def find_days(known: Iterable[Decoding], event_time: EventTime) -> dict[str, DayFacts]:
    """Return the days of some ranges, of each half by itself and then together, as a compacted file's are."""
    found = list(known)
    halves = (days_of(some).get(event_time.text, {}) for some in (found[::2], found[1::2]))
    return days.add_days(*halves)


@given(st.lists(st.tuples(st.sampled_from(RANGES), COUNTS), max_size=12))
def test_a_range_makes_news_of_days_that_it_has_or_had_rows_of_alone(steps: list[tuple[OffsetRange, dict[str, int]]]) -> None:
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
            assert (facts.ranges, list(facts.last_ranges)) == (len(having), having[-days.SHOWN :])
            assert facts.newest_ms == max(each.start for each in having)
            assert read_plain(DayFacts, json.loads(json.dumps(plain(facts)))) == facts
        backwards = find_days(reversed(known.values()), AT)
        assert backwards == after == days_of(known.values()).get(AT.text, {}), "whatever the order"


@given(st.integers(-(10**15), 10**15), st.integers(0, 10**15))
@example(253_402_300_799_999, 1)  # the last millisecond that a calendar has, rounded up
def test_the_log_says_of_event_times_what_delta_can_read(first_ms: int, more_ms: int) -> None:
    """[R-89] Of each file with rows, as delta-rs takes no word for null in all rows; no bound lies beyond the calendar."""
    stats = {"numRecords": 9, "minValues": {}, "maxValues": {}, "nullCount": {}}
    ends = [(first_ms + more_ms, first_ms + more_ms), (first_ms, first_ms), (first_ms, first_ms + more_ms)]
    some = [
        replace(decoded(offsets, {NO_DAY: 1, TOMBSTONE: 1, "2013-01-01": 1}, ""), first_event_ms=first, last_event_ms=last)
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
    [
        ("2013-01-01", "before"),
        ("2013-01-02", "told"),
        ("2013-01-03", "told"),
        ("2013-01-04", "future"),
        (NO_DAY, "none"),
        (TOMBSTONE, "tombstone"),
    ],
)
def test_days_from_the_first_to_today_are_told(day: str, place: str) -> None:
    now_ms = number_of("2013-01-03") * 86_400_000 + 86_399_999
    assert days.Days("2013-01-02", AT).place(day, now_ms) == place


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
    assert days.clamped_moment(moment_ms) == said.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_the_calendar_has_an_end_on_both_sides() -> None:
    assert (day_of(FIRST), day_of(LAST)) == (date.min.isoformat(), date.max.isoformat())
    assert {day_of(FIRST - 1), day_of(LAST + 1)} == {NO_DAY}


@pytest.mark.parametrize("text", ["0000-01-01", "2013-13-01", "1900-02-29", "2013-1-1", "20130101", "", "2013-01-01T00:00"])
def test_only_a_day_is_a_day(text: str) -> None:
    with pytest.raises(ValueError, match="expected a day such as"):
        days.parse_day(text)


definition = st.tuples(st.text(":ab.", min_size=1), st.sampled_from([None, "s", "ms"]))


@given(st.lists(definition, min_size=2, max_size=2, unique=True))
def test_every_event_time_has_a_text_of_its_own(definitions: list[tuple[str, str | None]]) -> None:
    """A name may have a colon in it; what was counted by one event time is never taken for another one's."""
    try:
        one, other = (EventTime(path, unit) for path, unit in definitions)
    except ValueError:  # such as a path that ends with a dot
        reject()
    assert one.text != other.text
