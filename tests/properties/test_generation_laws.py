"""Where a topic begins, and begins again; and while brokers lag, leaders change and transactions are open, no other."""

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import OtherCluster, Refused, StaleAnswer
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.plan_step import Head, LinkKind, LogState, PlanStep, Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import plan
from pipeline_defs.core.log.topic_state import PartitionState, TopicState
from tests.support.strategies import EPOCH_MS, TOPIC, Script, World, decide, lists_of, open_log, scripts


@pytest.mark.parametrize(
    ("start", "start_offset", "skipped", "ranges"),
    [
        pytest.param("earliest", None, [], [(5, 10), (10, 12)], id="earliest"),
        pytest.param("latest", 12, [(5, 12)], [], id="latest"),
        pytest.param(EPOCH_MS, 9, [(5, 9)], [(9, 10), (10, 12)], id="timestamp"),
        pytest.param(EPOCH_MS, 2, [], [(5, 10), (10, 12)], id="timestamp before retention"),
        pytest.param(EPOCH_MS, 99, [(5, 12)], [], id="timestamp after the end"),
    ],
)
def test_start_applies_to_the_first_link_and_says_what_it_skips(
    start: str | int, start_offset: int | None, skipped: list[tuple[int, int]], ranges: list[tuple[int, int]]
) -> None:
    """[R-8] As Kafka's `auto.offset.reset`, but written down."""
    state = TopicState(TOPIC, "id-0", {3: PartitionState(Watermarks(5, 12), None, start_offset)})
    step = decide(LogState(), state, Policy(records_per_range=10, start=start), EPOCH_MS)
    found = [(link.offsets.start, link.offsets.end) for link in step.links if link.kind is LinkKind.SKIPPED]
    assert found == skipped
    assert [(o.start, o.end) for o in step.ranges] == ranges
    assert step.heads[3].offset == 12
    PlanLog(TOPIC, (step,))


def test_start_none_refuses_a_topic_without_a_plan_log_and_nothing_else() -> None:
    """[R-8] A lake that was lost is not begun again by mistake."""
    world, policy = World(), Policy(start="none", max_age_seconds=0)
    world.grow(0, 3)
    with pytest.raises(Refused, match=f"topic {TOPIC} has no plan log and its policy says start: none"):
        plan(LogState(), world.observe(LogState()), policy, world.now_ms)
    log_state = open_log(world, replace(policy, start="earliest"))
    world.grow(0, 1)
    assert plan(log_state, world.observe(log_state), policy, world.now_ms) is not None


@dataclass
class Log:
    """One Kafka partition whose leaders change: its records, each with the epoch of who took it; a transaction holds some."""

    records: list[tuple[int, int]] = field(default_factory=list)  # epoch, and which record it is
    earliest: int = 0
    held: int = 0
    epoch: int = 0
    sent: int = 0

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def state(self) -> PartitionState:
        marks = Watermarks(self.earliest, max(self.earliest, self.end - self.held))
        return PartitionState(marks, high_watermark=self.end, leader_epoch=self.epoch, oldest_ms=EPOCH_MS)

    def grow(self, count: int) -> None:
        self.records += [(self.epoch, self.sent + n) for n in range(count)]
        self.sent += count

    def elect(self, lost: int) -> None:
        """Have another lead, who lacks the newest records: none of them where the election was clean."""
        self.epoch += 1
        del self.records[max(0, self.end - lost) :]
        self.earliest = min(self.earliest, self.end)

    def epoch_end(self, known: int | None) -> int | None:
        """Return KIP-320's end of an epoch that is over: where the first record of a later one is, or the end."""
        if known is None or known >= self.epoch:
            return None
        return next((at for at, (epoch, _) in enumerate(self.records) if epoch > known), self.end)


@given(st.lists(st.tuples(st.sampled_from(["grow", "elect", "tick"]), st.integers(0, 9)), max_size=30))
@example([("grow", 9), ("tick", 0), ("elect", 3), ("grow", 6), ("tick", 0)])
@example([("grow", 9), ("tick", 0), ("elect", 1), ("grow", 6), ("tick", 0)])
def test_within_a_generation_a_planned_offset_never_means_another_record(events: list[tuple[str, int]]) -> None:
    """[R-9] Though a log that was cut off has grown beyond the head by the next tick; and nothing else opens a generation."""
    log, log_state, policy = Log(), LogState(), Policy(records_per_range=4, max_age_seconds=0)
    planned: dict[tuple[int, int], tuple[int, int]] = {}
    cut_below_head = 0
    for event, number in [*events, ("tick", 0)]:
        if event != "tick":
            getattr(log, event)(number)
            continue
        changed = any(log.records[at : at + 1] != [record] for (g, at), record in planned.items() if g == log_state.generation)
        seen = replace(log.state, epoch_end=log.epoch_end(log_state.heads[0].leader_epoch if log_state.heads else None))
        step = plan(log_state, TopicState(TOPIC, "id-0", {0: seen}), policy, EPOCH_MS, through_end=True)
        assert step is not None or not changed
        if step is not None:
            assert (step.generation > log_state.generation) == changed
            cut_below_head += changed
            log_state = step.after(log_state)
            for offsets in step.ranges:
                planned |= {(step.generation, at): log.records[at] for at in range(offsets.start, offsets.end)}
    assert log_state.generation == cut_below_head


def test_a_broker_that_stops_giving_ids_does_not_open_a_generation() -> None:
    """Control: an id that is not told is not another id."""
    world, policy = World(), Policy(max_age_seconds=0)
    world.grow(0, 3)
    log_state = open_log(world, policy)
    world.has_ids = False
    assert plan(log_state, world.observe(log_state), policy, world.now_ms) is None


@given(scripts())
def test_a_generation_opens_exactly_for_another_id_or_an_end_below_the_head(script: Script) -> None:
    """[R-9] Without ids, only for that end; generations grow by one; a partition that disappears from sight keeps its head."""
    for tick in script.play():
        heads = tick.before.heads
        ids = {tick.before.topic_id, tick.state.topic_id}
        another = tick.before.seq > 0 and len(ids - {None}) == 2
        below = any(p in heads and s.watermarks.end < heads[p].offset for p, s in tick.state.partitions.items())
        assert tick.after.generation == tick.before.generation + (another or below)
        if not (another or below):
            assert heads.keys() <= tick.after.heads.keys()


@given(lists_of(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 12)), 2, 12), st.sampled_from([0, 100, None]))
@example([(0, False, 5), (1, False, 5), (0, False, 1), (1, True, 1), (0, False, 3), (0, True, 3)], 100)
@example([(0, False, 5), (1, True, 8)], None)
def test_a_topic_changes_cluster_only_where_defs_yaml_names_it(looks: list[tuple[int, bool, int]], apart: int | None) -> None:
    """[R-9] Nothing is planned of another cluster's topic of the same name; where it moved, and back, a generation begins.

    Whether its topic ids differ, are the same, or are not told.
    """
    clusters = [World(incarnation=(apart or 0) * number, has_ids=apart is not None) for number in range(3)]
    for each in clusters:
        each.grow(0, 3)
        each.expire(0, 100)
    log_state, steps, homes = LogState(), list[PlanStep](), list[int]()
    for number, is_named, records in looks:
        clusters[number].grow(0, records)
        state = replace(clusters[number].observe(log_state), cluster_id=f"cluster-{number}")
        policy = Policy(records_per_range=4, max_age_seconds=0, cluster_id=f"cluster-{number}" if is_named else None)
        if homes and homes[-1] != number and not is_named:
            with pytest.raises(OtherCluster, match=f"cluster cluster-{homes[-1]}, and .* leads to cluster cluster-{number};"):
                plan(log_state, state, policy, EPOCH_MS)
            continue
        homes += [number] if homes[-1:] != [number] else []
        step = plan(log_state, state, policy, EPOCH_MS)
        steps += [PlanStep.from_json(step.to_json(), "it")] if step else []
        log_state = step.after(log_state) if step else log_state
        assert (log_state.generation, log_state.cluster_id) == (len(homes) - 1, f"cluster-{number}")
        assert log_state.heads[0].offset == len(clusters[number].partitions[0].records)
    PlanLog(TOPIC, tuple(steps))  # whose laws hold


CUT_NOW = Policy(records_per_range=10, max_age_seconds=0)


def shown(end: int, *, epoch: int | None = 0, topic_id: str | None = "id-0", cluster_id: str | None = None) -> TopicState:
    """Return what a broker shows of a topic of one Kafka partition."""
    return TopicState(TOPIC, topic_id, {0: PartitionState(Watermarks(0, end), leader_epoch=epoch)}, cluster_id=cluster_id)


def test_back_in_a_cluster_an_id_that_was_not_its_last_is_refused() -> None:
    """[R-9] A broker that lags shows the topic that was deleted there before: taken for it, the one of now would be refused."""
    log_state = LogState()
    for topic_id, cluster in (("a-0", "A"), ("a-1", "A"), ("b-0", "B")):
        moved = replace(CUT_NOW, cluster_id=cluster)
        log_state = decide(log_state, shown(3, topic_id=topic_id, cluster_id=cluster), moved, EPOCH_MS).after(log_state)
    back = replace(CUT_NOW, cluster_id="A")
    with pytest.raises(StaleAnswer, match="id a-0, which is that of an earlier generation, expected b-0"):
        plan(log_state, shown(3, topic_id="a-0", cluster_id="A"), back, EPOCH_MS)
    for topic_id in ("a-1", "a-2", "b-0"):  # it was its last; it was created again meanwhile; the other cluster is a copy
        step = decide(log_state, shown(3, topic_id=topic_id, cluster_id="A"), back, EPOCH_MS)
        assert (step.generation, step.topic_id) == (3, topic_id)
        with pytest.raises(StaleAnswer):
            plan(step.after(log_state), shown(3, topic_id="a-0", cluster_id="A"), back, EPOCH_MS)


def test_a_cluster_that_was_restored_from_a_backup_is_planned_anew_once_a_person_says_so() -> None:
    """[R-9] Its epochs went back with it, as those of a broker that is cut off seem to: it is refused, and says what to type.

    All that it has is of the next generation; after that it is planned as ever, and its old leaders are refused.
    """
    first = decide(LogState(), shown(20, epoch=6), CUT_NOW, EPOCH_MS)
    restored = shown(30, epoch=2)
    with pytest.raises(StaleAnswer, match=rf"epoch is 2, expected 6 .* restart no broker .*plan {TOPIC} --restored --apply"):
        plan(first.after(LogState()), restored, CUT_NOW, EPOCH_MS)
    step = decide(first.after(LogState()), replace(restored, is_restored=True), CUT_NOW, EPOCH_MS)
    assert [(each.generation, each.start, each.end) for each in step.ranges] == [(1, 0, 10), (1, 10, 20), (1, 20, 30)]
    log_state = step.after(first.after(LogState()))
    PlanLog(TOPIC, (first, step))
    assert plan(log_state, restored, CUT_NOW, EPOCH_MS) is None, "the control: nothing flaps"
    assert decide(log_state, shown(31, epoch=2), CUT_NOW, EPOCH_MS).generation == 1
    with pytest.raises(StaleAnswer):
        plan(log_state, shown(31, epoch=1), CUT_NOW, EPOCH_MS)


def test_a_partition_that_appeared_later_is_not_read_of_a_leader_that_was_replaced() -> None:
    """[R-9] Nothing of it is planned yet."""
    both = replace(shown(20, epoch=3), partitions={p: shown(0, epoch=5).partitions[0] for p in (0, 1)})
    before = LogState(1, 0, "id-0", {0: Head(0, EPOCH_MS, 5)})
    step = decide(before, both, CUT_NOW, EPOCH_MS)
    late = replace(both, partitions={**both.partitions, 1: shown(10, epoch=3).partitions[0]})
    with pytest.raises(StaleAnswer, match=f"no longer leads {TOPIC}/1 .* leader epoch is 3, expected 5 or later"):
        plan(step.after(before), late, CUT_NOW, EPOCH_MS)


def test_an_idle_partition_of_brokers_that_were_upgraded_is_not_cut_off_by_a_leader_that_was_replaced() -> None:
    """[R-9] The step that takes the topic's id takes the epochs of its leaders: those of before are of nobody knows whom."""
    for known in (None, 9):
        old = LogState(1, 0, None, {0: Head(20, EPOCH_MS, known)})
        step = decide(old, shown(20, epoch=5), CUT_NOW, EPOCH_MS)
        assert (step.generation, step.topic_id) == (0, "id-0")
        with pytest.raises(StaleAnswer, match="its leader epoch is 3, expected 5 or later"):
            plan(step.after(old), shown(10, epoch=3), CUT_NOW, EPOCH_MS)
        assert plan(step.after(old), shown(20, epoch=5), CUT_NOW, EPOCH_MS) is None, "the control: the leader of now is heard"


@dataclass
class Cluster:
    """Topic whose brokers may answer with what was true before; `truncations` counts what really was cut off, by id."""

    start: str | int = "earliest"
    incarnation: int = 0
    logs: list[Log] = field(default_factory=lambda: [Log(), Log()])
    truncations: Counter[str] = field(default_factory=Counter)

    @property
    def state(self) -> TopicState:
        found = {p: replace(log.state, start_offset=self._start_offset(log)) for p, log in enumerate(self.logs)}
        return TopicState(TOPIC, f"id-{self.incarnation}", found)

    def _start_offset(self, log: Log) -> int | None:
        """Resolve the policy's `start`, for which the timestamp of each record is its offset."""
        end = log.state.watermarks.end
        return None if self.start == "earliest" else end if self.start == "latest" else min(int(self.start), end)

    def grow(self, partition: int, count: int) -> None:
        self.logs[partition].grow(count)

    def hold(self, partition: int, count: int) -> None:
        """Have a transaction be open over the last records, or end."""
        self.logs[partition].held = count

    def expire(self, partition: int, count: int) -> None:
        log = self.logs[partition]
        log.earliest = min(log.earliest + count, log.end)

    def elect(self, partition: int, lost: int) -> None:
        """Have another replica lead, which lacks the last records where the election was unclean."""
        self.truncations[f"id-{self.incarnation}"] += bool(min(lost, self.logs[partition].end))
        self.logs[partition].elect(lost)

    def recreate(self, partition: int, count: int) -> None:
        self.incarnation += 1
        self.logs = [Log(), Log()]
        self.grow(0, count)


def _event(name: str, counts: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[str, int, int]]:
    return st.tuples(st.just(name), st.integers(0, 1), counts)


LOG_EVENTS = st.one_of(
    _event("grow", st.integers(1, 30)),
    _event("grow", st.integers(1, 30)),
    _event("hold", st.integers(0, 20)),
    _event("expire", st.integers(0, 10)),
    _event("elect", st.sampled_from([0, 0, 5, 20])),
)
EVENTS = LOG_EVENTS | _event("recreate", st.integers(0, 30))
# which answer a tick gets: that of now, or one of before, of all partitions or of one
LAGS = st.lists(st.none() | st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=3)


def lagging(history: list[TopicState], back: int, *, whole: bool) -> TopicState:
    """Return an answer by whom led `back` events ago and has heard of nothing since it was replaced.

    A leader's own answers never go back: each is the last that it could give.
    """
    now, then = history[-1], history[max(0, len(history) - 1 - back)]
    of_then = [state for state in history if state.topic_id == then.topic_id]
    if then.topic_id != now.topic_id:
        return of_then[-1]
    told = dict(now.partitions)
    for partition, state in then.partitions.items():
        if whole or partition == back % 2:
            same = [s for s in of_then if s.partitions[partition].leader_epoch == state.leader_epoch]
            told[partition] = same[-1].partitions[partition]
    return replace(now, partitions=told)


def told(*events: tuple[str, int, int]) -> list[tuple[Any, Any]]:
    """Return events after each of which a tick hears what is true."""
    return [(event, [None]) for event in events]


@given(
    st.sampled_from(["earliest", "latest"]) | st.integers(0, 30),
    st.lists(LOG_EVENTS, max_size=6),
    lists_of(st.tuples(EVENTS, LAGS), 1, 20),
)
@example("latest", [("grow", 1, 2), ("elect", 1, 0)], [(("grow", 1, 1), [None, (2, True)])])
@example(3, [("grow", 1, 2), ("elect", 1, 0)], [(("grow", 1, 1), [None, (2, True)])])
@example("earliest", [("grow", 1, 2), ("elect", 1, 0), ("grow", 1, 3), ("expire", 1, 5)], [(("grow", 0, 1), [None, (4, True)])])
@example("earliest", [], [*told(("grow", 1, 5), ("elect", 1, 0)), (("grow", 1, 3), [None, (2, True)])])
@example("earliest", [], told(("grow", 1, 20), ("hold", 1, 1), ("elect", 1, 5)))  # a transaction hides no truncation
@example(  # one partition idle and all of it expired, while another is cut off
    "earliest",
    [],
    [
        *told(("grow", 0, 5), ("elect", 0, 0), ("grow", 0, 3), ("expire", 0, 10), ("grow", 1, 5)),
        (("elect", 1, 5), [None, (5, True)]),
    ],
)
def test_whatever_brokers_that_lag_say_a_generation_is_of_a_topic_or_a_truncation_that_was(
    start: str | int, before: list[Any], script: list[tuple[Any, Any]]
) -> None:
    """[R-9] Generations never flap, each id opens one and then only what was really cut off; planning always goes on.

    `before` happens to the topic before it is planned for the first time; who led it then may answer too, and knows less than
    where an idle partition begins. But nobody answers with an id that was gone by then, which is not known to be old.
    """
    cluster, log_state, policy = Cluster(start), LogState(), replace(CUT_NOW, start=start)
    history: list[TopicState] = []
    steps: list[PlanStep] = []
    for (name, *arguments), lags in [*((event, None) for event in before), *script]:
        getattr(cluster, name)(*arguments)
        history.append(cluster.state)
        if lags is None:
            continue
        first = history[len(before)]
        known = [state for number, state in enumerate(history) if number >= len(before) or state.topic_id == first.topic_id]
        for lag in (*lags, None):
            answer = history[-1] if lag is None else lagging(known, lag[0], whole=lag[1])
            try:
                step = plan(log_state, answer, policy, EPOCH_MS, through_end=True)
            except StaleAnswer:
                assert answer != history[-1], "what is true now is never refused"
                continue
            if step is not None:
                steps.append(step)
                log_state = step.after(log_state)
    log = PlanLog(TOPIC, tuple(steps))
    ids = [log.steps[0].topic_id, *(b.topic_id for a, b in pairwise(steps) if b.generation > a.generation)]
    order = [int(str(each).removeprefix("id-")) for each in ids]
    assert order == sorted(order), "an id that was left does not come back"
    for topic_id, count in Counter(ids).items():
        assert count <= 1 + cluster.truncations[str(topic_id)]
    assert log_state.topic_id == cluster.state.topic_id
    assert all(log_state.heads[p].offset <= log.end for p, log in enumerate(cluster.logs)), "what was cut off is not planned"
    known_lost = sum(len(link.offsets) for link in log.links if link.kind is LinkKind.LOST)
    events = [*before, *(event for event, _ in script)]
    assert known_lost == 0 or any(event[0] == "expire" for event in events), "a loss that never happened"
