"""Canonical Parquet footers, so that the same rows are the same bytes whatever process wrote them.

parquet-java lists a column's encodings in the order of a hash set of enums, which differs from JVM to JVM; nothing
else in a file of ours does (docs/design/0002). Sorting that list in place changes no length and no meaning.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"PAR1"
_TAIL = 8  # footer length as four bytes, then the magic
# FileMetaData.row_groups -> RowGroup.columns -> ColumnChunk.meta_data -> ColumnMetaData.encodings, by field id
_ENCODINGS = (4, 1, 3, 2)
_BOOLEANS, _BYTE, _VARINTS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = {1, 2}, 3, {4, 5, 6}, 7, 8, {9, 10}, 11, 12
_LONG_LIST = 15


def canonicalize(path: Path) -> None:
    """Sort the encodings that the footer lists for each column chunk, in place; a second call changes nothing."""
    with path.open("r+b") as file:
        start, footer = _read(file, path)
        canonical = bytearray(footer)
        for begin, end in _Walk(footer).encodings():
            canonical[begin:end] = bytes(sorted(footer[begin:end]))
        if canonical != footer:
            file.seek(start)
            file.write(canonical)


def _read(file: BinaryIO, path: Path) -> tuple[int, bytearray]:
    """Read where the footer begins, and its bytes."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _TAIL, 0))
    tail = file.read(_TAIL)
    if size < _TAIL + len(_MAGIC) or tail[4:] != _MAGIC:
        raise ValueError(f"{path} is not a Parquet file")
    start = size - _TAIL - int.from_bytes(tail[:4], "little")
    file.seek(start)
    return start, bytearray(file.read(size - _TAIL - start))


class _Walk:
    """Walk over a struct in Thrift's compact protocol that finds where the encodings lie and skips everything else."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        self._at = 0

    def encodings(self) -> Iterator[tuple[int, int]]:
        yield from self._struct(())

    def _struct(self, path: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        field = 0
        while header := self._byte():
            delta, kind = header >> 4, header & 15
            field = field + delta if delta else _unzigzag(self._varint())
            yield from self._value(kind, (*path, field))

    def _value(self, kind: int, path: tuple[int, ...], *, in_list: bool = False) -> Iterator[tuple[int, int]]:
        if kind in _BOOLEANS:
            self._at += in_list  # outside a list the field's type is its value
        elif kind == _BYTE:
            self._at += 1
        elif kind in _VARINTS:
            self._varint()
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            length = self._varint()
            self._at += length
        elif kind in _LISTS:
            yield from self._list(path)
        elif kind == _MAP:
            yield from self._map(path)
        elif kind == _STRUCT:
            yield from self._struct(path)
        else:
            raise ValueError(f"no such Thrift type: {kind}")

    def _list(self, path: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        header = self._byte()
        count, kind = header >> 4, header & 15
        if count == _LONG_LIST:
            count = self._varint()
        begin = self._at
        for _ in range(count):
            yield from self._value(kind, path, in_list=True)
        if path == _ENCODINGS and self._at - begin == count:  # each encoding is one byte
            yield begin, self._at

    def _map(self, path: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        count = self._varint()
        if not count:
            return
        kinds = self._byte()
        for _ in range(count):
            yield from self._value(kinds >> 4, path, in_list=True)
            yield from self._value(kinds & 15, path, in_list=True)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7


def _unzigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
