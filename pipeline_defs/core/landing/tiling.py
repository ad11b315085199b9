"""Violations of a coverage over all history: ranges that no step plans, gaps, overlaps, and holes that cannot be.

Invariant: each names its offsets and what to do about it. `PlanLog` ensures that links tile; here landed ranges are compared
with them.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from ..advice import command, replace_command
from ..errors import BrokenPlanLog
from ..log.coverage import Coverage, State, how_to_restore
from ..log.delivery import Delivery
from ..offsets import OffsetRange, Place, find_backward


def check_planned(coverage: Coverage) -> None:
    """Raise `BrokenPlanLog` where the lake has something of a range that no step of the log plans.

    Its step is lost: planned again from an older head, the offsets would get other boundaries, and rows would be shown twice.
    """
    unplanned = _unplanned(coverage)
    if not unplanned:
        return
    topic, steps = coverage.log.topic, len(coverage.log.steps)
    log = f"the {steps} steps of the plan log of topic {topic}" if steps else f"topic {topic}, which has no plan log"
    raise BrokenPlanLog(
        f"the lake has ranges that are in none of {log}: newer steps are lost; nothing is planned or landed, since their "
        f"records would be landed a second time; restore plan/{topic} from a backup of the lake, newest steps included; "
        "without a backup move away what is named below, as `offsetlake explain broken_plan_log` says",
        [*_unplanned_violations(topic, unplanned), *_places(topic, unplanned)],
    )


def _unplanned_violations(topic: str, unplanned: Mapping[str, set[OffsetRange]]) -> Iterator[str]:
    """Yield one line per lost step, or per kind of evidence that names no step, with the number of ranges and the first."""
    for what, ranges in sorted(unplanned.items()):
        yield f"{what} of {len(ranges)} ranges, the first of {min(ranges).text(topic)}"


def _places(topic: str, unplanned: Mapping[str, set[OffsetRange]]) -> Iterator[str]:
    """Yield where the files of unplanned ranges lie: per folder the number of ranges and the first name."""
    places: dict[str, set[OffsetRange]] = defaultdict(set)
    for offsets in {each for ranges in unplanned.values() for each in ranges}:
        places[offsets.folder].add(offsets)
    for folder, ranges in sorted(places.items()):
        yield f"{len(ranges)} ranges in */{topic}/{folder}/*, from the name {min(ranges).stem} on"


def _unplanned(coverage: Coverage) -> Mapping[str, set[OffsetRange]]:
    """Return the ranges that no step plans and that the lake has something of, by kind of evidence."""
    log, found = coverage.log, dict[str, set[OffsetRange]]()
    for offsets in coverage.manifests.keys() - log.ranges.keys():
        seq = coverage.manifests[offsets].provenance.plan_seq
        found.setdefault(f"plan step {seq} is not there, or not the one that planned what it landed: manifests", set()).add(
            offsets
        )
    others = {
        "published files": {*coverage.published, *coverage.doubles.values()},
        "claims": {*coverage.claims},
        "accepted losses": coverage.accepted.keys() - {link.offsets for link in log.links},
    }
    for what, ranges in others.items():
        unplanned = ranges - log.ranges.keys() - coverage.manifests.keys()
        if unplanned:
            found[f"no plan step is there for: {what}"] = unplanned
    return found


def tiling_violations(
    coverage: Coverage, *, is_newest_first: bool = False, in_progress: Collection[OffsetRange] = ()
) -> list[str]:
    """Return every gap and overlap over all history.

    These are no gaps: earlier ranges that wait where the newest are landed first, ranges `in_progress` in a run, and what a
    closed generation has not landed, which is lost.
    """
    violations = [
        f"overlap {path}: no range's file, yet a plain glob may show it: move it out of `data/`" for path in coverage.strays
    ]
    violations += _double_violations(coverage)
    last_landed: dict[Place, int] = defaultdict(int)
    for offsets in (offsets for offsets, state in coverage.states().items() if state is State.LANDED):
        last_landed[offsets.place] = max(last_landed[offsets.place], offsets.start)
    for offsets in coverage.log.ranges:
        found = _violation_of(coverage, offsets)
        if found is not None:
            violations.append(found)
        elif not is_newest_first and offsets not in in_progress and _is_overtaken(coverage, offsets, last_landed):
            advice = _how_to_land(coverage.log.topic, offsets)
            where = offsets.text(coverage.log.topic)
            violations.append(f"gap {where}: planned and not landed, while later offsets are: {advice}")
    return violations


def _is_overtaken(coverage: Coverage, offsets: OffsetRange, last_landed: Mapping[Place, int]) -> bool:
    """Return whether a range waits for a run while a later one of its Kafka partition is landed."""
    is_pending = coverage.states()[offsets] is State.PENDING and offsets not in coverage.unfinished
    return is_pending and offsets.start < last_landed[offsets.place]


def _violation_of(coverage: Coverage, offsets: OffsetRange) -> str | None:
    """Return what is wrong between a planned range's manifest and its published file; none where they agree."""
    topic, state, size = coverage.log.topic, coverage.states()[offsets], coverage.published.get(offsets)
    where, manifest = offsets.text(topic), coverage.manifests.get(offsets)
    if manifest is None and size is None:
        return None
    if manifest is None:
        return f"gap {where}: a file is published but its manifest is gone: {how_to_restore(coverage, offsets)}"
    if offsets in coverage.unfinished or (state is State.LOST and offsets in coverage.accepted):
        return None  # a run is about to publish it, or a person has accepted that it is lost, though it was committed
    if manifest.file is None:
        return None if size is None else f"overlap {where}: the manifest says no records, yet a file is published"
    if size is None:  # dropped, if it is landed
        advice = _how_to_land(topic, offsets)
        return None if state is State.LANDED else f"gap {where}: a manifest is there but its file is not published: {advice}"
    if size != manifest.file.bytes:
        return (
            f"gap {where}: the published file has {size} bytes, its manifest says {manifest.file.bytes}: it was cut short or "
            "changed: restore it from a backup; while Kafka has the same, the next run mends it"
        )
    return None


def _how_to_land(topic: str, offsets: OffsetRange) -> str:
    return f"`{command('land', topic, '--key', offsets.key)}` lands it, or says why it cannot"


def _double_violations(coverage: Coverage) -> Iterator[str]:
    """Yield each second file with rows of a range, but for those that a crash under `at_least_once` may leave.

    It may not once a replace, or a landing under another policy, has decided the rows. Only a person's replace deletes such a
    file, and only where reading shows that the landed file has each of its rows.
    """
    topic = coverage.log.topic
    for path, offsets in coverage.doubles.items():
        manifest = coverage.manifests.get(offsets)
        has_attempts_name = not path.endswith(f"{offsets.stem}.parquet")
        by_crash = manifest is None or (manifest.delivery is Delivery.AT_LEAST_ONCE and not manifest.revision)
        if not (by_crash and has_attempts_name):
            is_lost = offsets in coverage.log.ranges and coverage.states()[offsets] is State.LOST
            advice = (
                "the range is lost, and this file may be all that is left of it: to show nothing of it, move it out of `data/` "
                "and keep it"
                if is_lost
                else f"`{replace_command(topic, offsets.key)}` deletes it where the landed file has each of its rows, and else "
                "says which it has not"
            )
            yield f"overlap {offsets.text(topic)}: {path} may show its rows a second time, and no manifest names it: {advice}"


def completeness_violations(coverage: Coverage) -> list[str]:
    """Return every landed range with holes that overlap, or with holes or rows outside it; `Manifest` checks their number."""
    violations = []
    for offsets, manifest in sorted(coverage.manifests.items()):
        where = offsets.text(coverage.log.topic)
        holes = sorted((hole.start, hole.end) for hole in manifest.holes)
        violations += [f"range {where}: holes overlap at [{start}, {end})" for end, start in find_backward(holes)]
        if any(start < offsets.start or end > offsets.end for start, end in holes):
            violations.append(f"range {where}: a hole lies outside the range")
        file = manifest.file
        if file and not (file.min_offset in offsets and file.max_offset in offsets):
            violations.append(f"range {where}: rows from {file.min_offset} to {file.max_offset} lie outside the range")
    return violations
