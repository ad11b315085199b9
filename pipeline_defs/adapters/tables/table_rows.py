"""Which rows of a derived table are read: its files at one version, found once, which of their rows, and with which columns.

A compacted file has many ranges and days, so rows are chosen by what they say of themselves, and each file is read once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from ...core.command_lines import command
from ...core.errors import BrokenTable, Refused
from ...core.offsets import OffsetRange
from ...core.tables.decoded_ranges import DecodedRanges
from ...core.tables.decoded_table import TREE, is_of_dead_letters
from ..lake.lake import Lake
from ..lake.parquet import conform
from .columns_of_table import DECODED_COLUMNS, arrow_schema
from .decodings import Decodings
from .latest_table import LatestTable
from .topic_rows import within


@dataclass(frozen=True, slots=True)
class TableRows:
    """Files (paths below the lake's root), the columns of these, and which rows are meant, as SQL with names in `"`.

    Columns whose names begin with `_` are the table's own, and are not given.
    """

    paths: tuple[str, ...]
    schema: pa.Schema
    where: str = "true"

    @property
    def shown(self) -> pa.Schema:
        """The columns that are given."""
        return pa.schema([field for field in self.schema if not field.name.startswith("_")])

    @property
    def hidden(self) -> list[str]:
        """The columns that are not."""
        return [name for name in self.schema.names if name.startswith("_")]

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return rows with all columns that are given, of their types, null where the files have none."""
        return conform(rows, self.shown)


def find_decoded(topic: str, chosen: OffsetRange | None, decodings: Decodings) -> TableRows:
    """Find the decoded rows of a topic, or of one range; raise `Refused` where nothing of it is decoded."""
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
    return _rows_of(decoded, decodings.lake, paths, within([chosen], '"'))


def find_day(topic: str, day: str, decodings: Decodings) -> TableRows:
    """Find the decoded rows of a day; raise `Refused` where they are not counted by day, or by two event times."""
    decoded = decodings.read_ranges(topic)
    times = decoded.sums.days.keys()
    if times == {""}:
        raise Refused(
            f"the rows of topic {topic} are of no day: its defs.yaml had no `days: {{event_time: ...}}` when they were "
            f"decoded; nothing was read; add it where it is missing, then `{command('decode', topic, '--outdated')}`"
        )
    if len(times) > 1:
        found = " and ".join(sorted(each or "none" for each in times))
        raise Refused(
            f"the decoded ranges of topic {topic} have their event time from {found}, expected one column of all; nothing was "
            f"read; add `days` to its defs.yaml where there is none, then `{command('decode', topic, '--outdated')}`"
        )
    known = decoded.among(lambda sums: any(day in days for days in sums.days.values()))
    paths = (decoded.path_of(each.offsets) for each in known if day in each.event_days)
    moments = f"'{day} 00:00:00+00:00' AND '{day} 23:59:59.999999+00:00'"
    return _rows_of(decoded, decodings.lake, paths, f'"event_time" BETWEEN {moments}')


def find_latest(topic: str, lake: Lake) -> TableRows:
    """Find the latest record of each key; raise `Refused` where there is no such table, `BrokenTable` for a damaged one."""
    standing = LatestTable(lake, topic).read()
    if standing is None:
        raise Refused(
            f"topic {topic} has no latest records in the lake {lake.store.root}; nothing was read; add `latest: {{}}` to its "
            f"defs.yaml, then `{command('latest', topic)}`"
        )
    if standing.damage:
        raise BrokenTable(
            f"the latest table of topic {topic} is damaged: {standing.damage}; nothing was read; "
            f"`{command('latest', topic)}` makes it anew"
        )
    return TableRows(tuple(sorted(standing.files)), standing.schema, "NOT _deleted")


def _rows_of(decoded: DecodedRanges, lake: Lake, paths: Iterable[str], where: str = "true") -> TableRows:
    metadata = decoded.table.metadata
    if metadata is None or not decoded.has_rows:
        raise Refused(
            f"nothing of topic {decoded.topic} is decoded in the lake {lake.store.root}; nothing was read; decode it first"
        )
    schema = [field for field in arrow_schema(metadata.schema) if field.name in DECODED_COLUMNS]
    return TableRows(tuple(sorted(set(paths))), pa.schema(schema), where)
