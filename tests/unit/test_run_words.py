"""What `land` and its like say of runs that failed: what is true of their ranges, once, in the words of the error."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from click.testing import CliRunner

from pipeline_defs.cli.launching import Launched, reason_of
from pipeline_defs.core.errors import RangesFailed
from pipeline_defs.core.landing.verdicts import failed
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.core.offsets import parse_key
from pipeline_defs.orchestration.assets.raw_asset import _check_landed
from pipeline_defs.topics import Topic

RANGES = tuple(parse_key(key) for key in ("0-0-10", "0-10-20"))
ORDERS = Topic("orders", Policy())
WHY = "range orders/0 [10, 20): the broker has deleted 3 of its offsets"


def run_that_lands_the_first_only() -> Launched:
    @dg.op
    def work() -> None:
        _check_landed(ORDERS, {each.key for each in RANGES}, [failed(RANGES[1], WHY)])

    @dg.job
    def landing() -> None:
        work()

    result = landing.execute_in_process(raise_on_error=False)
    return Launched(result.run_id, RANGES, succeeded=False, reason=reason_of(result))


def test_a_run_that_landed_some_of_its_ranges_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No line says that a range failed which has landed; the control is the run that landed all."""
    command = importlib.import_module("pipeline_defs.cli.work.land")
    bad = run_that_lands_the_first_only()

    def runs(*_: object, **__: object) -> Iterator[Launched]:
        yield Launched("whole", RANGES, succeeded=True)
        yield bad

    settings = SimpleNamespace(dagster_home=tmp_path)
    edges = SimpleNamespace(check_lake=lambda *_: None, settings=settings)
    monkeypatch.setattr(command, "find_topic", lambda name: ORDERS)
    monkeypatch.setattr(command, "open_edges", lambda: edges)
    monkeypatch.setattr(command, "choose_ranges", lambda *_: list(RANGES))
    monkeypatch.setattr("pipeline_defs.cli.runs.open_instance", lambda home: nullcontext())
    monkeypatch.setattr(command.InProcessRuns, "land", runs)
    ended = CliRunner().invoke(command.land, ["orders", "--pending"])
    error = ended.exception
    assert isinstance(error, RangesFailed)
    assert "landed 2 ranges in run whole\n" in ended.stdout
    said = f"{ended.stdout}\n{error}\n{error.__notes__}"
    assert "failed 2 ranges" not in said and f"run {bad.run_id} failed\n" in ended.stdout
    assert "of 2 ranges of topic orders 1 landed and 1 failed" in said and said.count(WHY) == 1
    assert "1 run of topic orders failed" in said
    assert "pipeline_defs." not in said and said.count("offsetlake explain") == 1
