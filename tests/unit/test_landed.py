"""What `up` says of what landed: read from Dagster's events, once each."""

from __future__ import annotations

import dagster as dg

from pipeline_defs.component import KafkaTopic
from pipeline_defs.operate.landed import LandedCount, LandedSince, landed_text


def test_each_landed_range_is_told_once() -> None:
    orders, payments = (KafkaTopic(topic=name).as_topic() for name in ("orders", "payments"))

    def land(key: dg.AssetKey, start: int, rows: int, outcome: str = "landed") -> None:
        metadata = {"rows": rows, "outcome": outcome}
        instance.report_runless_asset_event(
            dg.AssetMaterialization(key, partition=f"0-{start}-{start + rows}", metadata=metadata)
        )

    with dg.DagsterInstance.ephemeral() as instance:
        land(orders.asset_key, 0, 1000)  # before: nobody is told
        since = LandedSince([orders, payments], instance)
        assert since.read() == {}
        land(orders.asset_key, 1000, 400)
        land(orders.asset_key, 1400, 3)
        land(orders.asset_key, 1000, 400, "superseded")  # by another run, at the same time
        land(dg.AssetKey("another"), 0, 7)
        assert since.read() == {"orders": LandedCount(2, 403)}
        assert since.read() == {}, "quiet when nothing lands"
        land(payments.asset_key, 0, 5)
        assert since.read() == {"payments": LandedCount(1, 5)}


def test_the_line_says_ranges_and_rows_in_all_and_rows_per_topic() -> None:
    assert landed_text({"b": LandedCount(1, 5), "a": LandedCount(2, 4000)}) == "landed 3 ranges, 4,005 rows: a 4,000, b 5"
    assert landed_text({"b": LandedCount(1, 5)}) == "landed 1 range, 5 rows: b 5"
