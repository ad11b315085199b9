"""DuckDB over a lake: one view per topic and tree, `ranges` and `losses` from plan log and manifests.

A topic's view reads the files that `topic_rows` finds once, as the database is opened: a statement sees one version. Reads
only; a person's questions go through `duck_questions`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import duckdb
import pyarrow as pa

from ...core.advice import command
from ...core.errors import (
    LONGEST_REASON,
    BrokenTable,
    DamagedFile,
    LakeUnavailable,
    OffsetlakeError,
    Refused,
    Violation,
    first_line,
)
from ...core.log.coverage import Coverage
from ...core.log.losses import Loss, find_losses
from ...core.offsets import OffsetRange
from ...core.tables.decoded_table import DEAD
from ...core.tables.decoded_table import TREE as DECODED
from ...core.tables.raw_table import is_compacted_name
from ..lake.lake import Lake
from ..lake.parquet import RAW_SCHEMA
from .columns_of_table import DEAD_LETTERS
from .decodings import decoded_table_log
from .duck_questions import ask, close_in, explained, find_unquoted
from .latest_table import LatestTable
from .sql_text import file_at, file_pattern, quoted
from .topic_rows import InTable, Part, TableRows, TopicRows, find_rows, own_path, within

UNREADABLE = (duckdb.IOException, duckdb.InvalidInputException)  # DuckDB's errors for a file that is gone or damaged
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
    [*_PLACE_COLUMNS, ("cause", pa.string()), ("recorded_at", pa.timestamp("ms", "UTC")), ("accepted_by", pa.string())]
)

_TABLES = """
    SELECT CASE table_schema WHEN 'main' THEN '' ELSE table_schema || '.' END || '"' || table_name || '"'
    FROM information_schema.tables ORDER BY ALL
"""
TABLES = ("ranges", "losses")
DECODED_VIEWS = {"decoded": "false", "dead_letters": "true"}  # by the value of the partition column


class Duck:
    """SQL over one lake: a fresh in-memory database, nothing is stored."""

    def __init__(self, lake: Lake, topics: Iterable[str]) -> None:
        self._connection = connect(lake)
        self._folders = {lake.store.url(""), file_pattern(lake, "")}  # as files are found, and as patterns name them
        self._is_closed = False
        self._unreadable: dict[str, OffsetlakeError] = {}  # by the name of a view that is not there
        rows: list[dict[str, Any]] = []
        losses: list[dict[str, Any]] = []
        self._topics = names = sorted(topics)
        for topic in names:
            try:
                coverage = lake.coverage(topic)
            except Violation as error:  # of this topic; others, and the tables, are there
                self._unreadable[topic] = error
                continue
            found = self._find_rows(coverage, lake)
            rows += _range_rows(topic, coverage, lake, found.in_table)
            losses += [_loss_row(topic, loss) for loss in find_losses(coverage)]
            self._check_name(topic, names)
            if topic not in self._unreadable:
                self._create_views(topic, found, lake)
        self._connection.register("ranges", pa.Table.from_pylist(rows, schema=_RANGE_SCHEMA))
        self._connection.register("losses", pa.Table.from_pylist(losses, schema=_LOSS_SCHEMA))

    def _create_view(self, schema: str, topic: str, source: str) -> None:
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}; CREATE VIEW {schema}.{quoted(topic)} AS {source}")

    def _create_views(self, topic: str, found: TopicRows, lake: Lake) -> None:
        sources: Sequence[tuple[str, Sequence[str], Callable[[], Iterable[tuple[str, str]]]]] = (
            ("raw", ["main"], lambda: [("main", _raw_source(found, lake))]),
            ("decoded", [*DECODED_VIEWS], partial(_decoded_sources, topic, lake)),
            ("latest", ["latest"], partial(_latest_sources, topic, lake)),
        )
        for table, schemas, find in sources:
            try:
                for schema, source in find():
                    self._create_view(schema, topic, source)
            except (Violation, duckdb.Error) as error:  # of this table; others are there
                reason = error if isinstance(error, Violation) else _of_store(error) or _gone(topic, table, error)
                self._unreadable |= {topic if schema == "main" else f"{schema}.{topic}": reason for schema in schemas}

    def _find_rows(self, coverage: Coverage, lake: Lake) -> TopicRows:
        try:
            return find_rows(coverage, lake)
        except Violation as error:  # of this topic; others, and the tables, are there
            self._unreadable[coverage.log.topic] = error
            return TopicRows(coverage, {}, {})

    def _check_name(self, topic: str, names: Sequence[str]) -> None:
        """Leave out a topic whose view could not be told from another or from a table: names are read without case."""
        others = [name for name in (*names, *TABLES) if name != topic and name.lower() == topic.lower()]
        if others or topic in TABLES:
            self._unreadable[topic] = Refused(
                f"topic {topic} has no view: DuckDB cannot tell it from {', '.join(others or ['the table of that name'])}; "
                "read its files by a glob (`offsetlake explain reading`)"
            )

    def ask(self, statement: str, most: int | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return unique column names and the rows of a person's statement, or only the first `most` of them.

        From then on only the lake can be read.

        Raises `Refused` for what is not one statement that reads, and with DuckDB's own words for its errors.
        """
        if not self._is_closed:
            close_in(self._connection, self._folders)
            self._is_closed = True
        with self._explained(statement):
            return ask(self._connection, statement, most)

    def query(self, sql: str, parameters: Sequence[object] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run one statement of our own; return column names and rows. Raises `Refused` with DuckDB's own words."""
        with self._explained(sql):
            result = self._connection.execute(sql, list(parameters))
            return [column[0] for column in result.description or []], result.fetchall()

    def find_left_out(self, statement: str) -> list[OffsetlakeError]:
        """Find why views that a statement names do not exist, such as that of a topic `ranges`, which is a table's name."""
        plain, schemas = statement.replace('"', ""), "|".join(("main", *DECODED_VIEWS, "latest"))
        as_written_first = sorted(self._unreadable.items(), key=lambda each: each[0] not in plain)
        return [
            reason
            for name, reason in as_written_first
            if re.search(rf"(?<![\w.-])(?:(?:{schemas})\.)?{re.escape(name)}(?![\w.-])", plain, re.IGNORECASE)
        ]

    @contextmanager
    def _explained(self, sql: str) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            if isinstance(error, duckdb.CatalogException) and (reasons := self.find_left_out(sql)):
                raise reasons[0] from error
            if (unavailable := _of_store(error)) is not None:
                raise unavailable from error
            tables = ", ".join(row[0] for row in self._connection.execute(_TABLES).fetchall())
            hint = "".join(
                f"; topic {name} needs double quotes, as in offsetlake sql 'FROM \"{name}\"'"
                for name in find_unquoted(sql, str(error), self._topics)
            )
            if isinstance(error, UNREADABLE) and any(folder in str(error) for folder in self._folders):
                hint += "; `offsetlake audit` names that file and what is to be done"
            raise Refused(f"DuckDB refuses the statement: {explained(error)}{hint}; tables are {tables}") from error


def connect(lake: Lake) -> duckdb.DuckDBPyConnection:
    """Return a connection to a fresh database in memory, which reads the files of a lake."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return with_lake(connection, lake)


def with_lake(connection: duckdb.DuckDBPyConnection, lake: Lake) -> duckdb.DuckDBPyConnection:
    """Have a connection read the files of a lake, on an object store too."""
    filesystem = lake.store.filesystem()
    if filesystem is not None and filesystem.protocol not in connection.list_filesystems():
        connection.register_filesystem(filesystem)
    return connection


def relate(parts: Iterable[Part], lake: Lake, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
    """Return the rows of some parts as a relation; raise `FileNotFoundError` if a file is gone."""
    return _relate(rows_sql(parts, lake), connection)


def relate_table(rows: TableRows, lake: Lake, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
    """Return rows of a derived table as a relation; raise `FileNotFoundError` if a file is gone."""
    if not rows.paths:
        return connection.from_arrow(rows.shown.empty_table())
    grown = no_rows(rows.shown)  # files that are all older than a field, or than a wider type, lack it
    is_nameless = re.search(r'[( ]"" ', grown) is not None  # SQL has no name for a field named ""
    found = f"{_all_of(rows.paths, lake)} WHERE {rows.where}"
    relation = _relate(found if is_nameless else f"{grown} UNION ALL BY NAME {found}", connection)
    return relation.select(duckdb.StarExpression(exclude=rows.hidden)) if rows.hidden else relation


def _relate(sql: str, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
    with told_if_unreadable():
        return connection.sql(sql)


@contextmanager
def told_if_unreadable() -> Iterator[None]:
    """Turn DuckDB's errors about a file of the lake into `FileNotFoundError` or `DamagedFile`."""
    try:
        yield
    except duckdb.IOException as error:
        raise FileNotFoundError(str(error)) from error
    except duckdb.InvalidInputException as error:
        raise DamagedFile(
            f"a file of the lake cannot be read: {first_line(error)}; nothing was written; `offsetlake audit` names it and "
            "what is to be done"
        ) from error


def _raw_source(rows: TopicRows, lake: Lake) -> str:
    # a compacted file has a range's rows from its manifest's file alone: doubles of `at_least_once` end there
    doubles = [path for path, owner in rows.coverage.doubles.items() if not is_compacted_name(rows.whole.get(owner, ""))]
    return rows_sql(rows.parts(), lake, doubles)


def _decoded_sources(topic: str, lake: Lake) -> Iterator[tuple[str, str]]:
    """Yield the SELECTs of one version of the decoded table: of its rows, and of its dead letters."""
    files = decoded_table_log(topic, lake).read().files.values()
    for schema, is_dead in DECODED_VIEWS.items():
        paths = [f"{DECODED}/{topic}/{file.path}" for file in files if file.partition[DEAD] == is_dead]
        if paths:
            yield schema, _all_of(paths, lake)
        elif files and schema == "dead_letters":
            yield schema, no_rows(DEAD_LETTERS)


def _latest_sources(topic: str, lake: Lake) -> Iterator[tuple[str, str]]:
    """Yield the SELECT of one version of the latest table, without deleted keys."""
    latest = LatestTable(lake, topic).read()
    if latest is not None and (why := latest.why_unreadable):
        raise BrokenTable(f"latest.{topic} has no view: {why}; the next update makes the table anew")
    if latest is not None and latest.files:
        yield "latest", f"{_all_of(latest.files, lake)} WHERE NOT _deleted"


def _of_store(error: duckdb.Error) -> LakeUnavailable | None:
    """Return the store's error about a file: DuckDB makes one of a Python file system plain, with a traceback."""
    if type(error) is not duckdb.Error:
        return None
    said = str(error).strip().rpartition("\n")[2][:LONGEST_REASON]
    return LakeUnavailable(
        f"the lake's store does not give a file: {said}; nothing was changed; ask again; of one that is gone for good "
        "`offsetlake audit TOPIC` says what is to be done"
    )


def _gone(topic: str, table: str, error: duckdb.Error) -> BrokenTable:
    return BrokenTable(
        f"a file of the {table} table of topic {topic} cannot be read: {first_line(error)}; nothing was read; "
        f"`{command('audit', topic)}` names it and what is to be done"
    )


def _all_of(paths: Iterable[str], lake: Lake, *, are_alike: bool = False) -> str:
    """Return the SELECT of all rows of files; unless they are alike, read the columns of each: they may have grown."""
    named = ", ".join(file_at(lake, path) for path in sorted(paths))
    return f"SELECT * FROM read_parquet([{named}], union_by_name = {not are_alike}, hive_partitioning = false)"


@cache
def no_rows(columns: pa.Schema) -> str:
    """Return the SELECT of no rows in some columns, with the types that DuckDB reads them as."""
    with duckdb.connect() as connection:
        relation = connection.from_arrow(columns.empty_table())
        values = (f"NULL::{kind} AS {quoted(name)}" for name, kind in zip(relation.columns, relation.types, strict=True))
        return f"SELECT {', '.join(values)} WHERE false"


def rows_sql(parts: Iterable[Part], lake: Lake, others: Iterable[str] = ()) -> str:
    """Return the SELECT of the rows of some parts, and of all rows of other files; it names each file."""
    parts, others = list(parts), list(others)
    files = {*(part.path for part in parts if part.is_whole), *others}
    are_alike = not any(part.is_older for part in parts) and not others
    selects = [] if parts and are_alike else [no_rows(RAW_SCHEMA)]  # which has all columns
    selects += [_all_of(files, lake, are_alike=are_alike)] if files else []
    for part in parts:
        if not part.is_whole:
            rows = within(part.stretches)
            selects.append(f"{_all_of([part.path], lake, are_alike=True)} WHERE {rows}")
    return " UNION ALL BY NAME ".join(selects)


def _range_rows(topic: str, coverage: Coverage, lake: Lake, in_table: InTable) -> list[dict[str, Any]]:
    rows = []
    planned = coverage.log.ranges
    for offsets, state in coverage.states().items():
        manifest = coverage.manifests.get(offsets)
        step = planned.get(offsets)
        file = manifest.file if manifest else None
        holder = in_table.get(offsets)
        is_alone = holder is not None and offsets not in coverage.published
        path = holder if holder is not None and is_alone else own_path(offsets, coverage)
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
