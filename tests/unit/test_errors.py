"""The tree of errors, and the style of every message: what, where, expected against found, next step."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from pipeline_defs.core import errors
from pipeline_defs.core.errors import OffsetlakeError, Refused, Unavailable, Violation, as_ours
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.log.plan_step import LogState, PlanStep
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import Policy, TopicState, plan
from pipeline_defs.core.offsets import OffsetRange, parse_key
from tests.support.strategies import EPOCH_MS, TOPIC, provenance

PACKAGE = Path(__file__).parents[2] / "pipeline_defs"
KINDS = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, OffsetlakeError)]
NAMES = re.compile(r"(--|Kafka|Spark|Java|SQL|DuckDB|Dagster|Ivy|OFFSETLAKE_|DAGSTER_|JAVA_)")  # may stand first


def test_every_error_is_in_one_group_and_has_its_own_kind() -> None:
    """A handler asks for the group; a person searches for the kind."""
    groups = {Refused, Unavailable, Violation}
    assert len({error.kind for error in KINDS}) == len(KINDS)
    for error in KINDS:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error.kind)
        assert error is OffsetlakeError or sum(issubclass(error, group) for group in groups) == 1
    assert all(group.__name__ in str(errors.__doc__) for group in (OffsetlakeError, *groups)), "the charter draws the tree"


def test_a_history_on_a_full_disk_is_nothing_that_nobody_foresaw() -> None:
    full = sqlite3.OperationalError("database or disk is full")
    found = as_ours(OperationalError("INSERT INTO runs", ("card 4111",), full), "topic orders")
    assert found.kind == "history_unavailable" and "4111" not in found.message
    assert "topic orders: Dagster's history does not answer: database or disk is full; " in found.message
    with pytest.raises(ZeroDivisionError) as other:
        _ = 1 / 0
    assert as_ours(other.value, "topic orders").kind == "unforeseen", "the control"


def test_only_what_is_outside_can_be_retried() -> None:
    """Asking again does not make a wrong request right, nor a broken law hold."""
    assert {error.kind for error in KINDS if error.retriable} == {
        *("stale_answer", "unavailable", "broker_unavailable", "daemon_unavailable", "history_unavailable"),
        *("lake_unavailable", "outcome_unknown", "registry_unavailable", "jars_unavailable", "scan_failed", "disk_refuses"),
        "job_stuck",
        *("engine_lost", "engine_unavailable", "staged_file_gone"),
    }


@pytest.mark.parametrize("error", KINDS, ids=lambda error: error.kind)
def test_an_error_keeps_its_fields_and_survives_another_process(error: type[OffsetlakeError]) -> None:
    there = pickle.loads(pickle.dumps(error("what went wrong", topic=TOPIC)))  # noqa: S301
    assert type(there) is error
    assert (str(there), there.message, there.fields) == ("what went wrong", "what went wrong", {"topic": TOPIC})


def test_a_violation_names_all_at_once() -> None:
    error = Violation("two laws do not hold", ["gap [1, 2)", "gap [3, 4)"])
    assert str(error) == "two laws do not hold\n  - gap [1, 2)\n  - gap [3, 4)"
    assert error.violations == ("gap [1, 2)", "gap [3, 4)")
    assert pickle.loads(pickle.dumps(error)).violations == error.violations  # noqa: S301


BAD_STEP = PlanStep(3, TOPIC, 0, None, EPOCH_MS, {}, {}, (), {}, OffsetRange(0, 0, 5, 7).key)
RAISED: list[tuple[Callable[[], object], str]] = [
    (lambda: parse_key("03-0-1"), "partition key '03-0-1' is not a range: expected "),
    (lambda: PlanStep.from_json(b"", "file:///lake/plan/orders/0.json"), "plan step file:///lake/plan/orders/0.json cannot"),
    (lambda: Manifest.from_json(b"", "file:///lake/x.000.json"), "manifest file:///lake/x.000.json cannot be read: "),
    (
        lambda: Manifest(TOPIC, OffsetRange(0, 3, 10, 20), None, (), provenance(OffsetRange(0, 3, 10, 20))),
        "range orders/3 [10, 20) has 0 rows and 0 explained offsets, expected 10 in all; ",
    ),
    (lambda: PlanLog(TOPIC, (BAD_STEP,)), "the plan log of topic orders does not tile; "),
    (
        lambda: plan(LogState(), TopicState(TOPIC, None, {}), Policy(start="none"), EPOCH_MS),
        "topic orders has no plan log and its policy says start: none; nothing was planned; restore the lake, or",
    ),
]


@pytest.mark.parametrize(("act", "start"), RAISED, ids=[start[:30] for _, start in RAISED])
def test_an_error_of_core_says_what_where_expected_and_the_next_step(act: Callable[[], object], start: str) -> None:
    with pytest.raises(OffsetlakeError) as caught:
        act()
    first_line = str(caught.value).splitlines()[0]
    assert first_line.startswith(start) and "; " in first_line and not first_line.endswith(".")


def messages() -> list[tuple[str, str]]:
    """Returns the text of every error of ours that the package raises; what is filled in stands as `{}`."""
    kinds = {error.__name__ for error in KINDS}
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds and node.args:
                parts = node.args[0].values if isinstance(node.args[0], ast.JoinedStr) else [node.args[0]]
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
                found.append((f"{path.relative_to(PACKAGE)}:{node.lineno}", text))
    return found


def test_every_message_begins_in_lower_case_and_ends_without_a_full_stop() -> None:
    """Messages are joined into lists and logs, so they are no sentences of their own."""
    found = messages()
    assert len(found) > 20
    for where, text in found:
        assert text[0].islower() or text.startswith("{}") or NAMES.match(text), f"{where}: {text}"
        assert not text.rstrip().endswith("."), f"{where}: {text}"
