"""What defs.yaml says of the latest record of each key, as Dagster's component model reads it."""

from __future__ import annotations

import re

import dagster as dg
from pydantic import Field

from .core.decoders import Decode, Format
from .core.errors import BadSetting
from .core.latest import BUCKETS, Latest

QUOTED, MAP = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`"), re.compile(r"\bmap\s*<", re.IGNORECASE)  # of Spark's DDL


class LatestConfig(dg.Model, dg.Resolvable):
    """Says how the latest record of each key is kept."""

    buckets: int = Field(default=BUCKETS, description="files that keys are spread over; fixed once there are any")

    def as_latest(self, topic: str, decode: Decode | None) -> Latest:
        """Returns what the pipeline sees; raises `BadSetting`."""
        if decode is None:
            raise BadSetting(
                f"topic {topic} has `latest` and no `decode`, expected both: it is made of decoded records; nothing was "
                "written; add `decode: {}` to defs.yaml for keys and values that are bytes"
            )
        side = decode.key
        if side.format is Format.JSON and side.schema and MAP.search(QUOTED.sub("", side.schema)):
            raise BadSetting(
                f"topic {topic} has `latest`, and `decode.key` with a MAP, expected keys without one: Spark cannot tell which "
                "maps are equal; nothing was written; give keys a schema without it, or take `latest` out of defs.yaml"
            )
        return Latest(self.buckets)
