"""A plan log that has lost its newest steps, also in the middle of work: no row is shown twice, and it is said."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline_defs.adapters.lake import frontiers
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import manifest_path
from pipeline_defs.core.errors import BrokenPlanLog
from pipeline_defs.core.landing.tiling import tiling_violations
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log import settling
from pipeline_defs.core.log.delivery import Acceptance, Delivery
from pipeline_defs.core.log.plan_step import PlanStep
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.auditing import check_tiling
from pipeline_defs.landing.landing import land
from pipeline_defs.landing.planner import Planner
from pipeline_defs.tables.deleting import sweep_orphans
from tests.support.fake_log import TOPIC
from tests.support.interleaving import Dead, SmallWorld, Writer, beside
from tests.support.redecoding import stop_at
from tests.support.strategies import EPOCH_MS

pytestmark = pytest.mark.usefixtures("watched")

KINDS = ["disk", "bucket"]


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> SmallWorld:
    """A topic with a landed step."""
    made = SmallWorld(tmp_path, request.param)
    made.land()
    return made


def lose_steps(world: SmallWorld, count: int) -> dict[str, bytes]:
    """Have the newest steps go, and return what went."""
    paths = sorted(world.lake.store.list(f"plan/{TOPIC}"))[-count:]
    lost = {path: world.lake.store.get(path) or b"" for path in paths}
    for path in paths:
        world.lake.store.delete(path)
    world.lake = world.open(Writer())
    return lost


def backup_of(world: SmallWorld, *trees: str) -> dict[str, bytes]:
    return {path: world.lake.store.get(path) or b"" for tree in trees for path in world.lake.store.list(tree)}


def put_back(world: SmallWorld, older: dict[str, bytes]) -> None:
    """Restore a backup of some trees: what is newer in them goes."""
    for tree in {path.partition("/")[0] for path in older}:
        world.lake.store.delete(tree)
    restore(world, older)


def restore(world: SmallWorld, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        world.lake.store.put_new(path, data, "staging/restore")


def everything(world: SmallWorld) -> dict[str, bytes]:
    """Read all that is in the lake but for what is staged."""
    return backup_of(world, "accepted", "claims", "data", "manifests", "plan", "retired")


def plan_from_document(world: SmallWorld, lake: Lake, records: int = 0, **options: Any) -> PlanStep | None:
    """Have records arrive, and what is there be planned by who reads from documents."""
    world.append(records)
    planner = Planner(TOPIC, world.policy, lake, cast("Any", world.kafka), lambda: EPOCH_MS, "test")
    return planner.commit(through_end=True, **options)


def land_from_document(world: SmallWorld, lake: Lake, on_step: StepWatcher = no_step, **tools: Any) -> None:
    """Have what is pending be landed by who reads from documents."""
    world.attempts += 1
    keys = [offsets.key for offsets in lake.recent(TOPIC).pending()]
    list(land(TOPIC, keys, Attempt(f"recent-{world.attempts}", "run", "test"), replace(world.tools(lake, on_step), **tools)))


def land_and_lose(tree: str, world: SmallWorld) -> None:
    world.land()
    for path in sorted(world.lake.store.list(tree))[2:]:
        world.lake.store.delete(path)


def accept_loss(world: SmallWorld) -> None:
    (offsets,) = world.coverage.pending()
    world.lake.commit_acceptance(Acceptance(TOPIC, offsets, (offsets.start, offsets.end), "somebody", 0))


EVIDENCE: dict[str, Callable[[SmallWorld], object]] = {
    "landed": SmallWorld.land,
    "files lost": partial(land_and_lose, "data"),
    "manifests lost": partial(land_and_lose, "manifests"),
    "published": partial(SmallWorld.die, at="publish", delivery=Delivery.AT_LEAST_ONCE),
    "claimed": partial(SmallWorld.die, at="scan", delivery=Delivery.AT_MOST_ONCE),
    "loss accepted": accept_loss,
}


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_a_log_that_lost_its_newest_step_is_not_planned_or_landed_on(world: SmallWorld, evidence: str) -> None:
    """[R-2] Whatever the lake has of what the step planned; nothing is written, and once it is restored all goes on."""
    world.grow(2)
    EVIDENCE[evidence](world)
    lost = lose_steps(world, 1)
    before = everything(world)
    world.append(2)
    with pytest.raises(BrokenPlanLog, match=rf"steps are lost.*restore plan/{TOPIC}"):
        world.plan()
    with pytest.raises(BrokenPlanLog, match=f"{TOPIC}/0"):
        world.land()
    assert everything(world) == before
    violation, place = check_tiling(TOPIC, world.lake).violations
    assert f"{TOPIC}/0 [6, 8)" in violation
    assert place == f"1 ranges in */{TOPIC}/g0/p0000/*, from the name {6:020d}-{8:020d} on", "what to move, where no backup is"

    restore(world, lost)
    world.plan()
    world.land()
    assert check_tiling(TOPIC, world.lake).passed or world.coverage.doubles
    assert set(world.coverage.log.ranges) > set(world.coverage.pending())


@pytest.mark.parametrize("evidence", [*EVIDENCE][:-1])
def test_who_read_the_log_before_sees_a_lost_step(settled: SmallWorld, evidence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-96] By one name, whatever the lake has of what it planned; the control is the same step, there."""
    stale = settled.open(Writer())
    log = stale.recent(TOPIC).log
    assert log.base is not None and stale.still_ends(log)
    settled.grow(2)
    EVIDENCE[evidence](settled)
    with monkeypatch.context() as costly:
        if evidence != "published":  # which takes the documents away
            costly.setattr(Lake, "coverage", lambda *_: pytest.fail("all of it is read"))
        assert not stale.still_ends(log), "another is the newest step"
    lose_steps(settled, 1)
    with pytest.raises(BrokenPlanLog, match="steps are lost"):
        stale.still_ends(log)


def test_of_two_who_begin_the_newest_step_stands(world: SmallWorld) -> None:
    """[R-96] Whichever call of the store one is overtaken at by the other."""
    world.grow(2)
    log = world.coverage.log
    first, second = log.steps
    overtaken = []
    for older, newer, number in product((first, second), (first, second), range(8)):

        def overtake(call: int, number: int = number, newer: PlanStep = newer) -> None:
            if call == number:
                world.open(Writer()).begin(log, [newer])
                overtaken.append(number)

        world.lake.store.delete(f"begun/{TOPIC}")
        before = len(overtaken)
        world.open(Writer(before=overtake)).begin(log, [older])
        newest = max(older.seq, newer.seq) if len(overtaken) > before else older.seq
        assert max(world.lake.store.list(f"begun/{TOPIC}")).startswith(f"begun/{TOPIC}/{newest:020d}.")
    assert len(overtaken) >= 8, "the control: there are that many calls"


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("kind", KINDS)
def test_no_step_is_called_lost_that_another_process_plans_meanwhile(tmp_path: Path, kind: str, delivery: Delivery) -> None:
    """[R-2] Another one plans and lands between any two calls of the store, and whoever reads or plans sees a whole log."""
    world = SmallWorld(tmp_path, kind)
    overtaken = 0
    for number in range(30):

        def overtake(call: int, number: int = number) -> None:
            nonlocal overtaken
            if call == number:
                world.lake = world.open(Writer())
                world.grow(2)
                world.land(delivery=delivery)
                overtaken += 1

        before = overtaken
        world.open(Writer(before=overtake)).coverage(TOPIC)
        if overtaken == before:
            break
    assert overtaken > 6, "the control: there are that many calls"


@pytest.fixture
def settled(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> SmallWorld:
    """A topic of which a document sums up what is landed."""
    monkeypatch.setattr(settling, "FRONTIER_EVERY", 1)
    for _ in range(2):
        world.land_more(2)
    assert world.lake.move_frontier(world.coverage, EPOCH_MS, 0)
    return world


def go_on(world: SmallWorld, rounds: int = 3) -> int:
    """Have records arrive, be planned and landed, each time by who reads from documents; return how often that was refused."""
    refused = 0
    for _ in range(rounds):
        try:
            plan_from_document(world, world.lake, 1)
            land_from_document(world, world.lake)
        except BrokenPlanLog:
            refused += 1
    return refused


def assert_refusals(world: SmallWorld, times: int = 3, lake: Lake | None = None) -> None:
    """Have nobody go on, or all: by a lake that was open before, or as it is read anew; no row is shown twice."""
    world.lake = lake or world.open(Writer())
    assert go_on(world) == times
    assert set(world.shown().values()) == {1}


def plan_and_land(world: SmallWorld, sensor: Lake) -> None:
    """Have records arrive, be planned by a process that lives on, and landed by a new one."""
    plan_from_document(world, sensor, 2)
    world.lake = world.open(Writer())
    world.land()


@pytest.mark.parametrize("budget", [1, 200], ids=["shorter", "longer"])
def test_a_backup_beside_a_log_that_was_planned_anew_is_refused(settled: SmallWorld, budget: int) -> None:
    """[R-96] A document that keeps two steps of before does not make one log of that one and these; nor does anybody else."""
    for _ in range(2):
        settled.grow(3)
    settled.lake.frontiers.forget(TOPIC)
    assert settled.lake.move_frontier(settled.coverage, EPOCH_MS, 0), "a document that keeps both"
    plan = settled.lake.store.list(f"plan/{TOPIC}")
    lost = lose_steps(settled, 2)
    settled.policy = replace(settled.policy, budget=budget)
    plan_from_document(settled, settled.lake, 1)
    assert set(settled.lake.store.list(f"plan/{TOPIC}")) < set(plan), "the fault: one step instead of two"
    restore(settled, lost)
    assert_refusals(settled)


@pytest.mark.parametrize("what", ["begun", "plan, begun and frontier"])
def test_a_lake_that_lacks_what_was_begun_is_looked_at_as_a_whole(settled: SmallWorld, what: str) -> None:
    """[R-96] Somebody has deleted it; or a backup took `manifests` and `data` later than the rest."""
    before = backup_of(settled, "plan", "begun", "frontier")
    settled.land_more(1)
    settled.lake.store.delete("begun")
    if what == "begun":
        lose_steps(settled, 1)
    else:
        put_back(settled, before)
    assert_refusals(settled)


def test_all_is_read_once_where_what_lost_steps_did_is_moved_away(settled: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-96] However many steps it takes until the log is as long as it was."""
    for _ in range(4):
        settled.land_more(2)
    lose_steps(settled, 4)
    for path in everything(settled):
        if "-" in path.rpartition("/")[2] and int(path.rpartition("/")[2].split("-")[0]) >= 10:
            settled.lake.store.delete(path)
    read: list[str] = []
    beside(monkeypatch, Lake, "coverage", lambda lake, topic: read.append(topic))
    assert settled.lake.still_ends(settled.lake.recent(TOPIC).log)
    assert read, "the fault: there is a later name"
    assert settled.lake.move_frontier(settled.lake.recent(TOPIC), EPOCH_MS + 1, 0)
    read.clear()
    for _ in range(3):
        plan_from_document(settled, settled.lake, 1)
    assert not read
    assert_refusals(settled, times=0, lake=settled.lake)


def test_what_a_lost_step_had_reopened_is_found_and_finished(settled: SmallWorld) -> None:
    """[R-96] A replace of an old range dies after its manifest, and the step that announced it is lost.

    It has deleted the documents, so that is seen at once; where a backup has them again, by the next planner.
    """
    before = backup_of(settled, "frontier")
    first = next(iter(settled.coverage.log.ranges))
    records = settled.kafka.now.partitions[0].appended
    records[:] = [replace(record, value=b"new" + (record.value or b"")) for record in records]
    settled.die("commit", "replace", only=first)
    lose_steps(settled, 1)
    assert settled.lake.recent(TOPIC).pending() == [first]
    put_back(settled, before)
    assert not settled.lake.recent(TOPIC).pending(), "the fault: nobody who reads from a document sees it"
    assert go_on(settled) == 0
    assert settled.coverage.is_landed(first) and settled.coverage.manifests[first].revision == 1


def test_a_replace_deletes_only_documents_that_sum_up_its_range(settled: SmallWorld) -> None:
    """[R-96] Else that of the newest range would have all of the history read."""
    documents = backup_of(settled, "frontier")
    first, *_ = settled.coverage.log.ranges
    settled.land_more(2)
    *_, last = settled.coverage.log.ranges
    settled.land("replace", only=last)
    assert documents and backup_of(settled, "frontier") == documents
    settled.land("replace", only=first)
    assert backup_of(settled, "frontier") == {}


def test_a_log_gone_before_a_replace_is_announced_ends_that_topic(settled: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-2] It is one clear error of the topic."""
    lake = settled.open(Writer())

    def lose(*_: object) -> None:
        for tree in ("plan", "manifests", "data", "frontier"):
            lake.store.delete(f"{tree}/{TOPIC}")

    beside(monkeypatch, lake, "recent", lose)
    with pytest.raises(BrokenPlanLog, match="is gone since its ranges were read"):
        settled.land("replace", lake=lake)


@pytest.mark.parametrize("is_old", [True, False])
def test_a_lost_steps_name_goes_once_no_run_has_it(settled: SmallWorld, monkeypatch: pytest.MonkeyPatch, is_old: bool) -> None:
    """[R-96] Else each run would read all of the history for good, and each planner delete the documents."""
    sensor = settled.open(Writer())
    plan_from_document(settled, sensor, 2)
    log = sensor.recent(TOPIC).log
    sensor.begin(log, log.steps[-1:])
    lost = sensor.store.list(f"begun/{TOPIC}")
    lose_steps(settled, 1)
    monkeypatch.setattr(frontiers, "LONGEST_RUN_SECONDS", -3600.0 if is_old else 3600.0)
    settled.append(1)  # of which another step comes in its place
    for _ in range(2):
        plan_and_land(settled, settled.open(Writer()))
    left = settled.lake.store.list(f"begun/{TOPIC}")
    assert set(lost) <= set(left) if not is_old else not set(lost) & set(left)
    assert len(left) == (1 if is_old else 2) and set(settled.shown().values()) == {1}


@pytest.mark.parametrize("is_deleted", [False, True], ids=["nobody's", "deleted"])
def test_steps_that_are_lost_next_are_found_whatever_became_of_the_name_before(settled: SmallWorld, is_deleted: bool) -> None:
    """[R-96] One that somebody deleted is put back for all that is landed, not only for what a document sums up.

    One that is nobody's, of a number that is far ahead, was left when what lost steps did was moved away, say: it keeps
    nobody from planning, as what is no step's name does not.
    """
    sensor = settled.open(Writer())
    if not is_deleted:
        for name in ("z", f"{50:020d}.{'0' * 16}"):
            settled.lake.store.put_new(f"begun/{TOPIC}/{name}", b"", "staging/x")
        assert sensor.still_ends(sensor.recent(TOPIC).log)
    for _ in range(3):
        plan_and_land(settled, sensor)
    if is_deleted:
        settled.lake.store.delete(f"begun/{TOPIC}")
        plan_from_document(settled, sensor, 1)
        lose_steps(settled, 1)
    else:
        assert settled.lake.move_frontier(settled.lake.recent(TOPIC), EPOCH_MS, 0)
    lose_steps(settled, 1)
    with pytest.raises(BrokenPlanLog, match="steps are lost"):
        plan_from_document(settled, sensor, 1)


@pytest.mark.parametrize("is_off", [False, True])
@pytest.mark.parametrize("trees", [["plan", "begun"], ["plan", "begun", "frontier"]], ids="+".join)
def test_a_process_that_lives_on_finds_that_an_older_backup_was_restored(
    settled: SmallWorld, monkeypatch: pytest.MonkeyPatch, trees: list[str], is_off: bool
) -> None:
    """[R-2] It has looked once whether the log is behind what was landed; what it saw of the log since is gone.

    Or its sensor is off while others land by command, so that the backup is of just what it saw last, long ago.
    """
    daemon = settled.open(Writer())
    plan_and_land(settled, daemon)
    daemon.recent(TOPIC)
    older = backup_of(settled, *trees)
    for _ in range(2 if is_off else 1):
        plan_and_land(settled, settled.open(Writer()) if is_off else daemon)
    put_back(settled, older)
    if is_off:
        monkeypatch.setattr("pipeline_defs.adapters.lake.lake.SEEN_SECONDS", -1.0)
    assert_refusals(settled, lake=daemon)


@pytest.mark.parametrize("newer", ["data", "accepted"])
def test_a_backup_of_which_one_tree_is_newer_is_refused(settled: SmallWorld, newer: str) -> None:
    """[R-2] A published file, or an acceptance, is of a range that was planned."""
    older = backup_of(settled, *({"plan", "begun", "frontier", "manifests", "claims", "accepted"} - {newer}))
    plan_from_document(settled, settled.lake, 2)
    log = settled.lake.recent(TOPIC).log
    (offsets,) = settled.lake.recent(TOPIC).pending()
    if newer == "data":
        settled.land()
    else:
        settled.lake.begin(log, [log.ranges[offsets]])
        settled.lake.commit_acceptance(Acceptance(TOPIC, offsets, (offsets.start, offsets.end), "somebody", EPOCH_MS))
    put_back(settled, older)
    assert_refusals(settled)


def test_a_file_without_a_name_is_found_though_a_tick_sums_up_beside_its_run(settled: SmallWorld) -> None:
    """[R-96] A code location that knows the topic as effectively_once still, beside a run at_least_once that dies."""
    settled.grow(2)
    tick = settled.open(Writer())
    document = settling.sum_up(tick.recent(TOPIC), EPOCH_MS + 1, 0)
    assert document is not None

    def die(step: str, **_: object) -> None:
        if step == "scan":
            tick.frontiers.put(document)  # which it has made before the run took them away
        if step == "publish":
            raise Dead

    with pytest.raises(Dead):
        land_from_document(settled, settled.open(Writer()), die, delivery=Delivery.AT_LEAST_ONCE)
    assert_refusals(settled, times=0)


@pytest.mark.parametrize("others", ["plan", "sum up", "land on"])
def test_a_run_whose_log_was_lost_says_so_whatever_others_do_meanwhile(settled: SmallWorld, others: str) -> None:
    """[R-2] In the window that stays open: no document of the steps in its place hides it from the run, or who starts then.

    A process that had looked at all before the lost step's manifest came is told by the hourly comparison.
    """
    settled.grow(1)
    sensor, mine = settled.open(Writer()), settled.open(Writer())
    assert sensor.still_ends(sensor.recent(TOPIC).log)

    def lose() -> None:
        lose_steps(settled, 1)
        for _ in range(1 + (others == "land on")):
            plan_from_document(settled, sensor, 2)
            if others == "land on":
                land_from_document(settled, settled.open(Writer()))
        if others != "plan":
            assert sensor.move_frontier(sensor.recent(TOPIC), EPOCH_MS + 1, 0), "the fault"

    with pytest.raises(BrokenPlanLog, match="steps are lost"):
        land_from_document(settled, mine, stop_at("verify", lose))
    settled.lake = settled.open(Writer())
    assert go_on(settled) == 3
    assert others == "land on" or set(settled.shown().values()) == {1}


def test_no_document_is_written_where_there_is_to_be_none(settled: SmallWorld) -> None:
    """[R-96] Nor after one that was forgotten since it was read; the control goes on from one that is there."""
    lake = settled.lake
    plan_and_land(settled, lake)
    lake = settled.lake
    old = lake.recent(TOPIC)
    assert old.log.base is not None
    assert lake.move_frontier(old, EPOCH_MS + 1, 0), "the control"
    lake.frontiers.forget(TOPIC)
    assert not lake.move_frontier(old, EPOCH_MS + 2, 0)
    assert lake.move_frontier(lake.recent(TOPIC), EPOCH_MS + 3, 0), "one of the whole history"
    lake.frontiers.forget(TOPIC, for_good=True)
    for number in range(3):
        assert not lake.move_frontier(lake.recent(TOPIC), EPOCH_MS + 4 + number, 0)
    assert [path.rpartition("/")[2] for path in lake.store.list(f"frontier/{TOPIC}")] == ["none"]


@pytest.fixture(params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> SmallWorld:
    """A topic of one landed range."""
    made = SmallWorld(tmp_path, request.param, records=6, grid=6)
    made.land()
    return made


def test_a_manifest_that_was_landed_anew_is_seen_by_who_has_read_the_one_before(whole: SmallWorld) -> None:
    """[R-16] Dagster's code server lists now and then; the other one may be as large, or not."""
    server = whole.open(Writer())
    assert server.coverage(TOPIC).pending() == []
    (before,) = whole.coverage.manifests.values()
    whole.kafka.compact(100)
    whole.lake = whole.open(Writer())
    whole.lake.store.delete(manifest_path(TOPIC, before.offsets, 0))
    whole.land("replace")
    (now,) = whole.coverage.manifests.values()
    assert now != before, "the control: it is another one"
    assert list(server.coverage(TOPIC).manifests.values()) == [now]
    assert server.coverage(TOPIC).pending() == [] and tiling_violations(server.coverage(TOPIC)) == []


@pytest.mark.parametrize("gap", ["between ticks", "inside a tick"])
def test_a_planner_that_goes_on_sees_a_step_that_was_planned_anew(whole: SmallWorld, gap: str) -> None:
    """[R-10] The other step has as many bytes; what is written next tiles with it."""
    whole.grow(2)
    server = whole.open(Writer())
    known = server.coverage(TOPIC)
    lose_steps(whole, 1)
    whole.grow(1)
    step = plan_from_document(whole, server, 2, **({"known": known} if gap == "inside a tick" else {}))
    assert step is not None and [offsets.key for offsets in step.ranges] == ["0-9-11"]
    assert [offsets.key for offsets in whole.open(Writer()).coverage(TOPIC).log.ranges] == ["0-0-6", "0-6-9", "0-9-11"]


def test_a_step_gone_while_kafka_is_asked_leaves_no_gap_in_the_log(whole: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-10] Nothing was landed of it: what it planned is planned again."""
    whole.grow(2)
    asked: list[object] = []

    def lose_once(*given: object) -> None:
        asked.append(given)
        if len(asked) == 1:
            lose_steps(whole, 1)

    beside(monkeypatch, whole.kafka, "read_topic_state", lose_once)
    plan_from_document(whole, whole.open(Writer()), 3)
    assert len(asked) > 1, "the control: the step had gone, and planning began again"
    whole.lake = whole.open(Writer())
    whole.land()
    assert whole.shown() == dict.fromkeys(range(11), 1)


def losing(world: SmallWorld, at: str) -> StepWatcher:
    """Have the newest step go when a run has passed a step, and what it planned be planned otherwise and landed."""

    def lose() -> None:
        lose_steps(world, 1)
        world.land_more(3)

    return stop_at(at, lose)


OVERTAKEN = [*product([Delivery.EFFECTIVELY_ONCE, Delivery.AT_LEAST_ONCE], ["find", "scan", "stage"])]


@pytest.mark.parametrize(("delivery", "at"), [*OVERTAKEN, (Delivery.AT_MOST_ONCE, "find")])
def test_no_range_is_committed_or_claimed_whose_step_was_planned_anew(whole: SmallWorld, delivery: Delivery, at: str) -> None:
    """[R-2] It read the log before; the range fails, no row is shown twice, and the log is whole."""
    whole.delivery = delivery
    whole.grow(2)
    (verdict,) = whole.land(on_step=losing(whole, at))
    assert verdict.offsets.key == "0-6-8" and verdict.outcome is Outcome.FAILED
    assert "which is gone or another one by now" in verdict.violations[0]
    assert whole.shown() == dict.fromkeys(range(11), 1)
    assert [offsets.key for offsets in whole.open(Writer()).coverage(TOPIC).log.ranges] == ["0-0-6", "0-6-11"]


def test_once_a_range_is_claimed_its_lost_step_is_missed(whole: SmallWorld) -> None:
    """[R-2] The control: the lake shows that a step is lost, and nobody plans."""
    whole.delivery = Delivery.AT_MOST_ONCE
    whole.grow(2)
    with pytest.raises(BrokenPlanLog):
        whole.land(on_step=losing(whole, "claim"))
    assert whole.shown() == dict.fromkeys(range(6), 1)


def test_a_run_lands_what_an_earlier_step_planned_whatever_became_of_the_newest(whole: SmallWorld) -> None:
    """[R-2] Only the ranges of the step that is gone are refused."""
    whole.grow(2)
    whole.grow(2)
    verdicts = whole.land(on_step=stop_at("stage", lambda: lose_steps(whole, 1)))
    outcomes = {verdict.offsets.key: verdict.outcome for verdict in verdicts}
    assert outcomes == {"0-6-8": Outcome.LANDED, "0-8-10": Outcome.FAILED}
    whole.lake = whole.open(Writer())
    whole.plan()
    whole.land()
    assert whole.shown() == dict.fromkeys(range(10), 1)


def test_a_scan_looks_at_the_log_once(whole: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-2] A scan costs one look at the log, however many steps its ranges are of, and so does the end of a run."""
    for _ in range(4):
        whole.grow(2)
    asked: list[str] = []
    lake = whole.open(Writer())
    coverage = lake.coverage(TOPIC)
    beside(monkeypatch, lake.store, "get", asked.append)
    assert {verdict.outcome for verdict in whole.land(lake=lake)} == {Outcome.LANDED}
    newest = f"plan/{TOPIC}/{coverage.log.steps[-1].seq:020d}.json"
    assert [path for path in asked if path.startswith("plan/")] == [newest, newest]


@pytest.mark.parametrize("tree", ["plan", "manifests", "claims", "accepted", "data", "decodings"])
def test_what_file_managers_hide_is_passed_over_in_every_folder(tmp_path: Path, tree: str) -> None:
    """[R-46] One rule for all; a Parquet file that a glob may show is named whatever it is called."""
    world = SmallWorld(tmp_path, "disk")
    world.die("stage")
    for topic in (TOPIC, "gone"):
        (tmp_path / tree / topic / "empty").mkdir(parents=True)
        for hidden in (".DS_Store", "._00000000000000000000.json", ".00000000000000000000.json.swp", ".nfs01"):
            (tmp_path / tree / topic / hidden).write_bytes(b"\0\0\0\1Bud1")
    world.lake = world.open(Writer())
    assert len(world.coverage.pending()) == 2 and tiling_violations(world.coverage) == []
    assert len(sweep_orphans(world.lake, 2**53, 0)) == 1, "a topic's folder does not stop the sweep of the whole lake"
    (tmp_path / "data" / TOPIC).mkdir(parents=True, exist_ok=True)
    (tmp_path / "data" / TOPIC / "._x.parquet").write_bytes(b"")
    assert "._x.parquet" in tiling_violations(world.open(Writer()).coverage(TOPIC))[0]
