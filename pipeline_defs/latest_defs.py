"""What Dagster shows and runs of a topic's latest state: asset, check, job, sensor; nothing where defs.yaml names none."""

from __future__ import annotations

import dagster as dg

from .latest_asset import build_latest_asset
from .latest_check import build_latest_check
from .latest_due import build_latest_sensor
from .topics import Topic


def build_latest(topic: Topic, lake: str | None = None) -> dg.Definitions:
    """Builds what keeps the latest record of each key; `lake` is where the files are said to lie."""
    if topic.latest is None:
        return dg.Definitions()
    job = dg.define_asset_job(
        topic.latest_job,
        selection=dg.AssetSelection.assets(topic.latest_key),
        description=f"Updates the latest record of each key of `{topic.name}`, then compares one bucket with a recomputation.",
        tags=topic.upserting.tags,
    )
    return dg.Definitions(
        assets=[build_latest_asset(topic, topic.latest, lake)],
        asset_checks=[build_latest_check(topic, topic.latest)],
        jobs=[job],
        sensors=[build_latest_sensor(topic, topic.latest)],
    )
