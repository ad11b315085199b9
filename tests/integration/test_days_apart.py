"""Event days of decoded ranges alone, on real Spark: what others do meanwhile, columns that differ, files that are damaged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pipeline_defs.core.day_verdicts import DayDecided
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.days_checks import check_days
from tests.support.daily import DecodedDays

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONE, TWO, THREE = "2020-01-01", "2020-01-02", "2020-01-03"
A, B, C = (OffsetRange(0, 0, start, start + 4) for start in (0, 4, 8))


def outcomes(verdicts: dict[str, Any]) -> dict[str, DayDecided]:
    return {day: verdict.outcome for day, verdict in verdicts.items()}


def test_a_day_made_anew_keeps_the_rows_of_a_range_that_is_being_decoded_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    """It waits, by name, as a day that is due does: without the range, its rows would be gone from the day until it is seen."""
    state = DecodedDays(tmp_path, spark)
    state.put(A, [ONE])
    state.put(B, [ONE, ONE])
    state.update()
    again = state.put(B, [ONE, ONE, ONE], 1, publish=False)
    new = state.put(C, [TWO], publish=False)
    found = check_days(SimpleNamespace(name=state.name), state.days, state.edges())  # type: ignore[arg-type]
    assert found.passed, found.violations
    assert found.facts["waiting_days"] == 1
    for redo in (True, False):
        waiting = state.update(ONE, redo=redo)
        assert outcomes(waiting) == {ONE: DayDecided.WAITING}
        assert (
            f"waits for 2 ranges that are decoded and not seen yet: {B.text(state.name)}" in waiting[ONE].violations[0]
        )
        assert state.offsets() == {ONE: [0, 4, 5]}, "what stood stands"
    assert state.update() == {}
    assert outcomes(state.update(TWO)) == {TWO: DayDecided.WAITING}, "nobody knows yet which days it is of"

    for decoding in (again, new):
        assert state.edges().decodings.publish(decoding)
    assert outcomes(state.update(ONE, TWO, THREE, redo=True)) == {
        ONE: DayDecided.UPDATED,
        TWO: DayDecided.CREATED,
        THREE: DayDecided.EMPTY,
    }
    assert state.offsets() == {ONE: [0, 4, 5, 6], TWO: [8]}


def test_a_day_made_anew_is_made_anew_although_others_come_between(tmp_path: Path, spark: SparkSession) -> None:
    """Who is overtaken begins again with the same task: rows to add are not all that the day was asked for."""
    state = DecodedDays(tmp_path, spark)
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

    assert outcomes(state.update(ONE, redo=True, on_step=meanwhile)) == {ONE: DayDecided.UNCHANGED}
    assert whole == [0, 2], "from both ranges, and from nothing that stood"
