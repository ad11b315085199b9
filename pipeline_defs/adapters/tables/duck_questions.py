"""A person's question to DuckDB: one statement that reads, asked of a connection that reaches nothing but the lake.

DuckDB itself decides what reads: `query()` takes a single SELECT (so are `FROM`, `VALUES`, `DESCRIBE`, `SHOW`, `SUMMARIZE`)
and refuses one that has COPY or INSERT in its WITH. Invariant: no file is written, whatever is asked.
"""

import re
from collections.abc import Iterable
from typing import Any

import duckdb

from ...core.errors import Refused, first_line

_ONE_SELECT = "FROM query($statement)"  # makes columns of one name unique, too: `a`, `a_1`
_QUOTED = re.compile(r"""'.*(?<!\.parquet)'|\{.*\}|".*(?<!\.parquet)"|(?<=value )\S+""")  # all but a file's name
_OUR_LINE = re.compile(r"\n+LINE 1: FROM query\(.*", re.DOTALL)  # points into the line above, which nobody has typed
_UNKNOWN = re.compile(r'Table with name "?(.+?)"? does not exist')
_NOTHING_DONE = "nothing was asked"
_ELSEWHERE = "for anything else read the files themselves (`offsetlake explain reading`)"


def close_in(connection: duckdb.DuckDBPyConnection, folders: Iterable[str]) -> None:
    """Restrict a connection to the files below some folders, the extensions that it has, and its settings as they are."""
    connection.execute("SET allowed_directories = $folders", {"folders": list(folders)})
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def check_reads(statement: str) -> None:
    """Raise `Refused` for what is not one SELECT, `duckdb.Error` for what DuckDB cannot parse."""
    found = duckdb.extract_statements(statement)
    if not found:
        raise Refused(f"there is no statement to run; {_NOTHING_DONE}")
    if len(found) > 1:
        raise Refused(f"{len(found)} statements are given, expected one SELECT; {_NOTHING_DONE}; ask one by one")
    (only,) = found
    if only.type not in {duckdb.StatementType.SELECT, duckdb.StatementType.MULTI}:  # MULTI: a PIVOT, whose error says more
        raise Refused(
            f"the statement is {only.type.name}, expected one that reads: SELECT, FROM, WITH, VALUES, DESCRIBE, SHOW or "
            f"SUMMARIZE; {_NOTHING_DONE}; {_ELSEWHERE}"
        )


def ask(
    connection: duckdb.DuckDBPyConnection, statement: str, most: int | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns of a statement, by unique names, and its rows, or only the first `most` of them.

    Raises `Refused` for a statement that writes.
    """
    check_reads(statement)
    try:
        answer = connection.execute(_ONE_SELECT, {"statement": statement})
        return [column[0] for column in answer.description or []], answer.fetchall() if most is None else answer.fetchmany(most)
    except OverflowError as error:
        raise Refused(f"a value is beyond what Python can hold: {error}; cast it to VARCHAR") from error
    except duckdb.PermissionException as error:
        raise Refused(f"{explained(error)}: `offsetlake sql` reads this lake alone; {_NOTHING_DONE}; {_ELSEWHERE}") from error


def explained(error: duckdb.Error) -> str:
    """Return DuckDB's message without the line that is ours and, if it may quote a record, without the quotation."""
    if isinstance(error, duckdb.DataError | duckdb.InvalidInputException | duckdb.NotImplementedException):
        return _QUOTED.sub("...", first_line(error))
    return _OUR_LINE.sub("", str(error))


def find_unquoted(statement: str, refusal: str, names: Iterable[str]) -> list[str]:
    """Return the names that need double quotes and are in a statement without them, whole or by their beginning."""
    unknown = _UNKNOWN.search(refusal)
    return [
        name
        for name in names
        if not re.fullmatch(r"[a-z_]\w*", name, re.ASCII | re.IGNORECASE)
        and (
            re.search(rf"""(?<!["'\w-]){re.escape(name)}(?![\w-])""", statement, re.IGNORECASE)
            or (unknown is not None and name.lower().startswith(unknown[1].lower()))
        )
    ]
