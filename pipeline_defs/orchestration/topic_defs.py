"""What Dagster shows and runs of one topic: its landed ranges, decoded ranges, event days and latest records.

Each has an asset, its checks and a job, but for days, which runs only tell of; what defs.yaml does not name is left out.
"""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from ..topics import NOTHING_LOST, TIME_TO_LOSS, Duty, Topic
from .assets.catalog import days_spec, ledger_spec, source_spec
from .assets.checks import QUICK, build_checks
from .assets.decoded_asset import build_decoded_asset, build_decoded_checks
from .assets.latest_asset import build_latest_asset, build_latest_check
from .assets.raw_asset import build_raw_asset
from .backfilling import build_backfill
from .home.run_locks import hold_own_lock


def build_topic_defs(topic: Topic, lake: str) -> dg.Definitions:
    """Build everything that Dagster shows and runs of one topic; `lake` is where its files are said to lie."""
    hold_own_lock()
    name, raw = topic.name, dg.AssetSelection.assets(topic.asset_key)
    quick = dg.AssetSelection.checks(*(topic.check_key(check) for check in (*QUICK, NOTHING_LOST, TIME_TO_LOSS)))
    description = f"Lands planned ranges of `{name}`, then proves tiling and completeness."
    specs = [source_spec(topic), ledger_spec(topic)]
    assets, checks = [build_raw_asset(topic, lake)], build_checks(topic)
    jobs = [dg.define_asset_job(topic.landing.job, selection=raw.without_checks() | quick, description=description)]

    if topic.decode is not None:
        assets.append(build_decoded_asset(topic, topic.decode, lake))
        checks += build_decoded_checks(topic)
        jobs.append(
            _job(topic.decoding, f"Decodes landed ranges of `{name}`, then proves that every record is decoded or set aside.")
        )
    if topic.days is not None:  # nothing materialises these: runs that decode tell of them
        specs.append(days_spec(topic, topic.days, lake))
    if topic.latest is not None:
        assets.append(build_latest_asset(topic, topic.latest, lake))
        checks.append(build_latest_check(topic, topic.latest))
        compared = "then compares a share of the keys with a recomputation"
        jobs.append(_job(topic.upserting, f"Updates the latest record of each key of `{name}`, {compared}."))

    own = dg.Definitions(assets=[*specs, *assets], asset_checks=checks, jobs=jobs)
    return dg.Definitions.merge(own, build_backfill(topic))


def _job(duty: Duty, description: str) -> UnresolvedAssetJobDefinition:
    selection = dg.AssetSelection.assets(duty.asset_key)
    return dg.define_asset_job(duty.job, selection=selection, description=description, tags=duty.tags)
