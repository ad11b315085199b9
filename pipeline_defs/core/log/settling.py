"""Settling: which steps of a plan log nothing changes any more, and the frontier document that sums them up.

Invariant: what a step may yet come to be asked for, by a tick, a run or the ledger, keeps it out of every document.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ..offsets import OffsetRange
from .coverage import Coverage, State
from .delivery import Delivery
from .expiry import RATE_WINDOW_MS
from .frontier import Frontier, digest_of
from .holes import Cause
from .plan_step import LinkKind, Look, PlanStep

FRONTIER_EVERY = 200  # ranges that no document sums up yet, before the next one does
LOOKS = 12  # at the broker, that a document has of the last hour


def sum_up(coverage: Coverage, now_ms: int, longest_ms: int, waiting: Collection[OffsetRange] = ()) -> Frontier | None:
    """Return the document of all that is settled of a log; none while that are few ranges that no document sums up yet.

    What was reopened less than `longest_ms` ago stays open: whoever reads it again may
    be at it for so long. Nor are ranges summed up that are `waiting`, to be decoded say.
    """
    log, before = coverage.log, coverage.log.count_before()
    kept = set(_find_kept(coverage, now_ms, longest_ms, waiting))
    settled = {offsets for step in log.steps if step.seq not in kept for offsets in step.ranges}
    if len(settled) < FRONTIER_EVERY or _has_files_without_names(coverage):
        return None
    part = replace(coverage, manifests={o: manifest for o, manifest in coverage.manifests.items() if o in settled})
    return Frontier(
        topic=log.topic,
        seq=log.state.seq,
        steps_sha256=digest_of(step for step in log.steps if step.seq in kept),
        made_at_ms=now_ms,
        state=log.state,
        ranges=before[log.state.seq],
        kept={seq: before[seq] for seq in sorted(kept)},
        ends=coverage.ends(),
        growths=log.growths,
        opened=log.opened,
        sums=part.sums(),
        waits=part.waits(),
        looks=_thinned([look for look in log.looks if now_ms - look.at_ms <= RATE_WINDOW_MS]),
    )


def _has_files_without_names(coverage: Coverage) -> bool:
    """Return whether there may be files of attempts that no manifest names: only who lists all names finds them."""
    is_fenced = all(each.delivery is not Delivery.AT_LEAST_ONCE for each in coverage.manifests.values())
    return bool(coverage.doubles) or not is_fenced


def _find_kept(coverage: Coverage, now_ms: int, longest_ms: int, waiting: Collection[OffsetRange]) -> Iterator[int]:
    """Yield the steps that are not summed up: the last one too, by which the log is known."""
    log = coverage.log
    reopened = [step for step in log.steps if step.reopened and now_ms - step.planned_at_ms < longest_ms]
    held = {seq for step in reopened for seq in (step.seq, *step.reopened)}
    for step in log.steps:
        is_plain = not step.skips and all(_is_settled(link.kind, link.offsets, coverage) for link in step.links)
        is_waiting = any(offsets in waiting for offsets in step.ranges)
        if step is log.steps[-1] or step.seq in held or is_waiting or not is_plain:
            yield step.seq


def _is_settled(kind: LinkKind, offsets: OffsetRange, coverage: Coverage) -> bool:
    """Return whether a link is a landed range with no loss in it, and nobody ever skipped it."""
    if kind is not LinkKind.RANGE or offsets in coverage.log.skipped or coverage.states()[offsets] is not State.LANDED:
        return False
    return all(hole.cause is not Cause.LOST for hole in coverage.manifests[offsets].holes)


def _thinned(looks: Sequence[Look]) -> tuple[Look, ...]:
    """Return looks spread over time, the first one among them."""
    every = RATE_WINDOW_MS // LOOKS
    found: dict[int, Look] = {}
    for look in looks:
        found.setdefault(look.at_ms // every, look)
    return tuple(found.values())


def needs_whole(frontier: Frontier, steps: Sequence[PlanStep]) -> bool:
    """Return whether a document is not true any more: a step since reopens one that it sums up, or skips ranges of such.

    `steps` are those that it keeps, and those since. A skip was decided before its ranges were landed and summed up.
    """
    newer = [step for step in steps if step.seq >= frontier.seq]
    if any(frontier.sums_up(seq) for step in newer for seq in step.reopened):
        return True
    skips = [link.offsets for step in newer for link in step.skips]
    known = [offsets for step in steps for offsets in step.ranges] if skips else []
    return any(sum(len(each) for each in known if _is_within(each, skip)) != len(skip) for skip in skips)


def _is_within(offsets: OffsetRange, whole: OffsetRange) -> bool:
    return offsets.place == whole.place and whole.start <= offsets.start and offsets.end <= whole.end
