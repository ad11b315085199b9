"""The picture of a topic's coverage as columns: the length, look, run and times of each link; holes and notes where any.

A million ranges are a few arrays. Invariant: links tile, so lengths alone give every boundary; all of it is what plan log,
manifests and broker say, and nothing is summed up.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby

from ..log.coverage import Coverage, State
from ..log.holes import Cause, Interval
from ..log.losses import Loss
from ..log.manifest import Manifest
from ..log.plan_step import Link, Watermarks
from ..offsets import OffsetRange
from ..tables.decoding import Decoding, find_due
from .dispatch import Tried

INTERVAL_BUDGET = 300_000  # holes that are drawn one by one; beyond it only the first ones of each range
CAUSES = tuple(Cause)
UNDECODED, NOT_LANDED = -1, -2  # instead of a count of dead letters


class LinkLook(IntEnum):
    """How a link is drawn."""

    LANDED = 0
    PLANNED = 1
    FAILED = 2
    LOST = 3
    SKIPPED = 4
    CLAIMED = 5


LOOKS = {
    State.LANDED: LinkLook.LANDED,
    State.PENDING: LinkLook.PLANNED,
    State.LOST: LinkLook.LOST,
    State.SKIPPED: LinkLook.SKIPPED,
    State.CLAIMED: LinkLook.CLAIMED,
}


@dataclass(frozen=True, slots=True)
class Line:
    """One Kafka partition of one generation: its `count` links begin at `first`; `earliest` and `end` are the broker's.

    Both are none for a closed generation, or where the broker was not asked.
    """

    generation: int
    partition: int
    start: int
    first: int
    count: int
    earliest: int | None
    end: int | None


@dataclass(slots=True)
class Picture:
    """A topic's links, one element of each column per link; times are ms since 1970, -1 where there is none.

    `totals` are (link, place in `CAUSES`, number of offsets without a row); `intervals` are single holes: link, start
    relative to the link's, length, place in `CAUSES`. `notes` explain a link's look where needed. `dead_letters` are a link's
    number of them, or `UNDECODED` or `NOT_LANDED`; empty for a topic that is not decoded.
    """

    topic: str
    lines: list[Line] = field(default_factory=list)
    lengths: array[float] = field(default_factory=lambda: array("d"))
    looks: array[int] = field(default_factory=lambda: array("B"))
    runs: array[int] = field(default_factory=lambda: array("I"))
    oldest_ms: array[float] = field(default_factory=lambda: array("d"))
    newest_ms: array[float] = field(default_factory=lambda: array("d"))
    landed_ms: array[float] = field(default_factory=lambda: array("d"))
    dead_letters: array[float] = field(default_factory=lambda: array("d"))
    run_ids: list[str] = field(default_factory=lambda: [""])
    totals: list[tuple[int, int, int]] = field(default_factory=list)
    intervals: list[tuple[int, int, int, int]] = field(default_factory=list)
    notes: dict[int, str] = field(default_factory=dict)


def draw_picture(
    coverage: Coverage,
    tried: Mapping[OffsetRange, Tried],
    marks: Mapping[int, Watermarks],
    losses: Iterable[Loss],
    budget: int = INTERVAL_BUDGET,
    *,
    decodings: Mapping[OffsetRange, Decoding] | None = None,
) -> Picture:
    """Draw a topic from its coverage; `tried` says which pending ranges have failed, `marks` what the broker has.

    `decodings` has each decoded range; none where the topic is not decoded.
    """
    picture = Picture(coverage.log.topic)
    by_key: dict[str, list[Loss]] = {}
    for loss in losses:
        by_key.setdefault(loss.key, []).append(loss)
    numbers = {"": 0}
    links = sorted(coverage.log.links, key=lambda link: link.offsets)
    gone: list[tuple[int, OffsetRange, tuple[Interval, ...]]] = []
    for (generation, partition), group in groupby(links, key=lambda link: link.offsets.place):
        first, start = len(picture.lengths), None
        for link in group:
            start = link.offsets.start if start is None else start
            known = by_key.get(link.offsets.key, [])
            holes = _add(picture, coverage, link, tried.get(link.offsets), known, numbers)
            if holes:
                gone.append((len(picture.lengths) - 1, link.offsets, holes))
        mark = marks.get(partition) if generation == coverage.log.generation else None
        ends = (None, None) if mark is None else (mark.earliest, mark.end)
        picture.lines.append(Line(generation, partition, start or 0, first, len(picture.lengths) - first, *ends))
    _add_holes(picture, gone, budget)
    if decodings is not None:
        due = set(find_due(coverage, decodings.get))
        picture.dead_letters.extend(
            NOT_LANDED
            if not coverage.is_landed(each.offsets)
            else UNDECODED
            if each.offsets in due
            else decodings[each.offsets].dead
            if each.offsets in decodings
            else 0
            for each in links
        )
    return picture


def _add(
    picture: Picture, coverage: Coverage, link: Link, tried: Tried | None, losses: list[Loss], numbers: dict[str, int]
) -> tuple[Interval, ...]:
    state, manifest = coverage.state_of(link), coverage.manifests.get(link.offsets)
    look, run_id, notes = LOOKS[state], "", []
    if state is State.LANDED and manifest is not None:
        run_id = manifest.provenance.run_id
    elif state is State.PENDING and tried is not None and tried.attempts:
        look, run_id = LinkLook.FAILED, tried.failed_run
        notes.append(f"failed {tried.attempts} times in a row")
    for loss in losses:
        said = f"accepted by {loss.acceptance.accepted_by}" if loss.acceptance else "not accepted"
        notes.append(f"{len(loss.offsets):,} offsets {loss.cause}; {said}")
    if state is State.SKIPPED:
        cause = coverage.log.skipped.get(link.offsets, link).cause
        notes.append(f"left out on purpose: {cause or 'by the start of the topic'}")
    if notes:
        picture.notes[len(picture.lengths)] = "; ".join(notes)
    if run_id not in numbers:
        numbers[run_id] = len(picture.run_ids)
        picture.run_ids.append(run_id)
    landed = manifest if state is State.LANDED else None
    picture.lengths.append(len(link.offsets))
    picture.looks.append(look)
    picture.runs.append(numbers[run_id])
    _add_times(picture, landed)
    if landed is not None:
        return landed.holes
    if look in {LinkLook.PLANNED, LinkLook.FAILED}:
        return tuple(Interval(loss.offsets.start, loss.offsets.end, Cause.LOST) for loss in losses)
    return ()


def _add_times(picture: Picture, manifest: Manifest | None) -> None:
    file = manifest.file if manifest else None
    picture.landed_ms.append(-1 if manifest is None else manifest.provenance.landed_at_ms)
    picture.oldest_ms.append(-1 if file is None or file.min_timestamp_ms is None else file.min_timestamp_ms)
    picture.newest_ms.append(-1 if file is None or file.max_timestamp_ms is None else file.max_timestamp_ms)


def _add_holes(picture: Picture, gone: list[tuple[int, OffsetRange, tuple[Interval, ...]]], budget: int) -> None:
    most = _most_each([len(holes) for _, _, holes in gone], budget)
    for number, offsets, holes in gone:
        counts: dict[int, int] = {}
        for hole in holes:
            cause = CAUSES.index(hole.cause)
            counts[cause] = counts.get(cause, 0) + hole.end - hole.start
        picture.totals += [(number, cause, count) for cause, count in sorted(counts.items())]
        picture.intervals += [
            (number, hole.start - offsets.start, hole.end - hole.start, CAUSES.index(hole.cause)) for hole in holes[:most]
        ]


def _most_each(counts: list[int], budget: int) -> int:
    """Return how many of each may be kept so that all together stay within a budget."""
    most = max(counts, default=0)
    while most and sum(min(count, most) for count in counts) > budget:
        most //= 2
    return most
