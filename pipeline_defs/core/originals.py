"""Originals: which landed files a sealed file stands for, and so may be retired from `data/`, and which come back.

Pure. Invariant: what is retired is landed as it was sealed, in a sealed file that readers use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from .coverage import Coverage
from .manifest import Manifest
from .offsets import OffsetRange
from .seal import Seal


class Move(StrEnum):
    """Says what became of one original."""

    RETIRED = "retired"  # a glob over data/ shows its rows no more
    RESTORED = "restored"  # and again
    KEPT = "kept"  # neither: it stays where it is, and the reason is said


@dataclass(frozen=True, slots=True)
class MoveVerdict:
    """Is what became of the original of one range, and why where it stays."""

    offsets: OffsetRange
    move: Move
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Retirement:
    """Is a sealed file that readers use, with its originals that still lie in `data/`."""

    seal: Seal
    manifests: tuple[Manifest, ...]

    @property
    def bytes(self) -> int:
        """Is how much its originals take."""
        return sum(manifest.file.bytes for manifest in self.manifests if manifest.file)


def plan_retiring(coverage: Coverage, used: Iterable[Seal], sealed_before_ms: int) -> list[Retirement]:
    """Decides what to retire: originals of seals that readers use, made before a moment.

    The moment is as long ago as somebody may be at work on files of `data/` that were listed before they were sealed.
    """
    found = []
    for seal in used:
        originals = tuple(
            coverage.manifests[offsets]
            for offsets in seal.ranges
            if coverage.manifests[offsets].file is not None and offsets not in coverage.retired
        )
        if originals and seal.provenance.sealed_at_ms <= sealed_before_ms:
            found.append(Retirement(seal, originals))
    return found


def plan_restoring(coverage: Coverage, chosen: Collection[OffsetRange] | None = None) -> list[Manifest]:
    """Decides what to restore: all that is retired, or what of it was chosen; what was replaced since is not."""
    return [
        coverage.manifests[offsets]
        for offsets, revision in sorted(coverage.retired.items())
        if (chosen is None or offsets in chosen)
        and offsets in coverage.manifests
        and coverage.manifests[offsets].revision == revision
    ]
