"""The job `backfill_<topic>`: what a person says in its config is what the backfill is of; what is wrong is one error."""

from __future__ import annotations

import time
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import PartitionBackfill

from pipeline_defs.core.errors import OffsetlakeError
from pipeline_defs.orchestration.assets.raw_asset import land_config
from pipeline_defs.topics import REDO_TAG
from tests.support.pulse import run_job
from tests.support.world import World

HOUR_MS = 3_600_000
HOUR = "between", {"from_time": "2025-11-17T10:00:00Z", "to_time": "2025-11-17T11:00:00+00:00"}
NOW_MS = 1_763_377_200_000  # 2025-11-17T11:00:00Z
# first and last record of each range, before the hour begins or ends
EDGES_MS = [(-1000, -1), (-1, 0), (1, HOUR_MS - 1), (HOUR_MS - 1, HOUR_MS), (HOUR_MS, HOUR_MS + 1)]


@pytest.fixture
def hour(world: World) -> World:
    """Is a topic with five ranges at the edges of the hour before now, none of them landed; a daemon is there."""
    world.create_topic(retention_ms="-1")
    world.with_policy(records_per_range=2)
    moments = [NOW_MS - HOUR_MS + ms for pair in EDGES_MS for ms in pair]
    world.send({"partition": 0, "value": b"%d" % n, "timestamp_ms": ms} for n, ms in enumerate(moments))
    world.plan()
    world.edges.now_ms = lambda: NOW_MS
    world.hear_daemon("BACKFILL")
    return world


def run(world: World, config: dict[str, Any] | None = None) -> dg.ExecuteInProcessResult:
    """Runs the job as the Launchpad does, with this config of its one op."""
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


TWO = {"last_minutes": 60, "missing": True}
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
NOT_VALID: list[tuple[dict[str, Any], str]] = [
    ({"ranges": TWO}, r"You can only specify a single field .* You specified \['last_minutes', 'missing'\]"),
    ({"ranges": {}}, "Must specify a field .* Defined fields: "),
    ({"ranges": {"between": {"from_time": "2025-11-17T10:00Z"}}}, 'Missing required config entry "to_time"'),
    ({"ranges": {"last_minutes": "an hour"}}, "Invalid scalar"),
    ({"ranges": {"yesterday": True}}, "yesterday"),
    ({"on_change": "overwrite"}, "overwrite"),
]


def test_a_wrong_config_is_one_error_and_launches_nothing(hour: World) -> None:
    """What a schema can say, Dagster refuses in the Launchpad before there is a run; the rest says what was expected."""
    for config, words in REFUSED:
        with pytest.raises(OffsetlakeError, match=words) as refused:
            run(hour, config)
        assert "nothing was launched" in str(refused.value), config
    for config, words in NOT_VALID:
        with pytest.raises(dg.DagsterInvalidConfigError, match=words):
            run(hour, config)
    hour.edges.now_ms = lambda: time.time_ns() // 1_000_000
    with pytest.raises(OffsetlakeError, match="no Dagster daemon executes backfills"):
        run(hour, {"ranges": {"missing": True}})
    assert not backfills(hour)
    hour.edges.now_ms = lambda: NOW_MS
    assert run(hour).success, "the control"
