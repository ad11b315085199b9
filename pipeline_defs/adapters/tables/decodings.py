"""The decoded tables of a lake's topics: read as what became of each range, written by one commit for any number of ranges.

    tables/decoded/<topic>/_dead=false/<g0>-<p0003>-<start20>-<end20>.<id>.parquet    rows of a range
    tables/decoded/<topic>/_dead=true/...                                             its dead letters
    tables/decoded/<topic>/_dead=false/compacted.<id>.parquet                         rows of many ranges
    tables/decoded/<topic>/_schemas/<digest>.json                         what a registry gave, and columns, each once
    tables/decoded/<topic>/_delta_log/                                    which files there are, see `core.tables.decoded_table`

No file is ever exchanged: a range that is decoded again gets files of other names, in the commit that takes away its old ones.
The rows of each file are counted by day, each once; without an event time as `none` or `tombstone`.
"""

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...core.advice import command
from ...core.errors import DamagedFile
from ...core.log.manifest import StagedFile
from ...core.offsets import OffsetRange
from ...core.tables import decoded_table
from ...core.tables.days import NO_DAY, SECONDS_A_DAY, TOMBSTONE, EventTime, day_of
from ...core.tables.decoded_ranges import DecodedRanges
from ...core.tables.decoded_table import DEAD, EVENT_TIME, TREE, Contents
from ...core.tables.decoding import Decoding
from ...core.tables.delta import File as TableFile
from ...core.tables.raw_table import stem_of
from ..lake.lake import Lake
from ..store.remote_file import File, source
from ..store.store import Answer
from .columns_of_table import columns_of, schema_of
from .delta_log import DeltaLog

_MICROS = 1_000_000


class Decodings:
    """The decoded tables of one lake, to be read and written; what was read is kept, and only what is newer is read."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._seen: dict[str, DecodedRanges] = {}
        self._texts: dict[tuple[str, str], str] = {}  # of a topic, by digest

    def read(self, topic: str) -> Mapping[OffsetRange, Decoding]:
        """Read what became of each range of a topic that has rows."""
        return self.read_ranges(topic).known

    def read_ranges(self, topic: str) -> DecodedRanges:
        """Read what is decoded of a topic now; raise `BrokenTable` if the table cannot be read."""
        seen = self._seen.get(topic)
        table = decoded_table_log(topic, self.lake).read(seen.table if seen else None)
        if seen is None or not table.is_same(seen.table):
            seen = self._seen[topic] = DecodedRanges(topic, table, partial(self.contents_of, topic), seen)
        return seen

    def read_version(self, topic: str, version: int) -> DecodedRanges | None:
        """Read what was decoded of a topic at a version of its table; none if the log does not reach back so far."""
        table = decoded_table_log(topic, self.lake).read_version(version)
        read = partial(self.contents_of, topic)
        return None if table is None else DecodedRanges(topic, table, read, self._seen.get(topic))

    def contents_of(self, topic: str, file: TableFile) -> Contents:
        """Read which ranges a file has, and what became of them; raise `BrokenTable` if that cannot be read."""
        if not decoded_table.is_packed(file):
            return decoded_table.read_contents(file)
        document = self.lake.store.get(f"{TREE}/{topic}/{decoded_table.document_path(file.path)}")
        return decoded_table.read_document(document or b"", file)

    def keep_contents(self, topic: str, path: str, contents: Contents) -> None:
        """Write the document of a compacted file, before a version names that file."""
        document = f"{TREE}/{topic}/{decoded_table.document_path(path)}"
        self.lake.store.put_new(document, contents.to_json(), f"staging/ranges-{uuid.uuid4()}")

    def find_lacking(self, decoded: DecodedRanges) -> list[tuple[OffsetRange, str]]:
        """Find the files of a table that are missing or of another size, each with one of its ranges."""
        folder = f"{TREE}/{decoded.topic}"
        sizes = self.lake.store.list(folder)
        return [
            (decoded_table.first_range(file), f"{folder}/{path}")
            for path, file in sorted(decoded.table.files.items())
            if sizes.get(f"{folder}/{path}") != file.bytes
        ]

    def place(self, decoding: Decoding) -> Decoding:
        """Give the staged files of a range unique names in the table's folder; no version has them yet."""

        def placed(staged: StagedFile | None, *, is_dead: bool = False) -> StagedFile | None:
            if staged is None:
                return None
            path = decoded_table.path_of(f"{stem_of(decoding.offsets)}.{uuid.uuid4()}.parquet", is_dead=is_dead)
            self.lake.store.publish(staged.path, f"{TREE}/{decoding.topic}/{path}")
            return replace(staged, path=path)

        dead_letters = placed(decoding.dead_letters, is_dead=True)
        return replace(decoding, decoded=placed(decoding.decoded), dead_letters=dead_letters)

    def delete(self, topic: str, paths: Iterable[str]) -> None:
        """Delete files of a table's folder that no version has, and that none will have; the vacuum deletes what is left."""
        for path in paths:
            for name in (path, decoded_table.document_path(path)):
                self.lake.store.discard(f"{TREE}/{topic}/{name}")

    def commit(
        self,
        ours: Sequence[Decoding],
        onto: DecodedRanges,
        now_ms: int,
        rests: Mapping[str, TableFile] | None = None,
        lost: Collection[OffsetRange] = (),
    ) -> bool:
        """Give ranges their files in one version; return false if there is a newer one than `onto`: look again.

        `rests` are of files with more ranges than these, as `replace_ranges` takes them; what is `lost` is decoded no more.
        Raises `ColumnsDiffer` if no columns hold the rows of all files, and `LakeUnavailable` if a file is gone.
        """
        left = onto.find_left([*(each.offsets for each in ours), *lost])
        commit = decoded_table.replace_ranges(ours, left, rests or {}, now_ms)
        columns = onto.columns_beside(left) | {each.columns for each in ours if each.columns}
        schema = schema_of(self._texts_of(onto.topic, columns))
        self._write_lacking_texts(onto.topic, columns.union(*map(texts_of, ours)))
        return decoded_table_log(onto.topic, self.lake).commit(commit, onto.table, now_ms, schema)

    def columns_of(self, topic: str, decodings: Iterable[Decoding], names: Iterable[str]) -> pa.Schema:
        """Return those of the columns `names` that one file with all rows of some ranges has."""
        digests = {each.columns for each in decodings if each.columns}
        return columns_of(self._texts_of(topic, digests), {*names})

    def _texts_of(self, topic: str, digests: Iterable[str]) -> list[str]:
        return [self._text(topic, digest) for digest in sorted(digests)]

    def keep(self, topic: str, text: str) -> str:
        """Keep a schema beside the table, once; return its digest, by which ranges name it."""
        digest = _digest_of(text)
        if (topic, digest) not in self._texts:
            self._write_text(topic, digest, text)
            self._texts[topic, digest] = text
        return digest

    def _write_text(self, topic: str, digest: str, text: str) -> None:
        """Write the document of that digest; replace one that has another text, as it was cut short or changed."""
        path, data, scratch = text_path(topic, digest), json.dumps(text).encode(), f"staging/schema-{uuid.uuid4()}"
        if self.lake.store.put_new(path, data, scratch) is not Answer.COMMITTED:
            self.lake.store.delete(path)
            self.lake.store.put_new(path, data, scratch)

    def _write_lacking_texts(self, topic: str, digests: Iterable[str]) -> None:
        """Write what is known here and no longer in the lake: the table's folder was moved away since, say."""
        there = self.lake.store.list(f"{TREE}/{topic}/_schemas")
        for digest in digests:
            text = self._texts.get((topic, digest))
            if text is not None and text_path(topic, digest) not in there:
                self._write_text(topic, digest, text)

    def find_lacking_texts(self, decoded: DecodedRanges) -> list[tuple[OffsetRange, str]]:
        """Find the documents of schemas and columns that ranges name and that are gone or changed, each with a range."""
        topic = decoded.topic
        named = {digest: each.offsets for each in decoded.known.values() for digest in texts_of(each)}
        lacking = ((offsets, digest) for digest, offsets in sorted(named.items()) if self._read_text(topic, digest) is None)
        return [(offsets, text_path(topic, digest)) for offsets, digest in lacking]

    def _text(self, topic: str, digest: str) -> str:
        if (topic, digest) not in self._texts:
            text = self._read_text(topic, digest)
            if text is None:
                raise DamagedFile(
                    f"{self.lake.store.url(text_path(topic, digest))}, the columns of decoded files, is gone or was changed; "
                    f"nothing was written; `{command('audit', topic)}` says how it is made again; or restore it from a backup, "
                    f"or move {self.lake.store.url(f'{TREE}/{topic}')} away, and all ranges are decoded again"
                )
            self._texts[topic, digest] = text
        return self._texts[topic, digest]

    def _read_text(self, topic: str, digest: str) -> str | None:
        """Read the text of that digest; none if it is missing or another one."""
        try:
            text = json.loads(self.lake.store.get(text_path(topic, digest)) or b"")
        except ValueError:
            return None
        return text if isinstance(text, str) and _digest_of(text) == digest else None


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def text_path(topic: str, digest: str) -> str:
    """Return where a schema, or columns, of a topic's decoded rows are kept."""
    return f"{TREE}/{topic}/_schemas/{digest}.json"


def texts_of(decoding: Decoding) -> set[str]:
    """Return the digests of the schemas and columns that a range names."""
    return {*decoding.schemas.values(), decoding.columns} - {""}


def decoded_table_log(topic: str, lake: Lake) -> DeltaLog:
    """Return the log of a topic's decoded table."""
    folder = f"{TREE}/{topic}"
    mend = f"move {lake.store.url(folder)} away, and `{command('decode', topic)}` makes it again of what is landed"
    return DeltaLog(lake.store, folder, schema_of([]), (DEAD,), mend)


def count_days(file: File, event_time: EventTime) -> tuple[dict[str, int], int | None, int | None]:
    """Count the rows of each day in a decoded file, sorted; without a day as `NO_DAY` or `TOMBSTONE`.

    Return with it a moment before which there is no event, and one after which there is none (ms since 1970).
    """
    parquet = pq.ParquetFile(source(file), memory_map=True)
    column = parquet.read(columns=[EVENT_TIME]).column(EVENT_TIME)
    micros = pc.cast(column.drop_null(), "int64").to_numpy()
    numbers, counts = np.unique(micros // (SECONDS_A_DAY * _MICROS), return_counts=True)
    lacking, counted = column.null_count, Counter[str]()
    if lacking and event_time.parts[0] == "value":
        counted[TOMBSTONE] = parquet.read(columns=[event_time.path]).column("value").null_count
    counted[NO_DAY] = lacking - counted[TOMBSTONE]
    for number, rows in zip(numbers, counts, strict=True):
        counted[day_of(int(number))] += int(rows)
    days = {day: rows for day, rows in sorted(counted.items()) if rows}
    return (days, int(micros.min()) // 1_000, -(-int(micros.max()) // 1_000)) if len(micros) else (days, None, None)
