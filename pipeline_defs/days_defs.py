"""What Dagster shows and runs of a topic's event days: asset, checks, job, sensor; nothing where defs.yaml names none."""

from __future__ import annotations

import dagster as dg

from .day_due import build_days_sensor
from .days_asset import build_days_asset
from .days_checks import build_days_checks
from .topics import Topic


def build_days(topic: Topic, lake: str | None = None) -> dg.Definitions:
    """Builds what keeps a topic's event days; `lake` is where their files are said to lie."""
    if topic.days is None:
        return dg.Definitions()
    job = dg.define_asset_job(
        topic.days_job,
        selection=dg.AssetSelection.assets(topic.days_key),
        description=f"Brings event days of `{topic.name}` up to date, then proves that each has all its rows.",
        tags=topic.daily.tags,
    )
    return dg.Definitions(
        assets=[build_days_asset(topic, topic.days, lake)],
        asset_checks=build_days_checks(topic, topic.days),
        jobs=[job],
        sensors=[build_days_sensor(topic, topic.days)],
    )
