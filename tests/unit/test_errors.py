"""What a person is told: the next action, its pace, what may be lost; of an error what, where, expected, found, next step."""

import ast
import dataclasses
import errno
import inspect
import pickle
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from pipeline_defs.core import errors
from pipeline_defs.core.advice import NOTHING, TopicStatus, next_action
from pipeline_defs.core.errors import OffsetlakeError, Refused, Unavailable, Violation, as_one, as_ours
from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.expiry import read_durability
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.log.plan_step import LogState, PlanStep, Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import plan
from pipeline_defs.core.log.topic_state import TopicState
from pipeline_defs.core.offsets import OffsetRange, parse_key
from pipeline_defs.orchestration.runs.ledger import check_expiry, read_endangered
from pipeline_defs.orchestration.runs.moments import TELL_MS, pace_text, telling_pace
from pipeline_defs.topics import Topic
from tests.support.strategies import EPOCH_MS, TOPIC, first_step, provenance

URGENT = TopicStatus(
    "orders",
    lag=70,
    pending=3,
    failed=2,
    not_accepted=5,
    late=("land it soon",),
    stuck=("range 0-0-9 has failed 3 times",),
    held_back=("an open transaction",),
    undecoded="2 ranges wait to be decoded",
    to_tick="start Dagster",
)
ORDER = [  # what is put right, and the sentence that is then the most urgent
    ({}, "land it soon; and decide on 5 lost offsets that nobody has accepted: `offsetlake losses orders`, or the rest of"),
    ({"late": ()}, "decide on 5 lost offsets that nobody has accepted: `offsetlake losses orders`"),
    ({"not_accepted": 0}, "range 0-0-9 has failed 3 times"),
    ({"stuck": ()}, "land 3 ranges: `offsetlake land orders --pending`, or start Dagster"),
    ({"to_tick": ""}, "2 ranges failed and are tried again"),
    ({"failed": 0, "in_progress": 2, "is_landing": True}, "wait: 2 ranges wait to be decoded"),
    ({"is_landing": False, "waiting": "run abc is queued since noon"}, "wait: run abc is queued since noon"),
    ({"in_progress": 0, "waiting": ""}, "wait: the next run takes 3 ranges"),
    ({"pending": 0}, "wait: 2 ranges wait to be decoded"),
    ({"undecoded": ""}, f"{NOTHING} yet: an open transaction"),
    ({"held_back": ()}, f"{NOTHING}: 70 records wait for a full range"),
    ({"to_tick": "start Dagster"}, "plan 70 offsets: `offsetlake plan orders --through-end --apply`, or start Dagster"),
    ({"lag": 0}, f"{NOTHING}: everything is landed"),
    ({"pending": 3, "in_progress": 2, "is_landing": True}, f"{NOTHING}: a run is landing 2 of 3 ranges"),
]


@pytest.mark.parametrize("number", range(len(ORDER)))
def test_as_each_thing_is_put_right_the_next_is_said(number: int) -> None:
    now = URGENT
    for changed, _ in ORDER[: number + 1]:
        now = dataclasses.replace(now, **changed)
    assert next_action(now).startswith(ORDER[number][1])


counts = st.integers(min_value=0, max_value=3)
words = st.lists(st.just("words"), max_size=2).map(tuple)
statuses = st.builds(
    TopicStatus,
    st.just("t"),
    *[counts] * 5,
    *[words] * 3,
    waiting=st.sampled_from(["", "what waits"]),
    undecoded=st.sampled_from(["", "what waits to be decoded"]),
    is_landing=st.booleans(),
    to_tick=st.sampled_from(["", "start Dagster"]),
).filter(lambda now: now.in_progress <= now.pending)  # ranges in progress are pending ones


@given(statuses)
def test_nothing_to_do_is_said_only_where_nobody_must_act(now: TopicStatus) -> None:
    """Whatever waits while nothing lands it, is lost, late or stuck, is never called nothing."""
    said = next_action(now)
    waits_for_a_person = (now.lag or now.pending) and not now.in_progress and now.to_tick
    nothing_lands = now.pending and not (now.in_progress and now.is_landing)
    must_act = any((now.late, now.not_accepted, now.stuck, waits_for_a_person, now.failed, nothing_lands, now.undecoded))
    assert said.startswith(NOTHING) != must_act
    is_idle = not must_act and not any((now.lag, now.pending, now.failed, now.in_progress, now.held_back))
    assert (said == f"{NOTHING}: everything is landed") == is_idle


TRUE, FALSE = {"unclean.leader.election.enable": "true"}, {"unclean.leader.election.enable": "false"}


@pytest.mark.parametrize(
    ("replicas", "in_sync", "unclean", "said"),
    [
        (1, 1, FALSE, ["replication.factor is 1: "]),
        (3, 1, FALSE, ["min.insync.replicas is 1: while the other replicas are behind, acks=all is acknowledged"]),
        (3, 2, FALSE, []),
        (3, 3, FALSE, ["min.insync.replicas is 3 of 3 replicas: nothing is lost, but one broker that is down stops"]),
        (3, 2, TRUE, ["unclean.leader.election.enable is true: a replica that is behind may become leader"]),
        (3, 1, TRUE, ["min.insync.replicas is 1: ", "unclean.leader.election.enable is true: "]),
    ],
)
def test_what_may_lose_acked_records_is_named(replicas: int, in_sync: int, unclean: dict[str, str], said: list[str]) -> None:
    """U10: with its value and what follows; and nothing where all is well."""
    found = read_durability(replicas, {"min.insync.replicas": str(in_sync), **unclean})
    assert all(risk.startswith(start) for risk, start in zip(found.risks, said, strict=True))
    promise = "what acks=all acknowledged survives the loss of 1 of them"
    assert (promise in found.promise) == ((replicas, in_sync) == (3, 2)), "what holds is said too"


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, None, 12.0, "12 s so far"),
        (0, 10, 12.0, "0 of 10 in 12 s, 0.0/s"),
        (5, 10, 10.0, "5 of 10 in 10 s, 0.5/s, 10 s left"),
        (5, 83, 32.0, "5 of 83 in 32 s, 0.2/s"),
        (1_500, 3_000, 150.0, "1,500 of 3,000 in 2 min, 10.0/s, 2 min left"),
        (7, None, 2.0, "7 in 2 s, 3.5/s"),
        (10, 10, 0.0, "10 of 10 in 0 s, 0.0/s"),
    ],
)
def test_the_pace_in_words(done: int, total: int | None, seconds: float, text: str) -> None:
    assert pace_text(done, total, seconds) == text


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=60))
def test_a_run_speaks_every_few_seconds_and_at_its_end(waits_ms: list[int]) -> None:
    """Never twice within the interval before the end; and where more than that went by, with the next range."""
    said, now_ms, told_ms = list[str](), 0, 0

    def work() -> Iterator[int]:
        nonlocal now_ms
        for wait_ms in waits_ms:
            now_ms += wait_ms
            yield now_ms

    for number, at_ms in enumerate(telling_pace(work(), len(waits_ms), lambda: now_ms, said.append), 1):
        is_due = number == len(waits_ms) or at_ms - told_ms >= TELL_MS
        assert [text.partition(" in ")[0] for text in said] == ([f"{number} of {len(waits_ms)}"] if is_due else [])
        told_ms = at_ms if is_due else told_ms
        said.clear()


@pytest.mark.parametrize("earliest", [7, 0], ids=["deleted up to there", "the control"])
def test_the_oldest_record_that_is_there_still_is_named(earliest: int) -> None:
    """[R-43] What the broker has deleted is a loss, accepted or not: it is not to be landed soon, and not deleted again."""
    orders = Topic(TOPIC, Policy())
    kafka = SimpleNamespace(
        read_config=lambda topic: {"retention.ms": "60000", "cleanup.policy": "delete"},
        read_timestamps=lambda topic, offsets, level: dict.fromkeys(offsets, EPOCH_MS),
    )
    adapters = SimpleNamespace(kafka=lambda topic: kafka, now_ms=lambda: EPOCH_MS + 59_000)
    coverage = Coverage(PlanLog(TOPIC, (first_step(20, 20),)), {}, {})
    (found,) = read_endangered(orders, coverage, {0: Watermarks(earliest, 20)}, cast("Any", adapters))
    assert found.offset == earliest
    (said,) = check_expiry(orders, [found]).violations
    assert f"{TOPIC}/0: offset {earliest} is not landed and may be deleted in" in said


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


FULL = OperationalError("INSERT INTO runs", ("card 4111",), sqlite3.OperationalError("database or disk is full"))


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (FULL, "history_unavailable", "topic orders: Dagster's history does not answer: database or disk is full; "),
        (
            OSError(errno.EIO, "Input/output error", "/x"),
            "file_unusable",
            "topic orders: /x cannot be used: input/output error; ",
        ),
        # the controls
        *(
            (error, "unforeseen", "")
            for error in (ZeroDivisionError(), ConnectionRefusedError(111, "no"), OSError("no number"))
        ),
    ],
)
def test_what_disk_and_history_refuse_is_nothing_that_nobody_foresaw(error: Exception, kind: str, said: str) -> None:
    with pytest.raises(type(error)) as raised:
        raise error
    found = as_ours(raised.value, "topic orders")
    assert found.kind == kind and said in found.message and "4111" not in found.message


def test_of_several_errors_none_is_dropped() -> None:
    """The first gives the kind: each of the others has its own before its words."""
    first, second = errors.BrokenTable("raw", ["a row"]), errors.LakeUnavailable("decoded")
    assert as_one([first]) is first
    found = as_one([first, second])
    assert found.kind == "broken_table" and found.message == "raw\n  - a row\nlake_unavailable: decoded"


def test_only_what_is_outside_can_be_retried() -> None:
    """Asking again does not make a wrong request right, nor a broken law hold."""
    assert {error.kind for error in KINDS if error.retriable} == {
        *("no_leader", "stale_answer", "unavailable", "broker_unavailable", "daemon_unavailable", "history_unavailable"),
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
    """Return the text of every error of ours that the package raises; what is filled in stands as `{}`."""
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
