"""What commands and `up` say of runs, of ticks that fail, and where Dagster's history does not answer."""

import errno
import importlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock, PropertyMock

import dagster as dg
import pytest
from click.testing import CliRunner
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.definitions.sensor_definition import SensorType
from dagster._core.events import EngineEventData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData, TickData, TickStatus
from dagster_shared.error import SerializableErrorInfo
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from pipeline_defs.adapters.spark.spark_server import STATE, Server, read_server, write_private
from pipeline_defs.adapters.system.processes import placed, read_process
from pipeline_defs.adapters.testbed import broker
from pipeline_defs.adapters.testbed.broker import Broker, read_broker
from pipeline_defs.cli.launching import NOTE, SHOWN_REASONS, Launched, print_runs
from pipeline_defs.core.errors import BadKey, LakeUnavailable, RangesFailed, TopicsFailed
from pipeline_defs.core.landing.verdicts import failed
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.offsets import parse_key
from pipeline_defs.operate import status
from pipeline_defs.operate.news import FailedSince, FailedTicks, LandedCount, LandedSince, landed_text
from pipeline_defs.orchestration.assets.raw_asset import _check_landed
from pipeline_defs.orchestration.home import dagster_home, dagster_server
from pipeline_defs.orchestration.home.daemons import read_sensors
from pipeline_defs.orchestration.home.dagster_home import open_instance, why_silent
from pipeline_defs.orchestration.home.dagster_server import DagsterServer, DagsterUnavailable
from pipeline_defs.orchestration.runs.known import Known
from pipeline_defs.orchestration.runs.projection import ACTIVE, RANGE_END, RANGE_START, read_reason
from pipeline_defs.orchestration.runs.waiting import why_blocked
from pipeline_defs.orchestration.runs.work import selected_keys
from pipeline_defs.orchestration.topic_set import TopicFiles
from pipeline_defs.topics import BROKEN_TOPICS, LAND_PENDING, Topic
from tests.support.world import PATIENCE_SECONDS

RANGES = tuple(parse_key(key) for key in ("0-0-10", "0-10-20"))
ORDERS, PAYMENTS = (Topic(name, Policy()) for name in ("orders", "payments"))
# a package has the command itself by the name of its module
command, up = (importlib.import_module(f"pipeline_defs.cli.{name}") for name in ("work.land", "home.up"))
WHY = "range orders/0 [10, 20): the broker has deleted 3 of its offsets"


def test_a_run_that_landed_some_of_its_ranges_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """No line says that a range failed which has landed; the control is the run that landed all."""

    @dg.op
    def work() -> None:
        _check_landed(ORDERS, {each.key for each in RANGES}, [failed(RANGES[1], WHY)])

    @dg.job
    def landing() -> None:
        work()

    result = landing.execute_in_process(instance=instance, raise_on_error=False)
    reason = read_reason(instance, result.run_id)

    def runs(*_: object, **__: object) -> Iterator[Launched]:
        yield Launched("whole", RANGES, succeeded=True)
        yield Launched(result.run_id, RANGES, succeeded=False, reason=reason)

    adapters = SimpleNamespace(check_lake=lambda *_: None, settings=SimpleNamespace(dagster_home=tmp_path))
    monkeypatch.setattr(command, "find_topic", lambda name: ORDERS)
    monkeypatch.setattr(command, "open_adapters", lambda: adapters)
    monkeypatch.setattr(command, "choose_ranges", lambda *_: list(RANGES))
    monkeypatch.setattr("pipeline_defs.cli.launching.open_instance", lambda home: nullcontext())
    monkeypatch.setattr(command.InProcessRuns, "land", runs)
    ended = CliRunner().invoke(command.land, ["orders", "--pending"])
    error = ended.exception
    assert isinstance(error, RangesFailed)
    assert "landed 2 ranges in run whole\n" in ended.stdout
    said = f"{ended.stdout}\n{error}\n{error.__notes__}"
    assert "failed 2 ranges" not in said and f"run {result.run_id} failed\n" in ended.stdout
    assert "of 2 ranges of topic orders 1 landed and 1 failed" in said and said.count(WHY) == 1
    assert "1 run of topic orders failed" in said
    assert "pipeline_defs." not in said and said.count("offsetlake explain") == 1


def test_each_landed_range_is_told_once(instance: dg.DagsterInstance) -> None:
    def land(key: dg.AssetKey, start: int, rows: int, outcome: str = "landed") -> None:
        metadata = {"rows": rows, "outcome": outcome}
        landed = dg.AssetMaterialization(key, partition=f"0-{start}-{start + rows}", metadata=metadata)
        instance.report_runless_asset_event(landed)

    land(ORDERS.asset_key, 0, 1000)  # before: nobody is told
    since = LandedSince(instance)
    assert since.read() == {}
    land(ORDERS.asset_key, 1000, 400)
    land(ORDERS.asset_key, 1400, 3)
    land(ORDERS.asset_key, 1000, 400, "superseded")  # by another run, at the same time
    land(dg.AssetKey("another"), 0, 7)
    instance.report_runless_asset_event(dg.AssetMaterialization(ORDERS.asset_key, partition="foo"))  # a person says so
    for key in (dg.AssetKey("sales"), ORDERS.asset_key):  # of other people's assets anything may be reported
        instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata={"outcome": {"won": 3}, "rows": 1}))
    assert since.read() == {"orders": LandedCount(2, 403)}
    assert since.read() == {}, "quiet when nothing lands"
    land(PAYMENTS.asset_key, 0, 5)
    assert since.read() == {"payments": LandedCount(1, 5)}
    instance.wipe()  # ids of events begin again
    assert since.read() == {}
    land(PAYMENTS.asset_key, 5, 2)
    assert since.read() == {"payments": LandedCount(1, 2)}


def test_the_line_says_ranges_and_rows_in_all_and_rows_per_topic() -> None:
    assert landed_text({"b": LandedCount(1, 5), "a": LandedCount(2, 4000)}) == "landed 3 ranges, 4,005 rows: a 4,000, b 5"
    assert landed_text({"b": LandedCount(1, 5)}) == "landed 1 range, 5 rows: b 5"
    many = {f"t{number:02d}": LandedCount(1, 1) for number in range(12)}
    assert landed_text(many).endswith(": t00 1, t01 1, t02 1, t03 1, t04 1, t05 1, t06 1, t07 1, t08 1, t09 1 and 2 more")


def test_a_key_that_dagster_has_not_any_more_is_told_in_our_words() -> None:
    """Somebody deletes it while its run is queued; the library's own words name no topic, and nothing to do."""
    gone = PropertyMock(side_effect=dg.DagsterInvalidInvocationError("is not a valid range. Nonexistent partition keys"))
    context = MagicMock(has_partition_key=False, has_partition_key_range=True)
    type(context).partition_keys = gone
    context.run.tags = {RANGE_START: "0-0-100", RANGE_END: "0-7-8"}
    with pytest.raises(BadKey, match=r"0-0-100 and 0-7-8; .*`offsetlake rebuild orders` gives it those of"):
        selected_keys(context, "orders")


def active_run(job: str, status: dg.DagsterRunStatus, since: int) -> Any:
    run = SimpleNamespace(job_name=job, run_id=f"{status.value}-{since}", status=status, asset_selection=None, tags={})
    return SimpleNamespace(dagster_run=run, start_time=float(since))


runs = st.builds(active_run, st.sampled_from(["others", ORDERS.landing.job]), st.sampled_from(ACTIVE), st.integers(1, 9))


@given(st.lists(runs, max_size=6), st.integers(-1, 5), st.none() | st.integers(0, 9), st.booleans())
def test_what_blocks_is_named_if_nothing_gets_on(active: list[Any], slots: int, landed: int | None, silent: bool) -> None:
    """A block is of an own run; none is found only where there is no own run, or one has landed something."""
    own = [each for each in active if each.dagster_run.job_name != "others"]
    landed_ms = None if landed is None else landed * 1000
    text = why_blocked(Known({}, active, slots, silent, {}, {}, ""), ORDERS.landing, last_done_ms=landed_ms, done="landed")
    if not text:
        started = [each.start_time for each in own if each.dagster_run.status.value in {"STARTED", "CANCELING"}]
        assert not own or (started and landed is not None and landed >= min(started))
    else:
        assert any(text.startswith(f"run {each.dagster_run.run_id[:8]} of {ORDERS.landing.job} is ") for each in own)
        assert not any(f"({waiting} since" in text for waiting in ("queued", "created")), "only who holds a slot is named"


REASON = "range orders/0 [0, 10): Spark could not land 1 ranges of orders: No space left on device"


def fail(instance: dg.DagsterInstance, job: str, *, error: Exception | None = None) -> str:
    """Have a run of a job fail, by default with the reason of a range; return its short id."""

    @dg.op
    def work() -> None:
        raise error or RangesFailed("1 of 1 ranges of topic orders are not landed; 0 are", [REASON])

    @dg.job(name=job)
    def made() -> None:
        work()

    return made.execute_in_process(instance=instance, raise_on_error=False).run_id[:8]


def failed_since(instance: dg.DagsterInstance, *topics: Topic) -> FailedSince:
    """Dagster has seen the topics: it plans what a run is to land as it creates the run."""
    for each in topics:
        instance.report_runless_asset_event(dg.AssetObservation(each.asset_key))
    return FailedSince(instance, datetime.now(UTC))


def test_a_failed_run_is_told_once_with_its_first_reason(instance: dg.DagsterInstance) -> None:
    """The controls: a run that failed before, one that did not fail, and one of another project."""
    fail(instance, ORDERS.landing.job)
    failed = failed_since(instance, ORDERS, PAYMENTS)
    assert failed.read(datetime.now(UTC)) == []
    fail(instance, "somebody_elses")
    run = fail(instance, ORDERS.landing.job)
    now = datetime.now(UTC)
    assert failed.read(now) == [f"run {run} of orders failed: {REASON}"]
    assert failed.read(now) == []
    other = fail(instance, PAYMENTS.landing.job, error=ValueError("three"))
    assert failed.read(now) == [f"run {other} of payments failed: ValueError: three"]


def test_a_backfill_that_dagster_gave_up_is_told_once(instance: dg.DagsterInstance) -> None:
    """No run of it fails: its daemon met an error of its own. The controls: an earlier one, one at work, one of others."""

    def add(name: str, status: BulkActionStatus, topic: Topic = ORDERS) -> PartitionBackfill:
        error = SerializableErrorInfo("DagsterInvariantViolationError: its code server is away\nmore", [], None)
        backfill = PartitionBackfill(name, status, False, {}, time.time(), asset_selection=[topic.asset_key], error=error)
        instance.add_backfill(backfill)
        return backfill

    add("before", BulkActionStatus.FAILED)
    at_work = add("later", BulkActionStatus.REQUESTED)
    failed = failed_since(instance, ORDERS)
    add("others", BulkActionStatus.FAILED, PAYMENTS)
    assert failed.read(datetime.now(UTC)) == []
    instance.update_backfill(at_work.with_status(BulkActionStatus.FAILED))
    (line,) = failed.read(datetime.now(UTC))
    assert line.startswith("backfill later of orders was given up by Dagster: ") and "its code server is away; what" in line
    assert failed.read(datetime.now(UTC)) == []


@pytest.mark.parametrize("reason", [None, "its host is gone"])
def test_a_run_whose_process_was_killed_is_told_in_our_words(instance: dg.DagsterInstance, reason: str | None) -> None:
    """Dagster's own say nothing of what comes next; a reason that somebody gave is told as it is."""
    left = "what it left undone is asked for again, but for claims of at_most_once, which are abandoned"
    expected = reason or f"its process was killed; {left}"
    failed = failed_since(instance, ORDERS)
    run = instance.create_run_for_job(dg.job(name=ORDERS.landing.job)(lambda: None), status=dg.DagsterRunStatus.STARTED)
    instance.report_run_failed(run, reason)
    assert failed.read(datetime.now(UTC)) == [f"run {run.run_id[:8]} of orders failed: {expected}"]


@pytest.mark.parametrize(
    "event",
    [
        "Could not load job definition.",
        "Caught an unrecoverable error while dequeuing the run. Marking the run as failed and dropping it from the queue",
    ],
)
def test_a_run_whose_definitions_cannot_be_loaded_says_so(instance: dg.DagsterInstance, event: str) -> None:
    """Dagster marks it as it marks one whose process was killed, and has the error in an event of its engine."""
    failed = failed_since(instance, ORDERS)
    run = instance.create_run_for_job(dg.job(name=ORDERS.landing.job)(lambda: None), status=dg.DagsterRunStatus.STARTED)
    other = EngineEventData.engine_error(SerializableErrorInfo("NotADirectoryError: logs\n", [], None))
    instance.report_engine_event("Exception while setting up compute log capture", run, other)
    error = SerializableErrorInfo("pipeline_defs.core.errors.BadSetting: no topic is there\n", [], None)
    instance.report_engine_event(event, run, EngineEventData.engine_error(error))
    instance.report_run_failed(run)
    said = f"run {run.run_id[:8]} of orders failed: Dagster could not start it: no topic is there"
    assert failed.read(datetime.now(UTC)) == [said]
    rpc = SerializableErrorInfo("grpc._channel._InactiveRpcError: <of RPC that\n\tstatus = UNAVAILABLE>\n", [], None)
    for error_info, words in (
        (SerializableErrorInfo("DagsterUserCodeUnreachableError: no server\n", [], None, rpc), "no server"),
        (SerializableErrorInfo("", [], None), "it does not say why"),
    ):
        run = instance.create_run_for_job(dg.job(name=ORDERS.landing.job)(lambda: None), status=dg.DagsterRunStatus.STARTED)
        instance.report_engine_event(event, run, EngineEventData.engine_error(error_info))
        instance.report_run_failed(run)
        assert read_reason(instance, run.run_id).endswith(words)
    failed.read(datetime.now(UTC))
    killed = instance.create_run_for_job(dg.job(name=ORDERS.landing.job)(lambda: None), status=dg.DagsterRunStatus.STARTED)
    instance.report_engine_event("Exception while setting up compute log capture", killed, other)
    instance.report_run_failed(killed)
    (line,) = failed.read(datetime.now(UTC))
    assert "its process was killed" in line, "the control"


def test_a_database_that_is_locked_is_told_without_its_statement(instance: dg.DagsterInstance) -> None:
    """Alerts had all of it, with its parameters."""
    fail(instance, LAND_PENDING, error=OperationalError("INSERT INTO kvs VALUES (?)", {"value": "x"}, Exception("is locked")))
    (run_id,) = instance.get_run_ids()
    assert read_reason(instance, run_id).endswith("is locked")


def test_what_ticks_fail_at_is_told_once_by_reason(tmp_path: Path) -> None:
    """A cluster refuses us, say: no run fails, for none is asked for; `status` says so, too, of the topics that it is of."""
    repository = RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1), "r")
    data, moments = SensorInstigatorData(sensor_type=SensorType.STANDARD), count(time.time())

    def state_of(name: str) -> InstigatorState:
        return InstigatorState(
            RemoteInstigatorOrigin(repository, name), InstigatorType.SENSOR, InstigatorStatus.DECLARED_IN_CODE, data
        )

    state, broken = state_of(LAND_PENDING), state_of(BROKEN_TOPICS)
    whose = (state.instigator_origin_id, LAND_PENDING, InstigatorType.SENSOR)

    def failure(error: Exception) -> SerializableErrorInfo:
        said = SerializableErrorInfo(f"pipeline_defs.core.errors.{type(error).__name__}: {error}", [], None)
        return SerializableErrorInfo("SensorExecutionError: an error in its function", [], None, cause=said)

    def end_tick(status: TickStatus, error: Exception | None = None) -> None:
        whole = failure(error) if error else None
        instance.create_tick(TickData(*whose, status, next(moments), [], selector_id=state.selector_id, error=whole))

    def told(topic: Topic) -> str:
        return status.find_failing_ticks(topic, instance)

    lines = [f"{topic.name}: Kafka refuses us" for topic in (ORDERS, PAYMENTS)]
    with open_instance(tmp_path) as instance:
        instance.add_instigator_state(state)
        ticks, now = FailedTicks(instance, datetime.now(UTC) - timedelta(minutes=1)), datetime.now(UTC)
        error = failure(RuntimeError())
        instance.create_tick(TickData(*whose, TickStatus.FAILURE, 1_000.0, [], selector_id=state.selector_id, error=error))
        assert ticks.read(now, read_sensors(instance)) == [] and told(ORDERS) == "", "it says nothing of now"
        end_tick(TickStatus.SKIPPED)
        assert ticks.read(now, read_sensors(instance)) == [] and told(ORDERS) == "", "the control"
        for minutes, expected in enumerate((["orders, payments: Kafka refuses us"], [])):
            end_tick(TickStatus.FAILURE, TopicsFailed("of 3 topics 2 cannot be planned; the others were", lines))
            end_tick(TickStatus.SUCCESS)  # which asks for a run, and says nothing of failures
            assert ticks.read(now + timedelta(minutes=minutes), read_sensors(instance)) == expected
            assert told(ORDERS) == f"mend why Dagster's sensor {LAND_PENDING} fails (Kafka refuses us)"
            assert told(replace(ORDERS, name="others")) == ""
        end_tick(TickStatus.FAILURE, TopicsFailed("of 3 topics 1 cannot be planned; the others were", ["orders: it is away"]))
        assert ticks.read(now + timedelta(seconds=59), read_sensors(instance)) == []
        assert ticks.over == ["payments: that is over"]
        assert ticks.read(now + timedelta(seconds=60), read_sensors(instance)) == ["orders: it is away"]
        end_tick(TickStatus.SKIPPED)
        assert ticks.read(now, read_sensors(instance)) == [] and told(ORDERS) == ""
        assert ticks.over == ["orders: that is over"]
        end_tick(TickStatus.FAILURE, LakeUnavailable("the lake is away"))
        assert ticks.read(now, read_sensors(instance)) == ["all topics: the lake is away"]
        assert "the lake is away" in told(PAYMENTS)
        slow = "DagsterUserCodeUnreachableError: The sensor tick timed out due to taking longer than 60 seconds to execute"
        end_tick(TickStatus.FAILURE, RuntimeError(slow))
        assert "this machine is busy; the next one goes on" in ticks.read(now + timedelta(minutes=9), read_sensors(instance))[0]
        instance.add_instigator_state(broken)
        whose, state = (broken.instigator_origin_id, BROKEN_TOPICS, InstigatorType.SENSOR), broken
        twice = ["shop: shop/defs.yaml cannot be used"] * 2  # of two files of one topic
        end_tick(TickStatus.FAILURE, TopicsFailed("some files cannot be used", twice))
        assert ticks.read(now + timedelta(minutes=9), read_sensors(instance)) == twice[:1]
        assert "shop" not in told(replace(ORDERS, name="shop")), "its own document says what is wrong"
        off = InstigatorState(
            RemoteInstigatorOrigin(repository, LAND_PENDING), InstigatorType.SENSOR, InstigatorStatus.STOPPED, data
        )
        instance.update_instigator_state(off)
        said = f"all topics: Dagster's sensor {LAND_PENDING} is switched off: nothing plans and lands by itself"
        assert ticks.read(now + timedelta(minutes=11), read_sensors(instance)) == [said], "and no old failure"


def test_a_run_of_all_topics_is_told_by_its_job(instance: dg.DagsterInstance) -> None:
    """In the words of its error and not of its note, which leads to the runbook."""
    failed = failed_since(instance, ORDERS)
    reasons = [REASON, "topic payments: its cluster is gone", REASON.replace("[0, 10)", "[10, 20)")]
    run = fail(instance, LAND_PENDING, error=RangesFailed("ranges landed: 0, failures: 3", reasons))
    now = datetime.now(UTC)
    assert failed.read(now) == [f"run {run} of {LAND_PENDING} failed (and 2 more reasons): {REASON}"]
    whole = fail(instance, LAND_PENDING, error=LakeUnavailable("the lake /nowhere cannot be read"))
    assert failed.read(now) == [f"run {whole} of {LAND_PENDING} failed: the lake /nowhere cannot be read"]
    slow = instance.get_run_ids()
    fail(instance, LAND_PENDING, error=RuntimeError("Run timed out due to taking longer than 180 seconds to start."))
    assert failed.read(now)[0].endswith(expected := "this machine is too busy to start it in time; it is tried again")
    (run_id,) = {*instance.get_run_ids()} - {*slow}
    assert read_reason(instance, run_id) == expected, "and so to all who ask"


def test_a_history_that_does_not_answer_ends_nothing_and_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a full disk, say, also while a saved defs.yaml is read; as no sensor runs then, it tells the receivers of alerts."""
    asked, is_taken, is_over = list[dict[str, str]](), threading.Event(), threading.Event()

    def send(title: str, bodies: dict[str, str]) -> dict[str, str]:
        if bodies == dict.fromkeys(("json://taken", "json://busy"), "Dagster's history answers again"):
            is_over.set()
            return {}
        asked.append(bodies)
        if len(asked) == 2:
            is_taken.set()
        return {"json://busy": "alert URL 2 of 2"} if len(asked) == 1 else {}

    silent, locked = (
        OperationalError("SELECT", {}, Exception(why)) for why in ("unable to open database file", "database is locked")
    )
    ended = Mock(return_value=[])
    server = Mock(find_others=list, find_load_error=lambda: None, end_hung=ended, url="http://127.0.0.1:3000")
    looks, handlers = Mock(side_effect=[None, silent, silent, locked, None, None]), list[Callable[[int, None], None]]()

    def end_at_last(*_: object) -> None:
        if looks.call_count == 5:
            with suppress(KeyboardInterrupt):  # as Python does where it is in a destructor just then
                handlers[0](signal.SIGTERM, None)

    fakes = {
        **dict.fromkeys(("_tell_news", "LandedSince", "FailedSince", "FailedTicks"), Mock()),
        "_handle_signals": handlers.append,
        "_revive": end_at_last,
        "_services": lambda *_: nullcontext(server),
        "open_instance": lambda _: nullcontext(Mock()),
        "open_adapters": lambda: Mock(
            settings=Mock(dagster_home=tmp_path / "home", alert_urls=("json://taken", "json://busy"))
        ),
        "send_alert": send,
        "ALARM_SECONDS": 0.0,
        "find_project": lambda: tmp_path,
        "find_other_config": lambda *_: None,
        **dict.fromkeys(("read_silence", "tick_silence"), lambda *_: None),
        "read_sensors": lambda _: looks(),
        "load_topics": lambda: TopicFiles(Mock(), {"orders": ORDERS}),
        "LOOKS_EVERY_SECONDS": 0.0,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(up, name, fake)
    told = CliRunner().invoke(up.up, []).output
    assert is_over.wait(PATIENCE_SECONDS) and is_taken.wait(PATIENCE_SECONDS)
    assert [[*each] for each in asked] == [["json://taken", "json://busy"], ["json://busy"]]
    assert all(f"the folder {tmp_path / 'home'} is gone" in text for each in asked for text in each.values())
    assert (tmp_path / "home" / "dagster.yaml").is_file(), "where it was deleted a history begins anew"
    assert told.count("does not answer: unable to open database file") == 1 and told.count("answers again") == 1
    of_stopped = [call.kwargs for call in ended.call_args_list]
    assert of_stopped == [{}, {"are_stopped": True}, {}, {}], "one that stands still may hold the lock"
    assert looks.call_count == 6 and told.endswith("everything is stopped; what is landed stays landed\n")


def test_another_code_location_that_does_not_load_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] It is of another team, and Dagster's UI tells of it."""
    server = DagsterServer(tmp_path, tmp_path, tmp_path / "workspace.yaml")
    for workspace, broken, why in (
        ("python_module: {module_name: a, location_name: ours}", "theirs", None),
        ("python_module: {module_name: a, location_name: ours}", "ours", "no password"),
        ("python_module: a", "theirs", "no password"),
        ("[", "theirs", "no password"),
    ):
        (tmp_path / "workspace.yaml").write_text(f"load_from: [{{{workspace}}}]")
        failed = {"message": "it fails", "causes": [{"message": "no password"}]}
        entries = [{"name": name, "locationOrLoadError": failed if name == broken else {}} for name in ("ours", "theirs")]
        monkeypatch.setattr(server, "_ask", lambda *_, found=entries: {"workspaceOrError": {"locationEntries": found}})
        assert server.find_load_error() == why


def test_a_copied_folder_has_no_process_of_the_folder_that_it_was_copied_from(tmp_path: Path) -> None:
    """Whoever works in the copy would stop it; one that was moved has."""
    for name in ("broker", "engine", "up"):
        (tmp_path / "a" / name).mkdir(parents=True)
    own = read_process(os.getpid())
    assert own is not None
    broker._write_state(Broker(tmp_path / "a" / "broker", own, 1, 2))
    engine, dagster = tmp_path / "a" / "engine" / STATE, tmp_path / "a" / "up" / "dagster.json"
    write_private(engine, placed(asdict(Server(1, "", own, own, 0.0, "", "")), engine))
    dagster.write_text(json.dumps(placed({**asdict(own), "url": ""}, dagster)))

    def found(folder: Path) -> list[bool]:
        left = DagsterServer(folder / "up", tmp_path)._read_state()
        return [each is not None for each in (read_broker(folder / "broker"), read_server(folder / "engine"), left)]

    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert (found(tmp_path / "a"), found(tmp_path / "b")) == ([True] * 3, [False] * 3)
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "c")
    assert found(tmp_path / "c") == [True] * 3


def test_definitions_that_load_no_more_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of Python that somebody edits, say, and reloads: nothing plans or lands until it is mended."""
    alarms = list[str]()
    monkeypatch.setattr(up, "_alarm", lambda text, *_: alarms.append(text) or threading.Event())
    server = Mock(
        find_load_error=Mock(
            side_effect=[None, "it is torn", OSError(), "it is torn", LookupError(), "it is torn", "it is torn"]
        )
    )
    definitions = up._Definitions(tmp_path, up._Trouble(Mock()))
    for is_ticking in (False, False, False, False, False, True, True, False):
        definitions.look(server, is_ticking=is_ticking)
    refused, over, again = alarms
    assert refused == again and over == "Dagster plans and lands again"
    assert "do not load, so nothing is planned or landed: it is torn; correct them or `.env`" in refused
    assert not server.reload.called
    monkeypatch.setattr(up, "RELOAD_EVERY_SECONDS", -1.0)
    definitions.look(server, is_ticking=False)
    assert server.reload.called, "no sensor sees that they are mended"


def test_a_code_server_that_does_not_answer_says_nothing_of_the_definitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told as that, once, though gRPC words it otherwise each time."""
    alarms = list[str]()
    monkeypatch.setattr(up, "_alarm", lambda text, *_: alarms.append(text) or threading.Event())
    server = DagsterServer(tmp_path, tmp_path)
    definitions = up._Definitions(tmp_path, up._Trouble(Mock()))
    for said in ("<_InactiveRpcError of RPC at 12:00>", "<_InactiveRpcError of RPC at 12:01>", " it is torn\n"):
        entry = {"name": "ours", "locationOrLoadError": {"message": "outer", "causes": [{"message": said}]}}
        monkeypatch.setattr(server, "_ask", lambda *_, entry=entry: {"workspaceOrError": {"locationEntries": [entry]}})
        definitions.look(server, is_ticking=False)
    hangs, torn = alarms
    assert hangs.startswith("Dagster's code server does not answer") and "do not load" in torn


@pytest.mark.parametrize("error", [DagsterUnavailable("it did not come up"), OSError(errno.ENOSPC, "No space left on device")])
def test_a_dagster_that_cannot_be_started_now_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception
) -> None:
    """It ended, and was killed once more as it came up, or its disk is full: so many times in a while, for ever."""
    server = DagsterServer(tmp_path, tmp_path)
    clock, started = [0.0], list[float]()
    monkeypatch.setattr(dagster_server, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def serve(port: int) -> None:
        started.append(clock[0])
        raise error

    monkeypatch.setattr(server, "_serve", serve)
    away = up._Trouble(Mock(settings=Mock(alert_urls=())))

    def look(*moments: int) -> None:
        for now in moments:
            clock[0] = float(now)
            up._revive(server, away)

    look(*range(0, 1300, 100))
    assert started == [0, 100, 200, 600, 700, 800, 1200]
    assert capfd.readouterr().out.count(str(error)) == 1, "until it can be started"
    monkeypatch.setattr(server, "_serve", lambda _: None)
    look(*range(2000, 2500, 100))
    told = capfd.readouterr().out
    assert told.count("Dagster could be started again") == 1 and told.count("Dagster runs again at") == 3
    assert told.count("Dagster has ended again, so nothing lands; it is started again, 3 times in 10 minutes") == 1


@pytest.mark.parametrize("free", [0, 2**30])
def test_a_full_disk_of_dagsters_home_is_named_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """SQLite calls it an I/O error; the statement, which may have a record's metadata, is not told."""
    monkeypatch.setattr(dagster_home, "shutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=free)))
    told = why_silent(OperationalError("INSERT INTO runs", {"secret": 1}, Exception("disk I/O error")), tmp_path)
    assert told == (f"disk I/O error: the disk of {tmp_path} is full, make room there" if not free else "disk I/O error")


def test_a_failed_run_of_many_ranges_is_told_in_some_lines() -> None:
    reasons = [f"range {number} failed" for number in range(SHOWN_REASONS + 7)]
    with pytest.raises(RangesFailed) as caught:
        print_runs("orders", [Launched("some-run", (), succeeded=False, reason="\n".join([NOTE, *reasons]))], "landed")
    assert reasons[SHOWN_REASONS - 1] in str(caught.value) and reasons[SHOWN_REASONS] not in str(caught.value)
    assert "7 more: see the run in Dagster" in str(caught.value)
