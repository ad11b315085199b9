"""The documents of a lake's ranges as JSON: how one is written, and what is said of one that cannot be read.

Invariant: the same document gives the same bytes.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import BrokenManifest, cause_of
from ..offsets import OffsetRange

FORMAT = 1
T = TypeVar("T")


def encode(document: Mapping[str, object]) -> bytes:
    """Return a document as the lake has it, with its format."""
    return (json.dumps({"format": FORMAT, **document}, indent=1, sort_keys=True) + "\n").encode()


def decode(data: bytes, what: str, instead: str, read: Callable[[dict[str, Any]], T]) -> T:
    """Return what `read` makes of a document; raise `BrokenManifest` where that is none: else do `instead` of restoring it."""
    try:
        return read(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BrokenManifest) as error:
        raise BrokenManifest(
            f"{what} cannot be read: {cause_of(error)}; restore it from a backup of the lake, or {instead}"
        ) from error


def check_format(document: dict[str, Any]) -> None:
    """Take the format out of a document; raise `ValueError` for another one."""
    if (found := document.pop("format")) != FORMAT:
        raise ValueError(f"format {found}, expected format {FORMAT}")


def take_offsets(document: dict[str, Any]) -> OffsetRange:
    """Take format, key and offsets out of the document of a range; raise `ValueError`, `KeyError` or `TypeError`."""
    check_format(document)
    key, offsets = document.pop("key"), OffsetRange(**document.pop("offsets"))
    if offsets.key != key:
        raise ValueError(f"key {key} but offsets {offsets.key}")
    return offsets
