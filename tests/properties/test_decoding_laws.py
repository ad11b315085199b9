"""Laws of decodings: each landed row in one of two files, once, at each version; what is due; selections; round trips."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import BrokenManifest
from pipeline_defs.core.log.manifest import Manifest, Provenance, StagedFile
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.compaction import FOOTER_BYTES, MANY_FILES
from pipeline_defs.core.tables.decoded_ranges import DecodedRanges
from pipeline_defs.core.tables.decoded_sums import sum_up
from pipeline_defs.core.tables.decoded_table import (
    Contents,
    DecodedGroup,
    compacted_file,
    find_groups,
    is_packed,
    merge,
    read_contents,
    read_document,
    read_packed,
    replace_ranges,
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
from tests.support.strategies import TOPIC, covered, landed, runs_of, step_of


def file_of(rows: int, sha256: str = "a" * 64) -> StagedFile:
    return StagedFile("staging/a/b", 10, sha256, rows, 0, max(0, rows - 1), 1, 2)


WHO = Provenance("attempt", "run", "1", "spark", 0, None, 1, 0.1)


def decoding_of(offsets: OffsetRange, rows: int, dead: int, source: str = "a" * 64) -> Decoding:
    letters = file_of(dead) if dead else None
    return Decoding("t", offsets, source, "d", "c", file_of(rows) if rows else None, letters, WHO)


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), unique_by=lambda each: each[0], max_size=40))
def test_every_split_of_the_landed_rows_is_right_and_every_other_is_not(rows: list[tuple[int, bool]]) -> None:
    """[R-67] A row left out, in both files, or of another range is named; a split is not."""
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


def test_rows_out_of_order_are_named() -> None:
    """[R-67] Rows that repeat or go back are a violation, as in landing."""
    violations = verify_decoding("t", OffsetRange(0, 0, 0, 10), [(0, 4)], [(2, 4), (0, 2)], [])
    assert violations == ["range t/0 [0, 10): offset 0 follows 3 in its decoded rows: offsets are not strictly increasing"]


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
    after = Decoding.from_document(json.loads(before.to_json()))
    assert after == before
    assert after.to_json() == before.to_json()


@pytest.mark.parametrize("data", ["", "{}", "[3]", '[{"format": 2}]', "null", '"x"', "[" * 100_000])
@pytest.mark.parametrize("tag", ["decoding", "range", "packed"])
def test_what_the_log_says_and_cannot_be_read_is_named(data: str, tag: str) -> None:
    """[R-66] With where it lies and what to do."""
    file = File("here", 1, 1, {"numRecords": 1}, {"range": "0-0-10"}, {"_dead": "false"})
    assert read_contents(file).ranges == (OffsetRange(0, 0, 0, 10),), "the control"
    with pytest.raises(BrokenManifest, match=r"what the log says of here cannot be read.*decoded again"):
        (read_packed if tag == "packed" else read_contents)(replace(file, tags=file.tags | {tag: data}))


@pytest.mark.parametrize("change", [b"", b"{}", b"[" * 100_000])
def test_a_document_that_is_gone_or_was_changed_is_named(change: bytes) -> None:
    """[R-100] And nothing of it is believed."""
    (own,) = apply(replace_ranges([decoding_of(OffsetRange(0, 0, 0, 10), 10, 0)], {}, {}, 0), Snapshot()).files.values()
    contents = read_contents(own)
    file = compacted_file("here", file_of(9), contents, 0, 0, is_dead=False)
    assert read_document(contents.to_json(), file) == contents, "the control"
    for data in (change, contents.to_json() + b" ", contents.to_json().replace(b"attempt", b"another")):
        with pytest.raises(BrokenManifest, match=r"what the log says of here cannot be read.*gone, or was changed"):
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
    due = find_due(covered(log, manifests), decodings)
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

    def of(self, file: File) -> Contents:
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
            groups = find_groups(table, first, every=bool(second))
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
            rests = {
                path: rest(table.files[path], some, expected, number, documents) for path, some in left.items() if some.ranges
            }
            commits = [replace_ranges([decoding], left, rests, number)]
            for each in lost:
                expected.pop(each)
            expected[offsets] = decoding
            assert decoded.columns_beside(left) == {
                each.columns for offsets_of, each in expected.items() if offsets_of != offsets and each.columns
            }
        for commit in commits:
            check(commit, table, "t")
            table = apply(from_json(to_json(commit, "id", 0), "t"), table)
        decoded = DecodedRanges("t", table, documents.of, decoded if is_cached else None)
        places = [
            (offsets, is_dead) for offsets, each in expected.items() for is_dead in (False, True) if each.dead or not is_dead
        ]
        for _ in range(2):  # as it is looked up one by one, and once all is read
            assert {offsets: decoded.get(offsets) for offsets in expected} == expected
            assert all(decoded.file_of(offsets, is_dead=is_dead) for offsets, is_dead in places)
            assert not any(decoded.file_of(o, is_dead=True) for o, each in expected.items() if not each.dead)
            assert decoded.get(OffsetRange(0, 5, 0, 10)) is None
            assert decoded.sums == sum_up(expected.values()), "summed up in part"
            assert decoded.known == dict(sorted(expected.items()))
        assert {file.partition["_dead"] for file in table.files.values()} <= {"true", "false"}
        found = [
            (offsets, file.partition["_dead"] == "true")
            for file in table.files.values()
            for offsets in decoded.contents_of(file.path).ranges
        ]
        assert sorted(found) == sorted(places), "a range is in one file"
        if all(what != "damage" for what, *_ in events):
            assert sum(file.rows for file in table.files.values()) == decoded.sums.rows + decoded.sums.dead


def test_documents_are_read_of_what_is_asked_for_alone() -> None:
    """[R-100] What is newer than all compacted files is known without them, and so is what all comes to."""
    documents = Documents()
    old = [OffsetRange(0, 0, at, at + 10) for at in range(0, 100, 10)]
    table = apply(replace_ranges([named(each) for each in old], {}, {}, 0), Snapshot())
    (group,) = find_groups(table, 10**9, every=True)
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
    decoding = decoding_of(offsets, 1, 0)
    return replace(decoding, decoded=replace(file_of(1), path=f"{offsets.key}.parquet"), columns="c")


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
    target = 100 * weight
    groups = find_groups(table, target)
    times = [[each.first_event_ms or 0 for f in group.files for each in read_contents(f).decodings] for group in groups]
    spans = sorted((min(some), max(some)) for some in times)
    assert len(spans) == 12 and all(one[1] < other[0] for one, other in pairwise(spans))
    assert find_groups(table, 10**12), "more than a thousand wait"
    some = apply(replace_ranges(decodings[:MANY_FILES], {}, {}, 0), Snapshot())
    assert find_groups(some, 10**12) == [], "the control: a thousand may"


def compacted(group: DecodedGroup, number: int, documents: Documents) -> Commit:
    """Return the commit of a compaction, whose document is written."""
    path = f"{number}-{group.is_dead}-{group.key}"
    staged = StagedFile("staging/x", 10 * group.rows, "c" * 64, group.rows, 0, 9, 1, 2)
    contents = merge(documents.of(file) if is_packed(file) else read_contents(file) for file in group.files)
    documents.by_path[path] = contents.to_json()
    file = compacted_file(path, staged, contents, 0, group.weight_bytes, is_dead=group.is_dead)
    return Commit([file], {each.path: 0 for each in group.files}, is_compaction=True)


def rest(file: File, left: Contents, known: dict[OffsetRange, Decoding], number: int, documents: Documents) -> File:
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
