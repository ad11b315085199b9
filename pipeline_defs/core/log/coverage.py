"""Coverage: what is landed, pending, lost or skipped according to plan log and manifests, and violations of it.

Invariant: landed + pending + claimed + lost + skipped tile each Kafka partition from its first link to its head.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..advice import command, replace_command
from ..errors import BrokenPlanLog
from ..offsets import OffsetRange, Place, find_backward
from .delivery import Acceptance, Claim, Delivery
from .frontier import CONTENTS, Sums, content_of
from .latency import Histogram, count_waits, waits_of
from .manifest import Manifest, StagedFile
from .plan_step import Link, LinkKind
from .planlog import PlanLog


class State(StrEnum):
    """The state of a link of the plan log."""

    LANDED = "landed"
    PENDING = "pending"
    LOST = "lost"
    SKIPPED = "skipped"
    CLAIMED = "claimed"  # at_most_once: one attempt may read it, and no other ever will


@dataclass(frozen=True, slots=True)
class Coverage:
    """A plan log with the manifests and published files of the same topic.

    Where the log has a base, they are those of the ranges that the log itself has; faults of the others show only without one.
    `published` maps a range to the size in bytes of its file in the data tree; `strays` are objects there that no range owns;
    `accepted` maps a range or lost link to the acceptance of its loss; `claims` are of `at_most_once`. `doubles` maps the path
    of each file that no manifest names, as attempts of `at_least_once` leave them, to its range; `unfinished` are committed
    ranges whose staged file is not yet published or exchanged.
    """

    log: PlanLog
    manifests: Mapping[OffsetRange, Manifest]
    published: Mapping[OffsetRange, int]
    strays: tuple[str, ...] = ()
    accepted: Mapping[OffsetRange, Acceptance] = field(default_factory=dict)
    claims: Mapping[OffsetRange, Claim] = field(default_factory=dict)
    doubles: Mapping[str, OffsetRange] = field(default_factory=dict)
    unfinished: frozenset[OffsetRange] = frozenset()
    _states: list[dict[OffsetRange, State]] = field(default_factory=list, init=False, repr=False, compare=False)
    _landed_among_first: dict[int, frozenset[OffsetRange]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def is_landed(self, offsets: OffsetRange) -> bool:
        """Return whether the manifest exists and its file, where it has one, is published with the right size."""
        manifest = self.manifests.get(offsets)
        if manifest is None or offsets in self.unfinished:
            return False
        return manifest.is_dropped or manifest.file is None or self.published.get(offsets) == manifest.file.bytes

    def dropped(self) -> dict[OffsetRange, int]:
        """Return the ranges whose file was ever dropped, each with the revision that was dropped last."""
        return {offsets: manifest.drop.revision for offsets, manifest in self.manifests.items() if manifest.drop}

    def state_of(self, link: Link) -> State:
        """Return the state of a link.

        A committed range is finished whatever became of its topic; any other range of a closed generation is lost.
        """
        if link.kind is not LinkKind.RANGE:
            return State(link.kind.value)
        if self.is_landed(link.offsets):
            return State.LANDED
        if link.offsets in self.unfinished:
            return State.PENDING
        if link.offsets in self.claims and link.offsets not in self.manifests:
            return State.CLAIMED
        if link.offsets in self.log.skipped and not self._is_begun(link.offsets):
            return State.SKIPPED
        return State.LOST if link.offsets.generation < self.log.generation else State.PENDING

    def _is_begun(self, offsets: OffsetRange) -> bool:
        """Return whether the lake has something of a range: such a range is finished, even where a person skipped it since."""
        return offsets in self.manifests or offsets in self.published or offsets in self.doubles.values()

    def states(self) -> Mapping[OffsetRange, State]:
        """Return the state of every link, in log order; computed once, since a coverage never changes."""
        if not self._states:  # appended whole: threads share a coverage
            self._states.append({link.offsets: self.state_of(link) for link in self.log.links})
        return self._states[0]

    def landed_among_first(self, count: int) -> frozenset[OffsetRange]:
        """Return which of the first `count` ranges of the log are landed; computed once."""
        if count not in self._landed_among_first:
            before = self.log.count_before()
            first = (each for step in self.log.steps for each in step.ranges[: max(0, count - before[step.seq])])
            landed = (each for each in first if each in self.log.ranges and self.is_landed(each))
            self._landed_among_first[count] = frozenset(landed)
        return self._landed_among_first[count]

    def pending(self) -> list[OffsetRange]:
        """Return the planned ranges that are not landed and still can be, in log order."""
        return [offsets for offsets, state in self.states().items() if state is State.PENDING]

    def skipped(self) -> frozenset[OffsetRange]:
        """Return the ranges that a person has skipped and that were not landed since."""
        return frozenset(offsets for offsets in self.log.skipped if self.states()[offsets] is State.SKIPPED)

    def doubles_of(self, offsets: OffsetRange) -> list[str]:
        """Return the paths of a range's files that no manifest names."""
        return [path for path, owner in self.doubles.items() if owner == offsets]

    def frontier(self, generation: int, holding: Collection[OffsetRange] = ()) -> dict[int, int]:
        """Return per Kafka partition the offset before which no range is pending or one of those `holding` the frontier."""
        ends = {p: end for (of, p), end in self.log.base.ends.items() if of == generation} if self.log.base else {}
        stops: dict[int, int] = {}
        for offsets, state in self.states().items():
            if offsets.generation != generation:
                continue
            if state is State.PENDING or offsets in holding:
                stops.setdefault(offsets.partition, offsets.start)
            ends[offsets.partition] = max(offsets.end, ends.get(offsets.partition, 0))
        return {**ends, **stops}

    def ends(self) -> dict[Place, int]:
        """Return the offset at which the links of each place end."""
        ends = dict(self.log.base.ends) if self.log.base else {}
        for link in self.log.links:
            place = link.offsets.place
            ends[place] = max(link.offsets.end, ends.get(place, 0))
        return ends

    def weight(self) -> int:
        """Return the sum of revision + 1 over all ranges that have a manifest."""
        own = sum(manifest.revision + 1 for manifest in self.manifests.values())
        return own + sum(sums.weight for sums in self.log.summed.values())

    def last_landed(self) -> dict[Place, int]:
        """Return when a range of each place was last landed (ms since 1970)."""
        found = {place: sums.last_landed_ms for place, sums in self.log.summed.items()}
        for offsets, manifest in self.manifests.items():
            if self.is_landed(offsets):
                found[offsets.place] = max(found.get(offsets.place, 0), manifest.provenance.landed_at_ms)
        return found

    def sums(self) -> dict[Place, Sums]:
        """Return the sums of the landed ranges of each place, over all history."""
        found = defaultdict(Sums, self.log.summed)
        for offsets, manifest in self.manifests.items():
            if self.is_landed(offsets):
                found[offsets.place] = _with(found[offsets.place], manifest)
        return dict(found)

    def waits(self) -> Histogram:
        """Return how long the records of landed ranges waited; ranges that were replaced do not count."""
        own = count_waits(waits_of(self.first_landed()))
        return own + self.log.base.waits if self.log.base else own

    def first_landed(self) -> Iterator[tuple[StagedFile | None, int]]:
        """Yield the file of each range that was never replaced, and when it was landed (ms since 1970)."""
        return ((each.file, each.provenance.landed_at_ms) for each in self.manifests.values() if not each.revision)


def _with(sums: Sums, manifest: Manifest) -> Sums:
    """Return the sums with a range added."""
    holes = dict(sums.holes)
    for hole in manifest.holes:
        holes[hole.cause.value] = holes.get(hole.cause.value, 0) + hole.end - hole.start
    return Sums(
        sums.ranges + 1,
        (sums.contents + (content_of(manifest.offsets, manifest.digest) if manifest.rows else 0)) % CONTENTS,
        sums.weight + manifest.revision + 1,
        sums.rows + manifest.rows,
        sums.bytes + (manifest.file.bytes if manifest.file else 0),
        max(sums.last_landed_ms, manifest.provenance.landed_at_ms),
        holes,
    )


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
    """Name every gap and overlap over all history, with its offsets.

    These are no gaps: earlier ranges that wait where the newest are landed first, ranges `in_progress` in a run, and what a
    closed generation has not landed, which is lost. `PlanLog` ensures that links tile; this compares landed ranges with them.
    """
    topic = coverage.log.topic
    planned = coverage.log.ranges
    states = coverage.states()
    violations = [f"overlap {path}: no range's file, yet a plain glob may show it" for path in coverage.strays]
    violations += _double_violations(coverage)
    last_landed: dict[Place, int] = defaultdict(int)
    for offsets in (offsets for offsets, state in states.items() if state is State.LANDED):
        last_landed[offsets.place] = max(last_landed[offsets.place], offsets.start)
    for offsets in planned:
        where = offsets.text(topic)
        manifest = coverage.manifests.get(offsets)
        file = manifest.file if manifest else None
        if manifest is None and offsets in coverage.published:
            violations.append(f"gap {where}: a file is published but its manifest is gone: {how_to_restore(coverage, offsets)}")
        elif offsets in coverage.unfinished or (states[offsets] is State.LOST and offsets in coverage.accepted):
            continue  # a run is about to publish it, or a person has accepted that it is lost, though it was committed
        elif file is not None and offsets not in coverage.published and states[offsets] is not State.LANDED:  # nor dropped
            violations.append(f"gap {where}: a manifest is there but its file is not published: {_how_to_land(topic, offsets)}")
        elif file is None and offsets in coverage.published:
            violations.append(f"overlap {where}: the manifest says no records, yet a file is published")
        elif file is not None and coverage.published.get(offsets, file.bytes) != file.bytes:
            violations.append(
                f"gap {where}: the published file has {coverage.published[offsets]} bytes, its manifest says "
                f"{file.bytes}: it was cut short or changed: restore it from a backup; while Kafka has the same, the "
                "next run mends it"
            )
        elif (
            states[offsets] is State.PENDING
            and offsets.start < last_landed[offsets.place]
            and not is_newest_first
            and offsets not in in_progress
        ):
            advice = _how_to_land(topic, offsets)
            violations.append(f"gap {where}: planned and not landed, while later offsets are: {advice}")
    return violations


def how_to_restore(coverage: Coverage, offsets: OffsetRange) -> str:
    """Return what to do about a range whose rows are there and whose manifest is gone."""
    is_read_again = coverage.states().get(offsets) is State.PENDING  # not claimed under `at_most_once`, and not lost
    return "restore that from a backup" + ("; while Kafka has its records, it is landed again" if is_read_again else "")


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
    """Name every landed range with holes that overlap, or with holes or rows outside it; `Manifest` checks their number."""
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
