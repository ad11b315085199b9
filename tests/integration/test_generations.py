"""A log that is not what it was, recreated or truncated, and one whose end is not decided: open transactions."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import AbortTransactionSpec

from pipeline_defs.adapters.kafka.kafka_transactions import OpenTransaction
from pipeline_defs.adapters.lake.layout import manifest_path, published_path
from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.testbed.broker import start_broker, stop_broker
from pipeline_defs.cli.home.doctor import _ask_topics
from pipeline_defs.core.errors import OtherCluster, Refused, TopicRecreated
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.losses import CLOSED, GONE
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.operate.reports import check_broker
from pipeline_defs.operate.status import read_statuses
from pipeline_defs.orchestration.pulse.rebuilding import rebuild_topic
from pipeline_defs.orchestration.runs.ledger import accept_loss, read_ledger
from pipeline_defs.orchestration.runs.moments import time_text
from pipeline_defs.orchestration.runs.progress import holding_row, read_holding
from pipeline_defs.settings import Settings
from pipeline_defs.topics import PROGRESS
from tests.support.commands import commands_of
from tests.support.pulse import said
from tests.support.world import World

Identity = tuple[int, int, int, bytes | None]
"""generation, partition, offset, value."""


def identities(world: World) -> list[Identity]:
    return duckdb.sql(
        f'SELECT generation, "partition", "offset", "value" FROM read_parquet(\'{world.glob}\') ORDER BY ALL'
    ).fetchall()


def take_sent(world: World, generation: int) -> list[Identity]:
    """Return the ground truth of a generation and begin the next."""
    rows = sorted((generation, partition, offset, row[3]) for (partition, offset), row in world.sent.items())
    world.sent.clear()
    return rows


@pytest.fixture(scope="module")
def broker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own") / "broker"


@pytest.fixture(scope="module")
def own_broker(settings: Settings, broker_folder: Path) -> Iterator[Callable[[], str]]:
    """Start a cluster of its own, or the same again; return where it is, and stop it at the end.

    As those before 3.6 it asks no coordinator what is in a transaction (KIP-890).
    """
    jars, old = resolve_jars("broker", settings.jars), {"transaction.partition.verification.enable": "false"}
    options = ["-Xmx384m"]
    yield lambda: start_broker(broker_folder, jars=jars, properties=old, java_options=options).bootstrap_servers
    stop_broker(broker_folder)


@pytest.mark.parametrize("count", [60, 300], ids=["fewer", "more"])
def test_a_recreated_topic_lands_as_a_new_generation_beside_the_old_one(world: World, count: int) -> None:
    """[R-9] No old row is overwritten, no new one skipped; what waits of the old one is red until the new one is planned."""
    world.fill(150)
    world.plan()
    world.land(["0-0-100"])
    old = [row for row in take_sent(world, 0) if row[2] < 100]
    assert identities(world) == old, "the control: before it is recreated"
    world.recreate_topic()
    world.send({"partition": 0, "value": b"new %d" % n} for n in range(count))
    ((document, _),) = read_statuses([world.topic], world.adapters, world.instance)
    assert (document["kind"], document["lag"], document["landed_ranges"]) == ("topic_recreated", None, 1)
    with pytest.raises(TopicRecreated, match=f"offsetlake plan {world.name} --apply"):
        rebuild_topic(world.topic, world.adapters, world.instance)
    (waiting,) = world.land(["0-100-150"])
    assert waiting.outcome is Outcome.FAILED
    assert "deleted and created again: Kafka no longer has its records" in waiting.violations[0]
    assert identities(world) == old
    world.plan_and_land()
    assert identities(world) == old + take_sent(world, 1) and not world.pending
    (loss,) = read_ledger(world.topic, world.adapters)
    assert (loss.key, loss.offsets.start, loss.offsets.end, loss.cause) == ("0-100-150", 100, 150, CLOSED)
    world.assert_proven()
    assert [v.outcome for v in world.land(["0-0-100"], redo=True)] == [Outcome.EXPIRED]


def test_what_a_person_took_away_of_a_closed_generation_is_not_called_lost(world: World, tmp_path: Path) -> None:
    """[R-42] [R-83] The raw table gives the file back; where only the manifest is gone, the file has the rows."""
    world.keep_raw_table()
    world.fill(100)
    world.plan_and_land()
    old = take_sent(world, 0)
    world.recreate_topic()
    world.send_numbered(60)
    world.plan_and_land()
    new, lake = take_sent(world, 1), world.adapters.lake
    manifest = world.coverage.manifests[OffsetRange(0, 0, 0, 100)]
    paths = published_path(manifest), manifest_path(world.name, manifest.offsets, manifest.serial)
    file, document = (Path(lake.store.url(path)) for path in paths)
    file.unlink()
    (loss,) = read_ledger(world.topic, world.adapters)
    assert (loss.key, loss.cause) == ("0-0-100", GONE)
    with pytest.raises(Refused, match=r"is not lost: the raw table has its rows; .* --key 0-0-100` gives its file back"):
        accept_loss(world.topic, loss.key, world.adapters, "ada")
    assert world.land([loss.key])[0].outcome is Outcome.ROLLED_FORWARD
    assert identities(world) == old + new and read_ledger(world.topic, world.adapters) == []
    document.rename(tmp_path / "manifest")
    with pytest.raises(Refused, match=r"its file is published, and its manifest is gone; .* out of `data/`"):
        accept_loss(world.topic, loss.key, world.adapters, "ada")
    file.unlink()
    (tmp_path / "manifest").rename(document)
    shutil.rmtree(lake.store.url(f"tables/raw/{world.name}"))
    assert accept_loss(world.topic, loss.key, world.adapters, "ada").lost == (0, 100), "the control"


def test_a_topic_recreated_in_a_look_is_one_generation_more_and_no_loss(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-9] Id and watermarks are of one incarnation: else the old id with the new end is a truncation that never was."""
    world.fill(150)
    world.plan_and_land()
    old = take_sent(world, 0)
    list_offsets, recreated = KafkaAdminClient.list_partition_offsets, []

    def recreate_first(admin: KafkaAdminClient, *arguments: Any, **options: Any) -> Any:
        if not recreated:
            recreated.append(world.adapters.kafka(world.topic).read_ids(world.name).topic_id)
            world.recreate_topic()
            world.send_numbered(40)
        return list_offsets(admin, *arguments, **options)

    monkeypatch.setattr(KafkaAdminClient, "list_partition_offsets", recreate_first)
    world.plan_and_land()
    assert recreated, "the fault: it was recreated between its id and its watermarks"
    ids = {step.generation: step.topic_id for step in world.coverage.log.steps}
    assert ids == {0: recreated[0], 1: world.adapters.kafka(world.topic).read_ids(world.name).topic_id}
    assert len(set(ids.values())) == 2
    assert identities(world) == old + take_sent(world, 1)
    assert read_ledger(world.topic, world.adapters) == []
    world.assert_proven()


def test_a_truncated_log_lands_as_a_new_generation(
    settings: Settings, own_broker: Callable[[], str], broker_folder: Path, tmp_path: Path
) -> None:
    """[R-9] As after an unclean leader election; also where the log has grown beyond what was planned before anybody looks."""
    own = dataclasses.replace(settings, bootstrap_servers=own_broker())
    with World(own, tmp_path / "a", "shorter") as shorter, World(own, tmp_path / "b", "longer-again") as longer:
        landed: dict[str, tuple[str | None, list[Identity]]] = {}
        for world in (shorter, longer):
            world.create_topic(1, segment_bytes=str(1 << 20))
            world.send({"partition": 0, "value": bytes(10_000)} for _ in range(300))
            world.plan_and_land()
            landed[world.name] = world.adapters.kafka().read_ids(world.name).topic_id, take_sent(world, 0)
            world.adapters.kafka().close()
        stop_broker(broker_folder)
        for name in landed:
            last = max((broker_folder / "data" / f"{name}-0").glob("*.log"))
            for file in last.parent.glob(f"{last.stem}.*"):
                file.unlink()
        own_broker()
        for world, since in ((shorter, 20), (longer, 400)):
            topic_id, old = landed[world.name]
            marks = world.watermarks(0)
            assert 0 < marks.end < 300, "the fault: the log is shorter"
            assert world.adapters.kafka().read_ids(world.name).topic_id == topic_id, "the fault: it is the same topic"
            world.send({"partition": 0, "value": b"after %d" % n} for n in range(since))
            assert (world.watermarks(0).end > 300) == (since > 300), world.name
            (lost,) = check_broker(world.topic, world.adapters).violations
            assert f"{world.name}/0 is planned to 300, and Kafka has lost records before that" in lost
            world.plan_and_land()
            kept = [(1, 0, offset, bytes(10_000)) for offset in range(marks.end)]
            assert identities(world) == old + kept + take_sent(world, 1), world.name
            assert read_ledger(world.topic, world.adapters) == []
            world.assert_proven()


def test_another_cluster_is_refused_until_named(settings: Settings, own_broker: Callable[[], str], tmp_path: Path) -> None:
    """[R-9] `bootstrap_servers` names the wrong cluster for a while: nothing of its topic lands, and it ends when corrected."""
    moved = dataclasses.replace(settings, bootstrap_servers=own_broker())
    with World(settings, tmp_path / "a", "moving") as world, World(moved, tmp_path / "a", "moving") as there:
        for each, records in ((world, 150), (there, 40)):
            each.fill(records)
        world.plan()
        world.land(["0-0-100"])
        files: Any = SimpleNamespace(topics={world.name: world.topic}, broken=())
        assert _ask_topics(files, world.adapters) == world.name, "the control"
        with pytest.raises(OtherCluster):  # `doctor` says so
            _ask_topics(files, there.adapters)
        with there.adapters.kafka().glancing([there.name]), pytest.raises(OtherCluster, match="`bootstrap_servers`") as glanced:
            there.plan()
        with pytest.raises(OtherCluster, match="`cluster_id: ") as refused:
            there.plan()
        assert str(glanced.value) == str(refused.value), "the same ids at a glance"
        with pytest.raises(OtherCluster):
            there.land(["0-100-150"])
        world.plan_and_land()
        old = take_sent(world, 0)
        assert identities(world) == old and len(world.coverage.log.steps) == 1
        ((cluster_id,),) = [re.findall("`cluster_id: ([^`]+)`", str(refused.value))]
        there.with_policy(cluster_id=cluster_id)
        there.plan_and_land()
        landed = old + take_sent(there, 1)
        assert identities(world) == landed
        there.assert_proven()
        world.with_policy(cluster_id=world.adapters.kafka().observe(world.name, "read_committed").cluster_id)
        for _ in range(2):  # as two projects would in turns
            there.tick()
            with pytest.raises(OtherCluster, match="was moved from the Kafka cluster"):
                world.tick()
        assert world.coverage.log.generation == 1
        world.plan_and_land()
        assert identities(world) == landed + [(2, *row[1:]) for row in old], "it has moved back: what is left lands again"


def begin(world: World, **config: Any) -> KafkaProducer:
    """Begin a transaction and send three records in it, which are no ground truth: it is not known how it ends."""
    producer = world.begin_transaction(**config)
    for n in range(3):
        producer.send(world.name, partition=0, value=b"t%d" % n)
    producer.flush()
    return producer


def told(world: World) -> tuple[bool, str] | None:
    """Return what Dagster was last told of the check `progress`: passed, concerns; none where it was told nothing."""
    found = world.checked(world.topic.check_key(PROGRESS))
    return found and (found.passed, getattr(found.metadata.get("concerns"), "value", ""))


def holding(world: World) -> list[OpenTransaction]:
    return read_holding(world.topic, world.adapters)


def wait_for_end(world: World) -> None:
    """Wait until the broker has written the markers, which it does after it has told the producer."""
    world.wait_until(lambda: holding(world) == [])


def test_a_growth_is_where_the_logs_end_whatever_a_transaction_holds_back(world: World) -> None:
    """[R-86] A key that moved to a new partition has its older record behind the open transaction of somebody else."""
    world.fill(1)
    world.plan()
    producer = world.begin_transaction("open")
    world.send([{"partition": 0, "value": b"other"}], producer)
    world.send([{"partition": 0, "key": b"k", "value": b"old"}])
    world.add_partitions(2)
    world.send([{"partition": 1, "key": b"k", "value": b"new"}])
    assert (world.watermarks(0).end, world.watermarks(1).end) == (1, 1), "the fault: readers see no more of it"
    world.plan()
    assert world.coverage.log.state.growths == ({0: 3, 1: 1},)
    producer.commit_transaction()
    producer.close()
    wait_for_end(world)
    world.plan_and_land()
    log = world.coverage.log
    assert {offsets.key: log.epoch_of(offsets) for offsets in log.ranges} == {"0-0-1": 0, "0-1-3": 0, "1-0-1": 0, "0-3-4": 1}
    world.assert_all_landed_once()


def test_an_open_transaction_holds_back_planning_and_is_named(world: World) -> None:
    """[R-3] [R-55] Nothing is planned past the last stable offset; after the commit the rest lands."""
    world.fill(5, 0)
    world.with_policy(max_age_seconds=60.0)
    producer = world.begin_transaction("open")
    begun_ms = world.adapters.now_ms()
    world.send(({"partition": 0, "value": b"t%d" % n} for n in range(3)), producer)
    world.send_numbered(4)  # complete, and held back all the same
    world.plan()
    assert [offsets.key for offsets in world.coverage.log.ranges] == ["0-0-5"]
    assert world.tick().held_back == (), "every transaction is open for a while"
    world.later(60_000)
    (found,) = holding(world)
    assert (found.partition, found.first_offset, found.held_offsets) == (0, 5, 7)
    assert (found.transactional_id, found.hanging) == (f"{world.name}-open", None)
    assert found.started_at_ms is not None and abs(found.started_at_ms - begun_ms) < 10_000
    row = holding_row(world.topic, found, world.adapters.now_ms())
    assert 55 < row["open_seconds"] < 75
    assert row["text"] == (
        f"{world.name}/0 is held back at offset 5 by an open transaction of producer {found.producer_id} "
        f"({world.name}-open), open for {row['open_seconds']:.0f} s since {time_text(found.started_at_ms)}: 7 offsets "
        "wait; what follows is planned when it ends"
    )
    held, free = world.status()["partitions"]
    assert (held["open_transactions"], free["open_transactions"]) == ([row], [])
    assert (held["end_offset"], held["planned_offset"]) == (5, 5)
    producer.commit_transaction()
    producer.close()
    wait_for_end(world)  # the control: it has ended
    world.plan_and_land()
    world.assert_all_landed_once()
    world.later(3_600_000)
    assert world.tick().held_back == () and told(world) is None, "one that ends in time makes no noise"
    assert [row["open_transactions"] for row in world.status()["partitions"]] == [[], []]


def test_the_sensor_names_a_transaction_that_is_open_for_longer_than_max_age(world: World) -> None:
    """[R-3] [R-55] `progress` fails after 15 minutes; one that its coordinator should have ended by its time-out hangs."""
    world.create_topic()
    world.with_policy(max_age_seconds=60.0)
    producer = begin(world, transaction_timeout_ms=900_000)
    assert "held back" not in said(world), "the control: every transaction is open for a while"
    world.later(70_000)
    sentence = said(world)
    assert f"held back: {world.name}/0 is held back at offset 0 by an open transaction of producer" in sentence
    assert f"({world.name}-tx), open for" in sentence and "3 offsets wait" in sentence
    assert told(world) is None
    world.later(900_000)
    assert "stalled: " in said(world)
    assert told(world) == (False, "0-0-")
    assert holding(world)[0].hanging is None
    world.later(300_000)
    (overdue,) = holding(world)
    assert overdue.hanging is not None and "its coordinator should have ended it 37" in overdue.hanging
    producer.abort_transaction()
    producer.close()
    wait_for_end(world)
    tick = world.tick()
    assert (tick.held_back, tick.stalled, tick.planned) == ((), (), 1)
    assert told(world) == (True, "")
    world.send_numbered(4)
    world.plan_and_land()
    world.assert_all_landed_once()
    assert len(world.rows()) == 4, "what follows an abort is landed, and of the aborted nothing"


@pytest.fixture
def careless(settings: Settings, own_broker: Callable[[], str], tmp_path: Path) -> Iterator[World]:
    """A world on a broker that asks no coordinator what is in a transaction."""
    with World(dataclasses.replace(settings, bootstrap_servers=own_broker()), tmp_path, "careless") as fresh:
        yield fresh


def begin_hanging(world: World) -> None:
    """Have a producer write into a transaction of which it never told the coordinator, and go away."""
    producer = world.begin_transaction("lost")
    producer._transaction_manager._partitions_in_transaction.add(TopicPartition(world.name, 0))
    sent = producer.send(world.name, partition=0, value=b"never committed")
    producer.flush()
    assert sent.get(30).offset == 5
    producer.close()


def test_a_hanging_transaction_is_named_as_one(careless: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-55] The log has it open, its coordinator does not: nobody ends it, and what to do is said.

    A real one: its producer is gone, kafka-python's own search does not see it, and only an abort by hand ends it. The
    control is an open transaction beside it, which does not hang.
    """
    world = careless
    world.fill(5, 0)
    begin_hanging(world)
    world.send_numbered(3)
    begun = world.begin_transaction("well")
    begun.send(world.name, partition=1, value=b"w").get(30)
    with KafkaAdminClient(bootstrap_servers=world.settings.bootstrap_servers) as admin:
        found = admin.find_hanging_transactions(max_transaction_timeout_ms=-300_000)  # everything open, by its measure
        assert {each["transactional_id"] for each in found} == {f"{world.name}-well"}, "the fault: lost to its coordinator"
    lost, well = holding(world)
    assert (lost.partition, lost.first_offset, lost.held_offsets, lost.transactional_id) == (0, 5, 4, f"{world.name}-lost")
    assert lost.hanging == "its coordinator has it as Empty without this Kafka partition"
    assert lost.started_at_ms is not None and 0 <= world.adapters.now_ms() - lost.started_at_ms < 60_000
    assert (well.transactional_id, well.hanging) == (f"{world.name}-well", None)
    text = holding_row(world.topic, lost, world.adapters.now_ms())["text"]
    assert "4 offsets wait; it hangs: its coordinator has it as Empty" in text
    assert f"kafka-transactions.sh abort --topic {world.name} --partition 0 --start-offset 5" in text
    world.plan_and_land()
    assert len(world.rows()) == 5
    assert text[:60] in said(world)
    assert told(world) == (False, "0-5-")

    (document,) = json.loads(commands_of("look.glance", world, monkeypatch)("status", world.name, "--json").stdout)
    (row, _) = document["partitions"]
    assert row["open_transactions"][0]["hanging"] == lost.hanging

    begun.commit_transaction()
    begun.close()
    with KafkaAdminClient(bootstrap_servers=world.settings.bootstrap_servers) as admin:
        admin.abort_transaction(AbortTransactionSpec(TopicPartition(world.name, 0), lost.producer_id, 0))
    wait_for_end(world)
    world.plan_and_land()
    rows = [row[:2] for row in world.rows()]
    assert rows == [(0, n) for n in (*range(5), 6, 7, 8)] + [(1, 0)], "after the abort the rest lands"
    world.tick()
    assert told(world) == (True, "")


def test_a_topic_that_is_read_committed_from_now_on_is_not_landed_again(world: World) -> None:
    """[R-9] An open transaction hides records that were planned. [R-55] It is named once it holds something back."""
    world.fill(5)
    world.with_policy(isolation_level="read_uncommitted")
    producer = begin(world)
    world.plan_and_land()
    assert holding(world) == []
    uncommitted = world.rows()
    assert len(uncommitted) == 8, "the control: what is in the transaction is planned and landed too"
    world.with_policy(isolation_level="read_committed")
    assert world.watermarks(0).end == 5, "the fault: a reader sees less than was planned"
    assert len(holding(world)) == 1, "the control"
    assert world.plan() == []
    producer.commit_transaction()
    producer.close()
    wait_for_end(world)
    world.send_numbered(2)
    world.plan_and_land()
    assert world.coverage.log.generation == 0
    assert [row[:2] for row in world.rows()] == [(0, offset) for offset in (*range(8), 9, 10)]
