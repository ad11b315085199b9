"""Turns: a tick's requests never pile up, nobody is kept out for ever, and what blocks is always named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.active import WAITING, WITH_SLOT, ActiveRun, State, Turns

runs = st.lists(
    st.builds(
        ActiveRun,
        st.uuids().map(str),
        st.just("land"),
        st.sampled_from(State),
        st.integers(1, 9),
        st.booleans(),
        st.booleans(),
    ),
    max_size=6,
)


def run(state: State, *, is_asked: bool, number: int = 0) -> ActiveRun:
    return ActiveRun(f"run{number}", "land", state, number, is_own=True, is_asked=is_asked)


@given(runs)
def test_a_tick_asks_for_nothing_while_a_run_of_that_work_that_a_tick_asked_for_waits(active: list[ActiveRun]) -> None:
    """[R-31] Whatever else there is: other topics and other work do not count."""
    if any(each.is_own and each.is_asked and each.state in WAITING for each in active):
        assert not Turns(active).may_ask
    if not any(each.is_own for each in active):
        assert Turns(active).may_ask


def test_ticks_and_a_persons_long_backfill_take_turns() -> None:
    """[R-31] One run at a time works, a tick's goes first; both sides get on, from whatever the queue is."""
    asked, persons, done = 0, 20, []
    working: ActiveRun | None = None
    for number in range(60):
        queued = [run(State.QUEUED, is_asked=False, number=n) for n in range(persons)]
        queued += [run(State.QUEUED, is_asked=True)] * asked
        if Turns([*queued, *([working] if working else [])]).may_ask:
            asked += 1
        assert asked <= 1
        if number % 2 or working is None:  # the working run ends, and the next has its turn
            is_asked = asked > 0
            asked, persons = (asked - 1, persons) if is_asked else (asked, persons - 1)
            working = run(State.STARTED, is_asked=is_asked, number=number)
            done.append(is_asked)
    assert {True, False} == set(done[:4]) == set(done[-4:])


@given(runs, st.integers(-1, 5), st.none() | st.integers(0, 9), st.booleans())
def test_what_blocks_is_named_unless_something_gets_on(
    active: list[ActiveRun], slots: int, landed: int | None, silent: bool
) -> None:
    """A block is of an own run; none is found only where there is no own run, or one has landed something."""
    own = [each for each in active if each.is_own]
    block = Turns(active, slots, silent).find_block(landed)
    if block is None:
        started = [each for each in own if each.state in {State.STARTED, State.CANCELING}]
        assert not own or (started and landed is not None and landed >= min(each.since_ms for each in started))
    else:
        assert block.run in own
        assert all(each.state in WITH_SLOT for each in block.others)
