"""DuckDB over a lake: one view per topic over the plain glob, `ranges` and `losses` from plan log and manifests.

Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from ..core.coverage import Coverage
from ..core.errors import Refused
from ..core.losses import Loss, find_losses
from ..core.offsets import OffsetRange
from .lake import Lake, data_path, published_path

_PLACE_COLUMNS = [
    ("topic", pa.string()),
    ("generation", pa.int32()),
    ("partition", pa.int32()),
    ("start", pa.int64()),
    ("end", pa.int64()),
    ("key", pa.string()),
]
_RANGE_SCHEMA = pa.schema(
    [
        *_PLACE_COLUMNS,
        ("state", pa.string()),
        ("rows", pa.int64()),
        ("holes", pa.int64()),
        ("bytes", pa.int64()),
        ("min_timestamp", pa.timestamp("ms", "UTC")),
        ("max_timestamp", pa.timestamp("ms", "UTC")),
        ("file", pa.string()),
        ("sha256", pa.string()),
        ("run_id", pa.string()),
        ("attempt", pa.string()),
        ("code_version", pa.string()),
        ("plan_seq", pa.int64()),
        ("planned_at", pa.timestamp("ms", "UTC")),
        ("landed_at", pa.timestamp("ms", "UTC")),
    ]
)

_LOSS_SCHEMA = pa.schema(
    [
        *_PLACE_COLUMNS,
        ("cause", pa.string()),
        ("recorded_at", pa.timestamp("ms", "UTC")),
        ("accepted_by", pa.string()),
    ]
)

_EMPTY_TOPIC = """
    SELECT NULL::VARCHAR AS topic, NULL::INTEGER AS generation, NULL::INTEGER AS "partition", NULL::BIGINT AS "offset",
           NULL::TIMESTAMPTZ AS "timestamp", NULL::INTEGER AS timestamp_type, NULL::BLOB AS "key", NULL::BLOB AS "value",
           NULL::STRUCT("key" VARCHAR, "value" BLOB)[] AS headers
    WHERE false
"""


class Duck:
    """Answers SQL over one lake; a fresh in-memory database, nothing is stored."""

    def __init__(self, lake: Lake, topics: Iterable[str]) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")
        if lake.store.local_root is None:
            self._connection.register_filesystem(lake.store.filesystem())
        rows: list[dict[str, Any]] = []
        losses: list[dict[str, Any]] = []
        for topic in topics:
            coverage = lake.coverage(topic)
            rows += _range_rows(topic, coverage, lake)
            losses += [_loss_row(topic, loss) for loss in find_losses(coverage)]
            source = (
                f"SELECT * FROM read_parquet({_files(topic, coverage, lake)})" if coverage.published else _EMPTY_TOPIC
            )
            name = topic.replace('"', '""')
            self._connection.execute(f'CREATE VIEW "{name}" AS {source}')
        self._connection.register("ranges", pa.Table.from_pylist(rows, schema=_RANGE_SCHEMA))
        self._connection.register("losses", pa.Table.from_pylist(losses, schema=_LOSS_SCHEMA))

    def query(self, sql: str, parameters: Sequence[object] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Runs one statement; returns column names and rows. Raises `Refused` with DuckDB's own words."""
        try:
            result = self._connection.execute(sql, list(parameters))
            return [column[0] for column in result.description or []], result.fetchall()
        except duckdb.Error as error:
            tables = ", ".join(f'"{row[0]}"' for row in self._connection.execute("SHOW TABLES").fetchall())
            raise Refused(f"DuckDB refuses the statement: {error}; tables are {tables}") from error


def _files(topic: str, coverage: Coverage, lake: Lake) -> str:
    """Is what to read of a topic, in SQL: the plain glob, or on an object store, which fsspec does not glob, each file."""
    if lake.store.local_root is not None:
        return _literal(f"{lake.store.url('data')}/{topic}/**/*.parquet")
    known = coverage.manifests
    paths = [published_path(known[o]) if o in known else data_path(topic, o) for o in sorted(coverage.published)]
    return f"[{', '.join(_literal(lake.store.url(path)) for path in (*paths, *coverage.doubles))}]"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _range_rows(topic: str, coverage: Coverage, lake: Lake) -> list[dict[str, Any]]:
    rows = []
    planned = coverage.log.ranges
    for offsets, state in coverage.states().items():
        manifest = coverage.manifests.get(offsets)
        step = planned.get(offsets)
        file = manifest.file if manifest else None
        rows.append(
            {
                **_place(topic, offsets, offsets.key),
                "state": state.value,
                "rows": manifest.rows if manifest else None,
                "holes": sum(hole.end - hole.start for hole in manifest.holes) if manifest else None,
                "bytes": file.bytes if file else None,
                "min_timestamp": file.min_timestamp_ms if file else None,
                "max_timestamp": file.max_timestamp_ms if file else None,
                "file": lake.store.url(published_path(manifest)) if manifest and file else None,
                "sha256": file.sha256 if file else None,
                "run_id": manifest.provenance.run_id if manifest else None,
                "attempt": manifest.provenance.attempt if manifest else None,
                "code_version": manifest.provenance.code_version if manifest else None,
                "plan_seq": step.seq if step else None,
                "planned_at": step.planned_at_ms if step else None,
                "landed_at": manifest.provenance.landed_at_ms if manifest else None,
            }
        )
    return rows


def _loss_row(topic: str, loss: Loss) -> dict[str, Any]:
    return {
        **_place(topic, loss.offsets, loss.key),
        "cause": loss.cause,
        "recorded_at": loss.recorded_at_ms,
        "accepted_by": loss.acceptance.accepted_by if loss.acceptance else None,
    }


def _place(topic: str, offsets: OffsetRange, key: str) -> dict[str, Any]:
    return {
        "topic": topic,
        "generation": offsets.generation,
        "partition": offsets.partition,
        "start": offsets.start,
        "end": offsets.end,
        "key": key,
    }
