"""What `up` says of runs that failed: each with its first reason, and no topic more than once a minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import dagster as dg

from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.errors import LakeUnavailable, RangesFailed
from pipeline_defs.operate.failed_runs import FailedSince
from pipeline_defs.topics import LAND_PENDING

REASON = "range orders/0 [0, 10): Spark could not land 1 ranges of orders: No space left on device"


def fail(instance: dg.DagsterInstance, job: str, *, error: Exception | None = None) -> str:
    """Have a run of a job fail, by default with the reason of a range; return its short id."""

    @dg.op
    def work() -> None:
        raise error or RangesFailed("1 of 1 ranges of topic orders are not landed; 0 are", [REASON])

    @dg.job(name=job)
    def made() -> None:
        work()

    return made.execute_in_process(instance=instance, raise_on_error=False).run_id[:8]


def test_a_failed_run_is_told_in_the_words_of_its_error_and_not_of_its_note() -> None:
    """The note leads to the runbook, and says nothing of what failed; nor does the name of a class."""
    orders = KafkaTopic(topic="orders").as_topic()
    with dg.DagsterInstance.ephemeral() as instance:
        failed = FailedSince([orders], instance, datetime.now(UTC))
        run = fail(instance, orders.land_job, error=LakeUnavailable("the lake /nowhere cannot be read"))
        assert failed.read(datetime.now(UTC)) == [f"run {run} of orders failed: the lake /nowhere cannot be read"]


def test_a_failed_run_is_told_once_with_its_first_reason() -> None:
    """The controls: a run that failed before, one that did not fail, and one of another project."""
    orders, payments = (KafkaTopic(topic=name).as_topic() for name in ("orders", "payments"))
    with dg.DagsterInstance.ephemeral() as instance:
        fail(instance, orders.land_job)
        failed = FailedSince([orders, payments], instance, datetime.now(UTC))
        assert failed.read(datetime.now(UTC)) == []
        fail(instance, "somebody_elses")
        run = fail(instance, orders.land_job)
        now = datetime.now(UTC)
        assert failed.read(now) == [f"run {run} of orders failed: {REASON}"]
        assert failed.read(now) == []
        more = fail(instance, orders.land_job, error=ValueError("one"))
        fail(instance, orders.decode_job, error=ValueError("two"))
        other = fail(instance, payments.land_job, error=ValueError("three"))
        assert failed.read(now) == [f"run {other} of payments failed: ValueError: three"], "no topic holds another one back"
        assert failed.read(now + timedelta(seconds=59)) == []
        assert failed.read(now + timedelta(seconds=60)) == [f"run {more} of orders failed (and 1 more failed): ValueError: one"]
        assert failed.read(now + timedelta(minutes=9)) == []


def test_a_run_of_all_topics_is_told_by_topic() -> None:
    """What is of no topic here is told too; the control is a topic of another project in the same Dagster."""
    orders, payments = (KafkaTopic(topic=name).as_topic() for name in ("orders", "payments"))
    with dg.DagsterInstance.ephemeral() as instance:
        failed = FailedSince([orders, payments], instance, datetime.now(UTC))
        reasons = [REASON, "topic payments: its cluster is gone", REASON.replace("[0, 10)", "[10, 20)")]
        run = fail(instance, LAND_PENDING, error=RangesFailed("0 ranges landed, and there were 3 failures", reasons))
        now = datetime.now(UTC)
        told = [
            f"run {run} of orders failed (and 1 more failed): {REASON}",
            f"run {run} of payments failed: its cluster is gone",
        ]
        assert failed.read(now) == told
        whole = fail(instance, LAND_PENDING, error=LakeUnavailable("the lake /nowhere cannot be read"))
        assert failed.read(now) == [f"run {whole} of {LAND_PENDING} failed: the lake /nowhere cannot be read"]
