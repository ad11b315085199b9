"""What landed since one last looked, from Dagster's events: whoever landed it, a run of Dagster or a command.

Reads Dagster only; the lake is not listed, so that looking each second costs the same however much there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from ..core.advice import counted, some_of
from ..orchestration.assets.raw_asset import NEWLY_LANDED
from ..topics import Topic

_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class LandedCount:
    """Ranges and rows of one topic."""

    ranges: int = 0
    rows: int = 0


class LandedSince:
    """Reads what landed of some topics since the reading before; the first one begins now."""

    def __init__(self, topics: Sequence[Topic], instance: dg.DagsterInstance) -> None:
        self._topics = topics  # read anew each time: there may be more by then
        self._instance = instance
        self._seen = self._newest()

    def read(self) -> Mapping[str, LandedCount]:
        """Return what landed of each topic; topics of which nothing did are left out."""
        found = {}
        for key, newest in self._newest().items():
            before = self._seen.get(key, 0)
            if newest < before:  # Dagster's history was wiped, and counts from its beginning again
                before = 0
            if newest > before:
                self._seen[key] = newest
                count = self._count(key, before, newest)
                if count.ranges:
                    found[key.path[-1]] = count
        return found

    def _newest(self) -> dict[dg.AssetKey, int]:
        records = self._instance.get_asset_records([topic.asset_key for topic in self._topics])
        entries = {record.asset_entry.asset_key: record.asset_entry for record in records}
        return {key: entry.last_materialization_storage_id or 0 for key, entry in entries.items()}

    def _count(self, key: dg.AssetKey, after: int, newest: int) -> LandedCount:
        ranges = rows = 0
        chosen = dg.AssetRecordsFilter(key, after_storage_id=after, before_storage_id=newest + 1)
        cursor: str | None = None
        while True:
            page = self._instance.fetch_materializations(chosen, limit=_AT_ONCE, cursor=cursor, ascending=True)
            for record in page.records:
                materialization = record.asset_materialization
                said = materialization.metadata if materialization else {}
                outcome, value = said.get("outcome"), said.get("rows")
                if outcome is not None and outcome.value not in NEWLY_LANDED:  # another run has landed it
                    continue
                ranges += 1
                rows += int(value.value) if isinstance(value, dg.IntMetadataValue) and value.value else 0
            cursor = page.cursor
            if not page.has_more:
                return LandedCount(ranges, rows)


def landed_text(landed: Mapping[str, LandedCount]) -> str:
    """Return one line: ranges and rows in all, and the rows of each topic, of many topics those of some."""
    ranges, rows = sum(each.ranges for each in landed.values()), sum(each.rows for each in landed.values())
    topics = [f"{name} {each.rows:,}" for name, each in sorted(landed.items())]
    return f"landed {counted(ranges, 'range')}, {counted(rows, 'row')}: {some_of(topics)}"
