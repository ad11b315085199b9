"""Losses: every offset of a log is landed, explained, lost, pending or skipped, and exactly one of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.log.coverage import Coverage, State
from pipeline_defs.core.log.delivery import Acceptance
from pipeline_defs.core.log.holes import Cause
from pipeline_defs.core.log.losses import BEFORE_LANDED, BEFORE_PLANNED, CLOSED, find_losses, read_from, unrecorded_losses
from pipeline_defs.core.log.plan_step import Watermarks
from pipeline_defs.core.offsets import OffsetRange, merge_intervals, parse_key
from tests.support.strategies import TOPIC, covered, landed, logs

RANGES = st.builds(lambda start, size: OffsetRange(0, 0, start, start + size), st.integers(0, 50), st.integers(1, 50))


@given(RANGES, st.integers(0, 120))
def test_what_is_read_and_what_is_lost_are_the_range(offsets: OffsetRange, earliest: int) -> None:
    reading = read_from(offsets, earliest)
    lost = [(hole.start, hole.end) for hole in reading.lost]
    rest = [(reading.rest.start, reading.rest.end)] if reading.rest else []
    assert merge_intervals([*lost, *rest]) == [(offsets.start, offsets.end)]
    assert sum(end - start for start, end in [*lost, *rest]) == len(offsets)
    assert all(end <= earliest for _, end in lost)
    assert all(start >= earliest for start, _ in rest)


@st.composite
def coverages(draw: st.DrawFn) -> Coverage:
    """Draw a log of which some ranges are landed, some of them with a lost beginning."""
    log, manifests = draw(logs()), []
    for offsets in log.ranges:
        if draw(st.booleans()):
            reading = read_from(offsets, draw(st.integers(offsets.start, offsets.end)))
            rows = range(reading.rest.start, reading.rest.end) if reading.rest else ()
            manifests.append(replace(landed(offsets, rows), holes=reading.lost))
    return covered(log, manifests)


@given(coverages())
def test_every_offset_is_accounted_for_once(coverage: Coverage) -> None:
    """[R-41] Rows, losses, pending and skipped links tile each Kafka partition, whatever was landed."""
    losses = find_losses(coverage)
    for loss in losses:
        offsets = parse_key(loss.key)
        cause = CLOSED if offsets in coverage.log.ranges else BEFORE_PLANNED
        assert loss.cause == (BEFORE_LANDED if coverage.is_landed(offsets) else cause)
    pieces = [loss.offsets for loss in losses]
    for offsets, state in coverage.states().items():
        if state in {State.PENDING, State.SKIPPED}:
            pieces.append(offsets)
        elif state is State.LANDED:
            lost = [h for h in coverage.manifests[offsets].holes if h.cause is Cause.LOST]
            start = lost[-1].end if lost else offsets.start
            if start < offsets.end:
                pieces.append(OffsetRange(offsets.generation, offsets.partition, start, offsets.end))
    whole = sorted(link.offsets for link in coverage.log.links)
    assert sum(map(len, pieces)) == sum(map(len, whole))
    for place in {o.place for o in whole}:
        mine = [[(o.start, o.end) for o in found if o.place == place] for found in (pieces, whole)]
        assert merge_intervals(mine[0]) == merge_intervals(mine[1])


@given(coverages(), st.data())
def test_what_the_broker_deleted_of_pending_ranges_waits_for_a_word(coverage: Coverage, chance: st.DataObject) -> None:
    log = coverage.log
    marks = {
        partition: Watermarks(chance.draw(st.integers(0, head.offset)), head.offset)
        for partition, head in log.state.heads.items()
    }
    waiting = unrecorded_losses(coverage, marks)
    assert {(o.partition, at) for loss in waiting for o in [loss.offsets] for at in range(o.start, o.end)} == {
        (o.partition, at)
        for o in coverage.pending()
        if o.generation == log.generation
        for at in range(o.start, min(o.end, marks[o.partition].earliest))
    }
    words = {o: Acceptance(TOPIC, o, (o.start, o.end), "ada", 1) for o in log.ranges if chance.draw(st.booleans())}
    said = {loss.offsets: loss.acceptance for loss in unrecorded_losses(replace(coverage, accepted=words), marks)}
    assert said == {loss.offsets: words.get(parse_key(loss.key)) for loss in waiting}, "a word counts before its run"
