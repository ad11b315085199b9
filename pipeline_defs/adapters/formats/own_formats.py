"""Formats of a user's own: functions that an installed package names under the entry points `offsetlake.formats`.

    [project.entry-points."offsetlake.formats"]
    ebcdic = "my_formats:from_ebcdic"     # from_ebcdic(raw: Column) -> Column

Such a function is given the Spark column of the bytes, and returns that of the values: null where bytes cannot be decoded, and
the same value for the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from pyspark.sql import Column
from pyspark.sql import functions as f

from ...core.decode.decoders import Format
from ...core.errors import BadSetting, first_line
from .decoded import Decoded, SideOutcome, failed, no_id

GROUP = "offsetlake.formats"


@cache
def own_formats() -> Mapping[str, EntryPoint]:
    """Return the entry points by the format's name in defs.yaml; raise `BadSetting` where a name is taken already."""
    found: dict[str, EntryPoint] = {}
    for each in entry_points(group=GROUP):
        other = "Offsetlake's own" if each.name in {*Format} else found[each.name].value if each.name in found else None
        if other:
            raise BadSetting(
                f"the entry point {each.name} = {each.value} of {GROUP} has the name of another format, {other}; nothing was "
                "decoded; give it another name in the package that it comes from"
            )
        found[each.name] = each
    return found


def decode_own(raw: Column, name: str) -> Decoded:
    """Decode by a user's function; raise `BadSetting` where it cannot be loaded, fails, or returns no column."""
    point = own_formats()[name]
    try:
        value = point.load()(raw)
    except Exception as error:
        raise _unusable(point, f"it fails: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(value, Column):
        raise _unusable(point, f"expected that it returns a Spark column, found {type(value).__name__}")
    failure = failed(f"{name}_malformed", f.lit(f"{point.value} returned null for these bytes"))
    read = f.struct(raw.isNull().alias("is_null"), value.alias("value"))
    package = {"package": f"{point.dist.name} {point.dist.version}"} if point.dist else {}
    return Decoded(
        read,
        lambda read: SideOutcome(read["value"], read["is_null"] | read["value"].isNotNull(), failure, no_id()),
        package,
    )


def _unusable(point: EntryPoint, why: str) -> BadSetting:
    return BadSetting(
        f"format {point.name} of {GROUP}, {point.value}, cannot be used: {why}; nothing was decoded; correct that function, or "
        "`format` in defs.yaml"
    )
