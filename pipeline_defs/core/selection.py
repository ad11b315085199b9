"""Selection: which ranges of the plan log a person means, said as keys, offsets, times or states.

Pure: what the broker or Dagster must be asked for comes in as an argument. Invariant: a selection is never empty, in
log order, and of ranges of the plan log only; what can never be landed is in it only where its own key was said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from .coverage import Coverage, State
from .errors import EmptySelection, Refused
from .offsets import OffsetRange, subtract_intervals

_OFFSETS = re.compile(r"(\d{1,10}):(\d{1,19})-(\d{1,19})", re.ASCII)
_LANDABLE = {State.LANDED, State.PENDING}
NOTHING_DONE = "nothing was launched"


@dataclass(frozen=True, slots=True)
class Selection:
    """Is what a person means: ranges in log order, and those meant too that can never be landed (any more)."""

    ranges: tuple[OffsetRange, ...]
    left_out: tuple[OffsetRange, ...] = ()


def parse_offsets(text: str, generation: int) -> OffsetRange:
    """Reads `P:S-E`, half-open offsets of one Kafka partition; refuses anything else."""
    match = _OFFSETS.fullmatch(text)
    if match:
        partition, start, end = (int(number) for number in match.groups())
        try:
            return OffsetRange(generation, partition, start, end)
        except ValueError:
            pass
    raise Refused(
        f"offsets {text!r} are not P:S-E: expected a Kafka partition, the first offset, and the one after the last, such as "
        f"3:300000-400000; {NOTHING_DONE}"
    )


def choose_all(coverage: Coverage) -> Selection:
    """Chooses every range that is landed or can be."""
    return _choose(coverage, coverage.log.ranges, "has no range in its plan log yet: `offsetlake plan TOPIC --commit`")


def choose_missing(coverage: Coverage) -> Selection:
    """Chooses the ranges that are planned and not landed."""
    return _choose(coverage, coverage.pending(), "has no missing range: all that is planned is landed")


def choose_failed(coverage: Coverage, failed: AbstractSet[OffsetRange]) -> Selection:
    """Chooses the ranges that are not landed and whose last run failed."""
    wanted = [offsets for offsets in coverage.pending() if offsets in failed]
    return _choose(coverage, wanted, "has no failed range: no run failed, or what failed has been landed since")


def choose_offsets(coverage: Coverage, wanted: Sequence[OffsetRange]) -> Selection:
    """Chooses the ranges that hold any of the offsets; refuses offsets that no link of the plan log holds."""
    topic = coverage.log.topic
    outside = []
    for each in wanted:
        places = [link.offsets for link in coverage.log.links if _same_partition(link.offsets, each)]
        known = [(offsets.start, offsets.end) for offsets in places]
        ends = f"it holds [{min(known)[0]}, {max(known)[1]})" if known else "it holds nothing of that Kafka partition"
        left = subtract_intervals([(each.start, each.end)], known)
        outside += [f"[{start}, {end}) of {each.text(topic)}; {ends}" for start, end in left]
    if outside:
        raise Refused(
            f"offsets are not in the plan log of topic {topic}: {', and '.join(outside)}; {NOTHING_DONE}; name offsets that "
            f"are planned (`offsetlake backfill {topic} --all` shows them)"
        )
    chosen = [offsets for offsets in coverage.log.ranges if any(_overlap(offsets, each) for each in wanted)]
    return _choose(
        coverage, chosen, "has no range at these offsets: they were lost or skipped before they were planned"
    )


def choose_times(coverage: Coverage, start_ms: int, end_ms: int, unlanded: Mapping[int, tuple[int, int]]) -> Selection:
    """Chooses the ranges that have records of [start_ms, end_ms), ms since 1970.

    | range | by |
    |---|---|
    | landed | the first and last timestamp in its manifest, exactly |
    | not landed, open generation | `unlanded`: of a Kafka partition the offsets where the broker finds both times |
    """
    chosen = []
    for offsets, state in coverage.states().items():
        if state is State.LANDED:
            file = coverage.manifests[offsets].file
            if file is None or file.min_timestamp_ms is None or file.max_timestamp_ms is None:
                continue
            if file.min_timestamp_ms < end_ms and file.max_timestamp_ms >= start_ms:
                chosen.append(offsets)
        elif offsets.generation == coverage.log.generation:
            first, last = unlanded.get(offsets.partition, (0, 0))
            if offsets.start < last and offsets.end > first:
                chosen.append(offsets)
    return _choose(coverage, chosen, "has no range with a record of that time")


def _choose(coverage: Coverage, wanted: Iterable[OffsetRange], why_none: str) -> Selection:
    meant = set(wanted)
    states = coverage.states()
    ranges = tuple(o for o in coverage.log.ranges if o in meant and states[o] in _LANDABLE)
    left_out = tuple(o for o in coverage.log.ranges if o in meant and states[o] not in _LANDABLE)
    if not ranges:
        lost = f"; {len(left_out)} are lost or abandoned (`offsetlake losses`)" if left_out else ""
        raise EmptySelection(f"topic {coverage.log.topic} {why_none}{lost}; {NOTHING_DONE}")
    return Selection(ranges, left_out)


def _same_partition(one: OffsetRange, other: OffsetRange) -> bool:
    return (one.generation, one.partition) == (other.generation, other.partition)


def _overlap(one: OffsetRange, other: OffsetRange) -> bool:
    return _same_partition(one, other) and one.start < other.end and other.start < one.end
