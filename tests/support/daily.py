"""Event days in tests: a topic whose values say when, and what a glob over its days shows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from pipeline_defs.attempt import Attempt
from pipeline_defs.core.day_verdicts import DayDecided, DayVerdict
from pipeline_defs.core.days import Days, EventTime
from pipeline_defs.core.decoders import Decode, Format, Side
from pipeline_defs.core.decoding import Budget, Decoding
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.days import DayTools, update_days
from pipeline_defs.edges.lake import Lake
from pipeline_defs.edges.spark_days import SparkDays
from pipeline_defs.resources import Edges
from pipeline_defs.settings import Settings
from pipeline_defs.steps import StepWatcher, no_step
from tests.support.decoded import DecodedTopic, table_files
from tests.support.world import World

if TYPE_CHECKING:
    from pipeline_defs.edges.engine import Engine

SCHEMA = "at TIMESTAMP, n BIGINT"
AT = EventTime("value.at")
START = "2013-01-01"


def configure(world: World, event_time: EventTime = AT, schema: str = SCHEMA) -> None:
    """Has a topic decoded and put into days."""
    decode = Decode(Side(Format.STRING), Side(Format.JSON, schema), Budget(1_000, 1.0), event_time)
    world.topic = dataclasses.replace(world.topic, decode=decode, days=Days(START, event_time))


class DecodedDays:
    """Is a topic of which nothing exists but what is decoded of it, and its days: no Kafka, no Dagster."""

    def __init__(self, folder: Path, engine: Engine | None = None, *fields: tuple[str, pa.DataType]) -> None:
        self.folder, self.engine, self.days = folder, engine, Days(START, AT)
        self.topic = DecodedTopic(Lake(str(folder)), f"t{uuid.uuid4().hex[:8]}", pa.string(), row_type(*fields))
        self.name = self.topic.name

    def put(self, offsets: OffsetRange, days: Iterable[str], revision: int = 0, **values: object) -> Decoding:
        """Decodes a range to one row per day, whose other fields have these values."""
        at = [datetime.fromisoformat(f"{day}T12:00:00Z") for day in days]
        rows = {offsets.start + n: ("k", {"at": each, **values}) for n, each in enumerate(at)}
        return self.topic.put(offsets, rows, revision)

    def change_fields(self, *fields: tuple[str, pa.DataType]) -> None:
        """Has what is decoded from now on hold these fields beside `at`."""
        self.topic.value_type = row_type(*fields)

    def edges(self) -> Edges:
        """Are the edges of a process that has just begun."""
        home = self.folder / "home"
        return Edges(
            Settings(
                home=home,
                lake=str(self.folder),
                bootstrap_servers="127.0.0.1:1",
                spark_master="local[1]",
                spark_driver_memory="1g",
                dagster_home=home / "dagster",
            )
        )

    def update(self, *chosen: str, redo: bool = False, on_step: StepWatcher = no_step) -> dict[str, DayVerdict]:
        """Brings days up to date, those chosen or all that are due, as a process that has just begun."""
        edges, attempt = self.edges(), Attempt(f"test-{uuid.uuid4().hex[:8]}", "no-run", "test", redo=redo)
        tools = DayTools(edges.day_files, edges.decodings, self.days, self._spark, edges.now_ms, on_step)
        verdicts = list(update_days(self.name, chosen or None, attempt, tools))
        assert len({verdict.day for verdict in verdicts}) == len(verdicts)
        return {verdict.day: verdict for verdict in verdicts}

    def _spark(self) -> SparkDays:
        assert self.engine is not None
        return SparkDays(self.engine)

    def offsets(self) -> dict[str, list[int]]:
        """Is what a plain glob over the days shows: the offsets of each day's file; a doubled row stands twice."""
        shown = self.query('parse_filename(filename, true), "offset"')
        return {day: [offset for each, offset in shown if each == day] for day, _ in shown}

    def query(self, columns: str) -> list[tuple[Any, ...]]:
        """Asks a plain glob over the days, in order."""
        glob = f"{self.folder}/days/{self.name}/*.parquet"
        files = f"read_parquet('{glob}', filename = true, union_by_name = true)"
        return duckdb.sql(f'SELECT {columns} FROM {files} ORDER BY filename, "offset"').fetchall()


def row_type(*fields: tuple[str, pa.DataType]) -> pa.DataType:
    """Is the type of a value that says when."""
    return pa.struct([("at", pa.timestamp("us", "UTC")), *fields])


def event(day: str | None, number: int, partition: int = 0) -> dict[str, object]:
    """Is a record of an event at noon of a day."""
    at = {"at": f"{day}T12:00:00Z"} if day else {}
    return {"partition": partition, "key": b"k%d" % number, "value": json.dumps({**at, "n": number}).encode()}


def day_tools(world: World, on_step: StepWatcher = no_step) -> DayTools:
    """Are the tools of one update, of a process that has just begun."""

    edges = Edges(world.settings, now_ms=world.edges.now_ms)
    assert world.topic.days is not None
    return edges.day_tools(world.topic.days, edges.pyspark(), on_step)


def update(
    world: World, chosen: Iterable[str] | None = None, *, redo: bool = False, on_step: StepWatcher = no_step
) -> dict[str, DayVerdict]:
    """Brings days up to date in this process, without Dagster."""
    attempt = Attempt(f"test-{uuid.uuid4().hex[:8]}", "no-run", "test", redo=redo)
    days = None if chosen is None else [*chosen]
    verdicts = list(update_days(world.name, days, attempt, day_tools(world, on_step)))
    assert len({verdict.day for verdict in verdicts}) == len(verdicts)
    return {verdict.day: verdict for verdict in verdicts}


def outcomes(verdicts: dict[str, DayVerdict]) -> dict[str, DayDecided]:
    """Is what became of each day."""
    failed = [verdict for verdict in verdicts.values() if verdict.outcome is DayDecided.FAILED]
    assert not failed, failed
    return {day: verdict.outcome for day, verdict in verdicts.items()}


def digests(world: World) -> dict[str, tuple[str, int]]:
    """Is of each day's file its digest and when it was written."""
    return {
        path.stem: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in (world.lake_folder / "days" / world.name).iterdir()
    }


def shown(world: World) -> list[tuple[object, ...]]:
    """Is what a plain glob over the days shows: the file's day, place and number of each row; a doubled row stands twice."""
    glob = f"{world.lake_folder}/days/{world.name}/*.parquet"
    return duckdb.sql(
        f'SELECT parse_filename(filename, true), generation, "partition", "offset", value.n, epoch_ms(event_time) '
        f"FROM read_parquet('{glob}', filename = true, union_by_name = true) ORDER BY ALL"
    ).fetchall()


def expected(world: World, column: str = "value.at") -> list[tuple[object, ...]]:
    """Is the same, computed in full by DuckDB from the decoded ranges."""
    files = table_files(world.edges.lake, world.name)
    return duckdb.sql(
        f'SELECT strftime({column}, \'%Y-%m-%d\'), generation, "partition", "offset", value.n, epoch_ms({column}) '
        f"FROM read_parquet({files}, union_by_name = true) WHERE {column} >= '{START}' AND {column} < now() ORDER BY ALL"
    ).fetchall()
