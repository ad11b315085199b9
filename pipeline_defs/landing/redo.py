"""What Kafka has of a range now, compared with what is landed: by a redo, and by a run that finds a manifest.

Invariant: nothing here commits, and nothing becomes visible except what a manifest has decided already.
"""

from contextlib import suppress
from dataclasses import replace
from enum import StrEnum

from ..adapters.lake import comparing, parquet
from ..adapters.lake.lake import Lake
from ..adapters.lake.layout import published_path
from ..core.advice import counted, replace_command
from ..core.errors import DamagedFile, OffsetlakeError, StagedFileGone, TableFileGone
from ..core.landing.verdicts import Outcome, Verdict, failed
from ..core.log.holes import Cause
from ..core.log.manifest import Manifest
from ..core.offsets import OffsetRange, subtract_intervals
from .attempt import Work
from .landed_files import TRIES, Digests, count_only_in_table, has_bytes_of, landed_files


class Act(StrEnum):
    """What follows from a comparison."""

    KEEP = "keep"  # what is landed stays
    MEND = "mend"  # what was read has the manifest's digest: publish it under the manifest
    NEXT = "next"  # commit what was read as the next revision


def compare(
    newest: Manifest, ours: Manifest, part: parquet.PartFile | None, work: Work, *, is_redo: bool, is_first_since: bool
) -> tuple[Act, Verdict]:
    """Compare what was read now with the newest manifest and its file.

    Return what is to be done about the range, and the verdict once it is done.

    `is_first_since` says that no attempt has committed a revision since before this one read: only then is this known to be the
    newer reading.

    | under the final name | read now | what follows |
    |---|---|---|
    | the manifest's file | same digest, or equal rows in other bytes, ignoring columns that it lacks | it stays |
    | the manifest's file | other rows | it stays: changed; `replace`: the next revision |
    | nothing, and nothing staged | anything | the next revision, where the raw table has no row beyond it |
    | a file of another size or digest | same digest | mended; in a redo only by `replace` |
    | a file of another size or digest | other bytes | failed; `replace`: the next revision |

    A next revision fails without `is_first_since`.
    """
    attempt, lake = work.attempt, work.tools.lake
    offsets, is_same = ours.offsets, newest.digest == ours.digest
    may_replace = attempt.on_change == "replace"
    damage = _damage(newest, work, is_redo=is_redo)
    if damage is None:
        difference = None if is_same else _difference(newest, ours, part, lake, as_landed=not may_replace)
        if difference is None:
            outcome = Outcome.UNCHANGED if is_redo else Outcome.SUPERSEDED
            said = "equal rows, other bytes: of another writer, or without columns that came later"
            return Act.KEEP, Verdict(offsets, outcome, newest, (said,) if newest.rows and not is_same else ())
        if may_replace:
            return _next(offsets, Outcome.REPLACED, newest, is_first_since=is_first_since)
        is_compacted = _is_compacted_since(newest, ours, part, lake)
        why = ", compacted since it was landed" if is_compacted else ""
        text = f"range {offsets.text(ours.topic)}: {difference}{why}"
        return Act.KEEP, Verdict(offsets, Outcome.CHANGED, newest, (text,), is_compacted=is_compacted)
    is_gone = lake.store.size(published_path(newest)) is None
    if is_same and not is_gone and (may_replace or not attempt.redo):
        outcome = Outcome.REPLACED if may_replace else Outcome.ROLLED_FORWARD
        return Act.MEND, Verdict(offsets, outcome, newest, (damage,))
    alone = count_only_in_table(newest, work.table_files, part.path if part else None, lake) if is_gone else 0
    if (is_gone and not alone) or may_replace:
        outcome = Outcome.LANDED if is_gone else Outcome.REPLACED
        return _next(offsets, outcome, newest, damage, is_first_since=is_first_since)
    kept = f"only the raw table has {counted(alone, 'row')} of it; " if alone else ""
    advice = (
        f"{kept}nothing was written; restore the file from a backup of the lake, or put what Kafka has now in its place: "
        f"`{replace_command(ours.topic, offsets.key)}`"
    )
    return Act.KEEP, failed(offsets, f"{damage}; {advice}")


def _next(offsets: OffsetRange, outcome: Outcome, newest: Manifest, *notes: str, is_first_since: bool) -> tuple[Act, Verdict]:
    if is_first_since:
        return Act.NEXT, Verdict(offsets, outcome, newest, notes)
    overtaken = (
        f"range {offsets.text(newest.topic)}: attempt {newest.provenance.attempt} committed revision {newest.revision} "
        "since this run began, so which of the two has read later is not known; nothing was written, that revision stands; "
        "read the range again"
    )
    return Act.KEEP, failed(offsets, *notes, overtaken)


def _damage(newest: Manifest, work: Work, *, is_redo: bool) -> str | None:
    """Return what is wrong with the published file of a manifest, none where it is right; a redo also reads it."""
    where, lake = f"range {newest.offsets.text(newest.topic)}", work.tools.lake
    if not (lake.is_published(newest) or roll_forward(newest, lake)):
        found = lake.store.size(published_path(newest))
        if found is None:
            return f"{where} was committed with digest {newest.digest}, and its file is neither published nor staged"
        expected = newest.file.bytes if newest.file else 0
        return f"{where}: the published file, of {found} bytes, is not the one of {expected} bytes that was committed"
    if is_redo and newest.file is not None:
        try:
            digest = work.digests.of(newest)
        except DamagedFile as error:  # mended by another file in its place, as any damage is
            return f"{where}: {error}"
        if digest != newest.digest:
            return (
                f"{where}: the published file has sha256 {digest}, expected {newest.digest} as its manifest says: it was "
                "changed after it was landed"
            )
    return None


def roll_forward(manifest: Manifest, lake: Lake) -> bool:
    """Publish a manifest's staged file, where its attempt did not; false where that file is gone or torn."""
    has_file = manifest.file is None or has_bytes_of(manifest, manifest.file.path, lake)
    return has_file and lake.publish(manifest) is not None


def reinstate(manifest: Manifest, lake: Lake) -> Manifest | None:
    """Return the next manifest that restores an earlier revision whose rows are still there; none where there is none.

    Then this manifest was never published and its staged file is gone: nobody has seen it, and nobody can finish it. Rows of
    a range whose file was dropped are in the raw table: it is dropped once more, at that revision.
    """
    path = published_path(manifest)
    for before in lake.earlier(manifest):
        if before.drop is not None and before.is_dropped:
            with suppress(TableFileGone):
                Digests(lake).table_path(before)
                return replace(before, drop=replace(before.drop, number=manifest.serial + 1 - before.revision))
        is_as_large = before.file is not None and lake.store.size(path) == before.file.bytes
        if is_as_large and has_bytes_of(before, path, lake):
            return replace(before, revision=manifest.revision + 1)
    return None


def differs_from_found(ours: Manifest, part: parquet.PartFile | None, lake: Lake) -> str | None:
    """Return how a file under the range's own name, which no manifest names, differs from ours; empty for equal rows.

    None where there is no such file, or it has exactly the bytes that were read now.
    """
    path = published_path(ours)
    try:
        with lake.store.local_copy(path) as found, parquet.told_if_damaged(f"published file {lake.store.url(path)}"):
            if parquet.digest(found) == ours.digest:
                return None
            if part is None:
                return "the broker has no row of it now"
            return comparing.differing_rows(found, part.path, as_landed=True) or ""
    except FileNotFoundError:
        return None
    except DamagedFile as error:
        return str(error)


def without_manifest(ours: Manifest, difference: str, lake: Lake) -> str:
    """Return why a range is not landed over a file with other rows that no manifest names."""
    return (
        f"range {ours.offsets.text(ours.topic)}: its manifest is gone, and the published file "
        f"{lake.store.url(published_path(ours))} is not what Kafka has now: {difference}; nothing was written; restore the "
        "manifest from a backup of the lake, or, while Kafka has all of it, put what it has now in the file's place: "
        f"`{replace_command(ours.topic, ours.offsets.key)}`"
    )


def _difference(newest: Manifest, ours: Manifest, part: parquet.PartFile | None, lake: Lake, *, as_landed: bool) -> str | None:
    if newest.rows == ours.rows == 0:
        return None
    if part is None or newest.file is None:
        return f"{newest.rows} rows are landed, the broker has {ours.rows} now"
    for _ in range(TRIES):
        try:
            with landed_files([newest], lake) as files, parquet.told_if_damaged("the landed or the staged file"):
                return comparing.differing_rows(files[newest.offsets].path, part.path, as_landed=as_landed)
        except FileNotFoundError:  # dropped since it was found
            continue
    raise StagedFileGone(
        f"range {ours.offsets.text(ours.topic)}: its landed file, or {part.path} that was read now, went away while they were "
        "compared; nothing was written; the next run compares them again"
    )


def _is_compacted_since(newest: Manifest, ours: Manifest, part: parquet.PartFile | None, lake: Lake) -> bool:
    """Return whether all rows that are gone were removed by compaction, and the rest is as it was landed."""
    before = [(hole.start, hole.end) for hole in newest.holes]
    others = [(hole.start, hole.end) for hole in ours.holes if hole.cause is not Cause.COMPACTED]
    if subtract_intervals(others, before):
        return False
    if part is None:
        return True
    with suppress(FileNotFoundError), landed_files([newest], lake) as files:
        return comparing.rows_beyond(part.path, files[newest.offsets].path, in_common=True) is None
    return False


def verify_expired(offsets: OffsetRange, manifest: Manifest, reason: str, lake: Lake, digests: Digests) -> Verdict:
    """Check a landed file against its digest, where Kafka cannot give the range."""
    while True:
        manifest = lake.newest(manifest)
        try:
            found = digests.of(manifest)
        except OffsetlakeError as error:
            return failed(offsets, reason, error.reason)
        if lake.is_replaced(manifest):
            continue
        if found != manifest.digest:
            is_wrong = f"has sha256 {found}, expected {manifest.digest}" if found else "is not there"
            advice = "restore it from a backup of the lake"
            return failed(offsets, reason, f"{lake.store.url(published_path(manifest))} {is_wrong}: {advice}")
        return Verdict(offsets, Outcome.EXPIRED, manifest, (reason,))
