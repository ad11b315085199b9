"""The documents of a lake's ranges as JSON: how they are written and read, and the error of an unreadable one.

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
    """Encode a document as the lake stores it, with its format number."""
    return (json.dumps({"format": FORMAT, **document}, indent=1, sort_keys=True) + "\n").encode()


def decode(data: bytes, what: str, instead: str, read: Callable[[dict[str, Any]], T]) -> T:
    """Return what `read` makes of a document, else raise `BrokenManifest`; `instead` is what to do where no backup has it."""
    try:
        return read(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BrokenManifest) as error:
        raise BrokenManifest(
            f"{what} cannot be read: {cause_of(error)}; restore it from a backup of the lake, or {instead}"
        ) from error


def check_format(document: dict[str, Any]) -> None:
    """Remove the format number from a document; raise `ValueError` for a format other than ours."""
    if (found := document.pop("format")) != FORMAT:
        raise ValueError(f"format {found}, expected format {FORMAT}")


def take_offsets(document: dict[str, Any]) -> OffsetRange:
    """Remove format, key and offsets from the document of a range; raise `ValueError`, `KeyError` or `TypeError`."""
    check_format(document)
    key, offsets = document.pop("key"), OffsetRange(**document.pop("offsets"))
    if offsets.key != key:
        raise ValueError(f"key {key} but offsets {offsets.key}")
    return offsets
