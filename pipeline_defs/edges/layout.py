"""The names of landed files: in `data/`, or in `retired/` once a sealed file stands for them, and what a name says.

A retired original has the revision in its name, since its range may be replaced and retired again. It is never taken away,
but where a word in `swept/` has said before that it is given up; the word stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

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


def retired_path(manifest: Manifest) -> str:
    """Is where the file of a manifest lies once it is retired, below the lake's root."""
    return f"{range_path('retired', manifest.topic, manifest.offsets)}.{manifest.revision:03d}.parquet"


def swept_path(manifest: Manifest) -> str:
    """Is where it says that the retired file of a manifest is given up, below the lake's root."""
    return f"{range_path('swept', manifest.topic, manifest.offsets)}.{manifest.revision:03d}.json"


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


def find_retired(
    topic: str, files: Mapping[str, int], words: Iterable[str], published: Collection[OffsetRange]
) -> dict[OffsetRange, tuple[int, int | None]]:
    """Finds of what is not in `data/` the newest retired revision, and its size in bytes: none where it was swept.

    `words` are the paths of what says so. Of what was swept, restored and retired again there is the file, and that counts.
    """
    newest: dict[OffsetRange, tuple[int, int | None]] = {}
    named = [("swept", path, ".json", None) for path in words]
    for tree, path, kind, size in [*named, *(("retired", path, ".parquet", size) for path, size in files.items())]:
        offsets, ending = range_of(tree, topic, path, kind)
        revision = ending.removeprefix(".")
        if offsets is not None and offsets not in published and revision.isdigit():
            newest[offsets] = max((int(revision), size), newest.get(offsets, (-1, None)), key=lambda found: found[0])
    return newest
