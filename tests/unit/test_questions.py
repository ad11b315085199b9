"""What a person asks the lake is one statement that reads: nothing is written, no column is lost, and JSON is JSON."""

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.tables.duck_questions import close_in
from pipeline_defs.cli.commands import cli
from pipeline_defs.cli.work import read
from pipeline_defs.core.errors import Refused
from pipeline_defs.core.offsets import OffsetRange
from tests.support.decoded import DecodedTopic


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake with a table of decoded records of topic `orders`, and a file beside it that is nobody's business."""
    folder = tmp_path / str(getattr(request, "param", "lake"))
    topic = DecodedTopic(Lake(str(folder)), "orders", pa.int64())
    topic.put(OffsetRange(0, 0, 0, 3), {at: (at + 1, None) for at in range(3)})
    (tmp_path / "beside.csv").write_text("secret\n1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFSETLAKE_LAKE", str(folder))
    monkeypatch.setattr(read, "load_topics", lambda: SimpleNamespace(names=["orders"]))
    return folder


def ask(statement: str, *options: str) -> Result:
    return CliRunner().invoke(cli, ["sql", statement, *options])


def everything(folder: Path) -> set[Path]:
    return {path for path in folder.parent.rglob("*") if path.is_file()}


@pytest.mark.parametrize("lake", ["lake", "lake[1]", "it's a lake*"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT sum(key) AS s FROM decoded.orders",
        "FROM decoded.orders SELECT sum(key) AS s;",
        "WITH a AS (SELECT key FROM decoded.orders) SELECT sum(key) AS s FROM a -- of all",
        "SELECT sum(key) AS s FROM read_parquet('{pattern}/tables/decoded/*/*/*.parquet')",
        "VALUES (6)",
        "FROM query('SELECT sum(key) FROM decoded.orders')",
    ],
)
def test_what_reads_the_lake_is_answered(lake: Path, statement: str) -> None:
    pattern = "".join(f"[{each}]" if each in "*[" else each for each in str(lake)).replace("'", "''")
    shown = ask(statement.format(pattern=pattern), "--json")
    assert shown.exception is None, shown.output
    assert [[*row.values()] for row in json.loads(shown.stdout)] in ([[6]], [["6"]])


@pytest.mark.parametrize(
    "statement", ["DESCRIBE decoded.orders", "SUMMARIZE decoded.orders", "SHOW ALL TABLES", "FROM dead_letters.orders"]
)
def test_what_describes_is_answered(lake: Path, statement: str) -> None:
    assert [ask(statement, *options).exception for options in ((), ("--json",))] == [None, None]


def test_what_cannot_be_converted_is_not_shown(lake: Path) -> None:
    """It may be a record's, and stderr goes into other logs; what else DuckDB refuses is shown, the control."""
    told = str(ask("SELECT cast(a AS INTEGER) FROM (VALUES ('card 4111')) t(a)").exception)
    assert "Could not convert string ... to INT32" in told and "4111" not in told
    for statement in ("SELECT timezone(a, now())", "SELECT error(a)", "SELECT a::JSON::INT"):
        assert "4111" not in str(ask(f"""{statement} FROM (VALUES ('{{"card": 4111}}')) t(a)""").exception), statement
    assert "cast it to VARCHAR" in str(ask("SELECT INTERVAL '-178956970 years'").exception)
    assert "nothere" in str(ask("SELECT nothere").exception)


@pytest.mark.parametrize(
    "statement",
    [
        *("COPY (SELECT 1) TO '{folder}/written.csv'", "SELECT 1; COPY (SELECT 1) TO '{folder}/written.csv'"),
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/written.csv'",
        "WITH a AS (COPY (SELECT 1) TO '{folder}/written.csv') SELECT 1",
        "SELECT (WITH a AS (COPY (SELECT 1) TO '{folder}/written.csv') SELECT 1)",
        "FROM query('COPY (SELECT 1) TO ''{folder}/written.csv''')",
        *("EXPORT DATABASE '{folder}/written'", "ATTACH '{folder}/written.db'", "INSTALL httpfs", "LOAD httpfs"),
        *("SET enable_external_access = true", "PRAGMA enable_profiling='json'"),
        "CALL enable_logging(storage = 'file', storage_path = '{folder}/written')",
        "FROM enable_logging(storage = 'file', storage_path = '{folder}/written')",
        "FROM enable_profiling(save_location = '{folder}/written.json')",
        *("CREATE TABLE t AS SELECT 1", "SELECT 1; SELECT 2", "SELEC 1", "", " ; -- nothing"),
    ],
)
def test_what_writes_or_is_more_than_one_is_refused_and_nothing_is_written(lake: Path, statement: str) -> None:
    before = everything(lake)
    refused = ask(statement.format(folder=lake))
    assert isinstance(refused.exception, Refused), refused.output
    assert everything(lake) == before
    assert "query(" not in str(refused.exception) or "query(" in statement, "not the words of our own line"


def test_the_connection_itself_can_write_nothing_beside_the_lake(lake: Path) -> None:
    """What DuckDB may learn to do within a SELECT stays in there too."""
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 1) TO '{lake.parent}/control.csv'")
        close_in(connection, [f"{lake}/"])
        before = everything(lake)
        for statement in (f"COPY (SELECT 1) TO '{lake.parent}/written.csv'", "SET enable_external_access = true"):
            with pytest.raises((duckdb.PermissionException, duckdb.InvalidInputException)):
                connection.execute(statement)
    assert everything(lake) == before


def test_no_file_outside_of_the_lake_is_read(lake: Path) -> None:
    refused = ask(f"SELECT * FROM read_csv('{lake.parent / 'beside.csv'}')")
    assert isinstance(refused.exception, Refused) and "reads this lake alone" in str(refused.exception)


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("web-clicks", "web-clicks"),
        ("web.views", "web.views"),
        ("2024", "2024"),
        ("web.vi", "web.views"),
        ('nothing, "web-clicks"', ""),
    ],
)
def test_a_name_that_needs_double_quotes_is_said(lake: Path, monkeypatch: pytest.MonkeyPatch, source: str, needed: str) -> None:
    """Whole, or its beginning; a shell takes away those within double quotes. What has them needs no hint: the control."""
    monkeypatch.setattr(read, "load_topics", lambda: SimpleNamespace(names=["2024", "orders", "web-clicks", "web.views"]))
    said = str(ask(f"FROM {source}").exception)
    hint = f"; topic {needed} needs double quotes, as in offsetlake sql 'FROM \"{needed}\"'; tables are"
    assert hint in said if needed else "needs double quotes" not in said, said
    assert said.count("needs double quotes") == bool(needed)
    assert ask('FROM "web-clicks"').exception is None


def test_a_table_has_as_many_rows_as_a_person_reads_and_json_all(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MOST_ROWS", 3)
    whole, cut = (ask(f"FROM range({rows})") for rows in (3, 4))
    assert whole.stdout == cut.stdout and "3 rows" in cut.stdout
    assert ("which --json prints" in whole.stderr, "which --json prints" in cut.stderr) == (False, True)
    assert len(json.loads(ask("FROM range(4)", "--json").stdout)) == 4


def test_one_row_is_no_rows(lake: Path) -> None:
    titles = [ask(f"SELECT key FROM decoded.orders LIMIT {limit}").stdout.splitlines()[0].strip() for limit in (1, 2)]
    assert titles == ["1 row", "2 rows"]


def test_columns_of_one_name_are_all_there(lake: Path) -> None:
    """A join of two topics has most names twice."""
    both = "decoded.orders a JOIN decoded.orders b USING (key)"
    (row,) = json.loads(ask(f"SELECT a.key, b.key + 1 AS key, 7 AS KEY FROM {both} LIMIT 1", "--json").stdout)
    assert len(row) == 3 and list(row.values())[1:] == [row["key"] + 1, 7]


def test_json_is_json_whatever_the_value(lake: Path) -> None:
    """Python's own NaN is refused by every other parser; a map's keys need not be text."""
    shown = ask(
        "SELECT 'nan'::DOUBLE AS a, ['inf'::FLOAT, '-inf'::FLOAT, 0.5] AS b, {'c': 'nan'::DOUBLE} AS d, "
        "MAP {DATE '2026-01-02': 'x'} AS e, '\\xFF'::BLOB AS f, 2::HUGEINT ** 70 AS g, 1.50::DECIMAL(5, 2) AS h",
        "--json",
    )
    assert shown.exception is None, shown.output
    (row,) = json.loads(shown.stdout, parse_constant=Mock(side_effect=AssertionError("no JSON")))
    infinite, nested, a_map = ["Infinity", "-Infinity", 0.5], {"c": "NaN"}, {"2026-01-02": "x"}
    assert [*row.values()] == ["NaN", infinite, nested, a_map, "/w==", float(2**70), "1.50"]
    assert ask("SELECT MAP {DATE '2026-01-02': 'nan'::DOUBLE} AS e").exception is None
