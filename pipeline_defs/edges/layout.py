"""The names of the objects of a range: what a path says, and where each lies below the lake's root."""

from __future__ import annotations

import re

from ..core.manifest import Manifest
from ..core.offsets import OffsetRange

_RANGE_PATH = re.compile(r"g(\d+)/p(\d+)/(\d+)-(\d+)(\.[\w-]+)?", re.ASCII)


def range_path(tree: str, topic: str, offsets: OffsetRange) -> str:
    """Is where something of a range lies in a tree, without what its name ends with."""
    return f"{tree}/{topic}/{offsets.folder}/{offsets.stem}"


def data_path(topic: str, offsets: OffsetRange) -> str:
    """Is where the published file of a range lies, below the lake's root, for which there can be one only."""
    return f"{range_path('data', topic, offsets)}.parquet"


def published_path(manifest: Manifest) -> str:
    """Return where a manifest's file is published, below the lake's root."""
    ending = f".{manifest.named_after}" if manifest.named_after else ""
    return f"{range_path('data', manifest.topic, manifest.offsets)}{ending}.parquet"


def manifest_path(topic: str, offsets: OffsetRange, revision: int) -> str:
    """Is where a revision of a range's manifest lies, below the lake's root."""
    return f"{range_path('manifests', topic, offsets)}.{revision:03d}.json"


def revision_of(topic: str, path: str) -> tuple[OffsetRange, int] | None:
    """Read range and revision back from a manifest's path; none where the path is no manifest's."""
    offsets, ending = range_of("manifests", topic, path, ".json")
    number = ending.removeprefix(".")
    if offsets is None or not number.isdecimal() or path != manifest_path(topic, offsets, int(number)):
        return None
    return offsets, int(number)


def range_of(tree: str, topic: str, path: str, kind: str = ".parquet") -> tuple[OffsetRange | None, str]:
    """Reads a range, and the ending of its own, back from the path of its file; none where the path is no range's."""
    match = _RANGE_PATH.fullmatch(path.removeprefix(f"{tree}/{topic}/").removesuffix(kind))
    if match is None:
        return None, ""
    *numbers, ending = match.groups(default="")
    try:
        offsets = OffsetRange(*(int(number) for number in numbers))
    except ValueError:
        return None, ""
    is_own = path == f"{range_path(tree, topic, offsets)}{ending}{kind}"
    return (offsets, ending) if is_own else (None, "")
