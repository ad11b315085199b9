"""The decoded tables of a lake's topics: read as what became of each range, written by one commit for any number of ranges.

    tables/decoded/<topic>/<g0>-<p0003>-<start20>-<end20>.<id>.parquet    rows of a range, or its dead letters
    tables/decoded/<topic>/_schemas/<digest>.json                         what a registry gave, and columns, each once
    tables/decoded/<topic>/_delta_log/                                    which files there are, see `core.decoded_table`

No file is ever exchanged: a range that is decoded again has files of other names, in the same commit that takes away its own.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.coverage import Coverage
from ..core.decoded_table import DEAD, by_range, paths_of, read_decodings, replace_ranges
from ..core.decoding import Decoding, find_due, of_nothing
from ..core.delta import Snapshot
from ..core.errors import DamagedFile
from ..core.manifest import StagedFile
from ..core.offsets import OffsetRange
from ..core.raw_table import stem_of
from .columns_of_table import schema_of
from .delta_log import DeltaLog
from .lake import Lake

TREE = "tables/decoded"


@dataclass(frozen=True, slots=True)
class DecodedRanges:
    """What is decoded of a topic at one version of its table."""

    topic: str
    known: Mapping[OffsetRange, Decoding]
    table: Snapshot

    @property
    def has_rows(self) -> bool:
        """Whether any record is decoded: without one there are no columns that a file could have."""
        return any(each.rows for each in self.known.values())

    def find_due(self, coverage: Coverage) -> list[OffsetRange]:
        """Find the landed ranges that are not decoded as they are landed now, in log order."""
        return find_due(coverage, self.known)

    def with_empty(self, coverage: Coverage) -> Mapping[OffsetRange, Decoding]:
        """Return what became of each range, also of those without rows, of which the table says nothing."""
        empty = (each for each in coverage.manifests.values() if not each.rows and coverage.is_landed(each.offsets))
        return {each.offsets: of_nothing(each) for each in empty} | dict(self.known)

    def find_lacking(self, lake: Lake) -> list[tuple[OffsetRange, str]]:
        """Find the files that the table names and that are not there, or not as large, each with its range."""
        folder = f"{TREE}/{self.topic}"
        sizes = lake.store.list(folder)
        return [
            (offsets, f"{folder}/{path}")
            for offsets, decoding in self.known.items()
            for path in paths_of(decoding)
            if sizes.get(f"{folder}/{path}") != self.table.files[path].bytes
        ]

    def path_of(self, offsets: OffsetRange) -> str:
        """Return where the decoded rows of a range lie, below the lake's root; it has some."""
        return path_of(self.known[offsets])


class Decodings:
    """Reads and writes the decoded tables of one lake; keeps what it has read, and reads only what is newer."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._seen: dict[str, tuple[Snapshot, dict[str, Decoding], DecodedRanges]] = {}
        self._texts: dict[str, str] = {}

    def read_topics(self) -> tuple[str, ...]:
        """Read the topics that anything was ever decoded of."""
        return self.lake.store.folders(TREE)

    def read(self, topic: str) -> Mapping[OffsetRange, Decoding]:
        """Read what became of each range with rows of a topic."""
        return self.read_ranges(topic).known

    def read_ranges(self, topic: str) -> DecodedRanges:
        """Read what is decoded of a topic now; raise `BrokenTable` where the table cannot be read."""
        before, by_path, ranges = self._seen.get(topic, (None, {}, None))
        table = self._log(topic).read(before)
        if ranges is not None and before is not None and table.is_same(before):
            return ranges
        by_path = read_decodings(table, by_path)
        ranges = DecodedRanges(topic, by_range(by_path.values()), table)
        self._seen[topic] = (table, by_path, ranges)
        return ranges

    def read_version(self, topic: str, version: int) -> DecodedRanges | None:
        """Read what was decoded of a topic at a version of its table; none where the log does not reach back so far."""
        table = self._log(topic).read_version(version)
        return None if table is None else DecodedRanges(topic, by_range(read_decodings(table, {}).values()), table)

    def place(self, decoding: Decoding) -> Decoding:
        """Give the staged files of a range names in the table's folder that no others have; no version has them yet."""

        def placed(staged: StagedFile | None) -> StagedFile | None:
            if staged is None:
                return None
            path = f"{stem_of(decoding.offsets)}.{uuid.uuid4()}.parquet"
            self.lake.store.publish(staged.path, f"{TREE}/{decoding.topic}/{path}")
            return replace(staged, path=path)

        return replace(decoding, decoded=placed(decoding.decoded), dead_letters=placed(decoding.dead_letters))

    def take_away(self, decodings: Iterable[Decoding]) -> None:
        """Delete files that were placed and that no version will have."""
        for decoding in decodings:
            for path in paths_of(decoding):
                self.lake.store.delete_folder(f"{TREE}/{decoding.topic}/{path}")

    def commit(self, ours: Sequence[Decoding], onto: DecodedRanges, now_ms: int) -> bool:
        """Give ranges their files in one version; false where another one is there since `onto`: look again.

        Raise `ColumnsDiffer` where no columns hold the rows of all files, and `LakeUnavailable` where a file is gone.
        """
        standing = dict(onto.known)
        commit = replace_ranges(ours, standing, now_ms)
        after = standing | {each.offsets: each for each in ours}
        digests = sorted({each.columns for each in after.values() if each.columns})
        schema = schema_of([self._text(onto.topic, digest) for digest in digests])
        return self._log(onto.topic).commit(commit, onto.table, now_ms, schema)

    def keep(self, topic: str, text: str) -> str:
        """Keep a schema beside the table, once; return its digest, by which ranges name it."""
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        if digest not in self._texts:
            path = f"{TREE}/{topic}/_schemas/{digest}.json"
            self.lake.store.put_new(path, json.dumps(text).encode(), f"staging/schema-{uuid.uuid4()}")
            self._texts[digest] = text
        return digest

    def _text(self, topic: str, digest: str) -> str:
        if digest not in self._texts:
            path = f"{TREE}/{topic}/_schemas/{digest}.json"
            try:
                self._texts[digest] = json.loads(self.lake.store.get(path) or b"")
            except ValueError as error:
                raise DamagedFile(
                    f"{self.lake.store.url(path)}, the columns of decoded files, is gone or was changed; nothing was written; "
                    f"restore it from a backup, or move {self.lake.store.url(f'{TREE}/{topic}')} away, and all ranges are "
                    "decoded again"
                ) from error
        return self._texts[digest]

    def _log(self, topic: str) -> DeltaLog:
        return decoded_table_log(topic, self.lake)


def decoded_table_log(topic: str, lake: Lake) -> DeltaLog:
    """Return the log of a topic's decoded table."""
    return DeltaLog(lake.store, f"{TREE}/{topic}", schema_of([]), (DEAD,))


def path_of(decoding: Decoding) -> str:
    """Return where the decoded rows of a range lie, below the lake's root."""
    assert decoding.decoded is not None
    return f"{TREE}/{decoding.topic}/{decoding.decoded.path}"


def dead_letters_path(decoding: Decoding) -> str:
    """Return where the dead letters of a range lie, below the lake's root."""
    assert decoding.dead_letters is not None
    return f"{TREE}/{decoding.topic}/{decoding.dead_letters.path}"
