"""Digests of files where they lie, made by Spark's executors: no byte of them comes here.

A file is one value of a row there, so it fits into an executor's memory, and is below 2 GB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .engine import Engine
from .spark import SCAN_CONF


@dataclass(frozen=True, slots=True)
class Digest:
    """Size and sha256, in hex, of one file."""

    bytes: int
    sha256: str


def read_digests(engine: Engine, urls: Sequence[str]) -> Mapping[str, Digest]:
    """Return the digest of each Parquet file at some URLs, files or folders, by its own URL.

    Raises `ScanFailed` or `EngineUnavailable`.
    """
    from pyspark.sql import functions as f

    consequence = "nothing became visible; what needed it is tried again"
    with engine.job(SCAN_CONF, f"read the digests of {len(urls)} files or folders", consequence) as session:
        files = session.read.format("binaryFile").option("pathGlobFilter", "*.parquet").load([*urls])
        rows = files.select("path", "length", f.sha2("content", 256).alias("sha256")).collect()
    return {row["path"]: Digest(row["length"], row["sha256"]) for row in rows}
