"""Selection: which ranges of the plan log a person means, given as keys, offsets, times or states; and which are retired.

Pure: answers of broker and Dagster come in as arguments. Invariants: a selection is not empty, is in log order, and has
ranges of the plan log only; one that can never be landed is in it only where its own key was given. Only landed or skipped
ranges are retired, and of landed ones none of the newest `max_keys`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ..advice import command
from ..errors import BadKey, EmptySelection, Refused
from ..log.coverage import Coverage, State
from ..offsets import OffsetRange, parse_key, subtract_intervals

MAX_KEYS = 10_000  # partitions of an asset with which Dagster's pages load in about a second
_OFFSETS = re.compile(r"(\d{1,100}):(\d{1,100})-(\d{1,100})", re.ASCII)
_ASKED_FOR = {State.LANDED, State.PENDING}
_LANDABLE = {*_ASKED_FOR, State.SKIPPED}  # a skipped range is landed where its key or its offsets are given
NOTHING_DONE = "nothing was launched"


def retired(coverage: Coverage, max_keys: int) -> frozenset[OffsetRange]:
    """Return the landed ranges that come before the newest `max_keys` of the plan log, and the skipped ones.

    The set only grows with the log, except for skipped ranges that are landed later: no key comes and goes.
    """
    ranges = coverage.log.count_before()[coverage.log.state.seq]
    return coverage.landed_among_first(max(0, ranges - max_keys)) | coverage.skipped()


@dataclass(frozen=True, slots=True)
class Selection:
    """The ranges that a person means, in log order; `left_out` are meant too, but lost, abandoned or skipped."""

    ranges: tuple[OffsetRange, ...]
    left_out: tuple[OffsetRange, ...] = ()


def parse_offsets(text: str, generation: int) -> OffsetRange:
    """Read `P:S-E`, half-open offsets of one Kafka partition; refuse anything else."""
    match = _OFFSETS.fullmatch(text)
    try:
        if match is None:
            raise ValueError(
                "expected a Kafka partition, the first offset, and the one after the last, such as 3:300000-400000"
            )
        partition, start, end = (int(number) for number in match.groups())
        return OffsetRange(generation, partition, start, end)
    except ValueError as error:
        raise Refused(f"offsets {text!r} are not P:S-E: {error}; {NOTHING_DONE}") from error


def choose_all(coverage: Coverage) -> Selection:
    """Choose every range that is landed or pending; skipped ones are neither."""
    return _choose(coverage, coverage.log.ranges, "has no range in its plan log yet: `offsetlake plan TOPIC --apply`")


def choose_missing(coverage: Coverage) -> Selection:
    """Choose the ranges that are planned and not landed."""
    return _choose(coverage, coverage.pending(), "has no missing range: all that is planned is landed")


def choose_failed(coverage: Coverage, failed: AbstractSet[OffsetRange]) -> Selection:
    """Choose the ranges that are not landed and whose last run failed."""
    wanted = [offsets for offsets in coverage.pending() if offsets in failed]
    return _choose(coverage, wanted, "has no failed range: no run failed, or what failed has been landed since")


def choose_keys(coverage: Coverage, wanted: Iterable[OffsetRange], of_what: str) -> Selection:
    """Choose ranges that the caller has found; `of_what` describes them in the error where there is none."""
    return _choose(coverage, wanted, f"has no range {of_what}")


def choose_offsets(coverage: Coverage, wanted: Sequence[OffsetRange]) -> Selection:
    """Choose the ranges that have any of the offsets; refuse offsets that are in no link of the plan log."""
    topic = coverage.log.topic
    outside = []
    for each in wanted:
        places = [link.offsets for link in coverage.log.links if link.offsets.place == each.place]
        known = [(offsets.start, offsets.end) for offsets in places]
        ends = f"it holds [{min(known)[0]}, {max(known)[1]})" if known else "it holds nothing of that Kafka partition"
        left = subtract_intervals([(each.start, each.end)], known)
        outside += [f"[{start}, {end}) of {each.text(topic)}; {ends}" for start, end in left]
    if outside:
        raise Refused(
            f"offsets are not in the plan log of topic {topic}: {', and '.join(outside)}; {NOTHING_DONE}; name offsets that "
            f"are planned (`{command('backfill', topic, '--all')}` shows them)"
        )
    chosen = [offsets for offsets in coverage.log.ranges if any(offsets.overlaps(each) for each in wanted)]
    return _choose(
        coverage, chosen, "has no range at these offsets: they were lost or skipped before they were planned", _LANDABLE
    )


def choose_times(coverage: Coverage, start_ms: int, end_ms: int, unlanded: Mapping[int, int]) -> Selection:
    """Choose the ranges that may have records of [start_ms, end_ms), ms since 1970.

    | range | is chosen where |
    |---|---|
    | landed | its first and last timestamp, in its manifest, span some of that time: always the same |
    | not landed, open generation | it ends after the offset in `unlanded`, before which all records there are older |

    Producers set timestamps, so later records may have older ones: which is the last record of a time is not known until all
    are read. So no range that is not landed is left out for being too young. As ranges land, the same selection therefore only
    narrows, to the landed ranges with such records, whatever the broker has deleted by then.
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
            chosen += [offsets] if offsets.end > unlanded.get(offsets.partition, offsets.end) else []
    return _choose(coverage, chosen, "has no range with a record of that time")


def find_ranges(topic: str, keys: Sequence[str], coverage: Coverage) -> list[OffsetRange]:
    """Read the keys; refuse an empty selection, and keys that are malformed or not ranges of the plan log."""
    if not keys:
        raise EmptySelection(
            f"the run selects no range of topic {topic}; nothing was read or written; select partitions whose keys are "
            f"in the plan log, first one first (`{command('backfill', topic, '--all')}` lists them)"
        )
    ranges = [parse_key(key) for key in keys]
    unknown = [offsets for offsets in ranges if offsets not in coverage.log.ranges]
    if unknown:
        raise BadKey(
            f"{len(unknown)} of {len(ranges)} ranges are not in the plan log of topic {topic}: "
            f"{', '.join(_with_nearest(each, coverage.log.ranges) for each in unknown[:5])}; nothing was read or written; "
            f"`{command('backfill', topic, '--all')}` lists those there are, `{command('plan', topic, '--apply')}` plans more",
            keys=[offsets.key for offsets in unknown],
        )
    return sorted(set(ranges))


def _with_nearest(wanted: OffsetRange, ranges: Iterable[OffsetRange]) -> str:
    """Return a key together with that of the range most likely meant: the one that shares most offsets, or is closest."""

    def distance(each: OffsetRange) -> tuple[int, int]:
        shared = min(each.end, wanted.end) - max(each.start, wanted.start)
        return -max(0, shared), abs(each.start - wanted.start) + abs(each.end - wanted.end)

    near = min((each for each in ranges if each.place == wanted.place), key=distance, default=None)
    return f"{wanted.key} (the nearest there is: {near.key})" if near else wanted.key


def _choose(
    coverage: Coverage, wanted: Iterable[OffsetRange], why_none: str, among: AbstractSet[State] = frozenset(_ASKED_FOR)
) -> Selection:
    meant = set(wanted)
    states = coverage.states()
    ranges = tuple(o for o in coverage.log.ranges if o in meant and states[o] in among)
    left_out = tuple(o for o in coverage.log.ranges if o in meant and states[o] not in among)
    if not ranges:
        lost = f"; {len(left_out)} are lost, abandoned or skipped (`offsetlake losses`)" if left_out else ""
        raise EmptySelection(f"topic {coverage.log.topic} {why_none}{lost}; {NOTHING_DONE}")
    return Selection(ranges, left_out)
