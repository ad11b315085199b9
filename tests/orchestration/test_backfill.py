"""Backfills: what a person says in the config of `backfill_<topic>` is what they are of; what is wrong is one error."""

import time
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import PartitionBackfill

from pipeline_defs.core.errors import DaemonUnavailable, OffsetlakeError
from pipeline_defs.core.landing.selection import choose_missing
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.lab.bench.location import read_marks
from pipeline_defs.orchestration.assets.raw_asset import land_config
from pipeline_defs.orchestration.backfilling import BackfillRequest, follow_backfill, launch_backfill
from pipeline_defs.orchestration.choosing import Choice, select_ranges
from pipeline_defs.orchestration.runs.ledger import accept_loss
from pipeline_defs.orchestration.runs.siblings import BACKFILL_TAG
from pipeline_defs.topics import REDO_TAG
from tests.support.commands import commands_of
from tests.support.power import Power
from tests.support.pulse import run_job
from tests.support.world import World

HOUR_MS = 3_600_000
HOUR = "between", {"from_time": "2025-11-17T10:00:00Z", "to_time": "2025-11-17T11:00:00+00:00"}
NOW_MS = 1_763_377_200_000  # 2025-11-17T11:00:00Z
# first and last record of each range, before the hour begins or ends
EDGES_MS = [(-1000, -1), (-1, 0), (1, HOUR_MS - 1), (HOUR_MS - 1, HOUR_MS), (HOUR_MS, HOUR_MS + 1)]


@pytest.fixture
def hour(world: World) -> World:
    """A topic with five ranges at the edges of the hour before now, none of them landed; a daemon is there."""
    world.create_topic(retention_ms="-1")
    world.with_policy(records_per_range=2)
    moments = [NOW_MS - HOUR_MS + ms for pair in EDGES_MS for ms in pair]
    world.send({"partition": 0, "value": b"%d" % n, "timestamp_ms": ms} for n, ms in enumerate(moments))
    world.plan()
    world.adapters.now_ms = lambda: NOW_MS
    world.hear_daemon("BACKFILL")
    return world


def run(world: World, config: dict[str, Any] | None = None) -> dg.ExecuteInProcessResult:
    """Run the job as the Launchpad does, with this config of its one op."""
    job = world.topic.backfill_job
    run_config = {} if config is None else {"ops": {f"launch_{job}": {"config": config}}}
    return run_job(world, job, run_config=run_config, raise_on_error=True)


def backfills(world: World) -> list[PartitionBackfill]:
    return list(world.instance.get_backfills())


def keys_of(world: World, backfill: PartitionBackfill) -> set[str]:
    assert backfill.asset_backfill_data is not None
    subset = backfill.asset_backfill_data.target_subset.get_partitions_subset(world.topic.asset_key)
    return set(subset.get_partition_keys())


def test_a_click_without_a_word_is_the_last_hours_exactly(hour: World) -> None:
    """Half-open at both ends; what is not landed may yet turn out to be of the hour; its output shows what was chosen."""
    expected = {"0-2-4", "0-4-6", "0-6-8"}
    result = run(hour)
    (backfill,) = backfills(hour)
    assert keys_of(hour, backfill) == expected | {"0-8-10"}, "nobody knows yet whether it is younger"
    hour.land()
    result = run(hour)
    backfill = backfills(hour)[0]
    assert keys_of(hour, backfill) == expected, "landed, by the manifests: exactly"
    assert backfill.tags[REDO_TAG] == "yes" and backfill.run_config == land_config(hour.topic, "keep")
    (output,) = (event.step_output_data for event in result.all_events if event.is_successful_output)
    metadata = {name: value.value for name, value in output.metadata.items()}
    assert metadata["backfill"] == f"/runs/b/{backfill.backfill_id}"
    assert (metadata["ranges"], metadata["offsets"], metadata["rows"]) == ("3 landed", 6, 6)
    assert "| 0-4-6 | landed | 2 | 2 |" in metadata["preview"] and "2025-11-17T10:00:00+00:00" in metadata["preview"]
    assert [line.split()[1] for line in metadata["preview"].splitlines()[2:]] == sorted(expected)


def test_each_way_to_say_it_chooses_what_the_command_would(hour: World) -> None:
    """With `on_change`, which goes on to the runs; what is missing is landed, what is landed is read again."""
    hour.land(["0-0-2", "0-2-4"])
    for ranges, keys, redo in (
        ({"last_minutes": 61}, {"0-0-2", "0-2-4", "0-4-6", "0-6-8", "0-8-10"}, "yes"),
        (dict([HOUR]), {"0-2-4", "0-4-6", "0-6-8", "0-8-10"}, "yes"),
        ({"missing": True}, {"0-4-6", "0-6-8", "0-8-10"}, "no"),
        ({"offsets": ["0:1-3", "0:9-10"]}, {"0-0-2", "0-2-4", "0-8-10"}, "yes"),
    ):
        assert run(hour, {"ranges": ranges, "on_change": "replace"}).success
        backfill = backfills(hour)[0]
        assert (keys_of(hour, backfill), backfill.tags[REDO_TAG]) == (keys, redo), ranges
        assert backfill.run_config == land_config(hour.topic, "replace")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"ranges": {"last_minutes": 0}}, "last_minutes 0 is no time, expected 1 or more; nothing was launched"),
    ({"ranges": {"missing": False}}, "by nothing, expected exactly one of last_minutes, between, missing, failed or off"),
    ({"ranges": {"failed": True}}, "has no failed range"),
    ({"ranges": {"offsets": []}}, "by nothing, expected exactly one of last_minutes"),
    ({"ranges": {"offsets": ["0-1-3"]}}, "are not P:S-E"),
    ({"ranges": {"offsets": ["0:9-12"]}}, r"\[10, 12\) of"),
    ({"ranges": {"between": {"from_time": "2025-11-17T10:00", "to_time": "2025-11-17T11:00Z"}}}, "give time_zone; nothing"),
    ({"ranges": {"between": {"from_time": "monday", "to_time": "2025-11-17T11:00Z"}}}, "from_time 'monday' is no time"),
    ({"ranges": {"between": HOUR[1] | {"to_time": "2025-11-17T10:00Z"}}}, "from_time .* is not before to_time"),
    ({"ranges": {"between": HOUR[1] | {"from_time": "2025-11-17T10:00", "time_zone": "Mars/X"}}}, "Mars/X is no time zone"),
]


def test_a_wrong_config_is_one_error_and_launches_nothing(hour: World) -> None:
    """What a schema can say, Dagster refuses in the Launchpad before there is a run; the rest says what was expected."""
    for config, words in REFUSED:
        with pytest.raises(OffsetlakeError, match=words) as refused:
            run(hour, config)
        assert "nothing was launched" in str(refused.value), config
    with pytest.raises(dg.DagsterInvalidConfigError, match=r"You specified \['last_minutes', 'missing'\]"):
        run(hour, {"ranges": {"last_minutes": 60, "missing": True}})
    hour.adapters.now_ms = lambda: time.time_ns() // 1_000_000
    with pytest.raises(OffsetlakeError, match="no Dagster daemon executes backfills"):
        run(hour, {"ranges": {"missing": True}})
    assert not backfills(hour)
    hour.adapters.now_ms = lambda: NOW_MS
    assert run(hour).success, "the control"


DAEMON = """
from dagster._daemon import controller
from dagster._daemon.cli import cli
controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 1  # between two looks at backfills, where Dagster's own is 30
cli()
"""


def launch(world: World, ranges: list[OffsetRange]) -> str:
    return launch_backfill(world.topic, BackfillRequest(ranges, redo=False), world.adapters, world.instance)


def reporters(world: World, backfill: str | None = None) -> dict[str, set[str]]:
    """Say of each key which runs, of one backfill or of none, have reported it."""
    events = world.instance.fetch_materializations(world.topic.asset_key, limit=1_000).records
    runs = {run.run_id for run in world.instance.get_runs() if run.tags.get(BACKFILL_TAG) == backfill}
    found: dict[str, set[str]] = {}
    for event in events:
        if event.run_id in runs and event.partition_key is not None:
            found.setdefault(event.partition_key, set()).add(event.run_id)
    return found


@pytest.mark.scenario
def test_scattered_failed_and_missing_ranges_beside_the_sensor(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-16] Two at once, and the sensor: five scattered ranges are five runs to Dagster, and one or two scans."""
    commands = commands_of("work.backfill", world, monkeypatch)
    world.fill(1000, 300)
    world.tick()
    world.delete_records(1, 40)
    (launched,) = world.try_launch()
    assert not launched.succeeded
    with pytest.raises(DaemonUnavailable, match="has never run"):
        launch(world, list(world.coverage.log.ranges))
    failed = list(select_ranges(Choice(failed=True), world.topic, world.coverage, world.adapters, world.instance).ranges)
    assert [offsets.key for offsets in failed] == ["1-0-100"]
    accept_loss(world.topic, "1-0-100", world.adapters, "test")
    for place in [place for place in world.sent if place[0] == 1 and place[1] < 40]:
        del world.sent[place]
    before = world.coverage.manifests
    scattered = [o for o in world.coverage.log.ranges if o.partition == 0 and o.start % 200 == 0]
    assert len(scattered) == 5
    world.send_numbered(250, 0)
    world.plan()
    missing = list(choose_missing(world.coverage).ranges)
    assert len(missing) == 4 and missing[0] == failed[0]
    location = world.folder / "location"
    with Power(location, world.settings, [world.topic], world.instance, daemon=("-c", DAEMON)):
        world.wait_until(lambda: "BACKFILL" in world.instance.get_daemon_heartbeats())
        first = launch(world, missing)
        world.send_numbered(50, 1)
        keys = [word for offsets in scattered for word in ("--key", offsets.key)]
        result = commands("backfill", world.name, *keys, "--on-change", "replace", "--apply")
        assert result.exit_code == 0 and "has ended: 5 ranges in 5 runs" in result.stdout, (result.stdout, result.exception)
        second = result.stdout.partition("launched backfill ")[2].split()[0]
        states = follow_backfill(world.topic.landing, first, [offsets.key for offsets in missing], world.instance)
        world.wait_until(lambda: next(states).has_ended)
        state = next(follow_backfill(world.topic.landing, first, [offsets.key for offsets in missing], world.instance))
        assert state.has_succeeded and state.done == {offsets.key for offsets in missing}, state
        for backfill, ranges in ((first, missing), (second, scattered)):
            assert set(reporters(world, backfill)) == {o.key for o in ranges}, "just what was chosen, and nothing else"
        world.wait_until(lambda: not world.pending and len(world.rows()) == len(world.sent))
        marks = read_marks(location)
    world.assert_all_landed_once()
    now = world.coverage.manifests
    assert {offsets: now[offsets] for offsets in before} == before, "what was landed stays, byte for byte"
    assert len(set.union(*reporters(world, second).values())) <= 2 < len(scattered)
    assert sum(mark["step"] == "scan" for mark in marks) <= 6, marks
    configs = [run.run_config for run in world.instance.get_runs() if run.tags.get(BACKFILL_TAG) == second]
    assert configs == [land_config(world.topic, "replace")] * 5, "what the launchpad takes, a backfill takes too"
    assert "1-300-350" in reporters(world), "the sensor landed what arrived, outside of any backfill"
