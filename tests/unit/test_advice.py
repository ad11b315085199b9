"""The next action: one sentence, about the most urgent thing; each row of the table in `core/advice.py`."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.advice import NOTHING, Standing, next_action

URGENT = Standing(
    "orders",
    lag=70,
    pending=3,
    failed=2,
    not_accepted=5,
    late=("land it soon",),
    stuck=("range 0-0-9 has failed 3 times",),
    held_back=("an open transaction",),
    undecoded="2 ranges wait to be decoded",
    is_ticking=False,
)
ORDER = [  # what is put right, and the sentence that is then the most urgent
    ({}, "land it soon"),
    ({"late": ()}, "decide on 5 lost offsets that nobody has accepted: `offsetlake losses orders`"),
    ({"not_accepted": 0}, "range 0-0-9 has failed 3 times"),
    ({"stuck": ()}, "land 3 ranges: `offsetlake land orders --pending`, or start Dagster"),
    ({"is_ticking": True}, "2 ranges failed and are tried again"),
    ({"failed": 0, "held": 2, "is_landing": True}, "wait: 2 ranges wait to be decoded"),
    ({"is_landing": False, "waiting": "run abc is queued since noon"}, "wait: run abc is queued since noon"),
    ({"held": 0, "waiting": ""}, "wait: the next run takes 3 ranges"),
    ({"pending": 0}, "wait: 2 ranges wait to be decoded"),
    ({"undecoded": ""}, f"{NOTHING} yet: an open transaction"),
    ({"held_back": ()}, f"{NOTHING}: 70 records wait for a full range"),
    ({"is_ticking": False}, "plan 70 offsets: `offsetlake plan orders --apply`, or start Dagster"),
    ({"lag": 0}, f"{NOTHING}: everything is landed"),
    ({"pending": 3, "held": 2, "is_landing": True}, f"{NOTHING}: a run is landing 2 of 3 ranges"),
]


@pytest.mark.parametrize("number", range(len(ORDER)))
def test_as_each_thing_is_put_right_the_next_is_said(number: int) -> None:
    now = URGENT
    for changed, _ in ORDER[: number + 1]:
        now = dataclasses.replace(now, **changed)
    assert next_action(now).startswith(ORDER[number][1])


counts = st.integers(min_value=0, max_value=3)
words = st.lists(st.just("words"), max_size=2).map(tuple)


standings = st.builds(
    Standing,
    st.just("t"),
    *[counts] * 5,
    *[words] * 3,
    waiting=st.sampled_from(["", "what waits"]),
    undecoded=st.sampled_from(["", "what waits to be decoded"]),
    is_landing=st.booleans(),
    is_ticking=st.booleans(),
).filter(lambda now: now.held <= now.pending)  # held ranges are pending ones


@given(standings)
def test_nothing_to_do_is_said_only_where_nobody_must_act(now: Standing) -> None:
    """Whatever waits while nothing lands it, is lost, late or stuck, is never called nothing."""
    said = next_action(now)
    waits_for_a_person = (now.lag or now.pending) and not now.held and not now.is_ticking
    nothing_lands = now.pending and not (now.held and now.is_landing)
    must_act = bool(
        now.late or now.not_accepted or now.stuck or waits_for_a_person or now.failed or nothing_lands or now.undecoded
    )
    assert said.startswith(NOTHING) != must_act
    assert (said == f"{NOTHING}: everything is landed") == (
        not must_act and not any((now.lag, now.pending, now.failed, now.held, now.held_back))
    )
