"""The sealed tree of a lake: larger files, each of many landed ranges, and the seals that say which.

    sealed/<topic>/g0/p0003/<start20>-<end20>.<rev>.parquet   the rows of contiguous landed ranges, in offset order
    seals/<topic>/g0/p0003/<start20>-<end20>.<rev>.json       which ranges, in which revision, with which digests

A seal without its file is not finished, and used by nobody. Every object is immutable; `data/` is never touched.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..core.errors import BrokenManifest, SealedFileGone
from ..core.manifest import Manifest
from ..core.offsets import OffsetRange
from ..core.seal import Seal
from ..core.sealing import Holders, find_holders
from .lake import Lake
from .layout import range_path
from .parquet import digest
from .store import Answer


class Seals:
    """Reads and writes the seals of one lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._read: dict[str, Seal] = {}

    def read_topics(self) -> tuple[str, ...]:
        """Reads the topics of which anything was ever sealed."""
        return self._lake.store.folders("seals")

    def read(self, topic: str) -> list[Seal]:
        """Reads every revision of every seal of a topic."""
        return [self._read_seal(path) for path in self._lake.store.list(f"seals/{topic}")]

    def read_published(self, topic: str) -> list[Seal]:
        """Reads the seals whose files are there."""
        files = self._lake.store.list(f"sealed/{topic}")
        return [seal for seal in self.read(topic) if files.get(sealed_path(seal)) == seal.file.bytes]

    def read_holders(self, topic: str) -> Holders:
        """Reads which published sealed files have the rows of each original that was ever sealed, by range and revision."""
        return find_holders(self.read_published(topic))

    def holders(self, topic: str, offsets: OffsetRange, revision: int, known: Holders) -> tuple[Seal, ...]:
        """Are the sealed files that have the rows of a swept original; raises `SealedFileGone` where there is none."""
        if (offsets, revision) not in known:
            url = self._lake.store.url
            raise SealedFileGone(
                f"the original of range {offsets.text(topic)} was swept, and no sealed file has its rows any more; restore "
                f"{url('sealed')}/{topic} from a backup, or, while Kafka has the records, delete "
                f"{url(range_path('swept', topic, offsets))}.{revision:03d}.json, and the range is landed again",
                topic=topic,
            )
        return known[offsets, revision]

    def why_changed(self, seal: Seal) -> str | None:
        """Says what a sealed file has instead of what its seal says; none where it is what was sealed."""
        found = None
        with suppress(FileNotFoundError), self._lake.local_copy(sealed_path(seal)) as path:
            found = digest(path)
        if found == seal.file.sha256:
            return None
        return (
            f"the sealed file {self._lake.store.url(sealed_path(seal))} has sha256 {found}, expected {seal.file.sha256}"
        )

    def standing_path(self, manifest: Manifest) -> str:
        """Is where the rows of a landed range are to be read now: in a file of its own, or, swept, in a sealed one."""
        own = self._lake.own_path(manifest)
        if own is not None:
            return own
        topic, known = manifest.topic, self.read_holders(manifest.topic)
        return sealed_path(self.holders(topic, manifest.offsets, manifest.revision, known)[0])

    def is_published(self, seal: Seal) -> bool:
        """Says whether the seal's file stands under its final name."""
        return self._lake.store.size(sealed_path(seal)) == seal.file.bytes

    def is_staged(self, seal: Seal) -> bool:
        """Says whether the staged file that the seal names is still there, whole."""
        try:
            with self._lake.local_copy(seal.file.path) as staged:
                return digest(staged) == seal.file.sha256
        except FileNotFoundError:
            return False

    def stage(self, local: Path, path: str) -> None:
        """Brings a staged file to the lake, where it was not staged there, and makes it durable."""
        if self._lake.store.local_root is None:
            self._lake.store.upload(local, path)
        self._lake.store.make_durable(path)

    def commit(self, seal: Seal) -> Seal:
        """Decides what the sealed file of this name is; returns the seal that stands, ours or the one that was first."""
        path = seal_path(seal)
        scratch = f"staging/{seal.provenance.attempt}/{seal.offsets.key}.seal.json"
        if self._lake.store.put_new(path, seal.to_json(), scratch) is Answer.COMMITTED:
            return seal
        return self._read_seal(path)

    def publish(self, seal: Seal) -> bool:
        """Publishes the staged file that a seal names; false where it is gone."""
        try:
            self._lake.store.publish(seal.file.path, sealed_path(seal))
        except FileNotFoundError:
            return self.is_published(seal)
        return True

    def _read_seal(self, path: str) -> Seal:
        if path not in self._read:
            url = self._lake.store.url(path)
            seal = Seal.from_json(self._lake.store.get(path) or b"", url)
            if path != seal_path(seal):
                raise BrokenManifest(
                    f"seal {url} is of {seal.offsets.text(seal.topic)}, which is not what its name says"
                )
            self._read[path] = seal
        return self._read[path]


def deletion_guard(topic: str) -> str:
    """Is what to lock while a sealed file is deleted, or what only a sealed file has then, and while that is decided."""
    return f"seals/{topic}"


def sealed_path(seal: Seal) -> str:
    """Is where a sealed file is published, below the lake's root; each revision has a name of its own."""
    return f"sealed/{_name(seal)}.parquet"


def seal_path(seal: Seal) -> str:
    """Is where a seal lies, below the lake's root."""
    return f"seals/{_name(seal)}.json"


def _name(seal: Seal) -> str:
    return f"{seal.topic}/{seal.offsets.folder}/{seal.offsets.stem}.{seal.revision:03d}"
