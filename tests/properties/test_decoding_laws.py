"""Laws of decodings: each landed row in one of two files, once, at each version; what is due; selections; round trips."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.coverage import Coverage
from pipeline_defs.core.decoded_table import by_range, paths_of, read_decodings, replace_ranges
from pipeline_defs.core.decoders import Decode, Format, Side
from pipeline_defs.core.decoding import (
    Budget,
    Decoding,
    choose_dead,
    choose_outdated,
    choose_schema,
    completeness_of,
    find_due,
    verify_decoding,
)
from pipeline_defs.core.delta import Snapshot, apply, check, from_json, to_json
from pipeline_defs.core.errors import BrokenManifest
from pipeline_defs.core.holes import Cause, Interval
from pipeline_defs.core.manifest import Manifest, Provenance, StagedFile
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.planlog import Head, Link, LinkKind, PlanLog, PlanStep

Runs = list[tuple[int, int]]


def as_runs(offsets: list[int]) -> Runs:
    """Are sorted offsets as contiguous half-open runs."""
    runs: Runs = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs


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
        return verify_decoding("t", offsets, as_runs(landed), as_runs(decoded), as_runs(dead))

    assert check(good, bad) == []
    assert check([*good, 99], bad), "a row that was never landed"
    if good:
        assert check(good[1:], bad), "a row that is nowhere"
        assert check(good, sorted([*bad, good[0]])), "a row in both"
        assert check(good[1:], sorted([*bad, 99])), "as many rows, another one"


def test_rows_out_of_order_are_named() -> None:
    """[R-67] Rows that repeat or go back are a violation, as in landing."""
    violations = verify_decoding("t", OffsetRange(0, 0, 0, 10), [(0, 4)], [(2, 4), (0, 2)], [])
    assert violations == [
        "range t/0 [0, 10): offset 0 follows 3 in its decoded rows: offsets are not strictly increasing"
    ]


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
    after = Decoding.from_json(before.to_json(), "here")
    assert after == before
    assert after.to_json() == before.to_json()


@pytest.mark.parametrize("data", ["", "{}", "[]", '{"format": 2}', "null"])
def test_what_the_log_says_and_cannot_be_read_is_named(data: str) -> None:
    """[R-66] With where it lies and what to do."""
    with pytest.raises(BrokenManifest, match=r"what the log says of here cannot be read.*decoded again"):
        Decoding.from_json(data, "here")


@given(st.lists(st.sampled_from(["none", "current", "other_source", "empty", "pending"]), max_size=12))
def test_due_is_what_is_landed_and_not_decoded_as_it_is_landed_now(states: list[str]) -> None:
    """[R-70] In log order; what is not landed, or has no rows, is never due; a decoder that has changed makes nothing due."""
    ranges = [OffsetRange(0, 0, 10 * n, 10 * n + 10) for n in range(len(states))]
    links = tuple(Link(LinkKind.RANGE, offsets) for offsets in ranges)
    heads = {0: Head(10 * len(ranges), 0)}
    log = PlanLog("t", (PlanStep(0, "t", 0, None, 0, {}, {}, links, heads),)) if links else PlanLog("t", ())
    by_range = dict(zip(ranges, states, strict=True))
    manifests = {
        offsets: Manifest("t", offsets, file_of(10), (), WHO)
        if state != "empty"
        else Manifest("t", offsets, None, (Interval(offsets.start, offsets.end, Cause.COMPACTED),), WHO)
        for offsets, state in by_range.items()
        if state != "pending"
    }
    decodings = {
        offsets: decoding_of(offsets, 10, 0, "b" * 64 if state == "other_source" else "a" * 64)
        for offsets, state in by_range.items()
        if state in {"current", "other_source"}
    }
    coverage = Coverage(log, manifests, {offsets: 10 for offsets, each in manifests.items() if each.file})
    due = find_due(coverage, decodings)
    assert due == [offsets for offsets, state in by_range.items() if state in {"none", "other_source"}]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=20), st.booleans())
def test_at_each_version_a_range_has_its_newest_files_and_no_other(
    events: list[tuple[int, int, int]], is_cached: bool
) -> None:
    """[R-69] Any history of ranges that are decoded and decoded again, read back with and without a memory."""
    table, known, expected = Snapshot(), dict[str, Decoding](), dict[OffsetRange, Decoding]()
    for number, (at, rows, dead) in enumerate(events):
        offsets = OffsetRange(0, 0, 10 * at, 10 * at + 10)
        files = {name: replace(file_of(count), path=f"{number}-{name}") for name, count in (("a", rows), ("b", dead))}
        decoding = decoding_of(offsets, rows, dead)
        decoding = replace(decoding, decoded=files["a"], dead_letters=files["b"] if dead else None, decoder=str(number))
        commit = replace_ranges([decoding], by_range(known.values()), number)
        check(commit, table, "t")
        table = apply(from_json(to_json(commit, "id", 0), "t"), table)
        known = read_decodings(table, known if is_cached else {})
        expected[offsets] = decoding
        assert by_range(known.values()) == dict(sorted(expected.items()))
        assert {path for each in known.values() for path in paths_of(each)} == table.files.keys()
        assert {file.partition["_dead"] for file in table.files.values()} <= {"true", "false"}
        assert sum(file.rows for file in table.files.values()) == sum(each.rows + each.dead for each in known.values())


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
