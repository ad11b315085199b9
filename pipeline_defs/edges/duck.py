"""DuckDB over a lake: one view per topic and tree, `ranges` and `losses` from plan log and manifests.

A topic's view reads the files of its raw table, and of what that does not have yet the landed ones; which is which is
decided by offset, once, when it is opened. Reads only; what a person asks is asked by `duck_questions`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from ..core.coverage import Coverage
from ..core.delta import File
from ..core.errors import BrokenTable, OffsetlakeError, Refused, TableFileGone, Violation
from ..core.losses import Loss, find_losses
from ..core.offsets import OffsetRange
from ..core.raw_table import RangeFiles, is_compacted_name, offsets_of, ranges_by_file, revision_in
from .days import TREE as DAYS
from .decodings import DEAD_LETTERS, DECODED
from .delta_log import raw_table_log
from .duck_questions import ask, close_in, explained
from .lake import Lake
from .layout import data_path, published_path

# by range the path of the raw table's file that is read for it, below the lake's root
InTable = Mapping[OffsetRange, str]

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
        ("compacted_file", pa.string()),
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

_TABLES = """
    SELECT CASE table_schema WHEN 'main' THEN '' ELSE table_schema || '.' END || '"' || table_name || '"'
    FROM information_schema.tables ORDER BY ALL
"""
TABLES = ("ranges", "losses")
_SIGNS_OF_PATTERNS = re.compile(r"[*?\[]")
DERIVED_TREES = (DECODED, DEAD_LETTERS, "latest", DAYS)
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
        self._folders = {lake.store.url(""), file_pattern(lake, "")}  # as files are found, and as patterns name them
        self._is_closed = False
        self._unreadable: dict[str, OffsetlakeError] = {}
        rows: list[dict[str, Any]] = []
        losses: list[dict[str, Any]] = []
        names = sorted(topics)
        for topic in names:
            try:
                coverage = lake.coverage(topic)
            except Violation as error:  # of this topic; others, and the tables, are there
                self._unreadable[topic] = error
                continue
            whole, cut = self._read_table(topic, coverage, lake)
            rows += _range_rows(topic, coverage, lake, {**cut, **whole})
            losses += [_loss_row(topic, loss) for loss in find_losses(coverage)]
            self._check_name(topic, names)
            for schema, source in _views(topic, coverage, lake, whole, cut):
                if topic not in self._unreadable:
                    quoted = topic.replace('"', '""')
                    self._connection.execute(
                        f'CREATE SCHEMA IF NOT EXISTS {schema}; CREATE VIEW {schema}."{quoted}" AS {source}'
                    )
        self._connection.register("ranges", pa.Table.from_pylist(rows, schema=_RANGE_SCHEMA))
        self._connection.register("losses", pa.Table.from_pylist(losses, schema=_LOSS_SCHEMA))

    def _read_table(self, topic: str, coverage: Coverage, lake: Lake) -> tuple[InTable, InTable]:
        try:
            return _read_table(topic, coverage, lake)
        except Violation as error:  # of this topic; others, and the tables, are there
            self._unreadable[topic] = error
            return {}, {}

    def _check_name(self, topic: str, names: Sequence[str]) -> None:
        """Leaves a topic out whose view nobody could tell from another, or from a table: names are read without case."""
        others = [name for name in (*names, *TABLES) if name != topic and name.lower() == topic.lower()]
        if others or topic in TABLES:
            self._unreadable[topic] = Refused(
                f"topic {topic} has no view: DuckDB cannot tell it from {', '.join(others or ['the table of that name'])}; "
                "read its files by a glob (`offsetlake explain reading`)"
            )

    def ask(self, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return column names, each one once, and rows of what a person asks; from then on only the lake can be read.

        Raises `Refused` for what is not one statement that reads, and with DuckDB's own words.
        """
        if not self._is_closed:
            close_in(self._connection, self._folders)
            self._is_closed = True
        return self._explained(statement, lambda: ask(self._connection, statement))

    def query(self, sql: str, parameters: Sequence[object] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run one statement of our own; return column names and rows. Raises `Refused` with DuckDB's own words."""

        def run() -> tuple[list[str], list[tuple[Any, ...]]]:
            result = self._connection.execute(sql, list(parameters))
            return [column[0] for column in result.description or []], result.fetchall()

        return self._explained(sql, run)

    def find_left_out(self, statement: str) -> list[OffsetlakeError]:
        """Find why topics have no view that a statement names, as `ranges`, which is a table of that name."""
        return [
            reason
            for topic, reason in self._unreadable.items()
            if re.search(rf"(?<![\w.-]){re.escape(topic)}(?![\w.-])", statement, re.IGNORECASE)
        ]

    def _explained(
        self, sql: str, run: Callable[[], tuple[list[str], list[tuple[Any, ...]]]]
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        try:
            return run()
        except duckdb.Error as error:
            if isinstance(error, duckdb.CatalogException) and (reasons := self.find_left_out(sql)):
                raise reasons[0] from error
            tables = ", ".join(row[0] for row in self._connection.execute(_TABLES).fetchall())
            raise Refused(f"DuckDB refuses the statement: {explained(error)}; tables are {tables}") from error


def _read_table(topic: str, coverage: Coverage, lake: Lake) -> tuple[InTable, InTable]:
    """Read which ranges are read from a file of the raw table, all that it has, and which dropped ones from a part of one.

    A file is read whole where all ranges between its offsets are landed as it has them; where somebody took it away, the range
    files are read. Whatever is replaced meanwhile, a file of the table stays what it is; one in `data/` is exchanged.
    """
    log = raw_table_log(topic, lake.store)
    try:
        table = log.read()
    except BrokenTable:
        if coverage.dropped:
            raise
        return {}, {}  # `data/` has all of it
    sizes = lake.store.list(log.folder) if table.files else {}
    there = {path: file for path, file in table.files.items() if sizes.get(f"{log.folder}/{path}") == file.bytes}
    whole = dict[OffsetRange, str]()
    for path, manifests in ranges_by_file(coverage, table).items():
        landed = [each.offsets for each in manifests if coverage.is_landed(each.offsets)]
        if path in there and sum(map(len, landed)) == len(offsets_of(there[path])):
            whole |= dict.fromkeys(landed, f"{log.folder}/{path}")
    files, cut = RangeFiles(table), dict[OffsetRange, str]()
    for offsets in sorted(coverage.dropped.keys() - whole.keys() - coverage.published.keys()):
        holder = _file_of_dropped(offsets, coverage, files)
        if holder is not None and holder.path in there:
            cut[offsets] = f"{log.folder}/{holder.path}"
        elif coverage.is_landed(offsets) and coverage.manifests[offsets].rows:
            raise TableFileGone(
                f"the file of range {offsets.text(topic)} was dropped, and the table {lake.store.url(log.folder)} does not "
                "have its rows any more: restore the table's folder from a backup",
                topic=topic,
            )
    return whole, cut


def _file_of_dropped(offsets: OffsetRange, coverage: Coverage, files: RangeFiles) -> File | None:
    """Return the file that has a range whose own was dropped; that of a later revision is about to be published."""
    file = files.find(offsets)
    return file if file is not None and revision_in(file, offsets) == coverage.dropped[offsets] else None


def _views(topic: str, coverage: Coverage, lake: Lake, whole: InTable, cut: InTable) -> Iterator[tuple[str, str]]:
    """Yields the views of a topic, one per tree of the lake: its schema in DuckDB, `main` for what is landed, and SELECT."""
    files = _files(topic, coverage, lake, whole)
    parts = [f"SELECT * FROM read_parquet({files}, hive_partitioning = false)"] if files else []
    for path, cuts in _cuts(cut).items():
        within = " OR ".join(f'"offset" >= {start} AND "offset" < {end}' for start, end in cuts)
        parts.append(f"SELECT * FROM read_parquet({_files_at(lake, path)}, hive_partitioning = false) WHERE {within}")
    yield "main", " UNION ALL BY NAME ".join(parts) or _EMPTY_TOPIC
    for tree in DERIVED_TREES:
        paths = lake.store.list(f"{tree}/{topic}")
        if paths:
            found = f"[{', '.join(_files_at(lake, path) for path in paths)}]"
            yield tree, f"SELECT * FROM read_parquet({found}, union_by_name = true, hive_partitioning = false)"


def _cuts(ranges: InTable) -> dict[str, list[tuple[int, int]]]:
    """Return the offsets to read of each compacted file, as few intervals as there can be."""
    cuts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for offsets, path in sorted(ranges.items()):
        known = cuts[path]
        start = known.pop()[0] if known and known[-1][1] == offsets.start else offsets.start
        known.append((start, offsets.end))
    return cuts


def _files(topic: str, coverage: Coverage, lake: Lake, whole: InTable) -> str:
    """Is what to read of a topic's rows, each file, in SQL, empty where there is nothing.

    Never a glob, which would show what lands while a statement runs, and not what is dropped. What a compacted file has of a
    range is the file that its manifest names: doubles of `at_least_once` end there.
    """
    paths = {_path(topic, offsets, coverage) for offsets in coverage.published.keys() - whole.keys()}
    paths |= {path for path, offsets in coverage.doubles.items() if not is_compacted_name(whole.get(offsets, ""))}
    paths |= set(whole.values())
    return f"[{', '.join(_files_at(lake, path) for path in sorted(paths))}]" if paths else ""


def _path(topic: str, offsets: OffsetRange, coverage: Coverage) -> str:
    """Is where the file of a range lies, below the lake's root."""
    manifest = coverage.manifests.get(offsets)
    return published_path(manifest) if manifest else data_path(topic, offsets)


def file_pattern(lake: Lake, path: str) -> str:
    """Return the pattern that means a path of the lake to DuckDB, which takes each path it is given for a pattern.

    A lake at `/lake[1]` is else nowhere, and one at `/lake*` shows the rows of another.
    """
    url = lake.store.url(path)
    return url if lake.store.local_root is None else _SIGNS_OF_PATTERNS.sub(r"[\g<0>]", url)


def _files_at(lake: Lake, path: str) -> str:
    return _literal(file_pattern(lake, path))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _range_rows(topic: str, coverage: Coverage, lake: Lake, in_table: InTable) -> list[dict[str, Any]]:
    rows = []
    planned = coverage.log.ranges
    for offsets, state in coverage.states().items():
        manifest = coverage.manifests.get(offsets)
        step = planned.get(offsets)
        file = manifest.file if manifest else None
        holder = in_table.get(offsets)
        is_alone = holder is not None and offsets not in coverage.published
        path = holder if holder is not None and is_alone else _path(topic, offsets, coverage)
        rows.append(
            {
                **_place(topic, offsets, offsets.key),
                "state": state.value,
                "rows": manifest.rows if manifest else None,
                "holes": sum(hole.end - hole.start for hole in manifest.holes) if manifest else None,
                "bytes": file.bytes if file else None,
                "min_timestamp": file.min_timestamp_ms if file else None,
                "max_timestamp": file.max_timestamp_ms if file else None,
                "file": lake.store.url(path) if file else None,
                "compacted_file": lake.store.url(holder) if holder and is_compacted_name(holder) else None,
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
