"""What defs.yaml says of the latest record of each key, as Dagster's component model reads it."""

from __future__ import annotations

import dagster as dg
from pydantic import Field

from .core.decoders import Decode
from .core.errors import BadSetting
from .core.latest import BUCKETS, Latest


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
        return Latest(self.buckets)
