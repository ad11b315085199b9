"""Event days of decoded ranges alone, on real Spark: what others do meanwhile, columns that differ, files that are damaged."""

from __future__ import annotations

import io
import shutil
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.core.calendar import FIRST, LAST
from pipeline_defs.core.day_verdicts import DayDecided
from pipeline_defs.core.days import Days, EventTime
from pipeline_defs.core.errors import BadSetting, BrokenManifest
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.day_situation import read_days
from pipeline_defs.days_checks import check_days, check_outside
from pipeline_defs.edges.decodings import path_of
from tests.support.daily import AT, START, DecodedDays

if TYPE_CHECKING:
    from pipeline_defs.edges.engine import Engine

ONE, TWO, THREE = "2020-01-01", "2020-01-02", "2020-01-03"
A, B, C, D = (OffsetRange(0, 0, start, start + 4) for start in (0, 4, 8, 12))


def not_ours() -> bytes:
    """Is a Parquet file that says nothing of itself."""
    data = io.BytesIO()
    pq.write_table(pa.table({"offset": [1]}), data)
    return data.getvalue()


def outcomes(verdicts: dict[str, Any]) -> dict[str, DayDecided]:
    return {day: verdict.outcome for day, verdict in verdicts.items()}


def test_a_day_made_anew_is_made_anew_although_others_come_between(tmp_path: Path, engine: Engine) -> None:
    """Who is overtaken begins again with the same task: rows to add are not all that the day was asked for."""
    state = DecodedDays(tmp_path, engine)
    state.put(A, [ONE])
    state.update()
    whole: list[int] = []

    def meanwhile(step: str, **fields: Any) -> None:
        if step == "find_days" and not whole:
            whole.append(0)
            state.put(B, [ONE])
            assert outcomes(state.update()) == {ONE: DayDecided.UPDATED}
        elif step == "read_decoded":
            whole.append(fields["ranges"] - fields["standing"])

    (outcome,) = outcomes(state.update(ONE, redo=True, on_step=meanwhile)).values()
    assert outcome in (DayDecided.UNCHANGED, DayDecided.UPDATED), "the same rows; Spark may write them in other bytes"
    assert whole == [0, 2], "from both ranges, and from nothing that stood"
    assert state.offsets() == {ONE: [0, 4]}


NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
STRING, NUMBER, REAL = pa.string(), pa.int64(), pa.float64()


def pair(*names: str) -> pa.DataType:
    """Is a map whose values have these fields, in this order."""
    return pa.map_(STRING, pa.struct([(name, NUMBER) for name in names]))


def test_fields_that_are_added_or_stand_in_another_order_go_where_they_belong(tmp_path: Path, engine: Engine) -> None:
    """Also those within a map; a union of what is read apart would match them by their position."""
    state = DecodedDays(tmp_path, engine, ("m", pair("a", "b")))
    state.put(A, [ONE], m={"x": {"a": 1, "b": 2}})
    state.update()
    state.change_fields(("m", pair("b", "a", "c")), ("new", STRING))
    state.put(B, [ONE], m={"x": {"a": 1, "b": 2, "c": 3}}, new="n")
    columns = "value.m['x'].a, value.m['x'].b, value.m['x'].c, value.new"
    for redo in (False, True):
        state.update(ONE, redo=redo)
        assert state.query(columns) == [(1, 2, None, None), (1, 2, 3, "n")]


def test_a_date_that_no_calendar_has_is_of_no_day_and_fails_no_other(tmp_path: Path, engine: Engine) -> None:
    """A DATE has 32 bits: what is beyond a timestamp would fail the cast of its whole job. A name may have a backtick."""
    state = DecodedDays(tmp_path, engine, ("d`y", pa.date32()))
    state.days = Days("0001-01-01", EventTime("value.d`y"))
    numbers = [18_262, 2**31 - 1, -(2**31), FIRST, FIRST - 1, LAST + 1, 110_000_000]
    state.topic.put(OffsetRange(0, 0, 0, 10), {at: ("k", {"d`y": number}) for at, number in enumerate(numbers)})
    steps: list[str] = []
    verdicts = state.update(on_step=lambda step, **_: steps.append(step))
    assert outcomes(verdicts) == {"0001-01-01": DayDecided.CREATED, ONE: DayDecided.CREATED}
    assert steps.count("read_decoded") == 1, "both days by one job: none had failed, to be halved"
    assert state.offsets() == {"0001-01-01": [3], ONE: [0]}
    outside = check_outside(SimpleNamespace(name=state.name), state.days, state.edges())  # type: ignore[arg-type]
    assert outside.facts["none"] == len(numbers) - 2


def test_a_day_that_another_process_exchanges_while_spark_begins_is_begun_again(tmp_path: Path, engine: Engine) -> None:
    """Wrong rows, a file that is not there any more: what was read is not what was found, so nothing has failed."""
    state = DecodedDays(tmp_path, engine)
    state.put(A, [ONE])
    state.update()
    state.put(B, [ONE])
    faults: list[str] = []

    def exchange(step: str, **_: Any) -> None:
        if step == "read_decoded" and not faults:
            faults.append(step)
            assert outcomes(state.update()) == {ONE: DayDecided.UPDATED}

    assert outcomes(state.update(on_step=exchange)) == {ONE: DayDecided.UP_TO_DATE}
    assert state.offsets() == {ONE: [0, 4]}

    def take_away(step: str, **_: Any) -> None:
        if [step] == awaited:
            faults.append(awaited.pop())
            (file,) = tmp_path.glob("days/*/*.parquet")
            file.unlink()

    for at, offsets in (("read_decoded", C), ("verify_day", D)):
        awaited = [at]
        state.put(offsets, [ONE])
        assert outcomes(state.update(on_step=take_away)) == {ONE: DayDecided.CREATED}
    assert faults == ["read_decoded", "read_decoded", "verify_day"], "the faults have happened"
    assert state.offsets() == {ONE: [0, 4, 8, 12]}


def test_a_day_of_which_nothing_was_written_fails_alone(tmp_path: Path, engine: Engine) -> None:
    """What stood, or nothing, stands; the other days of its job are put in place."""
    state = DecodedDays(tmp_path, engine)
    state.put(A, [ONE, TWO])

    def lose(step: str, **_: Any) -> None:
        if step == "stage_days":
            (folder,) = tmp_path.glob(f"staging/*/*/_day={ONE}")
            shutil.rmtree(folder)

    verdicts = state.update(on_step=lose)
    assert outcomes(verdicts) == {ONE: DayDecided.FAILED, TWO: DayDecided.CREATED}
    assert "was written with 0 rows, expected 1" in verdicts[ONE].violations[0]
    assert state.offsets() == {TWO: [1]}
    assert outcomes(state.update()) == {ONE: DayDecided.CREATED}


def test_a_range_that_is_decoded_anew_while_it_is_counted_is_counted_later(tmp_path: Path) -> None:
    """Kept under the digest of what was to be counted, another file's days would be believed for ever."""
    state = DecodedDays(tmp_path)
    before = state.put(A, [ONE])
    state.put(A, [TWO], 1)
    files = state.edges().day_files
    assert files.count(before, AT) == {ONE: 1}, "what was decoded before lies there for a while"
    again = state.put(A, [ONE], 2)
    assert again.decoded is not None
    assert before.decoded is not None
    assert again.decoded.sha256 == before.decoded.sha256, "the same bytes, and so the same name of what is kept"
    edges = state.edges()
    assert read_days(state.name, state.days, edges.day_files, edges.decodings).counts == {A: {ONE: 1}}
    (kept,) = tmp_path.rglob("event_days/**/*.json")
    kept.unlink()
    assert edges.day_files.read_counts(state.name, {A: again}, AT) == {}, "what a person has deleted is counted again"
    file = tmp_path / path_of(again)
    whole = file.read_bytes()
    file.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    with pytest.raises(BrokenManifest, match=f"decode {state.name} --partition {A.key}` decodes it again"):
        read_days(state.name, state.days, edges.day_files, edges.decodings)


def test_a_file_that_cannot_be_read_fails_its_own_day_only(tmp_path: Path, engine: Engine) -> None:
    """By name, in the update as in the check; other days are made, and moved away it is made anew."""
    state = DecodedDays(tmp_path, engine)
    state.put(A, [ONE, TWO])
    state.update()
    state.put(B, [TWO, THREE])
    (one,) = tmp_path.glob(f"days/*/{ONE}.parquet")
    for content, found in (
        (b"", "is no Parquet file"),
        (b"x" * 100, "is no Parquet file"),
        (not_ours(), "does not say"),
    ):
        one.write_bytes(content)
        verdicts = state.update()
        assert verdicts.pop(ONE).violations[0].startswith(f"day {one} {found}")
        assert set(outcomes(verdicts).values()) <= {DayDecided.UPDATED, DayDecided.CREATED}
        assert outcomes(state.update(ONE, redo=True)) == {ONE: DayDecided.FAILED}
        checked = check_days(SimpleNamespace(name=state.name), state.days, state.edges())  # type: ignore[arg-type]
        (violation,) = checked.violations
        assert found in violation
        assert "move it away, and it is made anew from the decoded ranges" in violation
    one.unlink()
    assert outcomes(state.update()) == {ONE: DayDecided.CREATED}
    assert state.offsets() == {ONE: [0], TWO: [1, 4], THREE: [5]}


def test_days_before_the_first_one_never_show_a_row_twice(tmp_path: Path, engine: Engine) -> None:
    """Files that stand before a `start` that was moved on stay as long as they are right; else nothing is written beside."""
    state = DecodedDays(tmp_path, engine)
    state.put(A, [ONE, TWO])
    state.update()
    state.days = Days(TWO, AT)
    state.put(B, [TWO])
    assert outcomes(state.update()) == {TWO: DayDecided.UPDATED}
    assert state.offsets() == {ONE: [0], TWO: [1, 4]}
    state.put(A, [TWO, TWO], 1)  # a row of a day that nothing keeps up to date comes to one that is kept
    for days in (state.days, Days(TWO)):
        state.days = days
        with pytest.raises(
            BadSetting, match=f"1 days of {state.name}, {ONE} to {ONE}, stand before `days.start` {TWO}"
        ):
            state.update()
    assert state.offsets() == {ONE: [0], TWO: [1, 4]}
    state.days = Days(START, AT)
    state.update()
    state.days = Days(TWO, AT)
    assert state.update() == {}, "the control: what stands before shows no rows"
    assert state.offsets() == {TWO: [0, 1, 4]}
