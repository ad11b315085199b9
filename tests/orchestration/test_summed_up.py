"""A topic whose history is summed up, over real parts: Dagster shows it all, and what is old is still done by key."""

import dataclasses
from types import SimpleNamespace

import dagster as dg
import pytest

from pipeline_defs.adapters.lake.layout import data_path, manifest_path
from pipeline_defs.cli.launching import choose_ranges
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import TopicsFailed
from pipeline_defs.core.log import settling
from pipeline_defs.core.log.latency import WINDOW_MS
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables import decoded_table
from pipeline_defs.core.tables.days import Days, EventTime
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.operate.reports import trace_row
from pipeline_defs.operate.status import read_statuses
from pipeline_defs.orchestration.assets.latest_asset import check_share
from pipeline_defs.orchestration.pulse import rebuilding
from pipeline_defs.orchestration.pulse.pulse import LOCATION_TAG
from pipeline_defs.orchestration.pulse.rebuilding import COMPARE, rebuild_topic
from pipeline_defs.resources import Adapters
from pipeline_defs.topics import LAND_PENDING
from tests.support.killing import stopped_at
from tests.support.pulse import ask, queue_run, run_job, run_pulse
from tests.support.redecoding import compact_decoded
from tests.support.world import World


@pytest.fixture
def old(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A topic of three steps, nearly all of it summed up."""
    monkeypatch.setattr(settling, "FRONTIER_EVERY", 1)
    world.create_topic()
    world.with_policy(records_per_range=10, max_age_seconds=0)
    for _ in range(3):
        world.send_numbered(20)
        world.tick()
    world.launch()
    world.tick()
    assert len(world.adapters.lake.recent(world.name).log.ranges) < len(world.coverage.log.ranges) == 6
    return world


def asked_jobs(world: World) -> list[str | None]:
    return [request.job_name for request in ask(world).run_requests or ()]


def compare(world: World, location: str = "") -> dg.ExecuteInProcessResult:
    return run_job(world, COMPARE, tags={LOCATION_TAG: location})


def test_all_history_is_compared_in_a_run_of_its_own(old: World) -> None:
    """[R-96] Once an hour, one that failed in ten minutes; a lost database is given back what a tick does not look at."""
    keys = [offsets.key for offsets in old.coverage.log.ranges]
    assert asked_jobs(old) == [COMPARE]
    assert compare(old, "another").success
    assert asked_jobs(old) == [COMPARE], "that was of other topics"
    run = queue_run(old.instance, COMPARE, tags={LOCATION_TAG: ""})
    assert COMPARE not in asked_jobs(old), "it waits"
    old.instance.report_run_failed(run)
    assert COMPARE not in asked_jobs(old), "not at once: it may fail for good"
    old.later(601_000)
    assert COMPARE in asked_jobs(old)
    assert compare(old).success
    assert asked_jobs(old) == [], "once is enough for an hour"
    old.adapters.opened_ms += 3_600_000
    assert asked_jobs(old) == [], "the clock was set back since the process began: that ends no comparison"
    old.adapters.opened_ms -= 3_600_000
    old.lose_dagster()
    ask(old)
    assert old.materialized() < {*keys}, "the control: a tick tells of what is newer alone"
    assert old.keys == keys, "in log order, by which ranges are chosen"
    assert compare(old).success
    assert old.materialized() == {*keys}
    old.assert_proven()


def test_an_old_range_whose_manifest_somebody_deletes_is_landed_again(old: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-96] As the runbook says of a broken one: a document still has it as landed; also beside a run."""
    first = next(iter(old.coverage.log.ranges))
    for held in ({}, {OffsetRange(0, 0, 10**6, 10**6 + 1): "a run"}):
        for path in (manifest_path(old.name, first, 0), data_path(old.name, first)):
            (old.lake_folder / path).unlink()
        assert not old.adapters.lake.recent(old.name).pending(), "the fault"
        with monkeypatch.context() as patched:
            if held:
                patched.setattr(rebuilding, "read_tries", lambda *_, held=held: SimpleNamespace(in_progress=held))
            rebuild_topic(old.topic, old.adapters, old.instance)
        assert LAND_PENDING in asked_jobs(old)
        assert run_pulse(old).success
        old.assert_all_landed_once()
        ask(old)  # a tick sums up what is landed again


def test_what_is_old_is_landed_again_replaced_and_traced_by_key(old: World) -> None:
    """[R-96] As if nothing had been summed up; rows, tables and checks are as they were. A rebuild sums up as well."""
    (first,) = choose_ranges(old.topic, ["0-0-10"], old.adapters)
    (launched,) = old.launch([first], redo=True)
    assert [offsets.key for offsets in launched.ranges] == ["0-0-10"]
    assert trace_row(old.topic, 0, 5, old.adapters)["row"]["offset"] == 5
    old.assert_all_landed_once()
    old.assert_proven()
    old.send_numbered(20)
    assert LAND_PENDING in asked_jobs(old)
    assert run_pulse(old).success
    old.assert_all_landed_once()

    old.adapters.lake.frontiers.forget(old.name)
    assert not old.adapters.lake.frontiers.has(old.name), "the fault: who lands by commands alone has no sensor that sums up"
    rebuild_topic(old.topic, old.adapters, old.instance)
    assert old.adapters.lake.recent(old.name).log.base is not None
    old.assert_proven()


def test_lost_steps_fail_the_comparison_and_nothing_is_planned(old: World) -> None:
    """[R-96] By a process that finds less than was landed."""
    newest = max((old.lake_folder / "plan" / old.name).iterdir())
    newest.unlink()
    old.adapters._lake = None  # as a process that was never here before
    assert asked_jobs(old) == [COMPARE], "nothing is to be landed"
    assert not compare(old).success
    with pytest.raises(TopicsFailed) as caught:
        ask(old)
    assert "newer steps are lost" in "".join(caught.value.violations)
    assert not newest.exists()


@pytest.mark.parametrize("is_decoded", [False, True])
def test_what_is_landed_and_not_told_is_not_summed_up(world: World, monkeypatch: pytest.MonkeyPatch, is_decoded: bool) -> None:
    """[R-96] A run that dies has landed it; ticks beside it look at what is newer alone, and tell it then."""
    monkeypatch.setattr(settling, "FRONTIER_EVERY", 1)
    world.create_topic()
    world.with_policy(records_per_range=10, max_age_seconds=0)
    world.topic = dataclasses.replace(world.topic, decode=Decode() if is_decoded else None)
    step = "reported_decoded" if is_decoded else "landed"
    world.send_numbered(40)
    ask(world)
    with stopped_at(world, "pulse", step, 1):
        assert len(world.materialized()) < 4 or is_decoded, "the fault"
        for _ in range(3):
            world.send_numbered(10)
            ask(world)
    for _ in range(4):
        world.later(60_000)
        if LAND_PENDING in asked_jobs(world):
            assert run_pulse(world).success
    keys = {offsets.key for offsets in world.coverage.log.ranges}
    assert world.materialized() == keys
    assert not is_decoded or world.instance.get_materialized_partitions(world.topic.decoded_key) == keys
    assert world.adapters.lake.frontiers.has(world.name), "the control: it goes on once all is told"


def test_a_long_history_is_decoded_and_told_without_its_documents(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-100] Ticks, runs and `status` of a topic with days and latest records, once its old ranges are compacted."""
    monkeypatch.setattr(settling, "FRONTIER_EVERY", 1)
    world.create_topic(2)
    world.with_policy(records_per_range=10, max_age_seconds=0)
    value = Side(Format.JSON, "at TIMESTAMP, n BIGINT")
    decode, days = Decode(value=value, event_time=EventTime("value.at")), Days("2013-01-01", EventTime("value.at"))
    world.topic = dataclasses.replace(world.topic, decode=decode, days=days, latest=Latest())

    def go_on(records: int) -> None:
        """Have records landed, decoded, in latest records and told of by a process that knows nothing yet."""
        for n in range(records):
            text = f'{{"at": "2013-01-0{1 + n % 3}T12:00:00Z", "n": {n}}}'
            world.send([{"partition": n % 2, "key": b"%d" % (n % 7), "value": text.encode()}])
        moment = world.adapters.now_ms() + 180_000
        world.adapters = Adapters(world.settings, now_ms=lambda: moment)
        ask(world)
        assert run_pulse(world).success
        ask(world)

    go_on(60)
    compact_decoded(world.adapters.lake, world.name)
    go_on(10)  # and a tick sums up what came before
    read: list[str] = []
    real = decoded_table.read_document
    monkeypatch.setattr(decoded_table, "read_document", lambda data, file: (read.append(file.path), real(data, file))[1])
    go_on(10)
    assert read == []
    later_ms = world.adapters.now_ms() + 2 * WINDOW_MS  # of the last hour each range is looked at
    ((status, _),) = read_statuses([world.topic], Adapters(world.settings, now_ms=lambda: later_ms), world.instance)
    assert read == []
    assert [(each["table"], each.get("waiting_ranges"), each.get("rows")) for each in status["tables"]] == [
        ("decoded", 0, 80),
        ("latest", 0, None),
        ("days", None, None),
    ]
    assert sum(int(str(each.metadata["rows"].value)) for each in world.events(world.topic.days_key)[-3:]) == 80
    finding = check_share(world.name, Latest(), 0, world.adapters.latest_tools())
    assert finding.passed and read, "the control: a recomputation reads them"
