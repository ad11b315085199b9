"""Formats of a user's own: functions that an installed package names under the entry points `offsetlake.formats`.

    [project.entry-points."offsetlake.formats"]
    ebcdic = "my_formats:from_ebcdic"     # from_ebcdic(raw: Column) -> Column

Such a function is given the Spark column of the bytes, and returns that of the values: null where bytes cannot be decoded, and
the same value for the same bytes.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ...core.decode.decoders import Format
from ...core.errors import BadSetting, first_line
from ..spark.spark_session import make_active
from ..system.outage import ask_within
from .decoded import Decoded, SideOutcome, decoded_where_not_null, failed, has_times_of_a_calendar

GROUP = "offsetlake.formats"
CALL_SECONDS = 30.0  # for a function that only says what Spark is to do


@cache
def own_formats() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points by the format's name in defs.yaml; leave out those with the name of a `Format`."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for each in entry_points(group=GROUP):
        if each.name not in {*Format}:
            found[each.name] = (*found.get(each.name, ()), each)
    return found


def package_of(name: str) -> str:
    """Return the package that a format comes from, with its version; raise `BadSetting` if none or several have it."""
    point = _find(name)
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def told(name: str) -> str:
    """Return a format with its function, as `format ebcdic, my_formats:from_ebcdic`."""
    return f"format {name}, {_find(name).value}"


def decode_own(rows: DataFrame, column: str, name: str) -> Decoded:
    """Decode by a user's function; raise `BadSetting` if it cannot be loaded, fails, or returns no column of such rows."""
    point, raw = _find(name), f.col(column)
    value = _call(point, raw, rows.sparkSession)
    if not isinstance(value, Column):
        raise _unusable(point, f"expected that it returns a Spark column, found {type(value).__name__}")
    try:
        # a filter takes no function of several rows, nor one that makes several
        kind = rows.where(value.isNotNull()).select(value.alias("value")).schema["value"].dataType
    except AnalysisException as error:  # not of a server that went away, which is the engine's to say
        raise _unusable(point, f"Spark does not take what it returns: {first_line(error)}") from error
    of_null, of_time = (
        failed(f"{name}_malformed", f.lit(f"{point.value} returned {what} for these bytes"))
        for what in ("null", "a date or time out of the years 1 to 9999")
    )
    plain = decoded_where_not_null(raw, value, of_null)

    def judge(read: Column) -> SideOutcome:
        found = plain.judge(read)
        value = f.when(~read["is_null"], found.value)  # the function may return one for a null
        is_right = found.is_right & has_times_of_a_calendar(value, kind)
        return replace(found, value=value, is_right=is_right, failure=f.when(found.is_right, of_time).otherwise(of_null))

    return Decoded(plain.read, judge)


def _call(point: EntryPoint, raw: Column, session: SparkSession) -> object:
    """Return what a user's function returns; raise `BadSetting` if it fails, or returns nothing in time.

    It is called by a thread that ends with the process: other topics wait `CALL_SECONDS` for it at most.
    """

    def call() -> object:
        try:
            make_active(session)
            return point.load()(raw)
        except BaseException as error:  # a user's own code, which may raise `KeyboardInterrupt` too
            raise _unusable(point, f"it fails: {type(error).__name__}: {first_line(error)}") from error

    try:
        return ask_within(CALL_SECONDS, call)
    except TimeoutError:
        raise _unusable(point, f"it has returned nothing for {CALL_SECONDS:g} s") from None


def _find(name: str) -> EntryPoint:
    points = own_formats().get(name, ())
    if len(points) != 1:
        where = ", ".join(each.value for each in points) or "none"
        raise BadSetting(
            f"format {name} is to be one entry point of {GROUP}, found {where}; nothing was decoded; install the package that "
            "has it, or give all but one another name"
        )
    return points[0]


def _unusable(point: EntryPoint, why: str) -> BadSetting:
    return BadSetting(
        f"format {point.name} of {GROUP}, {point.value}, cannot be used: {why}; nothing was decoded; correct that function, or "
        "`format` in defs.yaml"
    )
