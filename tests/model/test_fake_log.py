"""The fakes that the model stands on do what Kafka and Spark do, where a slip of theirs once hid what the code does."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.core.log.plan_step import LogState
from pipeline_defs.core.log.planning import Policy, plan
from tests.support.fake_log import COMMITTED, TOPIC, UNCOMMITTED, FakeKafka, kafka_with
from tests.support.interleaving import SmallWorld
from tests.support.redecoding import stop_at
from tests.support.strategies import EPOCH_MS

CUT_NOW = Policy(records_per_range=5, max_age_seconds=0, isolation_level=UNCOMMITTED)  # type: ignore[arg-type]


def plan_once(kafka: FakeKafka, log_state: LogState, policy: Policy) -> LogState:
    step = plan(log_state, kafka.read_topic_state(TOPIC, log_state, policy, EPOCH_MS), policy, EPOCH_MS, through_end=True)
    return log_state if step is None else step.after(log_state)


@pytest.mark.parametrize("lag", [0, 2], ids=["the leader", "the leader before"])
def test_an_open_transaction_makes_no_log_of_the_fake_shorter(lag: int) -> None:
    kafka = kafka_with(5)
    kafka.begin_transaction(0)
    kafka.now.partitions[0].append([SpanKind.DATA] * 5, "v", EPOCH_MS)
    kafka.lag(lag)
    log_state = plan_once(kafka, LogState(), CUT_NOW)
    assert log_state.heads[0].offset == 10 - lag
    kafka.lag(lag)
    assert plan_once(kafka, log_state, replace(CUT_NOW, isolation_level=COMMITTED)).generation == 0  # type: ignore[arg-type]


def test_a_leader_of_the_fake_keeps_what_it_has_shown() -> None:
    kafka = kafka_with(10)
    kafka.lag(1)
    log_state = plan_once(kafka, LogState(), CUT_NOW)
    assert (log_state.heads[0].offset, log_state.heads[0].leader_epoch) == (9, 0)
    kafka.lag(4)
    assert plan_once(kafka, log_state, CUT_NOW) == log_state


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("world", ["disk"], indirect=True)
def test_a_task_of_the_fake_writes_though_its_folder_was_swept(world: SmallWorld) -> None:
    swept = list[Path]()

    def sweep() -> None:
        swept.append(world.folder / "staging")
        shutil.rmtree(swept[0])

    verdicts = world.land(on_step=stop_at("task", sweep))
    assert swept, "the fault"
    assert [verdict.outcome.is_landed for verdict in verdicts] == [True, True]
