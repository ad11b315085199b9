"""Decoded ranges without Kafka, as decoding leaves them in the table; and decoding on real Spark, with no range landed."""

import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline_defs.adapters.formats.spark_decoding import DECODE_CONF, Decision, find_decoder
from pipeline_defs.adapters.lake import parquet
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.spark.engine import Engine
from pipeline_defs.adapters.tables.columns_of_table import text_of
from pipeline_defs.adapters.tables.decodings import Decodings
from pipeline_defs.adapters.tables.duck import connect
from pipeline_defs.core.decode.decoders import Side
from pipeline_defs.core.log.manifest import Provenance, StagedFile
from pipeline_defs.core.login.client_properties import ANYBODY, RegistryLogin
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.decoded_ranges import DecodedRanges
from pipeline_defs.core.tables.decoded_table import DEAD, IDENTITY, TREE, read_contents, replace_ranges
from pipeline_defs.core.tables.decoding import Decoding
from pipeline_defs.core.tables.delta import Snapshot, apply
from pipeline_defs.tables.decoded_compaction import cut
from tests.support.strategies import EPOCH_MS

Rows = Mapping[int, tuple[Any, ...]]
"""Of each offset that has a record, its key, its value, and its timestamp where that counts (ms since 1970)."""

VALUE = pa.struct([("n", pa.int64())])


@dataclass
class DecodedTopic:
    """A topic of which nothing exists but what is decoded of it."""

    lake: Lake
    name: str
    key_type: pa.DataType
    value_type: pa.DataType = VALUE

    def put(self, offsets: OffsetRange, rows: Rows, revision: int = 0) -> Decoding:
        """Decode a range to these rows, as the revision that comes next."""
        decodings = Decodings(self.lake)
        attempt = f"test-{uuid.uuid4().hex[:8]}"
        columns = decodings.keep(self.name, text_of(pa.schema(self._types))) if rows else ""
        decoding = Decoding(
            self.name,
            offsets,
            "5" * 64,
            "decoder",
            "decoder",
            self._stage(offsets, rows, attempt) if rows or revision else None,
            None,
            Provenance(attempt, "run", "test", "test", 0, None, EPOCH_MS, 0.0),
            revision,
            columns=columns,
        )
        if decoding.decoded is not None:
            decoding = decodings.place(decoding)
            onto = decodings.read_ranges(self.name)
            found = cut([offsets], onto, decodings, EPOCH_MS)
            assert decodings.commit([decoding], onto, EPOCH_MS, found.rests, found.lost)
        return decoding

    def _stage(self, offsets: OffsetRange, rows: Rows, attempt: str) -> StagedFile:
        where = f"staging/{attempt}/{offsets.key}.parquet"
        times = [row[2] if len(row) > 2 else EPOCH_MS for row in rows.values()]
        columns: dict[str, list[Any]] = {
            "topic": [self.name] * len(rows),
            "generation": [offsets.generation] * len(rows),
            "partition": [offsets.partition] * len(rows),
            "offset": list(rows),
            "timestamp": [datetime.fromtimestamp(ms / 1000, UTC) for ms in times],
            "key": [row[0] for row in rows.values()],
            "value": [row[1] for row in rows.values()],
        }
        arrays = {name: pa.array(columns[name], kind) for name, kind in self._types.items()}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "part.parquet"
            pq.write_table(pa.table(arrays), path)
            self.lake.store.upload(path, where)
            size, digest = path.stat().st_size, parquet.digest(path)
        newest = max(times, default=None)
        return StagedFile(where, size, digest, len(rows), offsets.start, offsets.end - 1, newest, newest)

    @property
    def _types(self) -> dict[str, pa.DataType]:
        places = {name: parquet.RAW_SCHEMA.field(name).type for name in IDENTITY}
        return {**places, "key": self.key_type, "value": self.value_type}

    def recomputed(self, marks: Iterable[Mapping[int, int]] = (), sequence: str = "NULL::BIGINT") -> list[tuple[Any, ...]]:
        """Return the latest records by one SQL statement over the files of the decoded table.

        `marks` are the high watermarks by Kafka partition of each time that partitions were added.
        """
        epoch = " + ".join(
            'CASE "partition" ' + " ".join(f'WHEN {p} THEN ("offset" >= {at})::INT' for p, at in mark.items()) + " ELSE 1 END"
            for mark in marks
        )
        newest = f'{sequence} DESC NULLS LAST, generation DESC, epoch DESC, reached DESC, "partition" DESC, "offset" DESC'
        return self._query(
            f"WITH decoded AS (SELECT *, {epoch or 0} AS epoch FROM read_parquet({table_files(self.lake, self.name)}, "
            'union_by_name = true)), placed AS (SELECT *, max("timestamp") OVER (PARTITION BY generation, "partition", '
            'epoch ORDER BY "offset") AS reached FROM decoded) '
            f'SELECT {COLUMNS} FROM (SELECT * FROM placed WHERE "key" IS NOT NULL '
            f'QUALIFY row_number() OVER (PARTITION BY "key" ORDER BY {newest}) = 1) WHERE "value" IS NOT NULL'
        )

    def shown(self) -> list[tuple[Any, ...]]:
        """Return the latest records as the table has them."""
        files = DeltaTable(self._folder("tables/latest")).file_uris()
        return self._query(f"SELECT {COLUMNS} FROM read_parquet({files}) WHERE NOT _deleted") if files else []

    def _folder(self, tree: str) -> str:
        return self.lake.store.url(f"{tree}/{self.name}")

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        with connect(self.lake) as connection:
            return sorted(connection.execute(sql).fetchall(), key=lambda row: row[:3])


def table_files(lake: Lake, topic: str, *, is_dead: bool = False) -> list[str]:
    """Return the files of a decoded table as delta-rs sees it: of decoded rows, or of dead letters."""
    url = lake.store.url(f"{TREE}/{topic}")
    if not DeltaTable.is_deltatable(url):
        return []
    return sorted(DeltaTable(url).file_uris(file_pruning_predicate=[(DEAD, "=", str(is_dead).lower())]))


def shown_places(lake: Lake, topic: str, *, is_dead: bool = False) -> list[tuple[int, int]]:
    """Kafka partition and offset of each row of a decoded table, or of its dead letters; a doubled row stands twice."""
    files = table_files(lake, topic, is_dead=is_dead)
    if not files:
        return []
    with connect(lake) as connection:
        sql = f'SELECT "partition", "offset" FROM read_parquet({files}) ORDER BY ALL'
        return connection.execute(sql).fetchall()


COLUMNS = 'generation, "partition", "offset", epoch_ms("timestamp"), "key", "value"'


def numbered(offsets: OffsetRange, keys: Iterable[Any], n: int = 0) -> dict[int, tuple[Any, Any]]:
    """Records of these keys, one per offset from the range's start, each with a number as its value."""
    return {at: (key, {"n": n + at}) for at, key in enumerate(keys, offsets.start)}


def decoded_ranges(topic: str, decodings: Iterable[Decoding]) -> DecodedRanges:
    """Return what a table has of ranges, each with files of its own."""
    named = (
        replace(each, decoded=each.decoded and replace(each.decoded, path=f"{each.offsets.key}.parquet")) for each in decodings
    )
    table = apply(replace_ranges(named, {}, {}, 0), Snapshot())
    return DecodedRanges(topic, table, read_contents)


RAW = "topic string, partition int, offset long, key binary, value binary"


@dataclass(frozen=True)
class Outcomes:
    """What became of some records, in their order."""

    rows: Sequence[Any]
    schemas: Mapping[str, str]
    type: str

    @property
    def values(self) -> list[Any]:
        return [row.value.asDict(recursive=True) if hasattr(row.value, "asDict") else row.value for row in self.rows]

    @property
    def classes(self) -> list[str | None]:
        return [row.failure.error_class if row.failure else None for row in self.rows]

    @property
    def errors(self) -> list[str | None]:
        return [row.failure.error if row.failure else None for row in self.rows]

    @property
    def ids(self) -> list[int | None]:
        return [row.schema_id for row in self.rows]


def decode(
    engine: Engine, records: Sequence[bytes | None], side: Side, topic: str = "orders", login: RegistryLogin = ANYBODY
) -> Outcomes:
    """Decode values of a topic's only partition."""
    values = [(topic, 0, at, None, value) for at, value in enumerate(records)]
    frame, schemas = decode_rows(decoding_session(engine).createDataFrame(values, RAW), side, login)
    rows = frame.orderBy("offset").collect()
    return Outcomes(rows, schemas, frame.schema["value"].dataType.simpleString())


def decoding_session(engine: Engine) -> SparkSession:
    return engine.session(DECODE_CONF)


def decode_rows(rows: DataFrame, side: Side, login: RegistryLogin = ANYBODY) -> tuple[DataFrame, Mapping[str, str]]:
    """Decode the column `value`; return offset, value, failure, schema_id of each row, and the schemas that decided."""
    decision = Decision({"value": find_decoder(side.format)(rows, "value", side, login)})
    read, outcomes = decision.read(rows)
    of = outcomes["value"]
    return read.select(
        "offset",
        f.when(of.is_right, of.value).alias("value"),
        f.when(~of.is_right, of.failure).alias("failure"),
        of.schema_id.alias("schema_id"),
    ), decision.sides["value"].schemas
