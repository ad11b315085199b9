"""What defs.yaml says of event days, as Dagster's component model reads it; what is wrong is refused with its line."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from .core.calendar import parse_day
from .core.columns import check_event_time
from .core.days import Days, EventTime
from .core.decoders import Decode
from .core.errors import BadSetting
from .schema_checks import row_of_decode
from .yaml_model import WRITTEN, YamlModel


def _day(value: str) -> str:
    try:
        return parse_day(value)
    except ValueError:
        raise ValueError(f"expected a day such as 2013-01-01, found {value!r}") from None


class DaysConfig(YamlModel):
    """How a topic's decoded rows are counted by day."""

    start: Annotated[str, WRITTEN, AfterValidator(_day)] = Field(
        description="the first day, such as 2013-01-01; Dagster is told of no day before"
    )
    event_time: Annotated[str, WRITTEN] = Field(
        default=EventTime().path,
        description="a column's path in the decoded row, `value.ordered_at`: a TIMESTAMP, a DATE, or an integer with a unit",
    )
    unit: Annotated[str | None, WRITTEN] = Field(default=None, description="of an integer: s, ms or us since 1970")

    def as_days(self, topic: str, decode: Decode | None) -> Days:
        """Return what the pipeline sees; raise `BadSetting`."""
        if decode is None:
            raise BadSetting(
                f"topic {topic} has `days` and no `decode`, expected both: days are those of decoded rows; nothing was "
                "written; add `decode: {}` to defs.yaml for days of rows whose keys and values are bytes"
            )
        try:
            days = Days(self.start, EventTime(self.event_time, self.unit))
        except ValueError as error:
            raise BadSetting(
                f"topic {topic} has wrong `days` in defs.yaml: {error}; nothing was written; correct it"
            ) from error
        check_event_time(row_of_decode(decode), days.event_time)
        return days
