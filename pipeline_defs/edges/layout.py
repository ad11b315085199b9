"""The names of landed files: in `data/`, or in `retired/` once a sealed file stands for them, and what a name says.

A retired original has the revision in its name, since its range may be replaced and retired again, and is never taken away.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from ..core.manifest import Manifest
from ..core.offsets import OffsetRange

_DATA_PATH = re.compile(r"g(\d+)/p(\d+)/(\d+)-(\d+)(\.[\w-]+)?\.parquet", re.ASCII)


def range_path(tree: str, topic: str, offsets: OffsetRange) -> str:
    """Is where something of a range lies in a tree, without what its name ends with."""
    return f"{tree}/{topic}/{offsets.folder}/{offsets.stem}"


def retired_path(manifest: Manifest) -> str:
    """Is where the file of a manifest lies once it is retired, below the lake's root."""
    return f"{range_path('retired', manifest.topic, manifest.offsets)}.{manifest.revision:03d}.parquet"


def range_of(tree: str, topic: str, path: str) -> tuple[OffsetRange | None, str]:
    """Reads a range, and the ending of its own, back from the path of its file; none where the path is no range's."""
    match = _DATA_PATH.fullmatch(path.removeprefix(f"{tree}/{topic}/"))
    if match is None:
        return None, ""
    *numbers, ending = match.groups(default="")
    try:
        offsets = OffsetRange(*(int(number) for number in numbers))
    except ValueError:
        return None, ""
    is_own = path == f"{range_path(tree, topic, offsets)}{ending}.parquet"
    return (offsets, ending) if is_own else (None, "")


def find_retired(
    topic: str, files: Mapping[str, int], published: Collection[OffsetRange]
) -> dict[OffsetRange, tuple[int, int]]:
    """Finds of what is not in `data/` the newest retired revision, and its size in bytes."""
    newest: dict[OffsetRange, tuple[int, int]] = {}
    for path, size in sorted(files.items()):
        offsets, ending = range_of("retired", topic, path)
        revision = ending.removeprefix(".")
        if offsets is not None and offsets not in published and revision.isdigit():
            newest[offsets] = int(revision), size
    return newest
