"""The audit: every check of a topic, from the lake and the broker alone, as plain results.

Dagster's asset checks and `offsetlake audit` call the same functions. Invariant: a check that could not read
something says so, and does not pass.
"""

import random
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ..adapters.lake.lake import Lake
from ..adapters.tables.delta_log import raw_table_log
from ..core.advice import command, counted, replace_command
from ..core.errors import DamagedFile, TableFileGone, Violation
from ..core.landing.tiling import completeness_violations, tiling_violations
from ..core.landing.verdicts import Outcome
from ..core.log.coverage import Coverage
from ..core.log.holes import Cause
from ..core.log.manifest import Manifest
from ..core.offsets import OffsetRange
from ..core.tables.delta import File, Snapshot
from ..core.tables.raw_table import RangeFiles, how_to_mend, is_as_landed, is_compacted, offsets_of, ranges_by_file
from ..core.tables.raw_table import violations as table_violations
from ..settings import code_version
from .attempt import Attempt, Tools
from .landed_files import Digests, find_differing, why_changed, why_not_as_landed
from .landing import land

DIGEST_THREADS = 4
NIGHTLY_BYTES = 16 * 1024**3  # of a topic: some minutes on an object store
MOST_NIGHTS = 30  # in which all files are read


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check over a topic: what it looked at, and every violation.

    `concerns` are the keys of the violations, where the texts of these may change while the violation lasts;
    `is_warning` says that the violations are no error.
    """

    check: str
    looked_at: str
    violations: tuple[str, ...] = ()
    facts: Mapping[str, int] = field(default_factory=dict)
    concerns: tuple[str, ...] = ()
    is_warning: bool = False

    @property
    def passed(self) -> bool:
        """Whether nothing was violated."""
        return not self.violations


def looked(check: str, look: Callable[[], Finding]) -> Finding:
    """Return a check's finding; where the lake is too broken to be read, a finding that says so."""
    try:
        return look()
    except Violation as error:
        return Finding(check, "what could be read of the lake", error.violations or (str(error),))


def check_tiling(
    topic: str, lake: Lake, *, is_newest_first: bool = False, is_recent: bool = False, in_progress: Collection[OffsetRange] = ()
) -> Finding:
    """Check that links and landed ranges tile over all history: no gap, no overlap; name the offsets.

    Earlier ranges that wait where the newest are landed first are no gap, nor are ranges that were `in_progress` in a run
    just before, since it lands them in any order. `is_recent` leaves out what a frontier document sums up, which tiled when it
    was made.
    """
    coverage = _read_coverage(topic, lake, "tiling", is_recent=is_recent)
    if isinstance(coverage, Finding):
        return coverage
    log = coverage.log
    facts = {"steps": len(log.steps), "links": len(log.links), "manifests": len(coverage.manifests)}
    again = f"; the topic was created again or truncated, and is in generation {log.generation}" if log.generation else ""
    violations = tiling_violations(coverage, is_newest_first=is_newest_first, in_progress=in_progress)
    return Finding("tiling", f"{facts['links']} links{again}", tuple(violations), facts)


def check_completeness(topic: str, lake: Lake, *, is_recent: bool = False) -> Finding:
    """Check the holes and rows of each landed range against its bounds; the digest proves that files have these rows.

    `is_recent` is that of `check_tiling`. That rows + holes + lost = end - start, every manifest read ensures.
    """
    coverage = _read_coverage(topic, lake, "completeness", is_recent=is_recent)
    if isinstance(coverage, Finding):
        return coverage
    sums = coverage.sums().values()
    rows = sum(each.rows for each in sums)
    gone = sum((Counter(each.holes) for each in sums), Counter[str]())
    facts = {
        "landed_offsets": rows + gone.total(),
        "rows": rows,
        "holes": gone.total() - gone[Cause.LOST.value],
        "lost": gone[Cause.LOST.value],
    }
    ranges = sum(each.ranges for each in sums)
    return Finding("completeness", f"{ranges} landed ranges", tuple(completeness_violations(coverage)), facts)


def check_published(
    topic: str,
    lake: Lake,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    night: int | None = None,
    doubted: Collection[str] = (),
) -> Finding:
    """Check that each published file has the digest in its manifest; `progress` is given the numbers of files done and of all.

    With `night`, the running number of a night, only a part of a large topic is read; the following nights read the others.
    The files of the `doubted` keys are read each night.
    """
    coverage = _read_coverage(topic, lake, "published_digest")
    if isinstance(coverage, Finding):
        return coverage
    published = sorted(coverage.manifests.keys() - coverage.unfinished)
    manifests = [manifest for manifest in map(coverage.manifests.__getitem__, published) if manifest.file is not None]
    size = sum(manifest.file.bytes for manifest in manifests if manifest.file)
    count = len(manifests)
    part, nights = files_of_night(night, count, size)
    manifests = [each for at, each in enumerate(manifests) if at in part or each.offsets.key in doubted]
    digests, violations = Digests(lake), dict[str, str]()
    with ThreadPoolExecutor(DIGEST_THREADS) as pool:
        for done, violation in enumerate(pool.map(lambda manifest: _why_not_published(manifest, digests, lake), manifests), 1):
            if violation:
                violations[manifests[done - 1].offsets.key] = violation
            progress(done, len(manifests))
    dropped = len(coverage.dropped().keys() & {manifest.offsets for manifest in manifests})
    told = f"{len(manifests) - dropped} files" + (f", and in the table {dropped} whose files were dropped" if dropped else "")
    told += f"; all {count} within {nights} nights" if nights > 1 else ""
    return Finding("published_digest", told, tuple(violations.values()), {"bytes": size // nights}, tuple(violations))


def files_of_night(night: int | None, count: int, size: int) -> tuple[range, int]:
    """Return which of so many files, of so many bytes in all, a night reads, and within how many nights all are read.

    They are neighbours, since these share compacted files; all of them without a night.
    """
    nights = 1 if night is None else min(MOST_NIGHTS, 1 + size // NIGHTLY_BYTES)
    part = (night or 0) % nights
    return range(count * part // nights, count * (part + 1) // nights), nights


def _why_not_published(manifest: Manifest, digests: Digests, lake: Lake) -> str | None:
    where = f"range {manifest.offsets.text(manifest.topic)}: manifest says sha256 {manifest.digest}, the published file"
    try:
        found = digests.of(manifest)
        by_hand = f"`{replace_command(manifest.topic, manifest.offsets.key)}`, while Kafka has its records"
        wrong = f"has {found}: restore it from a backup of the lake, or {by_hand}"
        gone = f"is not there: `{command('land', manifest.topic, '--key', manifest.offsets.key)}` lands it, or says what to do"
        reason = None if found == manifest.digest else f"{where} {wrong if found else gone}"
    except (TableFileGone, DamagedFile) as error:
        reason = str(error)
    return None if reason is None or lake.is_replaced(manifest) else reason  # replaced meanwhile: the next audit checks it


def check_table(topic: str, lake: Lake, in_progress: Collection[OffsetRange] = ()) -> Finding:
    """Check that the raw table has each landed range once, as it is landed, and that each of its files is there.

    Ranges that were `in_progress` in a run just before may be missing: it appends them before it ends.
    Digests are checked of files that are not hard links to landed files: copies, and compacted files, in which the rows of each
    range are counted.
    """
    log = raw_table_log(topic, lake.store)
    table, coverage = log.read(), _read_coverage(topic, lake, "raw_table")
    if isinstance(coverage, Finding):
        return coverage
    of_ranges = table_violations(coverage, table, in_progress)
    if of_ranges:  # a run may have appended since: a real violation is still there in a version read later
        table = log.read(table)
        of_ranges = [each for each in table_violations(coverage, table, in_progress) if each in of_ranges]
    ranges = ranges_by_file(coverage, table)
    own = {path: lake.own_path(each[0]) for path, each in ranges.items() if not is_compacted(table.files[path])}
    changed = {path: f"{topic}: {reason}" for path, reason in _find_changed(log.folder, table, ranges, own, lake)}
    violations = [*of_ranges, *changed.values()]
    anew = [path for path in changed if own.get(path)]
    violations += [f"{topic}: {_gives_landed(topic, offsets_of(table.files[path]).key)}" for path in anew]
    violations += _how_to_mend_each(coverage, table, changed, lake) if of_ranges else []
    if len(changed) > len(anew):
        violations.append(f"{topic}: {how_to_mend(coverage, lake.store.url(log.folder))}")
    damage = log.find_damage()
    violations += [f"{topic}: {damage}"] if damage else []
    rows = sum(file.rows for file in table.files.values())
    return Finding("raw_table", f"{len(table.files)} files", tuple(violations), {"version": table.version, "rows": rows})


def _find_changed(
    folder: str, table: Snapshot, ranges: Mapping[str, Sequence[Manifest]], own: Mapping[str, str | None], lake: Lake
) -> Iterator[tuple[str, str]]:
    """Yield each file of a raw table that is not what the table's log says, with the reason.

    `ranges` are those that each file has, `own` the landed file of which a file is a hard link or copy.
    """
    sizes = lake.store.list(folder)

    def look(file: File) -> str | None:
        path, second, manifests = f"{folder}/{file.path}", own.get(file.path), ranges.get(file.path, ())
        if sizes.get(path) == file.bytes and second is not None and _is_one_file(path, second, lake):
            return None
        if is_compacted(file) and sum(each.rows for each in manifests) == file.rows:  # else that is a violation of its own
            return why_not_as_landed(file, manifests, folder, lake)
        return why_changed(file, folder, lake)

    with ThreadPoolExecutor(DIGEST_THREADS) as pool:
        for file, reason in zip(table.files.values(), pool.map(look, table.files.values()), strict=True):
            if reason:
                yield file.path, reason


def _how_to_mend_each(coverage: Coverage, table: Snapshot, changed: Collection[str], lake: Lake) -> Iterator[str]:
    """Yield, for each range that the table does not have as landed, what mends it."""
    topic, log, in_file = coverage.log.topic, raw_table_log(coverage.log.topic, lake.store), ranges_by_file(coverage, table)
    manifests = defaultdict[str, list[Manifest]](list)
    files = RangeFiles(table)
    for offsets, manifest in coverage.manifests.items():
        if coverage.is_landed(offsets) and (file := files.find(offsets)) is not None and file.path not in changed:
            manifests[file.path].append(manifest)
    for path, ranges in sorted(manifests.items()):
        file = table.files[path]
        if not is_compacted(file) and is_as_landed(file, ranges[0]):
            continue
        with suppress(DamagedFile):  # a violation of its own
            for offsets, alone in find_differing(file, ranges, in_file.get(path, ()), log.folder, lake).items():
                kept = f"only the table has {counted(alone, 'row')} of it: restore its manifest from a backup, or "
                by_replace = f"`{replace_command(topic, offsets.key)}` leaves them out"
                told = f"{kept}{by_replace}" if alone else _gives_landed(topic, offsets.key)
                yield f"range {offsets.text(topic)}: {told}"


def _gives_landed(topic: str, key: str) -> str:
    return f"`{command('land', topic, '--key', key)}` gives the table the landed file"


def _is_one_file(path: str, other: str, lake: Lake) -> bool:
    """Return whether two names are certainly one file; in an object store each name has a file of its own."""
    with suppress(FileNotFoundError):
        return not lake.store.is_remote and lake.store.is_same(path, other)
    return False


def check_replay(
    topic: str,
    tools: Tools,
    *,
    sample: int | None,
    seed: str,
    run_id: str = "audit",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Finding:
    """Read landed ranges again through Spark and compare them: `sample` ranges drawn by `seed`, or all of them.

    Each is read at the isolation level at which it was landed. Rows that compaction has removed since are no violation.
    """
    coverage = tools.lake.coverage(topic)
    landed = [offsets for offsets in sorted(coverage.manifests) if coverage.is_landed(offsets)]
    chosen = landed if sample is None else random.Random(seed).sample(landed, min(sample, len(landed)))  # noqa: S311
    if not chosen:
        return Finding("replay", "no landed range")
    by_level = defaultdict[str, list[str]](list)
    for offsets in chosen:
        by_level[coverage.manifests[offsets].isolation_level].append(offsets.key)
    outcomes: dict[OffsetRange, Outcome] = {}
    violations: list[str] = []
    compacted = 0
    for level, keys in by_level.items():
        attempt = Attempt(f"audit-{uuid.uuid4().hex[:8]}", run_id, code_version(), redo=True)
        for verdict in land(topic, keys, attempt, replace(tools, isolation_level=level)):
            outcomes[verdict.offsets] = verdict.outcome
            progress(len(outcomes), len(chosen))
            compacted += verdict.is_compacted
            if verdict.outcome not in {Outcome.UNCHANGED, Outcome.EXPIRED} and not verdict.is_compacted:
                violations += verdict.violations or (f"range {verdict.offsets.text(topic)}: {verdict.outcome.value}",)
    counts = {outcome.value: times for outcome, times in sorted(Counter(outcomes.values()).items())}
    if compacted:
        counts["compacted_since"] = compacted
    facts = {"replayed": len(outcomes), "landed": len(landed), **counts}
    return Finding("replay", f"{len(outcomes)} of {len(landed)} landed ranges", tuple(violations), facts)


def _read_coverage(topic: str, lake: Lake, check: str, *, is_recent: bool = False) -> Coverage | Finding:
    """Return the coverage that a check reads, or the check's finding where it cannot be read."""
    try:
        return lake.recent(topic) if is_recent else lake.coverage(topic)
    except Violation as error:
        return Finding(check, "the plan log and the manifests", error.violations or (str(error),))
