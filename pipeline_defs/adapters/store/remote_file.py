"""One object of a lake, of which only the bytes are read that a reader asks for, as the footer and a column of a large file.

Reads only. An open file reads nothing ahead: each read is one request.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

import obstore
from obstore.exceptions import NotFoundError

if TYPE_CHECKING:
    from .store import Store


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """An object of a store with its size; `url` is its address for Spark and in messages."""

    store: Store
    path: str
    bytes: int
    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """Its name in its folder."""
        return self.path.rpartition("/")[2]

    def open(self, mode: Literal["rb"] = "rb") -> BinaryIO:  # noqa: ARG002 (as a path is opened)
        """Open it at its beginning."""
        return cast("BinaryIO", _Ranges(self))


File = Path | RemoteFile


def source(file: File) -> Path | BinaryIO:
    """Return a file as pyarrow reads it."""
    return file if isinstance(file, Path) else file.open()


class _Ranges(io.RawIOBase):
    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: object) -> int:
        """Fill a buffer as far as the object goes; raise `FileNotFoundError` if it is gone."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        end = min(self._at + len(view), self._file.bytes)
        if end <= self._at:
            return 0
        file = self._file
        with file.store.explained("read", file.path):
            try:
                data = obstore.get_range(file.store.objects, file.path, start=self._at, end=end)
            except NotFoundError as error:
                raise FileNotFoundError(file.path) from error
        view[: len(data)] = memoryview(data)
        self._at += len(data)
        return len(data)
