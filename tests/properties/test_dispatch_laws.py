"""Dispatch (AC7): what is due is asked for, in runs of neighbours, later after each failure, and never forgotten."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_defs.core.dispatch import (
    BACKOFF_FIRST_SECONDS,
    BACKOFF_LAST_SECONDS,
    STALLED_AFTER_ATTEMPTS,
    Request,
    Tried,
    plan_requests,
)
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import EPOCH_MS

ORDER = [OffsetRange(0, number % 3, 10 * number, 10 * number + 10) for number in range(40)]
Order = list[OffsetRange | None]


@st.composite
def situations(draw: st.DrawFn) -> tuple[Order, set[OffsetRange], set[OffsetRange], dict[OffsetRange, Tried], int]:
    """Draws Dagster's keys with some that are no ranges, what is pending, held and has failed, and a run's size."""
    order: Order = list(ORDER[: draw(st.integers(0, len(ORDER)))])
    known = [offsets for offsets in order if offsets is not None]
    for at in draw(st.lists(st.integers(0, len(order)), max_size=3)):
        order.insert(at, None)
    some = st.sets(st.sampled_from(known)) if known else st.just(set())
    ago = st.sampled_from([0, 9, 10, 19, 20, 599, 600, 10**6])
    tried = {o: Tried(draw(st.integers(0, 12)), EPOCH_MS - 1000 * draw(ago)) for o in draw(some)}
    everything = set(known) if draw(st.booleans()) else draw(some)
    return order, everything, draw(some), tried, draw(st.integers(1, 10))


@given(situations())
def test_each_due_range_is_in_exactly_one_request_and_no_other_is_in_any(
    situation: tuple[Order, set[OffsetRange], set[OffsetRange], dict[OffsetRange, Tried], int],
) -> None:
    """[R-31] Law 8: pending, not held, its back-off over."""
    order, pending, held, tried, most = situation
    requests = plan_requests(order, pending, held, tried, EPOCH_MS, ranges_per_run=most)
    asked = Counter(offsets for request in requests for offsets in request.ranges)
    due = [o for o in order if o in pending and o not in held and (o not in tried or tried[o].is_due(EPOCH_MS))]
    assert asked == Counter(due)


@given(situations())
def test_a_run_never_spans_a_key_that_is_not_its_own(
    situation: tuple[Order, set[OffsetRange], set[OffsetRange], dict[OffsetRange, Tried], int],
) -> None:
    """AC7: Dagster's range run covers all keys between the first and the last, those typed by people included.

    [R-31]
    """
    order, pending, held, tried, most = situation
    for request in plan_requests(order, pending, held, tried, EPOCH_MS, ranges_per_run=most):
        first, last = order.index(request.ranges[0]), order.index(request.ranges[-1])
        assert tuple(order[first : last + 1]) == request.ranges
        assert 1 <= len(request.ranges) <= most


@given(situations())
def test_the_attempt_is_one_more_than_any_of_its_ranges_has_had(
    situation: tuple[Order, set[OffsetRange], set[OffsetRange], dict[OffsetRange, Tried], int],
) -> None:
    order, pending, held, tried, most = situation
    for request in plan_requests(order, pending, held, tried, EPOCH_MS, ranges_per_run=most):
        assert request.attempt == 1 + max(tried[o].attempts if o in tried else 0 for o in request.ranges)


def test_five_hundred_due_ranges_are_all_asked_for() -> None:
    """AC7."""
    order = [OffsetRange(0, 0, at, at + 1) for at in range(500)]
    requests = plan_requests(order, set(order), set(), {}, EPOCH_MS, ranges_per_run=20)
    assert [offsets for request in requests for offsets in request.ranges] == order
    assert len({request.run_key("orders") for request in requests}) == len(requests) == 25


@given(situations(), situations())
def test_runs_have_the_same_key_only_when_they_are_the_same(
    one: tuple[Order, set[OffsetRange], set[OffsetRange], dict[OffsetRange, Tried], int],
    other: tuple[Order, set[OffsetRange], set[OffsetRange], dict[OffsetRange, Tried], int],
) -> None:
    """AC7: Dagster drops a request whose key it has seen; so two topics, two ranges, two attempts never share one.

    [R-32]
    """
    keys: dict[str, tuple[str, Request]] = {}
    for order, pending, held, tried, most in (one, other):
        for request in plan_requests(order, pending, held, tried, EPOCH_MS, ranges_per_run=most):
            for topic in ("orders", "orders.1", "orders-1", "1"):
                same = keys.setdefault(request.run_key(topic), (topic, request))
                assert same[0] == topic
                assert (same[1].ranges[0], same[1].ranges[-1]) == (request.ranges[0], request.ranges[-1])
                assert (len(same[1].ranges), same[1].attempt) == (len(request.ranges), request.attempt)


@given(st.sets(st.sampled_from(ORDER), min_size=1), st.integers(1, 8))
def test_ranges_that_always_fail_are_asked_for_again_and_again_under_new_keys(
    poisoned: set[OffsetRange], most: int
) -> None:
    """[R-33] Law 8: reported as stalled, and still never skipped; a repeated run key would be skipped by Dagster."""
    tried: dict[OffsetRange, Tried] = {}
    seen: set[str] = set()
    now_ms, pending = EPOCH_MS, set(ORDER)
    for _ in range(STALLED_AFTER_ATTEMPTS + 3):
        requests = plan_requests(ORDER, pending, set(), tried, now_ms, ranges_per_run=most)
        assert poisoned <= {offsets for request in requests for offsets in request.ranges}
        for request in requests:
            assert request.run_key("orders") not in seen
            seen.add(request.run_key("orders"))
            failed = poisoned & set(request.ranges)
            pending -= set(request.ranges) - failed
            if failed:
                for offsets in request.ranges:
                    before = tried.get(offsets, Tried(0, 0)).attempts
                    tried[offsets] = Tried(before + 1, now_ms)
        now_ms += BACKOFF_LAST_SECONDS * 1000
    assert pending == poisoned
    assert all(tried[offsets].is_stalled for offsets in poisoned)


def seconds_until_due(attempts: int) -> int:
    return next(s for s in range(10**5) if Tried(attempts, EPOCH_MS).is_due(EPOCH_MS + s * 1000))


def test_the_back_off_doubles_and_is_bounded() -> None:
    """[R-33] 10 seconds at first, never more than 10 minutes."""
    waits = [seconds_until_due(attempts) for attempts in range(12)]
    assert waits == [0, 10, 20, 40, 80, 160, 320, 600, 600, 600, 600, 600]
    assert (waits[1], waits[-1]) == (BACKOFF_FIRST_SECONDS, BACKOFF_LAST_SECONDS)


@given(st.integers(0, 10**4), st.integers(-(10**9), 10**9))
@example(1, 10**9)
def test_no_range_waits_longer_than_two_back_offs_whatever_the_clocks_say(attempts: int, ahead_ms: int) -> None:
    """Law 8: a run that ended in the future, by another machine's clock, does not bar its ranges for ever."""
    tried = Tried(attempts, EPOCH_MS + ahead_ms)
    half = BACKOFF_LAST_SECONDS * 500
    assert any(tried.is_due(EPOCH_MS + k * half) for k in range(5))


def test_a_range_is_stalled_after_three_attempts() -> None:
    """[R-33] AC17: stalled is a word for people: the range is still asked for."""
    assert [Tried(n, EPOCH_MS).is_stalled for n in range(7)] == [False] * 3 + [True] * 4
