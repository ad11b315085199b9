"""Where the rows of landed ranges are now: the files to read, and the digests to check them against.

A range has a file of its own; where that was dropped, its rows are cut out of the compacted file of the raw table that has
them, whose digest is checked first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from ..adapters.lake import comparing, parquet
from ..adapters.lake.lake import Lake
from ..adapters.lake.layout import published_path
from ..adapters.store.remote_file import File
from ..adapters.tables.delta_log import raw_table_log
from ..core.errors import DamagedFile, TableFileGone
from ..core.log.manifest import Manifest
from ..core.offsets import OffsetRange
from ..core.tables.delta import File as TableFile
from ..core.tables.raw_table import DIGEST, RangeFiles, is_as_landed, is_compacted

TRIES = 3  # for a file that is dropped between being found and being read


@dataclass(frozen=True, slots=True)
class LandedFile:
    """A file with the rows of a landed range: its own, or one cut out of a compacted file.

    `sha256` is its digest, where it has been read already.
    """

    path: File
    is_cut: bool
    sha256: str | None = None

    def is_of(self, manifest: Manifest) -> bool:
        """Return whether it is what was landed: byte for byte, or cut out of a compacted file whose digest was checked."""
        return self.is_cut or (self.sha256 or parquet.digest(self.path)) == manifest.digest


@contextmanager
def landed_files(manifests: Iterable[Manifest], lake: Lake) -> Iterator[Mapping[OffsetRange, LandedFile]]:
    """Give a file to read for each range, while open; raise `TableFileGone` where the rows of a dropped one are nowhere."""
    files: dict[OffsetRange, LandedFile] = {}
    dropped: list[Manifest] = []
    with ExitStack() as opened:
        for manifest in manifests:
            own = lake.own_path(manifest)
            if own is None:
                dropped.append(manifest)
            else:
                files[manifest.offsets] = LandedFile(opened.enter_context(lake.store.local_copy(own)), is_cut=False)
        if dropped:
            files |= opened.enter_context(_cut_files(dropped, lake))
        yield files


@contextmanager
def _cut_files(manifests: Sequence[Manifest], lake: Lake) -> Iterator[Mapping[OffsetRange, LandedFile]]:
    with lake.store.local_folder("cut") as folder:
        paths = {manifest.offsets: folder / f"{manifest.offsets.key}.parquet" for manifest in manifests}
        for manifest in manifests:
            if not manifest.rows:
                parquet.write_empty(paths[manifest.offsets])
        for path, some in Digests(lake).by_table_file(each for each in manifests if each.rows).items():
            with lake.store.local_copy(path) as compacted:
                for offsets, rows in parquet.read_ranges(compacted, sorted(manifest.offsets for manifest in some)):
                    parquet.write(rows, paths[offsets])
        yield {offsets: LandedFile(path, is_cut=True) for offsets, path in paths.items()}


def has_bytes_of(manifest: Manifest, path: str, lake: Lake) -> bool:
    """Return whether a file of the lake is there and has a manifest's digest; raise `DamagedFile` for an unreadable one."""
    try:
        with lake.store.explained("read", path), lake.store.local_copy(path) as file:
            return parquet.digest(file) == manifest.digest
    except FileNotFoundError:
        return False


@contextmanager
def table_file(file: TableFile, folder: str, lake: Lake) -> Iterator[Path]:
    """Give a file of a table to read, while open; raise `DamagedFile` where it is not what the table's log says."""
    path = f"{folder}/{file.path}"
    url, expected = lake.store.url(path), file.tags[DIGEST]
    try:
        with lake.store.local_copy(path) as copy:
            found = parquet.digest(copy)
            if found != expected:
                raise DamagedFile(f"the table's file {url} has sha256 {found}, expected {expected}")
            yield copy
    except FileNotFoundError:
        raise DamagedFile(f"the table's file {url} is not there, expected sha256 {expected}") from None


def find_differing(
    file: TableFile, manifests: Sequence[Manifest], in_file: Sequence[Manifest], folder: str, lake: Lake
) -> dict[OffsetRange, int]:
    """Return which ranges of a table's file differ from what is landed, and how many rows of each only that file has.

    `manifests` are of the ranges to compare, `in_file` of all that the file has in their newest revision. Ranges whose
    own file is dropped, gone or damaged are left out. Raise `DamagedFile` where the table's file is not as its log says.
    """
    has_all = all(each in in_file for each in manifests) and sum(each.rows for each in in_file) == file.rows
    if is_compacted(file) and has_all:
        return {}
    by_range = {manifest.offsets: manifest for manifest in manifests}
    with table_file(file, folder, lake) as copy:
        if not is_compacted(file) and is_as_landed(file, manifests[0]):
            return {}
        found = {
            offsets: _count_beyond(rows, file, by_range[offsets], lake)
            for offsets, rows in parquet.read_ranges(copy, sorted(by_range))
        }
    return {offsets: beyond for offsets, beyond in found.items() if beyond is not None}


def _count_beyond(rows: comparing.Rows, file: TableFile, manifest: Manifest, lake: Lake) -> int | None:
    """Count the rows of a range that its landed file does not have; none where nothing differs or nothing can be compared."""
    own = lake.own_path(manifest) if manifest.file is not None else None
    if manifest.file is not None and own is None:
        return None
    try:
        with lake.store.local_copy(own) if own else nullcontext() as landed:
            if landed is not None and parquet.digest(landed) != manifest.digest:
                return None  # the landed file is the damaged one
            alone = comparing.count_alone(rows, landed)
    except FileNotFoundError:
        return None
    return alone if alone is not None or is_as_landed(file, manifest) else 0


def count_only_in_table(manifest: Manifest, table: RangeFiles, staged: File | None, lake: Lake) -> int:
    """Count the rows of a range that the raw table has in that revision and that were not read from Kafka now."""
    file = table.find_at(manifest)
    if file is not None:
        with suppress(DamagedFile), table_file(file, raw_table_log(manifest.topic, lake.store).folder, lake) as copy:
            return sum(comparing.count_alone(rows, staged) or 0 for _, rows in parquet.read_ranges(copy, [manifest.offsets]))
    return 0


def why_not_as_landed(file: TableFile, manifests: Sequence[Manifest], folder: str, lake: Lake) -> str | None:
    """Return why a compacted file does not have as many rows of these ranges as are landed; none where it does."""
    try:
        with table_file(file, folder, lake) as copy:
            stretches = parquet.read_stretches(copy)
    except DamagedFile as error:
        return str(error)
    for manifest in manifests:
        start, end = manifest.offsets.start, manifest.offsets.end
        rows = sum(max(0, min(end, last) - max(start, first)) for first, last in stretches)
        if rows != manifest.rows:
            return f"the table has {rows} rows of range {manifest.offsets.text(manifest.topic)}, its manifest {manifest.rows}"
    return None


def why_changed(file: TableFile, folder: str, lake: Lake) -> str | None:
    """Return why a file of a table is not what the table's log says; none where it is."""
    try:
        with table_file(file, folder, lake):
            return None
    except DamagedFile as error:
        return str(error)


def rows_path(manifest: Manifest, lake: Lake) -> str:
    """Return the path to read a landed range's rows from: its own file, or, where that was dropped, the table's.

    Raise `TableFileGone` where the file was dropped and the table does not have its rows.
    """
    own = lake.own_path(manifest) if manifest.rows else published_path(manifest)
    return own or Digests(lake).table_path(manifest)


class Digests:
    """A reader of digests of landed ranges; it reads each compacted file with rows of dropped ranges once."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._files: dict[str, tuple[int, RangeFiles]] = {}  # by topic, with the version of its table
        self._why_changed: dict[str, str | None] = {}

    def of(self, manifest: Manifest) -> str | None:
        """Return the digest of a range's file, of a dropped one the manifest's; none where the file is missing.

        Raises `TableFileGone` where the range's file was dropped, and no file of the table has its rows unchanged.
        """
        if manifest.file is None:
            return manifest.digest
        for _ in range(TRIES):
            with suppress(FileNotFoundError):
                own = self._lake.own_path(manifest)
                if own is None:
                    if manifest.rows:
                        self.table_path(manifest)
                    return manifest.digest
                if not self._lake.store.exists(own):
                    continue  # it may have been dropped in between
                with self._lake.store.local_copy(own) as file:
                    return parquet.digest(file)
        return None

    def table_path(self, manifest: Manifest) -> str:
        """Return the path of the table's file with the rows of a dropped range; raise `TableFileGone` where none has them.

        The table is read again before that is raised, since it may have other files by now.
        """
        log = raw_table_log(manifest.topic, self._lake.store)
        version, files = self._files.get(manifest.topic) or self._read_table(manifest.topic)
        while True:
            try:
                return self._find_in(files, manifest)
            except TableFileGone:
                if log.read_head().version == version:
                    raise
            version, files = self._read_table(manifest.topic)

    def _read_table(self, topic: str) -> tuple[int, RangeFiles]:
        table = raw_table_log(topic, self._lake.store).read()
        self._files[topic] = table.version, RangeFiles(table)
        return self._files[topic]

    def _find_in(self, files: RangeFiles, manifest: Manifest) -> str:
        topic, where = manifest.topic, manifest.offsets.text(manifest.topic)
        log, file = raw_table_log(topic, self._lake.store), files.find_at(manifest)
        if file is None:
            raise TableFileGone(
                f"the file of range {where} was dropped, and the table {self._lake.store.url(log.folder)} does not have its "
                "rows: restore the table's folder from a backup",
                topic=topic,
            )
        path = f"{log.folder}/{file.path}"
        if path not in self._why_changed:
            self._why_changed[path] = why_changed(file, log.folder, self._lake)
        if reason := self._why_changed[path]:
            raise TableFileGone(f"the file of range {where} was dropped, and {reason}; restore that from a backup", topic=topic)
        return path

    def by_table_file(self, manifests: Iterable[Manifest]) -> dict[str, list[Manifest]]:
        """Group dropped ranges by the path of the table's file that has their rows; raise as `table_path` does."""
        groups: dict[str, list[Manifest]] = {}
        for manifest in manifests:
            groups.setdefault(self.table_path(manifest), []).append(manifest)
        return groups
