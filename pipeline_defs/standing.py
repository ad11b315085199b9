"""Where the rows of landed ranges stand, as files to read and digests to hold them against.

A range has a file of its own, published or retired; where that was swept, its rows are cut out of the sealed file that has
them, whose digest is checked first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .core.errors import SealedFileGone
from .core.manifest import Manifest
from .core.offsets import OffsetRange
from .core.seal import Seal
from .core.sealing import Holders
from .edges import parquet
from .edges.lake import Lake
from .edges.remote_file import File
from .edges.seals import Seals, sealed_path

TRIES = 3  # at a file that is retired, restored or swept between being found and being read


@dataclass(frozen=True, slots=True)
class LandedFile:
    """A file with the rows of a landed range: its own, or a cut out of a sealed file.

    `sha256` is its digest, where somebody has read it already.
    """

    path: File
    is_cut: bool
    sha256: str | None = None

    def is_of(self, manifest: Manifest) -> bool:
        """Says whether it is what was landed: byte for byte, or out of a sealed file, which was held against its seal."""
        return self.is_cut or (self.sha256 or parquet.digest(self.path)) == manifest.digest


@contextmanager
def landed_files(manifests: Iterable[Manifest], lake: Lake) -> Iterator[Mapping[OffsetRange, LandedFile]]:
    """Gives a file to read for each range, for a while; raises `SealedFileGone` where a swept one's rows are nowhere."""
    files: dict[OffsetRange, LandedFile] = {}
    swept: list[Manifest] = []
    with ExitStack() as opened:
        for manifest in manifests:
            own = lake.own_path(manifest)
            if own is None:
                swept.append(manifest)
            else:
                files[manifest.offsets] = LandedFile(opened.enter_context(lake.local_copy(own)), is_cut=False)
        if swept:
            files |= opened.enter_context(_cut_files(swept, lake))
        yield files


@contextmanager
def _cut_files(manifests: Iterable[Manifest], lake: Lake) -> Iterator[Mapping[OffsetRange, LandedFile]]:
    with scratch_folder(lake, "cut") as folder:
        files = {}
        for path, some in Digests(lake).by_sealed_file(manifests).items():
            with lake.local_copy(path) as sealed:
                for offsets, rows in parquet.read_ranges(sealed, sorted(manifest.offsets for manifest in some)):
                    parquet.write(rows, folder / f"{offsets.key}.parquet")
                    files[offsets] = LandedFile(folder / f"{offsets.key}.parquet", is_cut=True)
        yield files


@contextmanager
def scratch_folder(lake: Lake, name: str) -> Iterator[Path]:
    """Gives a folder in staging for a while; what a crash leaves of it is swept, as what any attempt leaves."""
    staging = lake.store.local_root / "staging" if lake.store.local_root is not None else None
    if staging is not None:
        staging.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=staging, prefix=f"{name}-") as folder:
        yield Path(folder)


class Digests:
    """Reads digests of landed ranges; of the sealed files that have the rows of swept ones each is read once."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._seals = Seals(lake)
        self._holders: dict[str, Holders] = {}
        self._why_changed: dict[str, str | None] = {}

    def of(self, manifest: Manifest) -> str | None:
        """Is the digest of a range's file; the manifest's where a sealed file has its rows; none where it is not there.

        Raises `SealedFileGone` where the range was swept, and no sealed file has its rows as they were sealed.
        """
        if manifest.file is None:
            return manifest.digest
        for _ in range(TRIES):
            with suppress(FileNotFoundError):
                own = self._lake.own_path(manifest)
                if own is None:
                    self.holder(manifest)
                    return manifest.digest
                if not self._lake.store.exists(own):
                    return None
                with self._lake.local_copy(own) as file:
                    return parquet.digest(file)
        return None

    def holder(self, manifest: Manifest) -> Seal:
        """Is a sealed file that has the rows of a swept range, as its seal says; raises `SealedFileGone` where none has."""
        topic, offsets = manifest.topic, manifest.offsets
        if topic not in self._holders:
            self._holders[topic] = self._seals.read_holders(topic)
        reasons = []
        for seal in self._seals.holders(topic, offsets, manifest.revision, self._holders[topic]):
            path = sealed_path(seal)
            if path not in self._why_changed:
                self._why_changed[path] = self._seals.why_changed(seal)
            reason = self._why_changed[path]
            if reason is None:
                return seal
            reasons.append(reason)
        raise SealedFileGone(
            f"the original of range {offsets.text(topic)} was swept, and {'; '.join(reasons)}: it was changed; restore it from "
            "a backup",
            topic=topic,
        )

    def by_sealed_file(self, manifests: Iterable[Manifest]) -> dict[str, list[Manifest]]:
        """Groups swept ranges by the path of the sealed file that has their rows; raises `SealedFileGone` as `holder` does."""
        groups: dict[str, list[Manifest]] = {}
        for manifest in manifests:
            groups.setdefault(sealed_path(self.holder(manifest)), []).append(manifest)
        return groups
