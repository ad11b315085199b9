"""The lake: where plan steps, manifests and data files lie, and how they are read back.

    data/<topic>/g0/p0003/<start20>-<end20>.parquet           published; a plain glob is always right
    manifests/<topic>/g0/p0003/<start20>-<end20>.<nnn>.json   the facts of each landed range, and that its file was dropped
    plan/<topic>/<seq20>.json                                 the plan log
    frontier/<topic>/<seq20>.<time13>.json                    what the steps before one come to; anybody may delete them
    accepted/<topic>/g0/p0003/<start20>-<end20>.json          losses that a person accepted
    claims/<topic>/g0/p0003/<start20>-<end20>.json            which attempt reads a range under `at_most_once`
    begun/<topic>/<seq20>.<digest16>                          the newest step of which there may be anything of the above
    staging/<attempt>/...                                     visible to nobody

Under `at_least_once` data files are `<start20>-<end20>.<attempt>.parquet`; what is landed after a drop is
`<start20>-<end20>.d001.parquet`. Every object is immutable, so it is read once and kept in memory; only a data file that is
not its newest manifest's is exchanged, in one step, and one that was dropped is deleted.
"""

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ...core.advice import some_of
from ...core.errors import BrokenPlanLog
from ...core.landing.tiling import check_planned
from ...core.log.coverage import Coverage
from ...core.log.delivery import Acceptance, Claim
from ...core.log.frontier import Frontier, digest_of
from ...core.log.manifest import Manifest
from ...core.log.plan_step import ALL_HEADS_EVERY, LogState, PlanStep
from ...core.log.planlog import PlanLog
from ...core.log.settling import needs_whole, sum_up
from ...core.offsets import OFFSET_DIGITS, OffsetRange, parse_key
from ..store.store import size_in
from .documents import Documents
from .frontiers import Begun, BegunSteps, Frontiers, is_of
from .lake_memory import LakeMemory
from .layout import given_up_paths, manifest_path, published_path, range_of, range_path, step_path

STEP = re.compile(rf"\d{{{OFFSET_DIGITS}}}\.json", re.ASCII)
SEEN_SECONDS = 60.0  # after which a backup may have been restored and landed on, so checks are made anew
SHOWN = 3  # names in a message
STEPS_AHEAD = 8  # steps that are looked up at once; one that is missing among them is a hole
ROW = 8  # consecutive names from which on a listing costs less than as many lookups
T = TypeVar("T")
_Groups = Sequence[tuple[Callable[[Sequence[str]], dict[str, str]], Sequence[OffsetRange]]]
"""Ranges, grouped by the function that looks up their names."""


class Lake(Documents):
    """One lake as a whole: its plan logs, and each topic's coverage of it."""

    def __init__(self, root: str, memory: LakeMemory | None = None) -> None:
        super().__init__(root, memory)
        self._logs: dict[str, tuple[Mapping[str, str], PlanLog]] = {}
        self._coverages: dict[str, tuple[tuple[object, ...], Coverage]] = {}
        self.frontiers = Frontiers(self)
        self._begun = BegunSteps(self)
        self._recents: dict[str, tuple[tuple[object, ...], Coverage]] = {}
        self._serials: dict[str, Mapping[OffsetRange, int]] = {}  # of the newest manifests
        self._newest_steps: dict[str, tuple[PlanStep | None, float]] = {}  # by topic, the last one seen here, and when
        self._looked_at: set[str] = set()  # topics of which nothing was found beyond the end of the log
        self._judged: dict[str, set[Begun]] = {}  # by topic, names in `begun/` of steps not in the log, checked

    def check_present(self, asked: str | None = None) -> None:
        """Raise `LakeUnavailable` if the lake has nothing planned although Dagster's home remembers topics of it.

        The error names the topic that was `asked` for, if that is one of them.
        """
        topics = self._memory.topics() if self._memory else ()
        if self._memory and topics and not self.planned_topics():
            self._memory.refuse_missing(asked if asked in topics else topics[0])

    def read_plan_log(self, topic: str) -> PlanLog:
        """Read and check the whole log; raise `BrokenPlanLog` if it does not tile.

        It does not notice that the newest steps are lost; `coverage` does, as it also reads what was landed of them.
        """
        listed = self._list_steps(topic)
        seen, log = self._logs.get(topic, ({}, PlanLog(topic)))
        if listed != seen:
            log = PlanLog(topic, tuple(self._steps.read_seen(f"plan/{topic}", listed)))
            self._logs[topic] = listed, log
        self._see(log)
        return log

    def _see(self, log: PlanLog) -> None:
        """Note the newest step of a log; check the log anew if the step noted before is gone (a backup, say) or long ago."""
        known, at = self._newest_steps.get(log.topic, (None, 0.0))
        now = _uptime()
        if now - at > SEEN_SECONDS or (known is not None and not log.has(known)):
            self._looked_at.discard(log.topic)
            self._judged.pop(log.topic, None)
        self._newest_steps[log.topic] = next(iter(log.steps[-1:]), None), now

    def _list_steps(self, topic: str) -> dict[str, str]:
        """List the objects of a log with their versions; raise `BrokenPlanLog` if one is no step.

        A step that somebody has copied or renamed must not be passed over: it may be the only one.
        """
        prefix = f"plan/{topic}/"
        found = self.store.versions(f"plan/{topic}")
        strange = [path for path in found if not STEP.fullmatch(path.removeprefix(prefix))]
        if strange:
            named = some_of([self.store.url(path) for path in strange], SHOWN)
            raise BrokenPlanLog(
                f"what is no step lies in the plan log of topic {topic}: {named}, expected {OFFSET_DIGITS} digits and "
                ".json; nothing is planned or landed from it; where it is nobody's, move it away; where a step was "
                "renamed, give it its name back"
            )
        return found

    def commit_step(self, step: PlanStep) -> bool:
        """Add a step to the log; return false if another planner was first: read the log and plan again."""
        is_put = self.put_step(step)
        if is_put:
            self._newest_steps[step.topic] = step, _uptime()
        return is_put

    def still_ends(self, log: PlanLog) -> bool:
        """Return whether a log that was read still ends there now, so that a step may be written after it.

        If it does not, what is kept of it in memory is forgotten. A name in `begun/` that somebody has deleted is put again.
        Raises `BrokenPlanLog` if the log has lost its newest steps.
        """
        if not all(map(self.has_step, log.steps[-1:])):
            self._steps.see(f"plan/{log.topic}", {})  # what is kept of it is not what is there
            return False
        judged = self._judged.setdefault(log.topic, set())
        begun = [each for each in self._begun.list(log.topic) if each not in judged]
        elsewhere = self._find_elsewhere(log, begun)
        if elsewhere or self._may_have_beyond(log, begun):
            for read in (self.recent, self.coverage):  # the whole history only if nobody has planned meanwhile
                if read(log.topic).log.steps[-1:] != log.steps[-1:]:
                    return False
            if elsewhere:  # a step that is lost did something: what a document sums up may no longer be settled
                self.frontiers.forget(log.topic)
                judged |= elsewhere
                self._begun.delete_old(log.topic, elsewhere)
        if log.base is not None and _last_settled(log.base) > max(begun, default=(-1,))[0]:
            self._begun.put(log.steps[-1])  # somebody has deleted it, and nothing is beyond the log
        self._looked_at.add(log.topic)
        return True

    def begin(self, log: PlanLog, steps: Iterable[PlanStep]) -> None:
        """Note in `begun/` that something of these steps is about to be written; raise `BrokenPlanLog` if a step is lost.

        By one name, however long the history is, a planner then notices that these steps are lost or were replaced.
        """
        newest, begun = max(steps, key=lambda step: step.seq), self._begun.list(log.topic)
        elsewhere = self._find_elsewhere(log, begun)
        if any(seq <= newest.seq for seq, _ in elsewhere):
            self.coverage(log.topic)
        if all(seq < newest.seq for seq, _ in {*begun} - elsewhere):
            self._begun.put(newest)
        for each in {*begun} - elsewhere:  # names elsewhere stay: they tell the next planner that a step is lost
            if each[0] < newest.seq:
                self._begun.delete(log.topic, each)

    def _find_elsewhere(self, log: PlanLog, begun: Sequence[Begun]) -> set[Begun]:
        """Find the names in `begun/` of steps that are not in a log: later ones, or others with the same numbers.

        A step that the base of the log sums up is read for that.
        """
        steps: dict[int, PlanStep | None] = {step.seq: step for step in log.steps}
        for seq, _ in begun:
            path = step_path(log.topic, seq)
            if log.base is not None and log.base.sums_up(seq) and self.store.exists(path):
                steps[seq] = self._steps.get(path)
        return {each for each in begun if not is_of(each, steps.get(each[0]))}

    def _may_have_beyond(self, log: PlanLog, begun: Sequence[Begun]) -> bool:
        """Return whether a log read from a frontier document has lost steps that no name in `begun/` tells of.

        Either somebody has deleted the name, or the lake is a backup that was made during writes; a process looks for that
        the first time that it is asked.
        """
        if log.base is None:
            return False
        is_told = _last_settled(log.base) <= max(begun, default=(-1,))[0]
        return not (is_told and log.topic in self._looked_at) and self._has_beyond(log.topic, log.state)

    def _has_beyond(self, topic: str, log_state: LogState) -> bool:
        """Return whether the lake has anything of ranges beyond the heads of a log."""
        for tree in ("manifests", "claims", "data", "accepted"):
            if any(
                int(name[1:]) > log_state.generation for name in self.store.folders(f"{tree}/{topic}") if name[1:].isdecimal()
            ):
                return True
            folder = f"{tree}/{topic}/g{log_state.generation}"
            for name in self.store.folders(folder):
                head = log_state.heads.get(int(name[1:])) if name[1:].isdecimal() else None
                after = f"{folder}/{name}/{head.offset if head else 0:0{OFFSET_DIGITS}d}"
                if self.store.list(f"{folder}/{name}", after):
                    return True
        return False

    def coverage(self, topic: str) -> Coverage:
        """Read the log, the manifests and the published files of a topic; raise `BrokenPlanLog` if a step is lost.

        Raises `LakeUnavailable` if there is nothing of a topic that Dagster's home remembers.

        Files are listed first and the log last: a published file had its manifest before, and a range with a manifest, claim
        or acceptance was planned before. A file gone from `data/` was dropped before, so the manifest that says so is found.
        """
        files = self.store.list(f"data/{topic}")
        manifests, accepted, claims = self.read_manifests(topic), self.read_accepted(topic), self.read_claims(topic)
        log = self.read_plan_log(topic)
        if not (log.steps or manifests or files):
            self._refuse_missing(topic)
        found = log, manifests, accepted, claims, files
        seen, coverage = self._coverages.get(topic, (None, None))
        if coverage is not None and not coverage.unfinished and seen == found:
            return coverage  # objects never change, so nothing has: of a topic that is idle only the lists are read
        coverage = self._assemble(topic, log, manifests, accepted, claims, files)
        check_planned(coverage)
        self._coverages[topic] = (found, coverage)
        return coverage

    def _assemble(
        self,
        topic: str,
        log: PlanLog,
        manifests: Mapping[OffsetRange, Manifest],
        accepted: Mapping[OffsetRange, Acceptance],
        claims: Mapping[OffsetRange, Claim],
        files: dict[str, int],
    ) -> Coverage:
        """Assemble the coverage of a topic from what was read; look up again what has changed since `files` were listed."""
        owed = [each for each in manifests.values() if _is_owed(each, files)]
        unfinished = frozenset(manifest.offsets for manifest in owed if self._is_staged(manifest))
        files |= self._read_sizes(files, owed)  # published since they were listed, and then its staged file deleted
        for path in self._find_gone(files, manifests.values()):
            del files[path]
        owners = {published_path(manifest): offsets for offsets, manifest in manifests.items()}
        published: dict[OffsetRange, int] = {}
        doubles: dict[str, OffsetRange] = {}
        strays = []
        for path, size in files.items():
            owner = owners.get(path)
            offsets, attempt = (owner, "") if owner is not None else range_of("data", topic, path)
            if offsets is None:
                strays.append(path)
            elif owner is None and offsets in unfinished and path in given_up_paths(manifests[offsets]):
                continue  # deleted before the file of the next revision is published
            elif attempt or (owner is None and offsets in manifests):
                doubles[path] = offsets
            else:
                published[offsets] = size
        return Coverage(log, manifests, published, tuple(strays), accepted, claims, doubles, unfinished)

    def recent(self, topic: str, since_ms: int | None = None) -> Coverage:
        """Read what of a topic is not settled, by the names that its plan gives; all of it if no frontier document helps.

        Unlike `coverage` it leaves out the files that no range owns, what is wrong with ranges that a document sums up, and
        lost steps, which `still_ends` refuses before another step is written. What has happened since `since_ms` is in it.
        """
        for frontier in self.frontiers.read(topic, since_ms):
            found = self._read_from(topic, frontier)
            if found is not None:
                return found
        return self.coverage(topic)

    def around(self, topic: str, partition: int, offset: int, generation: int | None = None) -> Coverage:
        """Read a coverage of a topic that has the link of an offset, if there is one; by default of the open generation.

        The step of an old link is found by bisecting the log: heads only move forward, and each 32nd step has all of them.
        """
        recent = self.recent(topic)
        base = recent.log.base
        if base is None:
            return recent
        wanted = recent.log.generation if generation is None else generation

        def is_beyond(seq: int) -> bool:
            step = self._steps.get(step_path(topic, seq))
            head = step.heads.get(partition)
            return (step.generation, head.offset if head else -1) > (wanted, offset)

        whole = bisect_left(range(0, base.seq, ALL_HEADS_EVERY), x=True, key=is_beyond) * ALL_HEADS_EVERY
        between = range(max(0, whole - ALL_HEADS_EVERY), min(whole + 1, base.seq))
        seq = next(filter(is_beyond, between), base.seq)
        if not base.sums_up_any_of(seq):
            return recent
        steps = {step.seq: step for step in recent.log.steps if step.seq < base.seq}
        steps[seq] = self._steps.get(step_path(topic, seq))
        left = {of: numbers for of, numbers in base.open.items() if of != seq}
        digest = digest_of(steps[of] for of in sorted(steps))
        found = self._read_from(topic, replace(base, kept={seq: 0, **base.kept}, open=left, steps_sha256=digest))
        return found if found is not None else self.coverage(topic)

    def _read_from(self, topic: str, frontier: Frontier) -> Coverage | None:
        """Read what a frontier document keeps, and what came since; none if it does not match the log."""
        steps = self._read_newer(topic, frontier)
        if steps is None:
            return None
        seen, coverage = self._recents.get(topic, (None, None))
        is_same = coverage is not None and coverage.log.base == frontier and coverage.log.steps == steps
        try:
            log = coverage.log if coverage is not None and is_same else PlanLog(topic, steps, frontier)
        except BrokenPlanLog:  # in the document or in the log: reading all of the log tells
            return None
        self._see(log)
        newer = [offsets for offsets, step in log.ranges.items() if step.seq >= frontier.seq]
        kept = [offsets for offsets, step in log.ranges.items() if step.seq < frontier.seq]
        rows, others = split_rows(sorted(kept), lambda one, other: (one.place, one.end) == (other.place, other.start))
        groups = [*((self.store.find_in_row, each) for each in (newer, *rows)), (self.store.find, others)]
        published = self._find(topic, "data", groups)
        manifests, accepted = self._read_manifests_of(topic, groups), self.read_accepted(topic)
        names = [published_path(each) for each in manifests.values() if each.named_after or each.drop]
        published |= self.store.find(names)  # these do not follow from the range alone
        files = {path: size_in(version) for path, version in published.items()}
        claims = self._read_claims_of(topic, [(find, [o for o in of if o not in manifests]) for find, of in groups])
        found = published, manifests, accepted, claims
        if coverage is not None and not coverage.unfinished and coverage.log is log and seen == found:
            return coverage
        coverage = self._assemble(topic, log, manifests, accepted, claims, files)
        self._recents[topic] = (found, coverage)
        for whole in (self._coverages, self._logs, self._newest):
            whole.pop(topic, None)
        return coverage

    def _read_newer(self, topic: str, frontier: Frontier) -> tuple[PlanStep, ...] | None:
        """Read the steps that a frontier document keeps, and those from it on; none if it does not match this log."""
        rows, others = split_rows(sorted(frontier.kept), lambda one, other: one + 1 == other)
        seen = self.store.find([step_path(topic, seq) for seq in others])
        for row in rows:
            seen |= self.store.find_in_row([step_path(topic, seq) for seq in row])
        seq, ahead = frontier.seq, STEPS_AHEAD
        while found := self.store.find_in_row([step_path(topic, each) for each in range(seq, seq + ahead)]):
            seen |= found
            seq, ahead = seq + ahead, 2 * ahead
        last = max((_seq_of(path) for path in seen), default=-1)
        steps = tuple(self._steps.read_seen(f"plan/{topic}", dict(sorted(seen.items()))))
        is_whole = [step.seq for step in steps] == [*sorted(frontier.kept), *range(frontier.seq, last + 1)]
        _, known = self._recents.get(topic, (None, None))
        fits = known is not None and known.log.base == frontier and known.log.steps == steps  # it did a moment ago
        return steps if is_whole and (fits or _goes_with(frontier, steps)) else None

    def _find(self, topic: str, tree: str, groups: _Groups) -> dict[str, str]:
        """Find the published files, or the claims, of ranges by their names."""
        ending, found = "parquet" if tree == "data" else "json", dict[str, str]()
        for find, ranges in groups:
            found |= find([f"{range_path(tree, topic, each)}.{ending}" for each in ranges])
        return found

    def _read_manifests_of(self, topic: str, groups: _Groups) -> dict[OffsetRange, Manifest]:
        """Read the newest manifest of each of these ranges that has one, by the names that it may have."""
        serials = self._serials.get(topic, {})
        seen: dict[str, str] = {}
        newest: dict[OffsetRange, int] = {}
        for find, ranges in groups:
            asked = {each: serials.get(each, 0) for each in ranges}
            while asked:
                paths = {manifest_path(topic, each, serial): each for each, serial in asked.items()}
                found = find([*paths])
                seen |= found
                newest |= {paths[path]: asked[paths[path]] for path in found}
                asked = {paths[path]: asked[paths[path]] + 1 for path in found}
        gone = [each for each, serial in serials.items() if serial and each not in newest]
        if gone:  # somebody has deleted the newest one
            self._serials[topic] = {}
            return self._read_manifests_of(topic, groups)
        self._serials[topic] = newest
        self._manifests.see(f"manifests/{topic}", seen)
        return {each: self._manifests.get(manifest_path(topic, each, serial)) for each, serial in newest.items()}

    def _read_claims_of(self, topic: str, groups: _Groups) -> dict[OffsetRange, Claim]:
        seen = self._find(topic, "claims", groups)
        return {claim.offsets: claim for claim in self._claims.read_seen(f"claims/{topic}", seen)}

    def move_frontier(self, coverage: Coverage, now_ms: int, longest_ms: int, waiting: Collection[OffsetRange] = ()) -> bool:
        """Write the next frontier document of a topic that has a plan log, if it is due; return whether it was.

        An attempt lasts `longest_ms` at most: what was reopened is not summed up for so long, nor are ranges in `waiting`.
        """
        frontier = sum_up(coverage, now_ms, longest_ms, waiting)
        if frontier is None or not self.frontiers.goes_on(coverage.log):
            return False
        self.frontiers.put(frontier)
        return True

    def coverage_of(self, topic: str, keys: Sequence[str]) -> Coverage:
        """Read a coverage of a topic that has the ranges of some keys: the recent one if it has them all, else the whole."""
        recent = self.recent(topic)
        return recent if all(parse_key(key) in recent.log.ranges for key in keys) else self.coverage(topic)

    def _refuse_missing(self, topic: str) -> None:
        """Refuse to begin a topic of which there was something before: rows of dropped files are in the raw table alone."""
        if self._memory:
            self._memory.refuse_missing(topic)
        table = f"tables/raw/{topic}"
        if self.store.list(table):
            raise BrokenPlanLog(
                f"topic {topic} has a raw table, {self.store.url(table)}, and neither a plan log nor manifests: they are lost; "
                "nothing is planned or landed, since records that the table has would be landed a second time; restore "
                f"plan/{topic} and manifests/{topic} from a backup of the lake, newest steps included; without one move the "
                "table away, and what Kafka still has is landed anew"
            )

    def _read_sizes(self, files: Mapping[str, int], manifests: Iterable[Manifest]) -> dict[str, int]:
        """Read the present sizes of the published files of manifests that disagree with a listing."""
        unlike = (published_path(each) for each in manifests if files.get(published_path(each)) != _bytes(each))
        sizes = {path: self.store.size(path) for path in unlike}
        return {path: size for path, size in sizes.items() if size is not None}

    def _find_gone(self, files: Mapping[str, int], manifests: Iterable[Manifest]) -> list[str]:
        """Find the files with given-up names that are gone since they were listed."""
        given_up = (path for each in manifests if each.drop for path in given_up_paths(each))
        return [path for path in given_up if path in files and not self.store.exists(path)]


def _uptime() -> float:
    """Return the seconds of a clock that nobody sets: if possible of one that runs on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def split_rows(items: Iterable[T], follows: Callable[[T, T], bool]) -> tuple[list[list[T]], list[T]]:
    """Split sorted items into rows of at least `ROW` consecutive ones, and all others."""
    found: list[list[T]] = []
    for each in items:
        if found and follows(found[-1][-1], each):
            found[-1].append(each)
        else:
            found.append([each])
    return [row for row in found if len(row) >= ROW], [each for row in found if len(row) < ROW for each in row]


def _goes_with(frontier: Frontier, steps: Sequence[PlanStep]) -> bool:
    """Return whether a document was made from the log with these steps, and still holds for it."""
    kept = (step for step in steps if step.seq < frontier.seq)
    return digest_of(kept) == frontier.steps_sha256 and not needs_whole(frontier, steps)


def _last_settled(frontier: Frontier) -> int:
    """Return the number of the last step of which a document sums up ranges, which are therefore landed; -1 if none is."""
    return next((seq for seq in reversed(range(frontier.seq)) if frontier.sums_up_any_of(seq)), -1)


def _seq_of(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(".json"))


def _is_owed(manifest: Manifest, files: Mapping[str, int]) -> bool:
    """Return whether a manifest has a file, not dropped, that may be unpublished: a revision's, or one `files` lacks."""
    if manifest.file is None or manifest.is_dropped:
        return False
    return bool(manifest.revision) or files.get(published_path(manifest)) != _bytes(manifest)


def _bytes(manifest: Manifest) -> int | None:
    return manifest.file.bytes if manifest.file else None
