"""SIGKILL of runs as the daemon makes them: what goes on by itself, and that nothing is missing or doubled.

One of `land_pending`, at every step: it lands two topics, decodes one of them and updates its latest table. And one of a
backfill that lands its siblings' ranges too. It is a real child; what comes after it is what the daemon does: ticks, and the
runs that they ask for. The control is the same run, or the one after it, which nobody kills before it has ended.
"""

import dataclasses
from collections import Counter

import pytest
from dagster import DagsterRun, DagsterRunStatus, RunsFilter

from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.log.coverage import State
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.orchestration.runs.projection import ACTIVE
from pipeline_defs.orchestration.runs.siblings import BACKFILL_TAG, LANDED_BY_TAG
from pipeline_defs.topics import REDO_TAG, TOPIC_TAG
from tests.support.killing import stopped_at, work_off
from tests.support.pulse import ask, queue_asset_run, run_pulse
from tests.support.world import World

KEYS, RECORDS = 7, 250
STEPS = {  # each step of the run, and at which of its passes it dies
    **dict.fromkeys(("find", "append", "link_to_table", "report"), (1, 2)),
    **dict.fromkeys(("scan", "stage", "find_landed", "read_landed", "stage_decoded", "place_decoded", "commit_decoded"), (1,)),
    **dict.fromkeys(("rebuild_latest", "read_decoded", "commit_latest", "reported_latest"), (1,)),
    **dict.fromkeys(("verify", "commit", "publish", "landed", "reported"), (1, 4, 5, 8)),
    **dict.fromkeys(("verify_decoded", "reported_decoded"), (1, 4)),
}
# in `make test`; what a kill at the other steps leaves in the lake is there the matter of tests of its own
QUICK = {("commit", 4), ("append", 1), ("reported", 1), ("reported_decoded", 1), ("commit_latest", 1)}
MOST_RUNS, MOST_SECONDS = 3, 60  # until all is well again, of runs and of the clock


@pytest.fixture
def other(world: World) -> World:
    """A second topic of the same lake and Dagster instance; the first one is decoded, and has a latest table."""
    world.keep_raw_table()
    other = world.beside()
    world.topic = dataclasses.replace(world.topic, decode=Decode(value=Side(Format.JSON, "id INT")), latest=Latest())
    for each in (world, other):
        each.create_topic(2)
        each.send({"partition": n % KEYS % 2, "key": b"%d" % (n % KEYS), "value": b'{"id": %d}' % n} for n in range(RECORDS))
    return other


def go_on(world: World, other: World) -> tuple[int, int]:
    """Tick as the daemon does, and run what is asked for; return the runs, and the seconds in which none was asked for."""
    runs = seconds = 0
    while runs < MOST_RUNS and seconds < MOST_SECONDS:
        asked = ask(world, other.topic)
        if asked.run_requests:
            assert run_pulse(world, other.topic).success
            runs += 1
        elif asked.skip_message == "nothing waits":
            return runs, seconds
        else:
            world.later(5_000)
            seconds += 5
    raise AssertionError(f"after {runs} runs and {seconds} s: {ask(world, other.topic).skip_message}")


def assert_all_is_there_once(world: World, other: World) -> None:
    """In the globs, the tables, and in Dagster; and nothing is left at work."""
    for each in (world, other):
        each.assert_all_landed_once()
        each.assert_proven()
        assert each.materialized() == {offsets.key for offsets in each.coverage.log.ranges}
        rows = each.table("raw").to_pyarrow_table().to_pylist()
        assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(each.sent)
    decoded, latest = (world.table(tree).to_pyarrow_table().to_pylist() for tree in ("decoded", "latest"))
    assert sorted(row["value"]["id"] for row in decoded) == [*range(RECORDS)]
    assert {row["key"]: row["value"]["id"] for row in latest} == {b"%d" % (n % KEYS): n for n in range(RECORDS)}
    assert world.instance.get_materialized_partitions(world.topic.decoded_key) == world.materialized()
    assert world.instance.get_runs(RunsFilter(statuses=ACTIVE)) == []


@pytest.mark.parametrize(
    ("step", "nth"),
    [
        pytest.param(step, nth, marks=[] if (step, nth) in QUICK else [pytest.mark.long])
        for step, passes in STEPS.items()
        for nth in passes
    ],
)
def test_a_run_that_is_killed_at_any_step_is_made_good_by_ticks_alone(world: World, other: World, step: str, nth: int) -> None:
    """[R-31] In at most three runs, and a minute of waiting for a back-off."""
    ask(world, other.topic)
    with stopped_at(world, "pulse", step, nth, others=[other.topic]):
        pass
    (died,) = world.instance.get_runs()
    assert died.status is DagsterRunStatus.STARTED, "the fault: nobody has said how it ended"
    go_on(world, other)
    assert_all_is_there_once(world, other)
    assert world.run(died.run_id).status is DagsterRunStatus.FAILURE


def test_the_run_that_nobody_kills_leaves_nothing_to_do(world: World, other: World) -> None:
    """The control, and that each step that is a case is passed as often as its cases say."""
    ask(world, other.topic)
    passed = Counter[str]()
    world.adapters.watch_step = lambda step, **_: passed.update([step])
    assert run_pulse(world, other.topic).success
    assert go_on(world, other) == (0, 0)
    assert_all_is_there_once(world, other)
    assert {step: max(passes) for step, passes in STEPS.items()} == {step: passed[step] for step in STEPS}


CHOSEN = (0, 2, 4, 6)  # of eight ranges, so that Dagster makes a run of each


def scattered(world: World) -> tuple[list[OffsetRange], list[DagsterRun]]:
    """Plan eight ranges and queue a run of every other one, all of one backfill."""
    world.with_policy(records_per_range=10)
    world.fill(80)
    world.tick()
    ranges = [list(world.coverage.log.ranges)[place] for place in CHOSEN]
    own = {BACKFILL_TAG: "one", TOPIC_TAG: world.name, REDO_TAG: "no"}
    return ranges, [queue_asset_run(world, offsets, offsets, tags=own) for offsets in ranges]


def status_of(world: World, run: DagsterRun) -> tuple[DagsterRunStatus, str | None]:
    now = world.run(run.run_id)
    return now.status, now.tags.get(LANDED_BY_TAG)


def landed(world: World) -> set[OffsetRange]:
    return {offsets for offsets, state in world.coverage.states().items() if state is State.LANDED}


def work_off_the_queue(world: World) -> list[str]:
    """Give each run that waits its turn, the oldest first, as the daemon would; return which had one."""
    turns: list[str] = []
    while waiting := world.instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.QUEUED])):
        turns.append(waiting[-1].run_id)
        assert work_off(turns[-1], world.topic, world.adapters, world.instance)
    return turns


@pytest.mark.parametrize(("step", "nth"), [("landed", 2), pytest.param("reported", 4, marks=pytest.mark.long)])
def test_a_run_killed_with_its_siblings_ranges_leaves_them_to_their_own_runs(world: World, step: str, nth: int) -> None:
    """[R-18] In the middle, and after all is landed and before its siblings have been told."""
    ranges, (first, *others) = scattered(world)
    with stopped_at(world, f"run {first.run_id}", step, nth):
        assert len(landed(world)) >= nth and landed(world) <= set(ranges)
        held = [entry.user_message for entry in world.instance.all_logs(first.run_id)]
        assert any("step=find" in text and "ranges=4" in text for text in held), "the fault: it holds those of all four"
        assert status_of(world, first)[0] is DagsterRunStatus.STARTED
        assert [status_of(world, run) for run in others] == [(DagsterRunStatus.QUEUED, None)] * 3
    digests = world.digests

    world.tick()
    assert status_of(world, first)[0] is DagsterRunStatus.FAILURE, "its slot is free, and its own range nobody's"
    assert work_off_the_queue(world) == [others[0].run_id], "one more session, which takes the rest with it"
    assert [status_of(world, run) for run in others] == [
        (DagsterRunStatus.SUCCESS, None),
        *[(DagsterRunStatus.CANCELED, others[0].run_id)] * 2,
    ]
    assert landed(world) >= set(ranges[1:])
    world.launch()
    world.assert_all_landed_once()
    assert not world.instance.get_runs(RunsFilter(statuses=ACTIVE))
    assert world.materialized_after_tick() == {offsets.key for offsets in world.coverage.log.ranges}
    assert digests.items() <= world.digests.items()
    world.assert_proven()
