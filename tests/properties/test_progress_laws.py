"""What is told of a topic: silence, lag and pace, how long its records waited, and its time to loss."""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_defs.core.landing import progress
from pipeline_defs.core.landing.dispatch import NEVER_TRIED
from pipeline_defs.core.landing.progress import Silence, Told, Unplanned, find_silences, is_lag_news
from pipeline_defs.core.log import latency
from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.expiry import Exposure, Rates, Retention, kept_seconds, read_rates, read_retention, seconds_to_loss
from pipeline_defs.core.log.latency import BOUNDS_SECONDS, PACKED, Wait, count_waits, find_quantile, unpack, wait_of
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.log.plan_step import Look, Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import EPOCH_MS, TOPIC, Script, covered, first_step, landed, log_of, logs, staged_file

PATIENCE_MS = int(progress.PATIENCE_SECONDS * 1000)


def land(log: PlanLog, ranges: Iterable[OffsetRange], landed_at_ms: int = EPOCH_MS) -> Coverage:
    """Land some ranges of a log, every row of them, at one moment."""
    return covered(log, [landed(offsets, landed_at_ms=landed_at_ms) for offsets in ranges])


def two_ranges() -> PlanLog:
    """A log with `0-0-10` and `0-10-20`, planned at EPOCH_MS."""
    return PlanLog(TOPIC, (first_step(20),))


ACTIONS = [("grow", (0, 20)), ("wait", (60,)), ("add_partition", (20,)), ("recreate", (1, 20))]
TWO_PARTITIONS, RECREATED = (log_of(Script(Policy(10, max_age_seconds=0), True, ACTIONS[:count]).play()) for count in (3, 4))


@given(logs(), st.sets(st.integers(0, 40)), st.integers(0, 2 * PATIENCE_MS), st.integers(0, 2 * PATIENCE_MS))
@example(TWO_PARTITIONS, set(), 0, PATIENCE_MS + 1)
@example(TWO_PARTITIONS, set(), 0, PATIENCE_MS - 5)
@example(two_ranges(), {0, 1}, 0, 10**12)
@example(two_ranges(), {0}, PATIENCE_MS, 5)
@example(two_ranges(), {0}, PATIENCE_MS, PATIENCE_MS + 1)
@example(TWO_PARTITIONS, {0}, PATIENCE_MS, 5)
@example(RECREATED, {0}, PATIENCE_MS, 5)
def test_a_partition_is_named_when_it_waits_too_long(log: PlanLog, numbers: set[int], landed_ms: int, waited_ms: int) -> None:
    """[R-56] Per Kafka partition, by the oldest pending range, and anew since anything of it has landed.

    An idle topic makes no noise, however long it is idle. A backlog that is worked off is no silence; what landed of another
    partition, or of a topic of before, ends none.
    """
    some = [offsets for number, offsets in enumerate(log.ranges) if number in numbers]
    newest_ms = max((step.planned_at_ms for step in log.steps), default=EPOCH_MS)
    coverage = land(log, some, newest_ms + landed_ms)
    now_ms = newest_ms + landed_ms + waited_ms
    expected = []
    for partition in sorted({offsets.partition for offsets in coverage.pending()}):
        first = next(offsets for offsets in coverage.pending() if offsets.partition == partition)
        has_landed = any(o.place == (log.generation, partition) for o in coverage.manifests)
        since_ms = newest_ms + landed_ms if has_landed else log.ranges[first].planned_at_ms
        if now_ms - since_ms > PATIENCE_MS:
            expected.append(Silence(partition, first.start, first, since_ms))
    assert find_silences(coverage, {}, 10**6, now_ms) == expected, "a planned range has nothing to wait for"


@pytest.mark.parametrize(
    ("record", "max_age_seconds", "waited_ms", "is_named"),
    [
        pytest.param(Unplanned(20, EPOCH_MS), 60, PATIENCE_MS, False, id="not for long enough"),
        pytest.param(Unplanned(20, EPOCH_MS), 60, PATIENCE_MS + 1, True, id="for too long"),
        pytest.param(Unplanned(20, EPOCH_MS), 100, 10 * 100_000, False, id="it may wait for max_age"),
        pytest.param(Unplanned(20, EPOCH_MS), 100, 10 * 100_000 + 1, True, id="for more than 10 times max_age"),
        pytest.param(Unplanned(20, 1_000), 60, PATIENCE_MS, False, id="an old timestamp: since the last plan step"),
        pytest.param(Unplanned(20, EPOCH_MS + 2 * PATIENCE_MS), 60, PATIENCE_MS + 1, True, id="a future one says nothing"),
        pytest.param(Unplanned(20, None), 60, PATIENCE_MS + 1, True, id="no timestamp: since the last plan step"),
    ],
)
def test_a_record_that_no_range_has_is_named_when_it_has_waited_for_too_long(
    record: Unplanned, max_age_seconds: float, waited_ms: int, is_named: bool
) -> None:
    """[R-56] That the planner does not run is found by what it has not planned."""
    log = two_ranges()
    found = find_silences(land(log, list(log.ranges)), {0: record}, max_age_seconds, EPOCH_MS + waited_ms)
    assert found == ([Silence(0, 20, None, EPOCH_MS)] if is_named else [])


def test_a_topic_that_was_never_planned_is_told_by_its_oldest_record() -> None:
    """[R-56] Nor has it landed anything: since when is what the record itself says, and without that nothing is."""
    nothing = Coverage(PlanLog(TOPIC, ()), {}, {})
    now_ms = EPOCH_MS + PATIENCE_MS + 1
    assert find_silences(nothing, {0: Unplanned(0, EPOCH_MS)}, 60, now_ms) == [Silence(0, 0, None, EPOCH_MS)]
    assert find_silences(nothing, {0: Unplanned(0, None)}, 60, now_ms) == []


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=9))
def test_failures_in_a_row_keep_the_first_and_the_last(seconds: list[int]) -> None:
    """[R-33] [R-56] Since when is the first of them; whose words are told, the last one's."""
    tried, times = NEVER_TRIED, sorted(EPOCH_MS + each for each in seconds)
    for number, ended_ms in enumerate(times):
        tried = tried.then_failed(f"run-{number}", ended_ms)
    assert (tried.attempts, tried.first_failed_ms, tried.last_ended_ms) == (len(times), times[0], times[-1])
    assert tried.failed_run == f"run-{len(times) - 1}"
    assert tried.is_stalled == (len(times) >= 3), "a word for people: the range is still asked for"


COUNTS = st.integers(0, 10**9)


@given(logs(), st.integers(0, 1000))
def test_lag_is_what_stands_behind_the_first_range_that_is_not_landed(log: PlanLog, more: int) -> None:
    """Nothing landed: all from the first planned range on, and what no range has yet."""
    heads = log.state.heads
    marks = {p: Watermarks(0, head.offset + more) for p, head in heads.items()}
    pending = Coverage(log, {}, {}).pending()
    for each in progress.find_lag(Coverage(log, {}, {}), marks):
        mine = [offsets for offsets in pending if offsets.partition == each.partition]
        first = min((offsets.start for offsets in mine), default=heads[each.partition].offset)
        assert (each.landed, each.end) == (first, heads[each.partition].offset + more)
        assert each.offsets == each.end - first


def test_a_partition_that_no_plan_has_seen_lags_by_all_it_has_and_none_by_less_than_nothing() -> None:
    """As a topic after an unclean election, or made anew, would: it would hide the lag of another partition."""
    (lag,) = progress.find_lag(Coverage(PlanLog("orders"), {}, {}), {7: Watermarks(40, 100)})
    assert (lag.partition, lag.landed, lag.offsets) == (7, 40, 60)
    assert progress.PartitionLag(0, landed=40, end=30).offsets == 0


@given(COUNTS, COUNTS, st.integers(0, 10**12))
def test_an_idle_topic_that_is_landed_is_told_once_and_never_again(end: int, at: int, later: int) -> None:
    """[R-56] However long it is idle."""
    assert is_lag_news(None, 0, end, at)
    assert not is_lag_news(Told(0, end, at), 0, end, at + later)


@given(COUNTS, COUNTS, st.integers(0, 2 * progress.TOLD_EVERY_MS))
def test_a_change_is_told_once_a_minute(lag: int, now_lag: int, waited: int) -> None:
    """A topic that is landed as it comes changes its lag at each tick; what was told last is true within a minute."""
    told = Told(lag, 10**9, EPOCH_MS)
    is_due = waited >= progress.TOLD_EVERY_MS and lag != now_lag
    assert is_lag_news(told, now_lag, 10**9, EPOCH_MS + waited) == is_due
    assert is_lag_news(told, now_lag, 10**9, EPOCH_MS - waited) == is_due, "nor is it silent after a clock was set back"


@given(st.integers(1, 10**9), st.integers(0, 2 * progress.TOLD_WAITING_EVERY_MS))
def test_what_waits_unchanged_is_told_each_ten_minutes(lag: int, waited: int) -> None:
    """Else the plot of a topic that stands still would end where it began to."""
    assert is_lag_news(Told(lag, lag, EPOCH_MS), lag, lag, EPOCH_MS + waited) == (waited >= progress.TOLD_WAITING_EVERY_MS)


def lately(rows: int, seconds_ago: float, seconds: float = 1.0) -> Manifest:
    """Make a range of so many rows that a run took `seconds` to land."""
    at_ms = EPOCH_MS - int(seconds_ago * 1000)
    return landed(OffsetRange(0, 0, 0, rows), landed_at_ms=at_ms, seconds=seconds)


@pytest.mark.parametrize(
    ("manifests", "per_second"),
    [
        ([], 0.0),
        ([lately(100, 0, 10)], 10.0),  # since it began to read
        ([lately(100, 10, 10), lately(100, 0, 10)], 10.0),
        ([lately(60, 50, 10)], 1.0),  # and since then nothing
        ([lately(100, progress.PACE_WINDOW_MS / 1000)], 0.0),
        ([lately(100, -5)], 0.0),
        ([lately(600, 0, 10_000)], 1.0),  # what was read before the window is not counted longer than the window
        ([lately(50, 0, 0)], 50.0),  # at once: over a second
    ],
)
def test_the_pace_of_what_was_landed_lately(manifests: list[Manifest], per_second: float) -> None:
    assert progress.landed_per_second(manifests, EPOCH_MS) == pytest.approx(per_second)


@st.composite
def waits(draw: st.DrawFn) -> Wait:
    least, spread = draw(st.integers(0, 200)), draw(st.integers(0, 100_000))
    return Wait(draw(st.integers(1, 1000)), float(least), float(least + spread))


def seconds_of(wait: Wait) -> list[float]:
    """Return how long each record waited, spread evenly."""
    step = (wait.most_seconds - wait.least_seconds) / wait.rows
    return [wait.least_seconds + (number + 1) * step for number in range(wait.rows)]


@given(st.lists(waits(), min_size=1, max_size=6), st.sampled_from([0.5, 0.95]))
def test_a_quantile_is_that_of_the_records(drawn: list[Wait], share: float) -> None:
    """[R-94] Within it so great a share of them could be read, and in less time fewer could."""
    found = find_quantile(drawn, share)
    assert found is not None
    records = [seconds for wait in drawn for seconds in seconds_of(wait)]
    # the last record of a step counts as soon as the step has begun
    assert sum(seconds <= found + 1e-6 for seconds in records) >= share * len(records) - len(drawn)
    assert sum(seconds < found - 1e-3 for seconds in records) <= share * len(records)


@given(st.lists(waits(), max_size=6))
def test_a_histogram_counts_each_record_once(drawn: list[Wait]) -> None:
    """[R-94] Up to each bound those that waited no longer, at the end all."""
    found = count_waits(drawn)
    assert BOUNDS_SECONDS[-1] == inf
    assert list(found.counts) == sorted(found.counts)
    assert found.counts[-1] == sum(wait.rows for wait in drawn)
    for bound, count in zip(BOUNDS_SECONDS, found.counts, strict=True):
        assert count == pytest.approx(sum(wait.rows_within(bound) for wait in drawn), abs=0.51 * len(drawn))
    first, second = drawn[::2], drawn[1::2]
    assert (count_waits(first) + count_waits(second)).counts == found.counts, "or a sum of parts would fall when they change"
    assert found.seconds == pytest.approx(sum(w.rows * (w.least_seconds + w.most_seconds) / 2 for w in drawn))


@given(st.lists(waits(), max_size=200))
def test_what_a_version_tells_is_bounded_and_hides_no_wait(drawn: list[Wait]) -> None:
    told = unpack(latency.pack(drawn))
    assert len(told) <= PACKED and sum(w.rows for w in told) == sum(w.rows for w in drawn)
    assert max((w.most_seconds for w in told), default=0) == max((w.most_seconds for w in drawn), default=0)
    if len(drawn) <= PACKED:
        assert told == sorted(drawn, key=lambda wait: wait.most_seconds)


def test_what_has_no_records_or_no_times_waits_for_nothing() -> None:
    file = staged_file(OffsetRange(0, 0, 0, 10), range(10))
    assert file is not None
    timed = replace(file, min_timestamp_ms=EPOCH_MS - 60_000, max_timestamp_ms=EPOCH_MS + 5_000)
    assert wait_of(timed, EPOCH_MS) == Wait(10, 0.0, 60.0), "a record of the future has not waited"
    assert wait_of(None, EPOCH_MS) is None and wait_of(replace(timed, max_timestamp_ms=None), EPOCH_MS) is None
    assert latency.waits_of([(timed, EPOCH_MS), (timed, EPOCH_MS - 1), (None, EPOCH_MS)], EPOCH_MS - 1) == [Wait(10, 0.0, 60.0)]
    assert wait_of(replace(timed, min_timestamp_ms=-1), EPOCH_MS) is None, "Kafka's none"
    assert find_quantile([], 0.5) is None
    old = Wait(1, 9e15, 9e15)
    assert find_quantile([Wait(10**6, 2.0, 2.0), old], 0.5) == pytest.approx(2.0, abs=0.001), "one old record says nothing"
    with pytest.raises(ValueError, match="finite"):
        unpack([[1, 0, inf]])


HOUR, HOUR_MS = 3600.0, 3_600_000
NOW = EPOCH_MS
bounds = st.none() | st.integers(0, 10**12)
rates_st = st.builds(Rates, st.floats(0, 1e6), st.floats(0, 1e6))
exposures = st.builds(
    lambda earliest, ahead, behind, age, size: Exposure(
        earliest + ahead, None if age is None else NOW - age, Watermarks(earliest, earliest + ahead + behind), size
    ),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(1, 10**6),
    st.none() | st.integers(0, 10**9),
    st.floats(0, 1e4),
)


@pytest.mark.parametrize(
    ("retention", "rates", "exposed", "seconds"),
    [
        pytest.param(Retention(), Rates(), Exposure(5, NOW, Watermarks(0, 9)), None, id="kept for ever"),
        pytest.param(Retention(ms=1), Rates(), Exposure(5, None, Watermarks(0, 9)), None, id="age not known"),
        pytest.param(Retention(bytes=1000), Rates(0, 2), Exposure(10, None, Watermarks(0, 50), 10.0), 30.0, id="by size"),
        pytest.param(Retention(bytes=1000), Rates(), Exposure(10, None, Watermarks(0, 50), 10.0), None, id="no growth"),
        pytest.param(Retention(bytes=100), Rates(), Exposure(10, None, Watermarks(0, 50), 10.0), 0.0, id="too big now"),
        pytest.param(Retention(), Rates(start=2), Exposure(30, None, Watermarks(10, 50)), 10.0, id="as seen to move"),
        pytest.param(Retention(), Rates(2, is_steady=False), Exposure(30, None, Watermarks(10, 50)), 10.0, id="moved once"),
        pytest.param(
            Retention(ms=HOUR_MS), Rates(2, is_steady=False), Exposure(30, NOW, Watermarks(10, 50)), HOUR, id="by age, moved"
        ),
        pytest.param(Retention(ms=10**9), Rates(), Exposure(3, NOW, Watermarks(7, 50)), 0.0, id="gone already"),
    ],
)
def test_time_to_loss_is_what_is_promised(retention: Retention, rates: Rates, exposed: Exposure, seconds: float | None) -> None:
    """[R-43]"""
    assert seconds_to_loss(retention, rates, exposed, NOW) == seconds


@given(bounds, bounds, rates_st, exposures)
def test_it_is_the_soonest_of_each_alone(ms: int | None, size: int | None, rates: Rates, exposed: Exposure) -> None:
    """[R-43] Whatever else may delete a record never makes it safer."""
    alone = [
        seconds_to_loss(Retention(ms=ms), Rates(), exposed, NOW),
        seconds_to_loss(Retention(bytes=size), Rates(end=rates.end), exposed, NOW),
        seconds_to_loss(Retention(), Rates(start=rates.start), exposed, NOW),
    ]
    expected = min((seconds for seconds in alone if seconds is not None), default=None)
    assert seconds_to_loss(Retention(ms, size), rates, exposed, NOW) == expected
    assert expected is None or expected >= 0


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_it_runs_out_as_time_goes_by(ms: int, age: int, later: int) -> None:
    exposed = Exposure(0, NOW - age, Watermarks(0, 10))
    assert seconds_to_loss(Retention(ms=ms), Rates(), exposed, NOW + later) == max(0.0, (ms - age - later) / 1000)


def look(at_ms: int, earliest: int, end: int, generation: int = 0) -> Look:
    return Look(at_ms, generation, {0: Watermarks(earliest, end)})


def test_rates_are_of_the_newest_hour_of_the_open_generation() -> None:
    """[R-43]"""
    seen = [(9_000_000, 0, 10, 0), (500_000, 0, 1000, 0), (100_000, 0, 100, 1), (50_000, 10, 300, 1)]
    looks = [look(NOW - ago_ms, earliest, end, generation) for ago_ms, earliest, end, generation in seen]
    assert read_rates(looks, 0, Watermarks(50, 400), 50, NOW) == Rates(0.5, 3.0)
    assert read_rates(looks[:2], 0, Watermarks(50, 2000), 50, NOW) == Rates(0.1, 2.0, is_steady=False), "it has moved once"
    assert read_rates(looks[:1], 0, Watermarks(50, 400), 50, NOW) == Rates(), "too long ago to say anything"
    assert read_rates(looks, 1, Watermarks(50, 400), 50, NOW) == Rates(), "a partition not seen before"
    assert read_rates([], 0, Watermarks(0, 4), 0, NOW) == Rates()


@pytest.mark.parametrize("deleted_at", [0, 1, 2, 3])
def test_a_log_that_was_emptied_once_is_not_expected_to_go_on_so(deleted_at: int) -> None:
    """[R-43] A quiet topic whose records all expired, once they were landed; the control is a log whose start moves on."""
    ends = [100 if number > deleted_at else 0 for number in range(4)]
    looks = [look(NOW - (4 - number) * 600_000, ends[number], 100) for number in range(4)]
    assert read_rates(looks, 0, Watermarks(100, 120), 100, NOW).start == 0.0
    assert read_rates(looks, 0, Watermarks(100, 120), 99, NOW).start == (100 - ends[0]) / 2400, "it took one that is not landed"
    moving = [look(NOW - (4 - number) * 600_000, 20 * number, 110) for number in range(4)]
    assert read_rates(moving, 0, Watermarks(80, 120), 80, NOW).start == 80 / 2400


@pytest.mark.parametrize(
    ("config", "retention"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "-1"}, Retention(5, None)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "7"}, Retention(None, 7)),
        ({"cleanup.policy": "compact", "retention.ms": "5", "retention.bytes": "7"}, Retention()),
        ({"retention.ms": "0"}, Retention(0, None)),
    ],
)
def test_retention_is_read_in_kafkas_own_names(config: dict[str, str], retention: Retention) -> None:
    assert read_retention(config) == retention


def test_a_record_is_kept_for_the_shorter_of_both_bounds() -> None:
    assert kept_seconds(Retention(), Rates(0, 5), 10) is None
    assert kept_seconds(Retention(ms=60_000), Rates(0, 5), 10) == 60
    assert kept_seconds(Retention(60_000, 1000), Rates(0, 5), 10) == 20
    assert kept_seconds(Retention(60_000, 1000), Rates(), 10) == 60
