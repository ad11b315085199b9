"""Lakes on a disk, or in a bucket in memory, without a world; and their files as a disk or another JVM may leave them."""

from pathlib import Path

from obstore.store import MemoryStore

from pipeline_defs.adapters.lake.footer import _read, _Walk
from pipeline_defs.adapters.lake.lake import Lake
from tests.support.strategies import first_step


def open_lake(kind: str, folder: Path) -> Lake:
    if kind == "disk":
        return Lake(str(folder))
    lake = Lake("s3://lake")
    lake.store._objects = MemoryStore()
    return lake


def planned_lake(folder: Path, records: int) -> Lake:
    """Give a lake in a folder, in which records of one Kafka partition are planned, ten a range, and none is landed."""
    lake = Lake(str(folder))
    assert lake.commit_step(first_step(records))
    return lake


def again(lake: Lake) -> Lake:
    """Open a lake as another process does, which has read nothing yet."""
    other = Lake(lake.store.root)
    other.store._objects = lake.store._objects
    return other


def damage(path: Path) -> None:
    """Change a byte of a file's footer, as a disk may; its size stays."""
    before = path.read_bytes()
    path.write_bytes(before[:-9] + b"x" + before[-8:])


def list_encodings_falling(path: Path) -> None:
    """List the encodings of each column chunk in falling order, as some JVMs do by themselves, whose hashes are such."""
    with path.open("r+b") as file:
        start, footer = _read(file, path)
        falling, rising = bytearray(footer), bytearray(footer)
        for begin, end in _Walk(footer).encodings():
            rising[begin:end] = bytes(sorted(footer[begin:end]))
            falling[begin:end] = rising[begin:end][::-1]
        assert falling != rising, "some column has two"
        file.seek(start)
        file.write(falling)
