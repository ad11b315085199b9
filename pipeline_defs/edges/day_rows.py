"""Which decoded files have rows of a day, and with which columns: of one version of the decoded table, found once."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ..core.command_lines import command
from ..core.errors import Refused
from .columns_of_table import DECODED_COLUMNS, arrow_schema
from .decodings import Decodings
from .parquet import conform


@dataclass(frozen=True, slots=True)
class DayRows:
    """The files (paths below the lake's root) that have rows of a day among others, and the columns of these."""

    day: str
    paths: tuple[str, ...]
    schema: pa.Schema

    @property
    def moments(self) -> tuple[str, str]:
        """When the day begins, and when it has ended, as SQL reads a moment."""
        return f"{self.day} 00:00:00+00:00", f"{self.day} 23:59:59.999999+00:00"

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return rows with all columns of the table, of its types, null where the files have none."""
        return conform(rows, self.schema)


def find_day(topic: str, day: str, decodings: Decodings) -> DayRows:
    """Find the rows of a day; raise `Refused` where they are not counted by day, or by two event times."""
    decoded = decodings.read_ranges(topic)
    metadata, known = decoded.table.metadata, [each for each in decoded.known.values() if each.rows]
    times = {each.event_time for each in known}
    if metadata is None or not known:
        raise Refused(
            f"nothing of topic {topic} is decoded in the lake {decodings.lake.store.root}; nothing was read; decode it first"
        )
    if len(times) > 1 or times == {""}:
        found = " and ".join(sorted(each or "none" for each in times))
        raise Refused(
            f"the decoded ranges of topic {topic} have their event time from {found}, expected one column of all; nothing was "
            f"read; add `days` to its defs.yaml where there is none, then `{command('decode', topic, '--outdated')}`"
        )
    schema = arrow_schema(metadata.schema)
    paths = tuple(sorted({decoded.path_of(each.offsets) for each in known if day in each.event_days}))
    return DayRows(day, paths, pa.schema([field for field in schema if field.name in DECODED_COLUMNS]))
