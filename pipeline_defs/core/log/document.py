"""The documents of a lake as JSON, by the fields of their dataclasses: how they are written and read.

Invariant: the same document gives the same bytes, and what is read has every field, each of its type.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from enum import EnumType
from functools import cache, partial
from math import isfinite
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ..errors import BrokenManifest, OffsetlakeError, cause_of
from ..offsets import OffsetRange, Place, parse_key

FORMAT = 1
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, OffsetlakeError)
"""What reading something else than a document raises."""
T = TypeVar("T")


def plain(value: Any) -> Any:
    """Return a value of a document as JSON has it.

    | value | JSON |
    |---|---|
    | a range, a place as a key | text, `3-0-1000`, `g0/p3` |
    | a dataclass | an object of its fields; a list where its class says `IS_LIST` |
    | a mapping; a sequence, or a sorted set | an object; a list |
    | anything else | itself |
    """
    if isinstance(value, OffsetRange):
        return value.key
    if is_dataclass(value):
        found = {each.name: plain(getattr(value, each.name)) for each in fields(value)}
        return [*found.values()] if getattr(value, "IS_LIST", False) else found
    if isinstance(value, Mapping):
        return {place_text(key) if isinstance(key, tuple) else str(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [plain(each) for each in (sorted(value) if isinstance(value, frozenset) else value)]
    return value


def compact(value: Any) -> str:
    """Return a value of a document as one line of JSON, as tags have it; the same value gives the same text."""
    return json.dumps(plain(value), separators=(",", ":"), sort_keys=True)


def read_plain(kind: type[T], value: Any) -> T:
    """Return what `plain` gave of a value of this type; raise one of `UNREADABLE` for anything else."""
    reader: Any = _reader
    read: T = reader(kind)(value)
    return read


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return what reads values of a type; an optional integer is a time, which may be before 1970, any other is from 0."""
    of, inner = get_origin(kind), get_args(kind)
    if NoneType in inner:
        own = next(each for each in inner if each is not NoneType)
        read = partial(_checked, int) if own is int else _reader(own)
        return lambda value: None if value is None else read(value)
    if is_dataclass(kind):
        return parse_key if kind is OffsetRange else _object_reader(kind)
    if of is Mapping:
        key, read = _KEYS[inner[0]], _reader(inner[1])
        return lambda value: {key(name): read(each) for name, each in value.items()}
    if of in _LISTS and (of is not tuple or inner[-1] is ...):
        make, read = _LISTS[of], _reader(inner[0])
        return lambda value: make(map(read, _checked(list, value)))
    if of is tuple or hasattr(kind, "_make"):
        make, reads = getattr(kind, "_make", tuple), [_reader(each) for each in inner or get_type_hints(kind).values()]
        return lambda value: make([read(each) for read, each in zip(reads, _checked(list, value), strict=True)])
    return kind if isinstance(kind, EnumType) else _SCALARS.get(kind, lambda value: value)


def _object_reader(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    reads = {each.name: _reader(hints[each.name]) for each in fields(kind)}

    def read_object(value: Any) -> Any:
        found = dict(zip(reads, value, strict=True)) if getattr(kind, "IS_LIST", False) else value
        if unknown := found.keys() - reads.keys():
            raise ValueError(f"it has {min(unknown)}, which nobody writes")
        return kind(**{name: read(found[name]) for name, read in reads.items()})

    return read_object


def _checked(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {value!r}")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"expected a whole number of 64 bits, found {value!r}")
    return value


def _number(value: Any) -> float:
    if not isfinite(found := value if type(value) is float else _checked(int, value)):
        raise ValueError(f"expected a number, found {found!r}")
    return found


def place_text(place: Place) -> str:
    """Return a place as documents write it, e.g. `g0/p3`."""
    return f"g{place[0]}/p{place[1]}"


def place_of(text: str) -> Place:
    """Return the place of a text; raise `ValueError` for any other text."""
    generation, partition = text.removeprefix("g").split("/p")
    place = int(generation), int(partition)
    if place_text(place) != text or min(place) < 0:
        raise ValueError(f"expected a place such as g0/p3, found {text!r}")
    return place


def _index(text: str) -> int:
    if str(number := int(text)) != text or number < 0:
        raise ValueError(f"expected a whole number, found {text!r}")
    return number


_KEYS: Mapping[Any, Callable[[str], Any]] = {int: _index, str: str, Place: place_of}
_LISTS: Mapping[Any, Any] = {tuple: tuple, Sequence: list, frozenset: frozenset}
_SCALARS: Mapping[Any, Callable[[Any], Any]] = {int: _whole, float: _number, str: partial(_checked, str)}


def encode(document: Any) -> bytes:
    """Encode a document as the lake stores it, with its format number; that of a range has key and offsets."""
    found = {"format": FORMAT, **plain(document)}
    if "offsets" in found:
        found |= {"key": document.offsets.key, "offsets": asdict(document.offsets)}
    return (json.dumps(found, indent=1, sort_keys=True) + "\n").encode()


def parse(kind: type[T], data: bytes) -> T:
    """Return what `encode` gave of a document of this type; raise one of `UNREADABLE` for anything else."""
    found = json.loads(data)
    if (number := found.pop("format")) != FORMAT:
        raise OtherFormat(f"format {number}, expected format {FORMAT}")
    if "offsets" in found:
        key, offsets = found.pop("key"), OffsetRange(**found["offsets"])
        if offsets.key != key:
            raise ValueError(f"key {key} but offsets {offsets.key}")
        found["offsets"] = key
    return read_plain(kind, found)


class OtherFormat(ValueError):
    """A document of another version of Offsetlake; nothing is wrong with it."""


def mend_unreadable(error: Exception, otherwise: str) -> str:
    """Return why a document cannot be read, and what to do: `otherwise`, unless another version of Offsetlake wrote it."""
    upgrade = "another version of Offsetlake wrote it: run that one; it is not damaged: delete and restore nothing"
    return f"{cause_of(error)}; {upgrade if isinstance(error, OtherFormat) else otherwise}"


def decode(kind: type[T], data: bytes, what: str, instead: str) -> T:
    """Return a document of a range, else raise `BrokenManifest`; `instead` is what to do where no backup has it."""
    try:
        return parse(kind, data)
    except UNREADABLE as error:
        why = mend_unreadable(error, f"restore it from a backup of the lake, or {instead}")
        raise BrokenManifest(f"{what} cannot be read: {why}") from error
