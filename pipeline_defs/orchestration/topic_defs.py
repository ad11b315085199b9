"""What Dagster shows and runs of one topic: its landed ranges, decoded ranges, event days and latest records.

Of each an asset, its checks and a job, but for days, which are told of; nothing of what defs.yaml does not name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import dagster as dg

from ..topics import NOTHING_LOST, TIME_TO_LOSS, Duty, Topic, op_name
from .assets.catalog import days_spec, ledger_spec, source_spec
from .assets.checks import QUICK, build_checks
from .assets.decoded_asset import build_decoded_asset, build_decoded_checks
from .assets.latest_asset import build_latest_asset, build_latest_check
from .assets.raw_asset import build_raw_asset
from .backfill.backfill_job import build_backfill
from .home.run_locks import hold_own_lock

Defined = TypeVar("Defined", bound=dg.AssetsDefinition)


def build_topic_defs(topic: Topic, lake: str | None = None) -> dg.Definitions:
    """Build everything that Dagster shows and runs of one topic; `lake` is where its files are said to lie."""
    hold_own_lock()
    raw = dg.AssetSelection.assets(topic.asset_key)
    quick = dg.AssetSelection.checks(*(topic.check_key(name) for name in (*QUICK, NOTHING_LOST, TIME_TO_LOSS)))
    own = dg.Definitions(
        assets=[source_spec(topic), with_own_op_name(build_raw_asset(topic, lake)), ledger_spec(topic)],
        asset_checks=[with_own_op_name(check) for check in build_checks(topic)],
        jobs=[
            dg.define_asset_job(
                topic.land_job,
                selection=raw.without_checks() | quick,
                description=f"Lands planned ranges of `{topic.name}`, then proves tiling and completeness.",
            )
        ],
    )
    derived = [build(topic, lake) for build in (build_decoding, build_days, build_latest)]
    return dg.Definitions.merge(own, build_backfill(topic), *derived)


def build_decoding(topic: Topic, lake: str | None = None) -> dg.Definitions:
    """Build what decodes a topic's landed ranges; `lake` is where the files are said to lie."""
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
    """Build what keeps the latest record of each key; `lake` is where the table is said to lie."""
    if topic.latest is None:
        return dg.Definitions()
    return _define(
        topic.upserting,
        f"Updates the latest record of each key of `{topic.name}`, then compares a share of the keys with a recomputation.",
        build_latest_asset(topic, topic.latest, lake),
        [build_latest_check(topic, topic.latest)],
    )


def _define(
    duty: Duty, description: str, asset: dg.AssetsDefinition, checks: Sequence[dg.AssetChecksDefinition]
) -> dg.Definitions:
    """Build an asset with its checks, and the job by which its duty is done."""
    selection = dg.AssetSelection.assets(duty.asset_key)
    job = dg.define_asset_job(duty.job, selection=selection, description=description, tags=duty.tags)
    return dg.Definitions(
        assets=[with_own_op_name(asset)], asset_checks=[with_own_op_name(check) for check in checks], jobs=[job]
    )


def with_own_op_name(definition: Defined) -> Defined:
    """Return the asset, or the check, with an op whose name no other topic has.

    Dagster derives it from the asset's key with `-` and `.` made into `_`, so the ops of topics `a-b` and `a_b` would share
    one name, and the code location would not load.
    """
    if definition.keys:
        name = op_name(definition.key)
    else:
        (check,) = definition.check_keys
        name = f"{op_name(check.asset_key)}_{check.name}"
    renamed = definition.op.with_replaced_properties(name=name)
    attributes = {**definition.get_attributes_dict(), "node_def": renamed}
    return cast("Defined", definition.__class__.dagster_internal_init(**attributes))
