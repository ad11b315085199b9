"""How DuckDB's SQL names files of a lake, columns and texts. DuckDB itself is not loaded for it."""

import re

from ..lake.lake import Lake

_GLOB_CHARACTERS = re.compile(r"[*?\[]")


def file_pattern(lake: Lake, path: str) -> str:
    """Return DuckDB's pattern for a path of the lake: it takes every path for a pattern.

    Otherwise a lake at `/lake[1]` is not found, and one at `/lake*` shows the rows of another.
    """
    url = lake.store.url(path)
    return url if lake.store.is_remote else as_pattern(url)


def as_pattern(path: str) -> str:
    """Return DuckDB's pattern for a path of this machine."""
    return _GLOB_CHARACTERS.sub(r"[\g<0>]", path)


def file_at(lake: Lake, path: str) -> str:
    """Return a file of the lake as an SQL literal for `read_parquet`."""
    return literal(file_pattern(lake, path))


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Return the name of a column, or of a view, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'
