"""Latest by key in DuckDB: which record of each key is its latest, of the ranges that an update has to read.

Nothing here is visible or decides what the table has. A row's place among all is worked out beside it: its epoch, and how far
the timestamps of its Kafka partition had come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import count
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import pyarrow as pa

from ...core.errors import BadSetting, LakeUnavailable, first_line
from ...core.offsets import OffsetRange
from ...core.tables.latest import Latest, Stretch, refuse_sequence, stretches_of
from ..lake.lake import Lake
from .columns_of_table import has_map
from .latest_table import FIELDS, POSITION, SEQUENCE
from .sql_text import as_pattern, file_at, literal, quoted
from .topic_rows import within

if TYPE_CHECKING:
    import duckdb

MOST_TOLD = 100  # places that differ
SHARES = 16  # of the keys; the check looks at one of them
NEVER_MS = -(1 << 63)  # before all timestamps
MEMORY = "1GB"  # of what is sorted; the rest of it is on the disk
BATCH_ROWS = 8192
_ORDERED = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_timestamp, pa.types.is_date, pa.types.is_string)
_STRETCHES = pa.schema(
    [
        *((name, pa.int32()) for name in ("_stretch", "_generation", "_partition", "_epoch")),
        *((name, pa.int64()) for name in ("_start", "_end", "_before")),
        ("_file", pa.string()),
    ]
)
MARKS = (pa.field("_forced", pa.bool_()), pa.field("_gone", pa.bool_()))  # what is to be done to a key


@dataclass(frozen=True, slots=True)
class Inputs:
    """What an update reads; `everything` only where a key has lost its winner, `present` is the table's files.

    With `with_present` the rows that stand are among the candidates, and the outcome is the whole table.
    """

    fresh: Sequence[Stretch]
    everything: Sequence[Stretch] = ()
    present: Sequence[str] = ()
    changed: Collection[OffsetRange] = ()
    with_present: bool = False


def table_schema(topic: str, decoded: pa.Schema, config: Latest) -> pa.Schema:
    """Return the columns of a latest table of a decoded one's; raise `BadSetting` for keys or a sequence without an order."""
    fields = [decoded.field(name) for name in FIELDS]
    key = decoded.field("key").type
    if has_map(key):
        raise BadSetting(
            f"topic {topic} has `latest`, and keys of type {key}: nothing tells which maps are equal; nothing was "
            "written; decode keys as something else, with `decode.key` in defs.yaml, or take `latest` out of it"
        )
    fields += [pa.field("_deleted", pa.bool_()), pa.field("_epoch", pa.int32()), pa.field("_reached", pa.int64())]
    if config.sequence:
        fields.append(pa.field(SEQUENCE, _sequence_type(topic, decoded, config.sequence)))
    return pa.schema(fields)


def _sequence_type(topic: str, decoded: pa.Schema, path: str) -> pa.DataType:
    found: pa.DataType = pa.struct([decoded.field("value")])
    for name in path.split("."):
        names = [found.field(at).name for at in range(found.num_fields)] if pa.types.is_struct(found) else []
        if name not in names:
            raise refuse_sequence(topic, path, f"no field {name} among {', '.join(names) or found}")
        found = found.field(name).type
    if not any(is_ordered(found) for is_ordered in _ORDERED):
        raise refuse_sequence(topic, path, f"type {found}")
    return found


class Winners:
    """The latest records by key among what an update reads; `schema` is the table's, which holds all rows.

    What does not fit into memory is in `folder` meanwhile.
    """

    def __init__(self, lake: Lake, inputs: Inputs, schema: pa.Schema, config: Latest, folder: Path) -> None:
        self._lake = lake
        self._inputs = inputs
        self._schema = schema
        self._config = config
        self._folder = folder

    @contextmanager
    def rows(self) -> Iterator[pa.RecordBatchReader]:
        """Yield the rows of an update, one per key: with what is to be done to the key, or the whole table.

        They are found while they are read. Raise `LakeUnavailable` where a file cannot be opened.
        """
        inputs = self._inputs
        with self._connect() as connection:
            rows, present, has_lost = self._candidates(connection, "fresh", inputs.fresh), self._present(), False
            if inputs.changed and inputs.present:
                is_changed = within(stretches_of(inputs.changed), '"')
                connection.execute(f"CREATE TEMP TABLE lost AS SELECT DISTINCT key FROM ({present}) WHERE {is_changed}")
                present = f"SELECT * FROM ({present}) WHERE NOT ({is_changed})"
                has_lost = bool(connection.execute("FROM lost LIMIT 1").fetchall())
            if has_lost:
                history = self._candidates(connection, "everything", inputs.everything)
                rows += f" UNION ALL SELECT h.* FROM ({history}) h SEMI JOIN lost ON h.key IS NOT DISTINCT FROM lost.key"
            if inputs.with_present:
                sql, columns = self._winners(f"{rows} UNION ALL {present}"), self._schema
            else:
                sql, columns = self._marked(self._winners(rows), has_lost=has_lost), pa.schema([*self._schema, *MARKS])
            yield connection.sql(sql).to_arrow_reader(BATCH_ROWS).cast(columns)

    def find_differences(self, share: int) -> tuple[int, list[tuple[int, int, int]]]:
        """Compare a share of the keys with a recomputation; return how many keys stand, and the places that differ.

        A place is (generation, Kafka partition, offset) of the record that should stand, or of the one that stands. Raise
        `LakeUnavailable` where a file cannot be read.
        """
        place = ("generation", "partition", "offset")
        drawn = f"WHERE hash(key) % {SHARES} = {share}"
        differs = " OR ".join(f"r.{quoted(name)} IS DISTINCT FROM s.{quoted(name)}" for name in (*place, "value"))
        places = ", ".join(f"coalesce(r.{quoted(name)}, s.{quoted(name)})" for name in place)
        with self._connect() as connection:
            right = self._winners(f"SELECT * FROM ({self._candidates(connection, 'fresh', self._inputs.fresh)}) {drawn}")
            # of a key that stands twice neither row is as it should be, though each alone might be
            stands = f"SELECT *, count(*) OVER (PARTITION BY key) AS copies FROM ({self._present()}) {drawn}"
            connection.execute(f"CREATE TEMP TABLE stands AS {stands}")
            wrong = connection.execute(
                f"SELECT DISTINCT {places} FROM ({right}) r FULL JOIN stands s ON r.key IS NOT DISTINCT FROM s.key "
                f"WHERE copies > 1 OR {differs} ORDER BY ALL LIMIT {MOST_TOLD}"
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
                yield connection
        except duckdb.Error as error:
            raise LakeUnavailable(
                f"cannot find the latest records in {self._lake.store.root}: {first_line(error)}; nothing was written, what "
                "stands stays as it is; the next update tries again"
            ) from error

    @property
    def _columns(self) -> Path:
        """A file without rows that is read before all others: they are read as its types.

        Of INT and FLOAT alone DuckDB would make FLOAT, which has not all INT.
        """
        return self._folder / "columns.parquet"

    def _read(self, paths: Collection[str]) -> str:
        files = ", ".join((literal(as_pattern(str(self._columns))), *(file_at(self._lake, path) for path in sorted(paths))))
        return f"read_parquet([{files}], union_by_name = true, hive_partitioning = false, filename = true)"

    def _present(self) -> str:
        """Return the SELECT of the rows that stand."""
        return f"SELECT {', '.join(map(quoted, self._schema.names))} FROM {self._read(self._inputs.present)}"

    def _candidates(self, connection: duckdb.DuckDBPyConnection, name: str, stretches: Sequence[Stretch]) -> str:
        """Return the SELECT of decoded rows as rows of the table, each with its place; records without a key are left out."""
        connection.register(name, pa.Table.from_pylist([*map(_told, count(), stretches)], _STRETCHES))
        files = self._read({each.placed.path for each in stretches})
        found = {each: quoted(each) for each in FIELDS}
        found["key"] = _normalized("key", self._schema.field("key").type)
        found |= {"_deleted": "value IS NULL", "_epoch": "_epoch"}
        found["_reached"] = f"coalesce(greatest(_so_far, _before), ({NEVER_MS})::BIGINT)"
        if self._config.sequence:
            found[SEQUENCE] = reduce(_field, self._config.sequence.split("."))
        columns = ", ".join(f"{sql} AS {quoted(column)}" for column, sql in found.items())
        fields = ", ".join(map(quoted, FIELDS))
        return (
            f'SELECT {columns} FROM (SELECT *, max(epoch_us("timestamp") // 1000) OVER so_far AS _so_far '
            f"FROM (SELECT {fields}, parse_filename(filename) AS _name FROM {files})"
            f" JOIN {name} ON _name = _file AND generation = _generation AND partition = _partition "
            'AND "offset" >= _start AND "offset" < _end '
            'WINDOW so_far AS (PARTITION BY _stretch ORDER BY "offset" ROWS UNBOUNDED PRECEDING)) WHERE key IS NOT NULL'
        )

    def _winners(self, rows: str) -> str:
        order = ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in (SEQUENCE, *POSITION) if name in self._schema.names)
        return f"SELECT * FROM ({rows}) QUALIFY row_number() OVER (PARTITION BY key ORDER BY {order}) = 1"

    def _marked(self, winners: str, *, has_lost: bool) -> str:
        """Return the SELECT of winners with what is to be done to their keys, and of the keys that nothing is left of."""
        if not has_lost:
            return f"SELECT *, false AS _forced, false AS _gone FROM ({winners})"
        merged = {"key": "coalesce(w.key, l.key) AS key"}
        names = ", ".join(merged.get(name, f"w.{quoted(name)}") for name in self._schema.names)
        return (
            f"SELECT {names}, l.key IS NOT NULL AS _forced, w.key IS NULL AS _gone FROM ({winners}) w "
            "FULL JOIN lost l ON w.key IS NOT DISTINCT FROM l.key"
        )


def _told(number: int, stretch: Stretch) -> dict[str, object]:
    """Return what DuckDB is told of a stretch."""
    offsets, placed = stretch.offsets, stretch.placed
    return {
        "_stretch": number,
        "_file": PurePath(placed.path).name,
        "_generation": offsets.generation,
        "_partition": offsets.partition,
        "_start": offsets.start,
        "_end": offsets.end,
        "_epoch": placed.epoch,
        "_before": placed.reached_ms,
    }


def _field(of: str, name: str) -> str:
    return f"struct_extract({of}, {literal(name)})"


def _normalized(key: str, kind: pa.DataType) -> str:
    """Return a key in which NaN and zero have one form each: of several forms DuckDB makes one key, and MERGE many."""
    if pa.types.is_floating(kind):
        return f"CASE WHEN isnan({key}) THEN 'nan' WHEN {key} = 0 THEN 0 ELSE {key} END"
    if not _has_fraction(kind):
        return key
    if pa.types.is_struct(kind):
        fields = (f"{quoted(each.name)} := {_normalized(_field(key, each.name), each.type)}" for each in kind)
        return f"CASE WHEN {key} IS NOT NULL THEN struct_pack({', '.join(fields)}) END"
    return f"list_transform({key}, lambda item: {_normalized('item', kind.value_type)})"


def _has_fraction(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or any(_has_fraction(kind.field(number).type) for number in range(kind.num_fields))
