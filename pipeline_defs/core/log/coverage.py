"""Coverage: what is landed, pending, lost or skipped according to plan log and manifests.

Invariant: landed + pending + claimed + lost + skipped tile each Kafka partition from its first link to its head.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..offsets import OffsetRange, Place
from .delivery import Acceptance, Claim
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


def how_to_restore(coverage: Coverage, offsets: OffsetRange) -> str:
    """Return what to do about a range whose rows are there and whose manifest is gone."""
    is_read_again = coverage.states().get(offsets) is State.PENDING  # not claimed under `at_most_once`, and not lost
    return "restore that from a backup" + ("; while Kafka has its records, it is landed again" if is_read_again else "")
