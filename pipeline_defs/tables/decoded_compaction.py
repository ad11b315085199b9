"""Compaction of a decoded table, and the way back: cutting ranges that are decoded again out of a compacted file.

Rows are sorted by their event time where they have one, so that readers of a day skip most files. Invariant: a file has only
the columns that its ranges were decoded to, so that no other column blocks a range in which its type differs.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..adapters.lake import comparing, parquet
from ..adapters.store.remote_file import File
from ..adapters.tables.decodings import Decodings, decoded_table_log
from ..adapters.tables.delta_log import DeltaLog
from ..core.advice import command
from ..core.errors import DamagedFile, LakeUnavailable
from ..core.offsets import OffsetRange
from ..core.tables import decoded_table
from ..core.tables.decoded_ranges import DecodedRanges
from ..core.tables.decoded_table import EVENT_TIME, Contents, DecodedGroup
from ..core.tables.delta import File as TableFile
from ..core.tables.delta import Snapshot
from ..landing.appending import place_in_folder
from ..landing.attempt import Tools
from ..landing.landed_files import table_file
from ..landing.staging_places import LocalStaging, Staging, staging_here

PLACE = ("generation", "partition", "offset")


@dataclass(frozen=True, slots=True)
class DecodedTable:
    """The decoded table of a topic."""

    topic: str
    decodings: Decodings

    @property
    def log(self) -> DeltaLog:
        """Log of the table."""
        return decoded_table_log(self.topic, self.decodings.lake)

    def how_to_mend(self, file: TableFile) -> str:
        """Return what to do about a file that is gone or changed."""
        key = decoded_table.first_range(file).key
        return f"`{command('decode', self.topic, '--key', key)}` has all ranges of the file decoded again"

    def find(self, target_bytes: int, *, every: bool) -> list[DecodedGroup]:
        """Find small files, of decoded rows or of dead letters."""
        table, epoch_of = self.decodings.read_ranges(self.topic).table, self.decodings.lake.recent(self.topic).log.epoch_of
        return decoded_table.find_groups(table, target_bytes, epoch_of, every=every)

    def merge(self, group: DecodedGroup, files: Sequence[File], folder: str, tools: Tools) -> None:
        """Write the rows in the order of their event times, in columns that hold all of them."""
        names = {name for file in files for name in parquet.read_schema(file).names}
        columns = self.decodings.columns_of(self.topic, self._contents(group).decodings, names)
        order = (EVENT_TIME, *PLACE) if EVENT_TIME in names else PLACE
        tools.files.merge(f"{self.topic}, {group.key}", files, columns, order, folder)

    def verify(self, group: DecodedGroup, files: Sequence[File], part: parquet.PartFile) -> list[str]:
        """Compare the rows with those of the group's files, in any order."""
        difference = comparing.differing_in_any_order(files, part.path)
        if difference is None and part.rows != group.rows:
            difference = f"its footer says {part.rows} rows, its files have {group.rows}"
        return [f"compacted file of {self.topic}, {group.key}: {difference}"] if difference else []

    def add(self, group: DecodedGroup, part: parquet.PartFile, staging: Staging, now_ms: int) -> TableFile:
        """Name the file by an id: its document has its ranges."""
        return self.put(part, self._contents(group), staging, now_ms, group.weight_bytes, is_dead=group.is_dead)

    def is_current(self, group: DecodedGroup, version: Snapshot) -> bool:
        """Return whether the files are there: each has a document that says what is in it."""
        return group.is_in(version)

    def put(
        self, part: parquet.PartFile, contents: Contents, staging: Staging, now_ms: int, weight_bytes: int = 0, *, is_dead: bool
    ) -> TableFile:
        """Give a staged file with these contents a name in the table's folder; return its entry for the log."""
        staged, path = place_in_folder(
            staging, part, self.log, lambda file_id: decoded_table.path_of(f"compacted.{file_id}.parquet", is_dead=is_dead)
        )
        self.decodings.keep_contents(self.topic, path, contents)
        return decoded_table.compacted_file(path, staged, contents, now_ms, weight_bytes, is_dead=is_dead)

    def _contents(self, group: DecodedGroup) -> Contents:
        return decoded_table.merge(self.decodings.contents_of(self.topic, file) for file in group.files)


@dataclass(frozen=True, slots=True)
class Cut:
    """Files with what is left of others, by their paths, once some ranges are cut out of these.

    `lost` are ranges of damaged files: once this is committed they are no longer decoded, so the next run decodes them again.
    """

    rests: Mapping[str, TableFile]
    lost: frozenset[OffsetRange]


def cut(ranges: Iterable[OffsetRange], decoded: DecodedRanges, decodings: Decodings, now_ms: int) -> Cut:
    """Cut ranges out of the files that have them; write what is left, where other ranges are."""
    ours = frozenset(ranges)
    gone, rests = ours, dict[str, TableFile]()
    if not any(content.ranges for content in decoded.find_left(ours).values()):
        return Cut(rests, frozenset())
    with staging_here(f"table-{uuid.uuid4()}", decodings.lake) as staging:
        while True:  # a range of a damaged file must also be cut out of its other file, which may be damaged too
            left = {path: content for path, content in decoded.find_left(gone).items() if content.ranges}
            decodings.delete(decoded.topic, [rest.path for rest in rests.values()])
            rests = dict[str, TableFile]()
            found = set[OffsetRange]()
            for path, content in left.items():
                rest = _cut(decoded.table.files[path], content, decoded.topic, decodings, staging, now_ms)
                if rest is None:
                    found |= {*content.ranges}
                else:
                    rests[path] = rest
            if not found:
                return Cut(rests, gone - ours)
            gone |= found


def _cut(
    file: TableFile, left: Contents, topic: str, decodings: Decodings, staging: LocalStaging, now_ms: int
) -> TableFile | None:
    lake, log = decodings.lake, decoded_table_log(topic, decodings.lake)
    target = staging.root / f"{uuid.uuid4()}.parquet"
    try:
        with lake.store.explained("write", f"{log.folder}/{file.path}"), table_file(file, log.folder, lake) as copy:
            staging.root.mkdir(parents=True, exist_ok=True)
            columns = decodings.columns_of(topic, left.decodings, parquet.read_schema(copy).names)
            parquet.write_only(copy, left.ranges, columns, target)
    except DamagedFile as error:
        if isinstance(error.__cause__, OSError):  # the file may be intact, for example where too many files are open
            raise LakeUnavailable(
                f"cannot read {lake.store.url(log.folder)}/{file.path}: {error.__cause__}; nothing was written; the next run "
                "tries it again; where it never can be read, delete the file, and its ranges are decoded again",
                path=log.folder,
            ) from error
        return None
    part = staging.read_part(target)
    assert part is not None, "each of its ranges has rows"
    return DecodedTable(topic, decodings).put(part, left, staging, now_ms, is_dead=decoded_table.is_of_dead_letters(file))
