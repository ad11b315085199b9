"""Settling: which ranges of a plan log cannot change any more, and the frontier document that sums them up.

Invariant: a range that a tick, a run or the ledger may yet ask for is in no document.
"""

from collections.abc import Collection, Container, Sequence
from dataclasses import replace

from ..offsets import OffsetRange
from .coverage import Coverage, State
from .delivery import Delivery
from .expiry import RATE_WINDOW_MS
from .frontier import Frontier, digest_of
from .holes import Cause
from .plan_step import Look, PlanStep

LONGEST_RUN_SECONDS = 3 * 3600.0  # more than dagster.yaml allows (max_runtime_seconds)
FRONTIER_EVERY = 200  # settled ranges that are in no document yet, before the next one is made
LOOKS = 12  # at the broker in the last hour that a document keeps


def sum_up(coverage: Coverage, now_ms: int, longest_ms: int, waiting: Collection[OffsetRange] = ()) -> Frontier | None:
    """Return the document of all settled ranges of a log; none while only few of them are in no document yet.

    Ranges reopened less than `longest_ms` ago are not settled: the run that reads them again may take that long. Nor are
    ranges that are `waiting`, for example to be decoded.
    """
    log, before = coverage.log, coverage.log.count_before()
    settled = _find_settled(coverage, now_ms, longest_ms, waiting)
    if len(settled) < FRONTIER_EVERY or _has_files_without_names(coverage):
        return None
    left = {step.seq: {*log.ranges_of(step)} - settled for step in log.steps}
    kept = {step.seq: step for step in log.steps if left[step.seq] or not _is_plain(step) or step is log.steps[-1]}
    part = _only(coverage, settled)
    return Frontier(
        topic=log.topic,
        seq=log.state.seq,
        steps_sha256=digest_of(kept.values()),
        made_at_ms=now_ms,
        state=log.state,
        ranges=before[log.state.seq],
        kept={seq: before[seq] for seq in kept},
        open={
            seq: tuple(number for number, offsets in enumerate(step.ranges) if offsets in left[seq])
            for seq, step in kept.items()
            if len(left[seq]) < len(step.ranges)
        },
        ends=coverage.ends(),
        growths=log.growths,
        opened=log.opened,
        sums=part.sums(),
        waits=part.waits(),
        looks=_thinned([look for look in log.looks if now_ms - look.at_ms <= RATE_WINDOW_MS]),
    )


def _has_files_without_names(coverage: Coverage) -> bool:
    """Return whether attempts may have left files that no manifest names: only listing all names finds those."""
    is_fenced = all(each.delivery is not Delivery.AT_LEAST_ONCE for each in coverage.manifests.values())
    return bool(coverage.doubles) or not is_fenced


def _only(coverage: Coverage, ranges: Container[OffsetRange]) -> Coverage:
    """Return a coverage with the manifests of only these ranges, to sum them up."""
    return replace(coverage, manifests={o: manifest for o, manifest in coverage.manifests.items() if o in ranges})


def _is_plain(step: PlanStep) -> bool:
    """Return whether a step has ranges only."""
    return not step.skips and len(step.ranges) == len(step.links)


def _find_settled(coverage: Coverage, now_ms: int, longest_ms: int, waiting: Collection[OffsetRange]) -> set[OffsetRange]:
    """Find the ranges that can be summed up; none of the last step, by which the log is recognised."""
    log = coverage.log
    reopened = [step for step in log.steps if step.reopened and now_ms - step.planned_at_ms < longest_ms]
    kept = {seq for step in reopened for seq in (step.seq, *step.reopened)} | {step.seq for step in log.steps[-1:]}
    return {
        offsets
        for step in log.steps
        if step.seq not in kept
        for offsets in log.ranges_of(step)
        if offsets not in waiting and _is_settled(offsets, coverage)
    }


def _is_settled(offsets: OffsetRange, coverage: Coverage) -> bool:
    """Return whether a range is landed without a loss and was never skipped."""
    if offsets in coverage.log.skipped or coverage.states()[offsets] is not State.LANDED:
        return False
    return all(hole.cause is not Cause.LOST for hole in coverage.manifests[offsets].holes)


def is_true_of(frontier: Frontier, coverage: Coverage) -> bool:
    """Return whether a document agrees with a later coverage of all history, or is not used any more."""
    log = coverage.log
    if needs_whole(frontier, log.steps):
        return True
    kept = {offsets for step in log.steps for offsets in frontier.kept_ranges(step)}
    settled = log.ranges.keys() - kept
    part = _only(coverage, settled)
    return (
        all(coverage.states()[offsets] is State.LANDED for offsets in settled)
        and part.sums() == frontier.sums
        and part.waits().counts == frontier.waits.counts
        and all(log.growths.get(of, ())[: len(growths)] == growths for of, growths in frontier.growths.items())
    )


def _thinned(looks: Sequence[Look]) -> tuple[Look, ...]:
    """Return looks spread evenly over time, the first included."""
    every = RATE_WINDOW_MS // LOOKS
    found: dict[int, Look] = {}
    for look in looks:
        found.setdefault(look.at_ms // every, look)
    return tuple(found.values())


def needs_whole(frontier: Frontier, steps: Sequence[PlanStep]) -> bool:
    """Return whether a document is no longer true: a later step reopens a step that it sums up, or skips such ranges.

    `steps` are those that it keeps, and later ones. Such a skip was decided before its ranges were landed and summed up.
    """
    newer = [step for step in steps if step.seq >= frontier.seq]
    if any(reopens(step, frontier) for step in newer):
        return True
    skips = [link.offsets for step in newer for link in step.skips]
    known = [offsets for step in steps for offsets in frontier.kept_ranges(step)] if skips else []
    return any(sum(len(each) for each in known if _is_within(each, skip)) != len(skip) for skip in skips)


def reopens(step: PlanStep, frontier: Frontier) -> bool:
    """Return whether a step reopens anything that a document sums up."""
    return any(map(frontier.sums_up_any_of, step.reopened))


def _is_within(offsets: OffsetRange, whole: OffsetRange) -> bool:
    return offsets.place == whole.place and whole.start <= offsets.start and offsets.end <= whole.end
