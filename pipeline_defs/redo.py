"""Redo: what a range reads as now, held against what stands landed. The landed file always stays.

Invariant: nothing here commits; it publishes only what a manifest has already decided.
"""

from __future__ import annotations

from dataclasses import replace

from .core.errors import SealedFileGone
from .core.manifest import Manifest
from .core.offsets import OffsetRange
from .core.verdicts import Outcome, Verdict, failed
from .edges import parquet
from .edges.lake import Lake
from .standing import Digests, landed_files


def compare(standing: Manifest, ours: Manifest, part: parquet.PartFile | None, lake: Lake, *, is_redo: bool) -> Verdict:
    """Holds what was read now against the manifest that stands; the landed file always stays.

    | read now | file published | outcome |
    |---|---|---|
    | same digest | either | unchanged, or superseded; published if it was not |
    | equal rows, other bytes | yes | the same: another Spark or Parquet version wrote it |
    | other rows | yes | changed, naming the difference |
    | other bytes | no, and the file the manifest names is gone | failed: nobody can finish what was decided |
    """
    offsets = ours.offsets
    same = Outcome.UNCHANGED if is_redo else Outcome.SUPERSEDED
    is_published = lake.is_published(standing) or roll_forward(standing, lake)
    if standing.digest == ours.digest:
        if not is_published and ours.file is not None:
            lake.publish(replace(standing, file=ours.file))
            same = Outcome.ROLLED_FORWARD
        return Verdict(offsets, same, standing)
    if not is_published:
        return failed(
            offsets,
            f"range {offsets.text(ours.topic)} was committed with digest {standing.digest}, its staged file is gone, and "
            f"reading it again gives {ours.digest}; nothing was published",
        )
    difference = _difference(standing, ours, part, lake)
    if difference is None:
        return Verdict(offsets, same, standing, ("equal rows, other bytes: another writer wrote them",))
    return Verdict(offsets, Outcome.CHANGED, standing, (f"range {offsets.text(ours.topic)}: {difference}",))


def roll_forward(manifest: Manifest, lake: Lake) -> bool:
    """Publishes the staged file that a manifest names, for an attempt that did not; false where it is gone or torn."""
    if manifest.file is not None:
        try:
            with lake.local_copy(manifest.file.path) as staged:
                if parquet.digest(staged) != manifest.digest:
                    return False
        except FileNotFoundError:
            return False
    return lake.publish(manifest) is not None


def _difference(standing: Manifest, ours: Manifest, part: parquet.PartFile | None, lake: Lake) -> str | None:
    if standing.rows == ours.rows == 0:
        return None
    if part is None or standing.file is None:
        return f"{standing.rows} rows are landed, the broker has {ours.rows} now"
    with landed_files([standing], lake) as files:
        return parquet.differing_rows(files[standing.offsets].path, part.path)


def verify_expired(offsets: OffsetRange, manifest: Manifest, reason: str, lake: Lake) -> Verdict:
    """Checks the landed file against its digest, since Kafka cannot be asked again."""
    try:
        found = Digests(lake).of(manifest)
    except SealedFileGone as error:
        return failed(offsets, reason, str(error))
    if found != manifest.digest:
        return failed(offsets, reason, "the published file does not match the digest in its manifest")
    return Verdict(offsets, Outcome.EXPIRED, manifest, (reason,))
