"""`offsetlake.read`: the rows of a topic, a range, a day or a table, for a program or an asset downstream.

Reads only. Invariant: the call fixes which rows it gives: each landed row once, from one version of the table and from the
landed files that the raw table lacks, whatever is landed, compacted, decoded or replaced meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa

from ..adapters.lake import parquet
from ..adapters.lake.lake import Lake
from ..adapters.system.project_folder import load_env_file
from ..adapters.tables.decodings import Decodings
from ..adapters.tables.topic_rows import Part, TableRows, find_day, find_decoded, find_latest, find_rows
from ..core.advice import command, meant
from ..core.errors import BadKey, BadSetting, LakeUnavailable, Refused, UnknownTopic
from ..core.log.coverage import Coverage
from ..core.offsets import OffsetRange, check_topic, parse_key
from ..core.setting_values import check_lake
from ..core.tables.days import parse_day
from ..resources import Adapters
from ..settings import read_settings

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import SparkSession

Form = Literal["arrow", "duckdb", "spark"]
Table = Literal["raw", "decoded", "latest"]


def read(
    topic: str,
    *,
    range: str | None = None,  # noqa: A002 (a range is what it is called everywhere here)
    day: str | None = None,
    table: Table = "raw",
    as_: Form | DuckDBPyConnection | SparkSession = "arrow",
    lake: str | os.PathLike[str] | None = None,
) -> Any:
    """Return the landed rows of a topic, or of its range with the partition key `range`; or what is derived from them.

    `table="decoded"` gives the decoded rows, of the range where one is given, without dead letters; `table="latest"` the newest
    record of each key, without deleted ones; `day="2013-01-01"` the decoded rows whose `event_time` lies in that UTC day.

    | `as_` | what it gives |
    |---|---|
    | `"arrow"` | a `pyarrow.Table`, read now, sorted by generation, Kafka partition and offset |
    | `"duckdb"`, or a connection of yours | a `duckdb.DuckDBPyRelation` of its own connection or yours, read when queried |
    | `"spark"`, or a session of yours | a `pyspark.sql.DataFrame` of the warm Spark's session or yours, read when queried |

    Which rows these are is fixed now, and each is there once. `lake` is a path or a URL; by default the project's. Raise an
    `OffsetlakeError` for a topic, key, form or lake that does not exist, and for a range that is not landed.
    """
    form, session = _form_of(as_)
    _check_topic(topic)
    _check_chosen(table, day, range)
    chosen = None if range is None else parse_key(str(range))
    decodings = _default_adapters().decodings if lake is None else _open(_place_of(lake))
    found = decodings.lake
    try:
        coverage = _check_landed(topic, chosen, found)
        if day is not None:
            return _read(find_day(topic, str(day), decodings), form, found, session)
        if table == "decoded":
            return _read(find_decoded(topic, chosen, decodings), form, found, session)
        if table == "latest":
            return _read(find_latest(topic, found), form, found, session)
        return _read(find_rows(coverage, found).parts(None if chosen is None else {chosen}), form, found, session)
    except FileNotFoundError as error:
        raise LakeUnavailable(
            f"a file of topic {topic} is gone that was there a moment ago: {error}; somebody deletes objects of the lake "
            f"{found.store.root}; nothing was written; read again, and `{command('audit', topic)}` names what is missing",
            topic=topic,
        ) from error


def _check_chosen(table: str, day: object, chosen: object) -> None:
    if table not in get_args(Table):
        raise Refused(f"table is {table!r}, expected one of {', '.join(get_args(Table))}; nothing was read")
    if day is not None and chosen is not None:
        raise Refused("a range and a day are given, expected one of them; nothing was read")
    if table == "latest" and (day is not None or chosen is not None):
        what = "range" if day is None else "day"
        raise Refused(f"a {what} and table='latest' are given, whose rows are of no {what}; nothing was read; leave one out")
    if day is not None:
        try:
            parse_day(str(day))
        except ValueError as error:
            raise BadKey(f"{error}; nothing was read") from None


def _read(rows: TableRows | Sequence[Part], form: Form, lake: Lake, session: Any) -> Any:
    if form == "spark":
        from ..adapters.spark.spark_files import read_parts, read_table

        spark, root = _spark_of(lake, session)
        return read_table(spark, root, rows) if isinstance(rows, TableRows) else read_parts(spark, root, rows)
    if form == "arrow" and not isinstance(rows, TableRows):
        return _read_arrow(rows, lake)
    # late: a code location loads this, and hardly ever asks DuckDB
    from ..adapters.tables.duck import connect, relate, relate_table, told_if_unreadable, with_lake

    connection = connect(lake) if session is None else with_lake(session, lake)
    if not isinstance(rows, TableRows):
        return relate(rows, lake, connection)
    relation = relate_table(rows, lake, connection)
    if form == "duckdb":
        return relation
    with told_if_unreadable():
        return rows.conform(relation.order('generation, "partition", "offset"').to_arrow_table())


def _form_of(as_: object) -> tuple[Form, Any]:
    """Return the form in which rows are asked for, and the caller's own connection or session where it gave one."""
    own = {"DuckDBPyConnection": "duckdb", "SparkSession": "spark"}.get(type(as_).__name__)
    if own is not None:
        return own, as_  # type: ignore[return-value]
    if as_ not in get_args(Form):
        shown = repr(as_) if isinstance(as_, str) else f"a {type(as_).__name__}"
        expected = f"one of {', '.join(get_args(Form))}, a DuckDB connection or a Spark session"
        raise Refused(f"as_ is {shown}, expected {expected}; nothing was read")
    return as_, None  # type: ignore[return-value]


def _check_topic(topic: str) -> None:
    try:
        check_topic(topic)
    except (ValueError, TypeError) as error:
        raise Refused(f"topic {topic!r} cannot be read: {error}; nothing was read") from None


def _place_of(lake: str | os.PathLike[str]) -> str:
    """Return a lake in the form of `OFFSETLAKE_LAKE`, a path made absolute from the current folder; raise `BadSetting`."""
    try:
        place = check_lake(os.fspath(lake))
        if not place:
            raise ValueError("it is empty, expected a path or a URL")
    except (ValueError, TypeError) as error:
        raise BadSetting(f"lake= cannot be read: {error}; nothing was read; correct it") from None  # it may have a login
    return place if "://" in place else str(Path(place).expanduser().absolute())


def _default_adapters() -> Adapters:
    load_env_file()  # a store's login, say
    return _adapters(read_settings())


_adapters = cache(Adapters)  # for the life of the process, by settings


@cache
def _open(place: str) -> Decodings:
    load_env_file()
    return Decodings(Lake(place))


def _check_landed(topic: str, chosen: OffsetRange | None, lake: Lake) -> Coverage:
    """Return a topic's coverage; raise `UnknownTopic`, `BadKey`, or `Refused` for a range that is not landed."""
    coverage = lake.coverage(topic)
    if not coverage.log.steps:
        there = lake.planned_topics()
        if not there:
            raise UnknownTopic(
                f"no lake is at {lake.store.root}: nothing was ever planned there, of topic {topic} or of another; nothing was "
                "read; correct the path or URL of the lake, or land something first"
            )
        raise UnknownTopic(
            f"the lake {lake.store.root} has nothing of topic {topic}{meant(topic, there)}; it has "
            f"{', '.join(there)}; nothing was read; name one of these, or another lake"
        )
    if chosen is None:
        return coverage
    state = coverage.states().get(chosen)
    if state is None:
        raise BadKey(
            f"range {chosen.text(topic)} is not in the plan log of topic {topic}; nothing was read; "
            f"`{command('backfill', topic, '--all')}` lists those there are",
            key=chosen.key,
        )
    if not coverage.is_landed(chosen):
        raise Refused(
            f"range {chosen.text(topic)} is {state.value}, expected landed; nothing was read; "
            f"`{command('status', topic)}` says what is to be done"
        )
    return coverage


def _read_arrow(parts: Sequence[Part], lake: Lake) -> pa.Table:
    found: list[tuple[OffsetRange, pa.Table]] = []
    for part in parts:
        with lake.store.local_copy(part.path) as file, parquet.told_if_damaged(lake.store.url(part.path)):
            found += parquet.read_ranges(file, part.stretches)
    found.sort(key=lambda each: each[0])  # a part may have offsets before and behind those of another one
    return pa.concat_tables(
        [parquet.RAW_SCHEMA.empty_table(), *(parquet.conform(rows, parquet.RAW_SCHEMA) for _, rows in found)]
    )


def _spark_of(lake: Lake, session: Any) -> tuple[SparkSession, str]:
    """Return a session that reads the lake, and how it names the lake's root; raise `Refused` where there is none."""
    from ..adapters.spark.spark import SCAN_CONF

    if session is None:
        adapters = _default_adapters()
        engine = adapters.engine(adapters.pyspark())
        if lake.store.is_remote and not engine.is_remote:
            raise Refused(
                f"the Spark of this machine reads no object store, and the lake is {lake.store.root}; nothing was read; pass a "
                "session of a Spark that does as `as_`, set OFFSETLAKE_SPARK_REMOTE, or read it as arrow or duckdb"
            )
        session = engine.session(SCAN_CONF)
    return session, lake.store.hadoop_root
