"""The files of a topic's latest state: one per bucket of keys, each exchanged in one step with all that it says of itself.

    latest/<topic>/b0007.parquet     the keys of one bucket; a plain glob over the folder never shows a key twice

Facts are key-value metadata of the file; tombstones that have won lie in it behind the rows, where no reader looks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import BrokenManifest
from ..core.latest import BucketFacts
from .footer import add_note, hide
from .lake import Lake
from .latest_columns import COLUMNS
from .parquet import is_equal
from .swapping import Seen, read_versions, see, swap

TREE = "latest"
FACTS = "offsetlake.latest"


@dataclass(frozen=True, slots=True)
class Present:
    """Is a bucket as it is now: the version that was seen, its facts, and copies of its rows and tombstones to read.

    All but the version are none where there is no file yet.
    """

    seen: Seen | None
    facts: BucketFacts | None = None
    rows: Path | None = None
    tombstones: Path | None = None


@dataclass(frozen=True, slots=True)
class StagedBucket:
    """Are the files that were staged of one bucket: rows, and tombstones that have won; none where there are none."""

    rows: Path | None = None
    tombstones: Path | None = None


class LatestFiles:
    """Reads and exchanges the files of latest states in one lake; keeps facts that it has read, by their file's version."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._facts: dict[str, tuple[str, BucketFacts]] = {}

    def read_facts(self, topic: str) -> dict[int, BucketFacts]:
        """Reads what each bucket's file says of itself; of files that have not changed nothing is read again."""
        facts = {}
        for path, version in read_versions(self.lake.store, f"{TREE}/{topic}").items():
            if path not in self._facts or self._facts[path][0] != version:
                with self.lake.local_copy(path) as copy:
                    self._facts[path] = (version, read_facts(copy, self.lake.store.url(path)))
            facts[self._facts[path][1].bucket] = self._facts[path][1]
        return facts

    @contextmanager
    def snapshot(self, topic: str, buckets: Iterable[int], folder: Path) -> Iterator[dict[int, Present]]:
        """Gives what each bucket is now, in copies below `folder` that stay as they are, whoever exchanges it meanwhile."""
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as versions:
            found: dict[int, Present] = {}
            for bucket in buckets:
                seen = versions.enter_context(see(self.lake.store, bucket_path(topic, bucket)))
                found[bucket] = Present(None) if seen is None else self._copy(topic, bucket, seen, folder)
            yield found

    def _copy(self, topic: str, bucket: int, seen: Seen, folder: Path) -> Present:
        path = bucket_path(topic, bucket)
        rows = folder / f"b{bucket:04d}.rows.parquet"
        if self.lake.store.local_root is not None:
            os.link(self.lake.store.local_root / path, rows)
        else:
            rows.write_bytes(self.lake.store.get(path) or b"")
        facts = read_facts(rows, self.lake.store.url(path))
        if not facts.tombstones:
            return Present(seen, facts, rows)
        tombstones = folder / f"b{bucket:04d}.tombstones.parquet"
        with rows.open("rb") as file:
            file.seek(facts.tombstones_at)
            tombstones.write_bytes(file.read(facts.tombstone_bytes))
        return Present(seen, facts, rows, tombstones)

    def exchange(self, topic: str, bucket: int, staged: Path, attempt: str, seen: Seen | None) -> bool:
        """Puts a staged bucket in the place of the version that was seen; false where another one stands there by now."""
        root = self.lake.store.local_root
        path = str(staged.relative_to(root)) if root is not None else f"staging/{attempt}/b{bucket:04d}.parquet"
        if root is None:
            self.lake.store.upload(staged, path)
        return swap(self.lake.store, path, bucket_path(topic, bucket), seen)


def bucket_path(topic: str, bucket: int) -> str:
    """Is where a bucket's file lies, below the lake's root."""
    return f"{TREE}/{topic}/b{bucket:04d}.parquet"


def read_facts(path: Path, where: str) -> BucketFacts:
    """Reads what a bucket's file says of itself; raises `BrokenManifest` where it says nothing, or is damaged."""
    try:
        found: Mapping[bytes, bytes] = pq.read_metadata(path).metadata or {}
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:  # OSError: the footer is no Thrift
        raise BrokenManifest(
            f"{where} is no Parquet file: {str(error).splitlines()[0]}; nothing was written; delete it, and the next update "
            "makes it from the decoded ranges"
        ) from error
    return BucketFacts.from_json(found.get(FACTS.encode()), where)


def assemble(staged: StagedBucket, facts: BucketFacts, schema: pa.Schema, path: Path) -> BucketFacts:
    """Makes a bucket's file of what Spark staged of it, which is taken; returns the facts, completed."""
    rows, tombstones = staged.rows, staged.tombstones
    if rows is None:
        pq.write_table(schema.empty_table(), path, compression="zstd")
    else:
        rows.replace(path)
    hidden = tombstones.read_bytes() if tombstones is not None else b""
    facts = replace(
        facts,
        keys=pq.read_metadata(path).num_rows,
        tombstones=pq.read_metadata(tombstones).num_rows if tombstones is not None else 0,
        tombstone_bytes=len(hidden),
    )
    facts = replace(facts, tombstones_at=hide(path, hidden))
    add_note(path, FACTS, facts.to_json())
    return facts


def differences(present: Present, staged: StagedBucket) -> list[str]:
    """Compares a bucket with what was staged of it anew; returns what differs, in words."""
    found = []
    for name, one, other in (
        ("records", present.rows, staged.rows),
        ("tombstones", present.tombstones, staged.tombstones),
    ):
        shown, expected = _places(one), _places(other)
        if shown != expected:
            first = ", ".join(map(str, sorted(shown ^ expected)[:3]))
            found.append(
                f"{len(shown - expected)} {name} are not the latest of their key, and {len(expected - shown)} are missing; "
                f"first (generation, partition, offset): {first}"
            )
    if not found and present.rows is not None and staged.rows is not None:
        before, after = (pq.read_table(path, columns=[*COLUMNS]) for path in (present.rows, staged.rows))
        if before.schema.equals(after.schema) and not is_equal(before, after):
            found.append("keys or values are not those of the records that they stand for")
    return found


def _places(path: Path | None) -> set[tuple[int, int, int]]:
    if path is None:
        return set()
    table = pq.read_table(path, columns=["generation", "partition", "offset"])
    return set(zip(*(column.to_pylist() for column in table.columns), strict=True))
