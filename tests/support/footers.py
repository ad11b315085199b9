"""Parquet footers as another JVM may write them."""

from __future__ import annotations

from pathlib import Path

from pipeline_defs.adapters.lake.footer import _read, _Walk


def list_encodings_falling(path: Path) -> None:
    """Lists the encodings of each column chunk in falling order, as some JVMs do by themselves, whose hashes are such."""
    with path.open("r+b") as file:
        start, footer = _read(file, path)
        falling, rising = bytearray(footer), bytearray(footer)
        for begin, end in _Walk(footer).encodings():
            rising[begin:end] = bytes(sorted(footer[begin:end]))
            falling[begin:end] = rising[begin:end][::-1]
        assert falling != rising, "some column has two"
        file.seek(start)
        file.write(falling)
