"""The paths of a range's objects below the lake's root, made and parsed."""

import re

from ...core.log.manifest import Manifest
from ...core.offsets import OFFSET_DIGITS, OffsetRange

_RANGE_PATH = re.compile(r"g(\d+)/p(\d+)/(\d+)-(\d+)(\.[\w-]+)?", re.ASCII)


def step_path(topic: str, seq: int) -> str:
    """Return where a step of a plan log lies, below the lake's root."""
    return f"plan/{topic}/{seq:0{OFFSET_DIGITS}d}.json"


def range_path(tree: str, topic: str, offsets: OffsetRange) -> str:
    """Return where an object of a range lies in a tree, without the ending of its name."""
    return f"{tree}/{topic}/{offsets.folder}/{offsets.stem}"


def data_path(topic: str, offsets: OffsetRange) -> str:
    """Return where the published file of a range lies, below the lake's root, if there can be only one."""
    return f"{range_path('data', topic, offsets)}.parquet"


def published_path(manifest: Manifest) -> str:
    """Return where a manifest's file is published, or was before it was dropped, below the lake's root."""
    return _published_path(manifest, len(given_up_paths(manifest)) - manifest.is_dropped)


def given_up_paths(manifest: Manifest) -> list[str]:
    """Return the names that drops of a range have given up: none is published there again, and any file there is deleted."""
    return [_published_path(manifest, number) for number in range(manifest.drop.number if manifest.drop else 0)]


def _published_path(manifest: Manifest, drops: int) -> str:
    name = f"d{drops:03d}" if drops else manifest.named_after
    ending = f".{name}" if name else ""
    return f"{range_path('data', manifest.topic, manifest.offsets)}{ending}.parquet"


def manifest_path(topic: str, offsets: OffsetRange, serial: int) -> str:
    """Return where the manifest of a range with a serial number lies, below the lake's root."""
    return f"{range_path('manifests', topic, offsets)}.{serial:03d}.json"


def serial_of(topic: str, path: str) -> tuple[OffsetRange, int] | None:
    """Parse range and serial number from a manifest's path; none if the path is no manifest's."""
    offsets, ending = range_of("manifests", topic, path, ".json")
    number = ending.removeprefix(".")
    if offsets is None or not number.isdecimal() or path != manifest_path(topic, offsets, int(number)):
        return None
    return offsets, int(number)


def range_of(tree: str, topic: str, path: str, kind: str = ".parquet") -> tuple[OffsetRange | None, str]:
    """Parse a range, and the ending between it and `kind`, from the path of its file; none if the path is no range's."""
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
