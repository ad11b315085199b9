"""Originals: which landed files a sealed file stands for, and so may be retired from `data/`, swept, and brought back.

Pure. Invariant: what is retired or swept is landed as it was sealed, in a sealed file that readers use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from .coverage import Coverage
from .manifest import Manifest
from .offsets import OffsetRange
from .seal import Seal


class Move(StrEnum):
    """Says what became of one original."""

    RETIRED = "retired"  # a glob over data/ shows its rows no more
    RESTORED = "restored"  # and again
    SWEPT = "swept"  # its own file is given up: a sealed file has its rows
    KEPT = "kept"  # neither: it stays where it is, and the reason is said


@dataclass(frozen=True, slots=True)
class MoveVerdict:
    """Is what became of the original of one range, and why where it stays."""

    offsets: OffsetRange
    move: Move
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SealedOriginals:
    """Is a sealed file that readers use, with those of its originals that are to be moved."""

    seal: Seal
    manifests: tuple[Manifest, ...]

    @property
    def bytes(self) -> int:
        """Is how much its originals take."""
        return sum(manifest.file.bytes for manifest in self.manifests if manifest.file)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Is the word that the original of a range is given up, and the sealed file that it could be made from again then."""

    topic: str
    key: str
    revision: int
    sha256: str
    sealed_file: str
    sealed_sha256: str
    code_version: str
    swept_at_ms: int

    def to_json(self) -> bytes:
        """Encodes it for a person who asks: that the object is there is all that anything rests on."""
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()


def plan_retiring(coverage: Coverage, used: Iterable[Seal], sealed_before_ms: int) -> list[SealedOriginals]:
    """Decides what to retire: originals in `data/` of seals that readers use, made before a moment.

    The moment is as long ago as somebody may be at work on files of `data/` that were listed before they were sealed.
    """
    return _choose(coverage, used, sealed_before_ms, lambda offsets: offsets not in coverage.retired)


def plan_sweeping(coverage: Coverage, used: Iterable[Seal], sealed_before_ms: int) -> list[SealedOriginals]:
    """Decides what to sweep: retired originals of seals that readers use, made before a moment.

    One without rows stays: no rows tell its file.
    """
    due = coverage.retired.keys() - coverage.swept
    is_due: Callable[[OffsetRange], bool] = lambda each: each in due and coverage.manifests[each].rows > 0  # noqa: E731
    return _choose(coverage, used, sealed_before_ms, is_due)


def _choose(
    coverage: Coverage, used: Iterable[Seal], sealed_before_ms: int, is_due: Callable[[OffsetRange], bool]
) -> list[SealedOriginals]:
    found = []
    for seal in used:
        manifests = [coverage.manifests[offsets] for offsets in seal.ranges if is_due(offsets)]
        originals = tuple(manifest for manifest in manifests if manifest.file is not None)
        if originals and seal.provenance.sealed_at_ms <= sealed_before_ms:
            found.append(SealedOriginals(seal, originals))
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
