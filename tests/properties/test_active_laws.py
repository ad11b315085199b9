"""Active runs: what blocks is always named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.landing.active import WITH_SLOT, ActiveRun, RunState, Turns

runs = st.lists(
    st.builds(ActiveRun, st.uuids().map(str), st.just("land"), st.sampled_from(RunState), st.integers(1, 9), st.booleans()),
    max_size=6,
)


@given(runs, st.integers(-1, 5), st.none() | st.integers(0, 9), st.booleans())
def test_what_blocks_is_named_unless_something_gets_on(
    active: list[ActiveRun], slots: int, landed: int | None, silent: bool
) -> None:
    """A block is of an own run; none is found only where there is no own run, or one has landed something."""
    own = [each for each in active if each.is_own]
    block = Turns(active, slots, silent).find_block(landed)
    if block is None:
        started = [each for each in own if each.state in {RunState.STARTED, RunState.CANCELING}]
        assert not own or (started and landed is not None and landed >= min(each.since_ms for each in started))
    else:
        assert block.run in own
        assert all(each.state in WITH_SLOT for each in block.others)
