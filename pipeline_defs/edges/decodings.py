"""What is decoded of a lake's topics, beside what is landed: two files and one document per range.

    decoded/<topic>/g0/p0003/<start20>-<end20>.parquet          rows that could be decoded; a glob has each once, always
    dead_letters/<topic>/g0/p0003/<start20>-<end20>.parquet     rows that could not, where there ever were any
    decodings/<topic>/g0/p0003/<start20>-<end20>.<rev>.json     what became of the range: the document decides

As with landed ranges, a document is there before its files are seen, and a later revision exchanges a file in one step.
Of a new revision the decoded rows are seen first: a row that is no dead letter any more is never seen nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ..core.coverage import Coverage
from ..core.decoding import Decoding, find_due
from ..core.errors import BrokenManifest
from ..core.manifest import StagedFile
from ..core.offsets import OffsetRange
from .lake import Lake
from .store import Answer

DECODED, DEAD_LETTERS = "decoded", "dead_letters"


@dataclass(frozen=True, slots=True)
class DecodedRanges:
    """Is what is decoded of a topic: all documents, and the ranges of which just what the document says can be read."""

    topic: str
    known: Mapping[OffsetRange, Decoding]
    published: AbstractSet[OffsetRange]

    @property
    def visible(self) -> dict[OffsetRange, Decoding]:
        """Are the documents of the ranges that can be read."""
        return {offsets: decoding for offsets, decoding in self.known.items() if offsets in self.published}

    @property
    def revisions(self) -> dict[OffsetRange, int]:
        """Are the ranges that can be read, each at its revision."""
        return {offsets: self.known[offsets].revision for offsets in self.published}

    @property
    def held(self) -> set[OffsetRange]:
        """Are the ranges that are decided and not seen yet: what can be read of them is what was there before."""
        return self.known.keys() - self.published

    @property
    def has_rows(self) -> bool:
        """Says whether any record is decoded: without one there are no columns that a file could have."""
        return any(self.known[offsets].rows for offsets in self.published)

    def state_of(self, offsets: OffsetRange) -> tuple[int, bool] | None:
        """Is what tells whether the file of a range may have been exchanged since."""
        return (self.known[offsets].revision, offsets in self.published) if offsets in self.known else None

    def find_due(self, coverage: Coverage) -> list[OffsetRange]:
        """Finds the landed ranges that are not decoded as they are landed now, in log order."""
        return find_due(coverage, self.known, self.published)


class Decodings:
    """Reads and writes what is decoded of one lake; keeps what it has read, which never changes."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._documents: dict[str, Decoding] = {}
        self._shown: set[tuple[str, int]] = set()

    def read_topics(self) -> tuple[str, ...]:
        """Reads the topics that anything was ever decoded of."""
        return self.lake.store.folders("decodings")

    def read(self, topic: str) -> dict[OffsetRange, Decoding]:
        """Reads the newest revision of every decoding of a topic."""
        newest: dict[str, str] = {}
        for path in self.lake.store.list(f"decodings/{topic}"):
            key = path.rsplit(".", 2)[0]
            newest[key] = max(path, newest.get(key, path), key=_revision_of)
        decodings = (self._read(path) for path in newest.values())
        return {decoding.offsets: decoding for decoding in decodings}

    def read_ranges(self, topic: str) -> DecodedRanges:
        """Reads what is decoded of a topic now: documents, and of which of them each file can be seen.

        A file can be where it stands under its final name, and is of this revision.
        """
        decodings, store = self.read(topic), self.lake.store
        sizes = store.list(f"{DECODED}/{topic}") | store.list(f"{DEAD_LETTERS}/{topic}")
        published = {
            offsets
            for offsets, decoding in decodings.items()
            if all(sizes.get(path) == file.bytes for path, file in _files(decoding))
            and not (decoding.revision and any(store.exists(file.path) for _, file in _files(decoding)))
            and all(self._is_shown(decoding, file, path) for path, file in _files(decoding))
        }
        return DecodedRanges(topic, decodings, published)

    def commit(self, decoding: Decoding) -> Decoding:
        """Decides what became of a range; returns the document that stands, ours or the one that was there first."""
        path = _document_path(decoding.topic, decoding.offsets, decoding.revision)
        scratch = f"staging/{decoding.provenance.attempt}/decoding-{decoding.offsets.key}.json"
        if self.lake.store.put_new(path, decoding.to_json(), scratch) is Answer.COMMITTED:
            self._documents[path] = decoding
            return decoding
        return self._read(path)

    def publish(self, decoding: Decoding, on_file: Callable[[str], None] = lambda path: None) -> bool:
        """Gives the files that a decoding names their final names; false where a staged one is gone: decode again.

        `on_file` is told of each as it can be seen.
        """
        for path, file in _files(decoding):
            try:
                self._show(decoding, file, path)
            except FileNotFoundError:
                if self.lake.store.size(path) != file.bytes or not self._is_shown(decoding, file, path):
                    return False
            on_file(path)
        return True

    def _show(self, decoding: Decoding, file: StagedFile, path: str) -> None:
        """Gives one file its final name, unless a later revision stands: what that took away no stale attempt brings back."""
        store = self.lake.store
        later = _document_path(decoding.topic, decoding.offsets, decoding.revision + 1)
        guard = _document_path(decoding.topic, decoding.offsets, 0)

        def is_due() -> bool:
            return not store.exists(later)

        if decoding.revision:
            store.exchange(file.path, path, guard=guard, is_due=is_due)
        else:
            store.publish(file.path, path, guard=guard, is_due=is_due)

    def _is_shown(self, decoding: Decoding, file: StagedFile, path: str) -> bool:
        """Says whether a file of a document's size is its own: where an earlier revision had one as large, it is read."""
        from .parquet import digest

        seen = path, decoding.revision
        if not decoding.revision or seen in self._shown:
            return True
        paths = [_document_path(decoding.topic, decoding.offsets, revision) for revision in range(decoding.revision)]
        earlier = (self._read(each) for each in paths if each in self._documents or self.lake.store.exists(each))
        if any((path, file.bytes) == (other, each.bytes) for document in earlier for other, each in _files(document)):
            with self.lake.local_copy(path) as published:
                if digest(published) != file.sha256:
                    return False
        self._shown.add(seen)
        return True

    def _read(self, path: str) -> Decoding:
        if path not in self._documents:
            url = self.lake.store.url(path)
            decoding = Decoding.from_json(self.lake.store.get(path) or b"", url)
            if path != _document_path(decoding.topic, decoding.offsets, decoding.revision):
                raise BrokenManifest(f"decoding {url} is of {decoding.offsets.text(decoding.topic)}: delete it there")
            self._documents[path] = decoding
        return self._documents[path]


def decoded_path(topic: str, offsets: OffsetRange) -> str:
    """Is where the decoded rows of a range lie, below the lake's root."""
    return f"{DECODED}/{topic}/{offsets.folder}/{offsets.stem}.parquet"


def dead_letters_path(topic: str, offsets: OffsetRange) -> str:
    """Is where the dead letters of a range lie, below the lake's root; no file where there never were any."""
    return f"{DEAD_LETTERS}/{topic}/{offsets.folder}/{offsets.stem}.parquet"


def _document_path(topic: str, offsets: OffsetRange, revision: int) -> str:
    return f"decodings/{topic}/{offsets.folder}/{offsets.stem}.{revision:03d}.json"


def _revision_of(path: str) -> int:
    return int(path.rsplit(".", 2)[1])


def _files(decoding: Decoding) -> Iterator[tuple[str, StagedFile]]:
    """Yields final path and staged file, in the order in which they are to be seen."""
    if decoding.decoded is not None:
        yield decoded_path(decoding.topic, decoding.offsets), decoding.decoded
    if decoding.dead_letters is not None:
        yield dead_letters_path(decoding.topic, decoding.offsets), decoding.dead_letters
