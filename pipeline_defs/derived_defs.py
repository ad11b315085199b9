"""What Dagster shows and runs of what is derived from a topic's landed ranges: decoded ranges, event days, latest records.

Of each an asset, its checks and a job, but for days, which are told of; nothing of what defs.yaml does not name.
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from .catalog import days_spec
from .decoded_asset import build_decoded_asset
from .decoded_checks import build_decoded_checks
from .latest_asset import build_latest_asset
from .latest_check import build_latest_check
from .op_names import with_own_op_name
from .topics import Duty, Topic


def build_decoding(topic: Topic, lake: str | None = None) -> dg.Definitions:
    """Builds what decodes a topic's landed ranges; `lake` is where the files are said to lie."""
    if topic.decode is None:
        return dg.Definitions()
    return _define(
        topic.decoding,
        f"Decodes landed ranges of `{topic.name}`, then proves that every record is decoded or set aside.",
        build_decoded_asset(topic, topic.decode, lake),
        build_decoded_checks(topic),
    )


def build_days(topic: Topic, lake: str | None = None) -> dg.Definitions:
    """Build the asset of a topic's event days, which nothing materialises: runs that decode tell of them."""
    if topic.days is None:
        return dg.Definitions()
    return dg.Definitions(assets=[days_spec(topic, topic.days, lake)])


def build_latest(topic: Topic, lake: str | None = None) -> dg.Definitions:
    """Builds what keeps the latest record of each key; `lake` is where the table is said to lie."""
    if topic.latest is None:
        return dg.Definitions()
    return _define(
        topic.upserting,
        f"Updates the latest record of each key of `{topic.name}`, then compares a share of the keys with a recomputation.",
        build_latest_asset(topic, topic.latest, lake),
        [build_latest_check(topic, topic.latest)],
    )


def _define(
    duty: Duty,
    description: str,
    asset: dg.AssetsDefinition,
    checks: Sequence[dg.AssetChecksDefinition],
) -> dg.Definitions:
    """Build an asset with its checks, and the job by which its duty is done."""
    selection = dg.AssetSelection.assets(duty.asset_key)
    job = dg.define_asset_job(duty.job, selection=selection, description=description, tags=duty.tags)
    return dg.Definitions(
        assets=[with_own_op_name(asset)],
        asset_checks=[with_own_op_name(check) for check in checks],
        jobs=[job],
    )
