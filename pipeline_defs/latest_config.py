"""What defs.yaml says of the latest record of each key, as Dagster's component model reads it."""

from __future__ import annotations

from pydantic import Field

from .core.columns import check_sequence
from .core.decoders import Decode
from .core.errors import BadSetting
from .core.latest import Latest
from .schema_checks import read_side, row_of_decode
from .yaml_model import YamlModel


class LatestConfig(YamlModel):
    """How the latest record of each key is found."""

    sequence: str | None = Field(
        default=None,
        description="path of the decoded field whose greatest value is the latest, such as value.version; by default the "
        "offset in the Kafka partition decides",
    )

    def as_latest(self, topic: str, decode: Decode | None) -> Latest:
        """Return what the pipeline sees; raise `BadSetting`."""
        if decode is None:
            raise BadSetting(
                f"topic {topic} has `latest` and no `decode`, expected both: it is made of decoded records; nothing was "
                "written; add `decode: {}` to defs.yaml for keys and values that are bytes"
            )
        if any(column.kind == "map" for column in read_side(decode.key, "key").walk()):
            raise BadSetting(
                f"topic {topic} has `latest`, and `decode.key` with a MAP, expected keys without one: Spark cannot tell which "
                "maps are equal; nothing was written; give keys a schema without it, or take `latest` out of defs.yaml"
            )
        latest = Latest(self.sequence)
        if self.sequence is not None:
            check_sequence(row_of_decode(decode), self.sequence, topic)
        return latest
