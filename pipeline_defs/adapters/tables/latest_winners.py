"""Latest by key in DuckDB: which record of each key is the latest among the ranges that an update has to read.

Nothing here is visible or decides what the table has. A row's place in the order is computed beside it: its growth epoch,
and the greatest timestamp of its Kafka partition so far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import count
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from ...core.errors import LakeUnavailable, first_line
from ...core.offsets import OffsetRange, merge_ranges
from ...core.tables.latest import Latest, Stretch
from ..lake.lake import Lake
from ..store.disk import errno_in, mend
from .columns_of_table import POSITION, SEQUENCE, parts_of
from .sql_text import as_pattern, file_at, literal, quoted

if TYPE_CHECKING:
    import duckdb

MOST_TOLD = 100  # differing places that are reported
SHARES = 16  # of the keys; the check looks at one of them
NEVER_MS = -(1 << 63)  # before all timestamps
MEMORY = "1GB"  # for keys and places; the rest of them spills to the disk
BATCH_ROWS, BATCH_BYTES = 8192, 32 * 1024 * 1024  # at most, of each batch that is handed over
_STRETCHES = pa.schema(
    [
        *((name, pa.int32()) for name in ("_stretch", "_generation", "_partition", "_epoch_of_it")),
        *((name, pa.int64()) for name in ("_start", "_end", "_before")),
        ("_file_of_it", pa.string()),
    ]
)
_CHANGED = pa.schema([("generation", pa.int32()), ("partition", pa.int32()), ("start", pa.int64()), ("end", pa.int64())])
MARKS = (pa.field("_forced", pa.bool_()), pa.field("_gone", pa.bool_()))  # what is to be done to a key


def find_damage(path: str, lake: Lake) -> str:
    """Read all of a file with DuckDB; return why that fails, else an empty text. Raises `LakeUnavailable`."""
    import duckdb

    try:
        with lake.store.explained("read", path), lake.store.local_copy(path) as file, duckdb.connect() as connection:
            rows = f"read_parquet({literal(as_pattern(str(file)))})"
            connection.execute(f"SELECT max(hash(COLUMNS(*))) FROM {rows}").fetchall()
    except FileNotFoundError:
        return "it is gone"
    except duckdb.OutOfMemoryException:
        return ""
    except duckdb.Error as error:
        return _explain(error)
    return ""


def _explain(error: duckdb.Error) -> str:
    """Return DuckDB's message about a file or memory, else only the error's type: the text may have values of records."""
    import duckdb

    return first_line(error) if isinstance(error, (duckdb.IOException, duckdb.OutOfMemoryException)) else type(error).__name__


@dataclass(frozen=True, slots=True)
class Inputs:
    """What an update reads; `everything` only if a key has lost its winner, `present` are the table's files.

    With `with_present` the table's own rows are candidates too, and the outcome is the whole table.
    """

    fresh: Sequence[Stretch]
    everything: Sequence[Stretch] = ()
    present: Sequence[str] = ()
    changed: Collection[OffsetRange] = ()
    with_present: bool = False

    @property
    def decoded_paths(self) -> Sequence[str]:
        """The decoded files that are read."""
        return sorted({each.placed.path for each in (*self.fresh, *self.everything)})


class Winners:
    """The latest records by key among what an update reads; `schema` is the table's, which holds all rows.

    They are found by keys and places alone, and values are read only for winners: rows may be as wide as Kafka takes them.
    What does not fit into memory spills to `folder`.
    """

    def __init__(self, lake: Lake, inputs: Inputs, schema: pa.Schema, config: Latest, folder: Path) -> None:
        self._lake = lake
        self._inputs = inputs
        self._schema = schema
        self._config = config
        self._folder = folder
        self._order = [name for name in (SEQUENCE, *POSITION) if name in schema.names]

    @contextmanager
    def rows(self) -> Iterator[pa.RecordBatchReader]:
        """Yield the rows of an update, one per key: with what is to be done to the key, or the whole table.

        Values are read as the rows are consumed. Raises `LakeUnavailable` if a file cannot be read.
        """
        inputs = self._inputs
        with self._connect() as connection:
            decoded, present = self._places(connection, "fresh", inputs.fresh), self._present_places()
            changed = [(e.generation, e.partition, e.start, e.end) for e in merge_ranges(inputs.changed)]
            columns = zip(*changed, strict=True) if changed else [()] * len(_CHANGED)
            connection.register("changed", pa.table([*map(pa.array, columns)], schema=_CHANGED))
            lies_in = "p.generation = c.generation AND p.partition = c.partition AND p.offset >= c.start AND p.offset < c.end"
            lost = f"SELECT DISTINCT key FROM ({present}) p SEMI JOIN changed c ON {lies_in}"
            connection.execute(f"CREATE TEMP TABLE lost AS {lost}")
            if connection.execute("FROM lost LIMIT 1").fetchall():
                history = self._places(connection, "everything", inputs.everything)
                decoded += f" UNION ALL SELECT h.* FROM ({history}) h SEMI JOIN lost ON h.key IS NOT DISTINCT FROM lost.key"
            if inputs.with_present:
                decoded += f" UNION ALL SELECT p.* FROM ({present}) p ANTI JOIN changed c ON {lies_in}"
            marked = f"({self._winners(decoded)}) w LEFT JOIN lost l ON w.key IS NOT DISTINCT FROM l.key"
            connection.execute(f"CREATE TEMP TABLE winners AS SELECT w.*, l.key IS NOT NULL AS _forced FROM {marked}")
            names = {name for (name,) in connection.execute("SELECT DISTINCT _file FROM winners").fetchall()}
            won, stand = ([each for each in paths if _name(each) in names] for paths in (inputs.decoded_paths, inputs.present))
            columns = self._schema if inputs.with_present else pa.schema([*self._schema, *MARKS])
            rows = connection.sql(self._fetched(won, stand))
            yield rows.to_arrow_reader(self._batch_rows(connection, [*won, *stand])).cast(columns)

    def find_differences(self, share: int) -> tuple[int, list[tuple[int, int, int]]]:
        """Compare a share of the keys with a recomputation; return how many the table has, and the places that differ.

        A place is (generation, Kafka partition, offset) of the record that should be in the table, else of the one that is.
        Raises `LakeUnavailable` if a file cannot be read.
        """
        place = ("generation", "partition", "offset")
        more = {"timestamp": quoted("timestamp"), "_deleted": "value IS NULL", "content": "hash(value)"}
        compared = (*self._order, *more)
        drawn = f"WHERE hash(key) % {SHARES} = {share}"
        differs = " OR ".join(f"r.{quoted(name)} IS DISTINCT FROM s.{quoted(name)}" for name in compared)
        places = ", ".join(f"coalesce(r.{quoted(name)}, s.{quoted(name)})" for name in place)
        with self._connect() as connection:
            right = f"SELECT * FROM ({self._places(connection, 'fresh', self._inputs.fresh, more)}) {drawn}"
            # a key that is there twice is wrong, though each of its rows alone might be right
            stands = self._present_places({**more, "_deleted": "_deleted"})
            stands = f"SELECT *, count(*) OVER (PARTITION BY key) AS copies FROM ({stands}) {drawn}"
            connection.execute(f"CREATE TEMP TABLE stands AS {stands}")
            wrong = connection.execute(
                f"SELECT DISTINCT {places} FROM ({self._winners(right)}) r FULL JOIN stands s "
                f"ON r.key IS NOT DISTINCT FROM s.key WHERE copies > 1 OR {differs} ORDER BY ALL LIMIT {MOST_TOLD}"
            ).fetchall()
            return int(connection.execute("SELECT count(*) FROM stands").fetchall()[0][0]), wrong

    @contextmanager
    def _connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        import duckdb  # late: definitions do without it

        from .duck import connect

        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with connect(self._lake) as connection:
                connection.from_arrow(self._schema.empty_table()).write_parquet(str(self._columns))
                connection.execute(f"SET memory_limit = '{MEMORY}'; SET preserve_insertion_order = false")
                connection.execute(f"SET temp_directory = {literal(str(self._folder / 'spilled'))}")
                # each join has its narrow side on the right, which is held in memory; DuckDB might swap the sides
                connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
                yield connection
        except duckdb.Error as error:
            said = _explain(error)
            raise LakeUnavailable(
                f"cannot find the latest records in {self._lake.store.root}: {said}; nothing was written, what stands stays; "
                f"{mend(errno_in(said)) or 'the next update tries again'}"
            ) from error
        except RuntimeError as error:
            if str(error) == "Query interrupted":  # DuckDB's words for Ctrl-C
                raise KeyboardInterrupt from error
            raise

    @property
    def _columns(self) -> Path:
        """A file without rows that is read before all others: they are read as its types.

        Left to itself DuckDB makes FLOAT of INT and FLOAT, which does not hold every INT.
        """
        return self._folder / "columns.parquet"

    def _files(self, paths: Iterable[str]) -> str:
        files = (literal(as_pattern(str(self._columns))), *(file_at(self._lake, path) for path in sorted(paths)))
        return f"[{', '.join(files)}]"

    def _read(self, paths: Iterable[str]) -> str:
        """Return the SELECT of all rows of some files, each with its file and its number there."""
        options = "union_by_name = true, hive_partitioning = false, filename = true, file_row_number = true"
        return (
            f"SELECT * EXCLUDE (filename, file_row_number), parse_filename(filename) AS _file, file_row_number AS _row "
            f"FROM read_parquet({self._files(paths)}, {options})"
        )

    def _present_places(self, more: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the SELECT of where the table's rows lie, of their keys and their places in the order."""
        names = ", ".join(("_file", "_row", "key", *map(quoted, self._order), *_named(more)))
        return f"SELECT false AS _is_decoded, {names} FROM ({self._read(self._inputs.present)})"

    def _places(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        stretches: Sequence[Stretch],
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Return the SELECT of where decoded rows lie, of their keys and their places in the order; leave out null keys."""
        connection.register(name, pa.Table.from_pylist([*map(_told, count(), stretches)], _STRETCHES))
        found = {each: quoted(each) for each in self._order}
        found["_epoch"] = "_epoch_of_it"
        found["_reached"] = f"coalesce(greatest(_so_far, _before), ({NEVER_MS})::BIGINT)"
        if self._config.sequence:
            found[SEQUENCE] = reduce(_field, self._config.sequence.split("."))
        key = _normalized("key", self._schema.field("key").type)
        names = ", ".join(("_file", "_row", f"{key} AS key", *_named(found), *_named(more)))
        return (
            f"SELECT true AS _is_decoded, {names} FROM ("
            'SELECT *, max(epoch_us("timestamp") // 1000) OVER (PARTITION BY _stretch ORDER BY "offset" '
            f"ROWS UNBOUNDED PRECEDING) AS _so_far FROM ({self._read({each.placed.path for each in stretches})}) JOIN {name} "
            "ON _file = _file_of_it AND generation = _generation AND partition = _partition "
            'AND "offset" >= _start AND "offset" < _end) WHERE key IS NOT NULL'
        )

    def _winners(self, places: str) -> str:
        order = ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in self._order)
        return f"SELECT * FROM ({places}) QUALIFY row_number() OVER (PARTITION BY key ORDER BY {order}) = 1"

    def _fetched(self, won: Collection[str], stand: Collection[str]) -> str:
        """Return the SELECT of all columns of the winners, which lie in decoded files or in those of the table.

        The rows of an update also have what is to be done to their keys.
        """
        fetched = {name: f"f.{quoted(name)}" for name in self._schema.names}
        stands, marks, gone = dict(fetched), "", ""
        fetched |= {name: f"w.{quoted(name)}" for name in (*self._order, "key")} | {"_deleted": "f.value IS NULL"}
        if not self._inputs.with_present:
            marks = ", w._forced, false AS _gone"
            nothing = {**dict.fromkeys(self._schema.names, "NULL"), "key": "l.key"}
            gone = (
                f" UNION ALL SELECT {', '.join(_named(nothing))}, true, true FROM lost l "
                "ANTI JOIN winners w ON l.key IS NOT DISTINCT FROM w.key"
            )
        joined = "JOIN (SELECT * FROM winners WHERE {}_is_decoded) w ON f._file = w._file AND f._row = w._row"
        rows = f"SELECT {', '.join(_named(fetched))}{marks} FROM ({self._read(won)}) f {joined.format('')}"
        if self._inputs.with_present:
            present = f"FROM ({self._read(stand)}) f {joined.format('NOT ')}"
            rows += f" UNION ALL SELECT {', '.join(_named(stands))} {present}"
        return rows + gone

    def _batch_rows(self, connection: duckdb.DuckDBPyConnection, paths: Collection[str]) -> int:
        """Return how many rows of some files make a batch: fewer if they are wide."""
        groups = (
            "SELECT sum(total_uncompressed_size) / max(row_group_num_rows) AS bytes "
            f"FROM parquet_metadata({self._files(paths)}) GROUP BY file_name, row_group_id HAVING max(row_group_num_rows) > 0"
        )
        widest = connection.execute(f"SELECT max(bytes) FROM ({groups})").fetchall()[0][0]
        return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1, widest or 1))))


def _named(columns: Mapping[str, str]) -> Iterator[str]:
    return (f"{sql} AS {quoted(name)}" for name, sql in columns.items())


def _name(path: str) -> str:
    return PurePath(path).name


def _told(number: int, stretch: Stretch) -> dict[str, object]:
    """Return a stretch as a row of `_STRETCHES`."""
    offsets, placed = stretch.offsets, stretch.placed
    return {
        "_stretch": number,
        "_file_of_it": _name(placed.path),
        "_generation": offsets.generation,
        "_partition": offsets.partition,
        "_start": offsets.start,
        "_end": offsets.end,
        "_epoch_of_it": placed.epoch,
        "_before": placed.reached_ms,
    }


def _field(of: str, name: str) -> str:
    return f"struct_extract({of}, {literal(name)})"


def _normalized(key: str, kind: pa.DataType) -> str:
    """Return a key in which NaN and zero have one form each: several forms are one key to DuckDB, and many to MERGE."""
    if pa.types.is_floating(kind):
        return f"CASE WHEN isnan({key}) THEN 'nan' WHEN {key} = 0 THEN 0 ELSE {key} END"
    if not any(map(pa.types.is_floating, parts_of(kind))):
        return key
    if pa.types.is_struct(kind):
        fields = (f"{quoted(each.name)} := {_normalized(_field(key, each.name), each.type)}" for each in kind)
        return f"CASE WHEN {key} IS NOT NULL THEN struct_pack({', '.join(fields)}) END"
    return f"list_transform({key}, lambda item: {_normalized('item', kind.value_type)})"
