"""Which files have the rows of a topic or of a derived table, and which of their rows: fixed files of one version, found once.

Ranges are read from the raw table if it has them, else from their landed files; offsets decide which. A compacted file has
many ranges and days, so rows are chosen by their own columns, and each file is read once. Invariant: each landed range is
in one part at most.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ...core.advice import command
from ...core.errors import BrokenTable, Refused, TableFileGone
from ...core.log.coverage import Coverage
from ...core.offsets import OffsetRange, merge_ranges
from ...core.raw_columns import RAW_COLUMNS
from ...core.tables.decoded_ranges import DecodedRanges
from ...core.tables.decoded_table import TREE, is_of_dead_letters
from ...core.tables.raw_table import RangeFiles, has_all_columns, offsets_of, ranges_by_file, revision_in
from ..lake.lake import Lake
from ..lake.layout import data_path, published_path
from ..lake.parquet import conform
from .columns_of_table import DECODED_COLUMNS, arrow_schema
from .decodings import Decodings
from .delta_log import raw_table_log
from .latest_table import LatestTable

# by range, the path below the lake's root of the raw table's file that is read for it
InTable = Mapping[OffsetRange, str]


@dataclass(frozen=True, slots=True)
class Part:
    """A file below the lake's root and the ranges to read of it, in offset order; `is_whole` if it has no others.

    `is_older` if it may lack a column, which the version that wrote it did not know.
    """

    path: str
    ranges: tuple[OffsetRange, ...]
    is_whole: bool
    is_older: bool

    @property
    def stretches(self) -> list[OffsetRange]:
        """The offsets to read, in as few stretches as possible."""
        return merge_ranges(self.ranges)


@dataclass(frozen=True, slots=True)
class TopicRows:
    """The files of a topic's rows: by range, those of the raw table that are read whole, and those of which a part is read.

    `older` are the table's files that may lack a column.
    """

    coverage: Coverage
    whole: InTable
    cut: InTable
    older: frozenset[str] = frozenset()

    @property
    def in_table(self) -> InTable:
        """The files of the table that are read, by range."""
        return {**self.cut, **self.whole}

    def parts(self, chosen: Collection[OffsetRange] | None = None) -> list[Part]:
        """Return what to read for all ranges, or for the chosen ones, in offset order; nothing for a range without rows."""
        in_table, found = self.in_table, defaultdict[str, list[OffsetRange]](list)
        for offsets in sorted(self.coverage.published.keys() | in_table.keys()):
            if chosen is None or offsets in chosen:
                found[in_table.get(offsets) or own_path(offsets, self.coverage)].append(offsets)
        lengths = defaultdict[str, int](int)
        for offsets, path in self.whole.items():
            lengths[path] += len(offsets)
        cut, known = set(self.cut.values()), set(in_table.values())
        return [
            Part(
                path,
                tuple(each),
                path not in cut and sum(map(len, each)) >= lengths[path],
                path in self.older if path in known else any(map(self._is_older, each)),
            )
            for path, each in found.items()
        ]

    def _is_older(self, offsets: OffsetRange) -> bool:
        """Return whether the file of a range in `data/` may lack a column: its manifest tells, once the file is published."""
        manifest = self.coverage.manifests.get(offsets)
        return manifest is None or len(manifest.schema) < len(RAW_COLUMNS) or offsets in self.coverage.unfinished


def within(stretches: Iterable[OffsetRange]) -> str:
    """Return the condition that a row is of some stretches, as SQL with names in `"`."""
    return " OR ".join(
        f'"generation" = {each.generation} AND "partition" = {each.partition} '
        f'AND "offset" >= {each.start} AND "offset" < {each.end}'
        for each in stretches
    )


def own_path(offsets: OffsetRange, coverage: Coverage) -> str:
    """Return where the file of a range lies in `data/`, below the lake's root."""
    manifest = coverage.manifests.get(offsets)
    return published_path(manifest) if manifest else data_path(coverage.log.topic, offsets)


def find_rows(coverage: Coverage, lake: Lake) -> TopicRows:
    """Find which files are read for the ranges of a topic, with no row twice.

    A file of the table is read whole if all ranges between its offsets are landed as it has them. Otherwise, or if somebody
    took it away, the range files are read; of a dropped range its part of a table's file. A replace never changes a file of
    the table, but it exchanges one in `data/`. Raises `TableFileGone`, or `BrokenTable`, if rows are nowhere else.
    """
    topic = coverage.log.topic
    log = raw_table_log(topic, lake.store)
    try:
        table = log.read()
    except BrokenTable:
        if coverage.dropped():
            raise
        return TopicRows(coverage, {}, {})  # `data/` has all of it
    sizes = lake.store.list(log.folder) if table.files else {}
    there = {path: file for path, file in table.files.items() if sizes.get(f"{log.folder}/{path}") == file.bytes}
    whole = dict[OffsetRange, str]()
    for path, manifests in ranges_by_file(coverage, table).items():
        landed = [each.offsets for each in manifests]  # what the table has was published, whatever became of that file
        if path in there and sum(map(len, landed)) == len(offsets_of(there[path])):
            whole |= dict.fromkeys(landed, f"{log.folder}/{path}")
    files, cut = RangeFiles(table), dict[OffsetRange, str]()
    dropped = coverage.dropped()
    for offsets in sorted(dropped.keys() - whole.keys() - coverage.published.keys()):
        holder = files.find(offsets)  # that of a later revision than was dropped is about to be published
        if holder is not None and holder.path in there and revision_in(holder, offsets) == dropped[offsets]:
            cut[offsets] = f"{log.folder}/{holder.path}"
        elif coverage.is_landed(offsets) and coverage.manifests[offsets].rows:
            if lake.is_replaced(coverage.manifests[offsets]):  # since the coverage was read: look again
                return find_rows(lake.coverage(topic), lake)
            raise TableFileGone(
                f"the file of range {offsets.text(topic)} was dropped, and the table {lake.store.url(log.folder)} does not "
                "have its rows any more: restore the table's folder from a backup",
                topic=topic,
            )
    older = frozenset(f"{log.folder}/{path}" for path, file in there.items() if not has_all_columns(file))
    return TopicRows(coverage, whole, cut, older)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Files (paths below the lake's root), their columns, and which rows are meant, as SQL with names in `"`.

    Columns whose names begin with `_` are the table's own, and are not shown.
    """

    paths: tuple[str, ...]
    schema: pa.Schema
    where: str

    @property
    def shown(self) -> pa.Schema:
        """The columns that are shown."""
        return pa.schema([field for field in self.schema if not field.name.startswith("_")])

    @property
    def hidden(self) -> list[str]:
        """The names of the columns that are not shown."""
        return [name for name in self.schema.names if name.startswith("_")]

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return rows with all shown columns in their types, null in a column that the files lack."""
        return conform(rows, self.shown)


def find_decoded(topic: str, chosen: OffsetRange | None, decodings: Decodings) -> TableRows:
    """Find the decoded rows of a topic, or of one range; raise `Refused` if nothing of it is decoded."""
    decoded = decodings.read_ranges(topic)
    if chosen is None:
        files = [file.path for file in decoded.table.files.values() if file.rows and not is_of_dead_letters(file)]
        return _rows_of(decoded, decodings.lake, (f"{TREE}/{topic}/{path}" for path in files))
    decoding = decoded.get(chosen)
    if decoding is None:
        raise Refused(
            f"range {chosen.text(topic)} is not decoded; nothing was read; `{command('decode', topic, '--due')}` decodes it"
        )
    paths = [decoded.path_of(chosen)] if decoding.rows else []
    return _rows_of(decoded, decodings.lake, paths, within([chosen]))


def why_no_day(decoded: DecodedRanges) -> str:
    """Return why no day of a topic can be read, and what to do: its rows have no event time, or several; else nothing."""
    times, mended = decoded.sums.days.keys(), command("decode", decoded.topic, "--outdated")
    if times == {""}:
        return (
            f"the rows of topic {decoded.topic} are of no day: its defs.yaml had no `days: {{event_time: ...}}` when they were "
            f"decoded; add it where it is missing, then `{mended}`"
        )
    if len(times) > 1:
        found = " and ".join(sorted(each or "none" for each in times))
        return (
            f"the decoded ranges of topic {decoded.topic} have their event time from {found}, expected one column of all; add "
            f"`days` to its defs.yaml where there is none, then `{mended}`"
        )
    return ""


def find_day(topic: str, day: str, decodings: Decodings) -> TableRows:
    """Find the decoded rows of a day; raise `Refused` where no day can be read."""
    decoded = decodings.read_ranges(topic)
    if why := why_no_day(decoded):
        raise Refused(f"nothing was read: {why}")
    known = decoded.among(lambda sums: any(day in days for days in sums.days.values()))
    paths = (decoded.path_of(each.offsets) for each in known if day in each.event_days)
    moments = f"'{day} 00:00:00+00:00' AND '{day} 23:59:59.999999+00:00'"
    return _rows_of(decoded, decodings.lake, paths, f'"event_time" BETWEEN {moments}')


def find_latest(topic: str, lake: Lake) -> TableRows:
    """Find the latest record of each key; raise `Refused` if there is no such table, `BrokenTable` for a damaged one."""
    snapshot = LatestTable(lake, topic).read()
    if snapshot is None:
        raise Refused(
            f"topic {topic} has no latest records in the lake {lake.store.root}; nothing was read; add `latest: {{}}` to its "
            f"defs.yaml where it is missing, then `{command('latest', topic)}`"
        )
    if why := snapshot.why_unreadable:
        raise BrokenTable(
            f"the latest table of topic {topic} cannot be read: {why}; nothing was read; "
            f"`{command('latest', topic)}` makes it anew"
        )
    return TableRows(tuple(sorted(snapshot.files)), snapshot.schema, "NOT _deleted")


def _rows_of(decoded: DecodedRanges, lake: Lake, paths: Iterable[str], where: str = "true") -> TableRows:
    metadata = decoded.table.metadata
    if metadata is None or not decoded.has_rows:
        raise Refused(
            f"nothing of topic {decoded.topic} is decoded in the lake {lake.store.root}; nothing was read; add `decode:` to "
            f"its defs.yaml where it is missing, then `{command('decode', decoded.topic)}`"
        )
    schema = [field for field in arrow_schema(metadata.schema) if field.name in DECODED_COLUMNS]
    return TableRows(tuple(sorted(set(paths))), pa.schema(schema), where)
