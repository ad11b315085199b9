"""Where a topic begins, and begins again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import OtherCluster, Refused
from pipeline_defs.core.log.plan_step import LinkKind, LogState, PlanStep, Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import PartitionState, Policy, TopicState, plan
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import EPOCH_MS, TOPIC, Script, World, decide, lists_of, open_log, scripts

# ---- 6: the beginning


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


def test_start_applies_once() -> None:
    """[R-8] A partition that appears later starts at its first offset, whatever `start` says."""
    world, policy = World(), Policy(records_per_range=10, start="latest", max_age_seconds=0)
    world.grow(0, 10)
    first = decide(LogState(), world.observe(LogState(), {0: 10}), policy, world.now_ms)
    world.add_partition(8, expired=3)
    world.grow(0, 4)
    log_state = first.after(LogState())
    second = decide(log_state, world.observe(log_state, {0: 14, 1: 8}), policy, world.now_ms)
    assert set(second.ranges) == {OffsetRange(0, 1, 3, 8), OffsetRange(0, 0, 10, 14)}
    assert [link.offsets for link in second.links if link.kind is LinkKind.LOST] == [OffsetRange(0, 1, 0, 3)]
    PlanLog(TOPIC, (first, second))


def test_start_none_refuses_a_topic_without_a_plan_log_and_nothing_else() -> None:
    """[R-8] A lake that was lost is not begun again by mistake."""
    world, policy = World(), Policy(start="none", max_age_seconds=0)
    world.grow(0, 3)
    with pytest.raises(Refused, match=f"topic {TOPIC} has no plan log and its policy says start: none"):
        plan(LogState(), world.observe(LogState()), policy, world.now_ms)
    log_state = open_log(world, replace(policy, start="earliest"))
    world.grow(0, 1)
    assert plan(log_state, world.observe(log_state), policy, world.now_ms) is not None


# ---- 7: generations


@dataclass
class Elected:
    """One Kafka partition whose leaders change: the records of the log of now, each with the epoch of who took it."""

    records: list[tuple[int, int]] = field(default_factory=list)  # epoch, and which record it is
    epoch: int = 0
    sent: int = 0

    def append(self, count: int) -> None:
        self.records += [(self.epoch, self.sent + n) for n in range(count)]
        self.sent += count

    def elect(self, lost: int) -> None:
        """Have another lead, who lacks the newest records: none of them where the election was clean."""
        self.epoch += 1
        del self.records[len(self.records) - lost :]

    def observe(self, log_state: LogState) -> TopicState:
        """Show what a broker does: KIP-320's end of an epoch is where the first record of a later one is, or the end."""
        head = log_state.heads.get(0)
        end = None
        if head is not None and head.leader_epoch is not None and head.leader_epoch < self.epoch:
            later = (at for at, (epoch, _) in enumerate(self.records) if epoch > head.leader_epoch)
            end = next(later, len(self.records))
        marks = Watermarks(0, len(self.records))
        return TopicState(TOPIC, "id-0", {0: PartitionState(marks, None, leader_epoch=self.epoch, epoch_end=end)})


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 9)),
            st.tuples(st.just("elect"), st.integers(0, 9)),
            st.just(("tick", 0)),
        ),
        max_size=30,
    )
)
@example([("append", 9), ("tick", 0), ("elect", 3), ("append", 6), ("tick", 0)])
@example([("append", 9), ("tick", 0), ("elect", 1), ("append", 6), ("tick", 0)])
def test_within_a_generation_a_planned_offset_never_means_another_record(events: list[tuple[str, int]]) -> None:
    """[R-9] Though a log that was cut off has grown beyond the head by the next tick; and nothing else opens a generation."""
    log, log_state, policy = Elected(), LogState(), Policy(records_per_range=4, max_age_seconds=0)
    planned: dict[tuple[int, int], tuple[int, int]] = {}
    cut_below_head = 0
    for event, number in [*events, ("tick", 0)]:
        if event == "append":
            log.append(number)
        elif event == "elect":
            log.elect(min(number, len(log.records)))
        else:
            changed = any(
                log.records[at : at + 1] != [record] for (g, at), record in planned.items() if g == log_state.generation
            )
            step = plan(log_state, log.observe(log_state), policy, EPOCH_MS, through_end=True)
            assert step is not None or not changed
            if step is not None:
                assert (step.generation > log_state.generation) == changed
                cut_below_head += changed
                log_state = step.after(log_state)
                for offsets in step.ranges:
                    planned |= {(step.generation, at): log.records[at] for at in range(offsets.start, offsets.end)}
    assert log_state.generation == cut_below_head


def test_a_log_begun_without_a_topic_id_takes_the_first_it_sees() -> None:
    """[R-9] Else an upgraded broker's topic could be recreated unnoticed for ever."""
    world, policy = World(has_ids=False), Policy(records_per_range=10, max_age_seconds=0)
    world.grow(0, 10)
    log_state = open_log(world, policy)
    world.has_ids = True
    adopted = decide(log_state, world.observe(log_state), policy, world.now_ms)
    assert (adopted.generation, adopted.topic_id, adopted.links) == (0, "id-0", ())
    assert plan(adopted.after(log_state), world.observe(adopted.after(log_state)), policy, world.now_ms) is None
    world.recreate(1, 10)
    step = decide(adopted.after(log_state), world.observe(adopted.after(log_state)), policy, world.now_ms)
    assert step.generation == 1


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


# ---- another cluster


@given(lists_of(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 12)), 2, 12), st.sampled_from([0, 100, None]))
@example([(0, False, 5), (1, False, 5), (0, False, 1), (1, True, 1), (0, False, 3), (0, True, 3)], 100)
@example([(0, False, 5), (1, True, 8)], None)
def test_a_topic_moves_to_another_cluster_only_where_defs_yaml_names_it(
    looks: list[tuple[int, bool, int]], apart: int | None
) -> None:
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
