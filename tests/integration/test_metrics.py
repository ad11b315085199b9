"""What other programs hear of landing, held against what was produced: Prometheus, OpenLineage, Kafka's own tool."""

import dataclasses
import math
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable
from kafka import KafkaConsumer
from prometheus_client.parser import text_string_to_metric_families

from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.system.java import find_java
from pipeline_defs.adapters.telemetry import openlineage
from pipeline_defs.adapters.telemetry.prometheus import metrics_text
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.tables.days import GONE, Days, EventTime
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.operate.metrics import HELP, read_metrics
from pipeline_defs.operate.tables import latency_text, read_tables, table_text
from pipeline_defs.orchestration.assets.decoded_asset import day_event, report_days
from pipeline_defs.resources import Adapters
from pipeline_defs.topics import Topic
from tests.support.killing import QUICK_JVM
from tests.support.redecoding import Heard
from tests.support.registry import recording
from tests.support.world import PATIENCE_SECONDS, World

HOUR_MS = 3_600_000


class Scrape:
    """What a real parser reads of the text, by name and label values without the topic's."""

    def __init__(self, world: World, adapters: Adapters | None = None, others: Sequence[Topic] = ()) -> None:
        text = metrics_text(read_metrics([*others, world.topic], adapters or world.adapters, world.instance))
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(value for name, value in sample.labels.items() if name != "topic")): sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.labels.get("topic", world.name) == world.name
        }

    def __call__(self, name: str, *labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels)))


def test_the_numbers_are_those_of_topic_and_lake(world: World) -> None:
    """A damaged topic beside it takes nothing away; of a broker that is down what the lake knows is left."""
    world.create_topic(2, retention_ms=str(10 * HOUR_MS))
    world.send([{"partition": 0, "value": b"x", "timestamp_ms": world.adapters.now_ms() - HOUR_MS}] * 150)
    with world.begin_transaction() as producer:
        world.send([{"partition": 1, "value": b"y"}] * 50, producer)
        producer.commit_transaction()
    world.wait_until(lambda: world.watermarks(1).end == 51)
    world.plan()
    world.land(["1-0-51", "0-0-100"])
    world.delete_records(0, 120)
    world.wait_for_earliest(0, 120)
    damaged = dataclasses.replace(world.topic, name=f"damaged-{world.name}")
    world.adapters.lake.store.put_new(f"plan/{damaged.name}/{0:020d}.json", b"{}", "staging/scratch")
    scrape, group, status = Scrape(world, others=[damaged]), f"offsetlake.{world.name}", world.status()

    assert scrape.families["offsetlake_topic_error"].samples[0].labels == {"topic": damaged.name, "kind": "broken_plan_log"}
    assert (status["lost_offsets"], status["not_accepted_offsets"]) == (20, 20)
    assert "may be deleted in 0.0 minutes" in status["next_action"], "the rest may be saved: more urgent than what is lost"
    assert scrape("offsetlake_up") == 1
    assert scrape("kafka_topic_partitions") == 2
    assert scrape("kafka_topic_partition_current_offset", "0") == 150
    assert scrape("kafka_topic_partition_oldest_offset", "0") == 120
    assert scrape("kafka_consumergroup_current_offset", group, "0") == 100
    assert [scrape("kafka_consumergroup_lag", group, p) for p in "01"] == [50, 0]
    assert scrape("kafka_consumergroup_lag_sum", group) == 50
    assert scrape("offsetlake_ranges", "0", "pending") == 1 and scrape("offsetlake_ranges", "1", "pending") == 0
    assert [scrape("offsetlake_landed_records_total", p) for p in "01"] == [100, 50]
    assert scrape("offsetlake_hole_offsets_total", "1", "transaction_marker") == 1
    assert scrape("offsetlake_not_accepted_offsets") == 20
    age = scrape("offsetlake_lag_seconds", "0")
    assert age is not None and 3600 <= age < 3720
    assert [scrape("offsetlake_time_to_loss_seconds", p) for p in "01"] == [0, math.inf]
    assert {family.removesuffix("_total") for family in HELP} == set(scrape.families), "every family is announced"

    scrape = Scrape(
        world, Adapters(dataclasses.replace(world.settings, bootstrap_servers="127.0.0.1:1"), kafka_timeout_seconds=1)
    )
    assert scrape("offsetlake_up") == 0 and scrape("offsetlake_topic_error", "broker_unavailable") == 1
    assert scrape("kafka_topic_partitions") is None and scrape("offsetlake_landed_offset", "0") == 100
    assert scrape("offsetlake_landed_records_total", "0") == 100


def test_latency_is_from_a_records_timestamp_until_it_could_be_read(world: World) -> None:
    """[R-94] In the metrics, in `status` and on each range; what was landed again, or before the last hour, does not count."""
    world.create_topic()
    now_ms = world.adapters.now_ms()
    world.send({"partition": 0, "value": b"x", "timestamp_ms": now_ms - 50_000} for _ in range(100))
    world.send({"partition": 0, "value": b"x", "timestamp_ms": now_ms - 700_000} for _ in range(60))
    world.plan()
    world.launch()
    latest_ms = max(manifest.provenance.landed_at_ms for manifest in world.coverage.manifests.values())
    scrape, status = Scrape(world), world.status()
    histogram = "offsetlake_latency_seconds_bucket"
    assert [scrape(histogram, "raw", bound) for bound in ("30.0", "300.0", "900.0", "+Inf")] == [0, 100, 160, 160]
    assert scrape("offsetlake_latency_seconds_count", "raw") == 160
    half, most = (status[f"latency_p{share}_seconds"] for share in (50, 95))
    assert 50 <= half <= 50 + (latest_ms - now_ms) / 1000 and 700 <= most <= 700 + (latest_ms - now_ms) / 1000
    assert scrape("offsetlake_latency_last_hour_seconds", "raw", "0.95") == most
    shown = [each.metadata["latency_p95_seconds"].value for each in world.events(world.topic.asset_key)]
    assert sorted(round(float(str(each)), -2) for each in shown) == [100, 700]
    later = world.adapters.now_ms() + 2 * HOUR_MS
    world.adapters.now_ms = lambda: later
    assert world.status()["latency_p95_seconds"] is None and Scrape(world)(histogram, "raw", "+Inf") == 160


def test_derived_tables_say_what_waits_for_them_and_what_was_set_aside(world: World) -> None:
    """[R-90] [R-94] Each table by itself: what is broken of one leaves the figures of the other."""
    world.derive("n BIGINT", latest=Latest())
    world.create_topic()
    world.send([{"partition": 0, "key": b"k", "value": b'{"n": %d}' % n} for n in range(9)])
    world.send([{"partition": 0, "key": b"k", "value": b"{cut off"}])
    world.plan_and_land()
    assert table_figures(world) == {"decoded": (-1, 1, None), "latest": (-1, 0, None)}
    world.decode()
    scrape = Scrape(world, Adapters(world.settings))
    assert table_figures(world) == {"decoded": (0, 0, None), "latest": (-1, 1, None)}
    assert scrape("offsetlake_dead_letters") == 1
    waited = scrape("offsetlake_table_waiting_seconds", "latest")
    assert waited is not None and 0 <= waited < 600
    assert scrape("offsetlake_table_waiting_seconds", "decoded") == 0
    world.update_latest()
    assert table_figures(world)["latest"] == (1, 0, None)
    shown = [table_text(each, world.adapters.now_ms()) for each in documents(world)]
    assert shown == ["decoded: version 0, 9 rows of 1 range, 1 dead letter", "latest: version 1"]
    decoded, latest = map(latency_text, documents(world))
    assert decoded.startswith("records of the last hour within ") and decoded.endswith("(p95) of their timestamps")
    assert latest == "", "a table that is made anew has brought nothing in late"
    world.send([{"partition": 0, "key": b"k", "value": b'{"n": %d}' % n} for n in range(9)])
    world.plan_and_land()
    world.decode()
    world.update_latest()
    scrape = Scrape(world, Adapters(world.settings))
    waits = [scrape("offsetlake_latency_last_hour_seconds", table, "0.95") for table in ("raw", "decoded", "latest")]
    assert None not in waits and [scrape("offsetlake_latency_seconds_count", each) for each in ("raw", "decoded")] == [19, 18]
    assert waits[2] is not None and 0 < waits[2] < 600


def test_days_say_which_is_the_newest_that_was_told_and_how_many_are_not(world: World) -> None:
    """[R-90] In the status and the metrics; a day that has lost its rows is none that it has."""
    at = EventTime("value.at")
    world.derive("at DATE", event_time=at, days=Days("2013-01-01", at))
    world.create_topic()

    def add(*days: str) -> None:
        world.send([{"partition": 0, "key": b"k", "value": b'{"at": "%s"}' % day.encode()} for day in days])
        world.plan_and_land()
        world.decode()

    def told() -> tuple[str, float | None, float | None]:
        scrape = Scrape(world, Adapters(world.settings))
        figures = scrape("offsetlake_newest_day_timestamp_seconds"), scrape("offsetlake_untold_days")
        assert scrape("offsetlake_table_version", "days") is None, "days are no table"
        return table_text(documents(world)[-1], world.adapters.now_ms()), *figures

    add("2013-01-01", "2013-01-03")
    assert told() == ("days: Dagster was told of 0; 2 wait to be told", None, 2)
    report_days(world.topic, world.instance, Adapters(world.settings))
    third = datetime(2013, 1, 3, tzinfo=UTC).timestamp()
    assert told() == ("days: Dagster was told of 2, the newest 2013-01-03", third, 0)
    adapters = Adapters(world.settings)
    gone = day_event(world.topic, "2013-01-05", GONE, adapters.decodings.read_ranges(world.name).table, adapters)
    world.instance.report_runless_asset_event(gone)
    add("2013-01-02", "2013-01-03")
    assert told() == ("days: Dagster was told of 2, the newest 2013-01-03; 2 wait to be told", third, 2)


def documents(world: World) -> list[dict[str, Any]]:
    return read_tables(world.topic, world.coverage, Adapters(world.settings), world.instance)


def table_figures(world: World) -> dict[str, tuple[float | None, float | None, str | None]]:
    """Return version, waiting ranges and kind of error of each table, as the status has them and a scrape."""
    scrape = Scrape(world, Adapters(world.settings))
    found = {}
    for each in documents(world):
        name = each["table"]
        figures = tuple(scrape(f"offsetlake_table_{figure}", name) for figure in ("version", "waiting_ranges"))
        assert figures == (each.get("version"), each.get("waiting_ranges"))
        assert scrape("offsetlake_table_error", name, each.get("kind", "")) == (1 if "kind" in each else None)
        found[name] = (*figures, each.get("kind"))
    return found


Receiver = tuple[str, list[dict[str, Any]]]
"""The URL of a real HTTP server on loopback, and the events that it was sent."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with recording("/api/v1/lineage", 201) as (address, events):
        yield f"http://{address}", events


@pytest.fixture
def clean_environment() -> Iterator[None]:
    """Put OpenLineage's variables back: its client adds some of its own."""
    with patch.dict(os.environ):
        yield


def configure(world: World, url: str) -> None:
    """Configure the client as a user would, by its own variable."""
    os.environ["OPENLINEAGE_URL"] = url
    world.settings = dataclasses.replace(world.settings, lineage=True)
    world.adapters = Adapters(world.settings)


def unsent(world: World, run_id: str) -> list[str]:
    return [event.user_message for event in world.instance.all_logs(run_id) if "step=lineage_unsent" in event.user_message]


def test_a_receiver_hears_of_each_landed_range(world: World, receiver: Receiver, clean_environment: None) -> None:
    """Two events per range, with where the rows came from, where they went, how many, and of which run."""
    url, events = receiver
    assert world.adapters.lineage() is None, "off unless configured: the client would print events then"
    configure(world, url)
    world.fill(150)
    world.plan()
    (landed,) = world.launch()
    assert unsent(world, landed.run_id) == []
    ended = {each["run"]["runId"]: each for each in events if each["eventType"] == "COMPLETE"}
    began = {each["run"]["runId"]: each for each in events if each["eventType"] == "START"}
    assert len(ended) == 2 and began.keys() == ended.keys()
    assert all(began[run]["eventTime"] <= ended[run]["eventTime"] for run in ended)
    by_key = {}
    for event in ended.values():
        (source,), (target,) = event["inputs"], event["outputs"]
        (part,) = target["outputFacets"]["subset"]["outputCondition"]["partitions"]
        assert (source["namespace"], source["name"]) == (f"kafka://{world.settings.bootstrap_servers}", world.name)
        assert (target["namespace"], target["name"]) == ("file", f"{world.lake_folder}/data/{world.name}")
        assert event["job"] == {"namespace": "offsetlake", "name": f"{world.topic.landing.job}.range", "facets": {}}
        assert event["run"]["facets"]["parent"]["run"]["runId"] == landed.run_id
        assert source["inputFacets"]["subset"]["inputCondition"]["partitions"] == [part]
        by_key[part["identifier"]] = target
    manifests = {offsets.key: manifest for offsets, manifest in world.coverage.manifests.items()}
    assert by_key.keys() == manifests.keys() == {"0-0-100", "0-100-150"}
    for key, target in by_key.items():
        manifest = manifests[key]
        assert manifest.file is not None
        statistics = target["outputFacets"]["outputStatistics"]
        assert (statistics["rowCount"], statistics["size"]) == (manifest.rows, manifest.file.bytes)
        assert target["facets"]["version"]["datasetVersion"] == manifest.file.sha256
        assert "offset" in {field["name"] for field in target["facets"]["schema"]["fields"]}

    heard = len(events)
    world.launch(sorted(world.coverage.manifests), redo=True)
    assert len(events) == heard, "what was landed before is not told again"


def test_a_receiver_hears_of_each_version_of_derived_tables(world: World, receiver: Receiver, clean_environment: None) -> None:
    """[R-90] From the landed rows to the decoded table, and from that, at the version that went in, to the latest."""
    url, events = receiver
    world.derive("n BIGINT", latest=Latest())
    world.create_topic()
    world.send([{"partition": 0, "key": b"k%d" % (n % 5), "value": b'{"n": 1}'} for n in range(150)])
    world.send([{"partition": 0, "key": b"k", "value": b"{cut off"}])
    world.plan_and_land()
    configure(world, url)
    due = world.adapters.decodings.read_ranges(world.name).find_due(world.coverage)
    (decoded,) = world.in_process.decode(due, redo=False)
    updated = world.in_process.update_latest(full=False)
    assert decoded.succeeded and updated.succeeded, (decoded.reason, updated.reason)
    began = [each for each in events if each["eventType"] == "START"]
    of_decoded, of_latest = (each for each in events if each["eventType"] == "COMPLETE")
    assert [each["run"]["runId"] for each in began] == [each["run"]["runId"] for each in (of_decoded, of_latest)]
    tables, shown = f"{world.lake_folder}/tables", []
    for event, run in ((of_decoded, decoded), (of_latest, updated)):
        (source,), (target,) = event["inputs"], event["outputs"]
        assert event["run"]["facets"]["parent"]["run"]["runId"] == run.run_id and unsent(world, run.run_id) == []
        shown.append(
            (
                event["job"]["name"],
                (source["namespace"], source["name"], source["facets"].get("version", {}).get("datasetVersion")),
                source["inputFacets"].get("inputStatistics", {}).get("rowCount"),
                (target["namespace"], target["name"], target["facets"]["version"]["datasetVersion"]),
                target["outputFacets"]["outputStatistics"]["rowCount"],
            )
        )
        columns = {each["name"]: each["type"] for each in target["facets"]["schema"]["fields"]}
        assert columns["value"] == "struct<n: int64>" and columns["offset"] == "int64"
    landed = ("file", f"{world.lake_folder}/data/{world.name}", None)
    at_decoded, at_latest = (
        ("file", f"{tables}/{kind}/{world.name}", str(DeltaTable(f"{tables}/{kind}/{world.name}").version()))
        for kind in ("decoded", "latest")
    )
    assert shown == [
        (f"{world.topic.decoding.job}.table", landed, 151, at_decoded, 150),
        (f"{world.topic.upserting.job}.table", at_decoded, None, at_latest, 5),
    ]
    heard = len(events)
    decode_again = world.in_process.decode(due, redo=False)
    assert all(each.succeeded for each in decode_again)
    assert world.in_process.update_latest(full=False).succeeded
    assert len(events) == heard, "a run that has made no version tells of none"


@pytest.mark.parametrize("fault", ["refuses", "hangs"])
def test_a_dead_receiver_costs_nothing_but_its_events(world: World, clean_environment: None, fault: str) -> None:
    """The run is green, the range landed and reported; what was not told is said, and waited for two seconds at most."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if fault == "refuses":
            listener.close()
        configure(world, f"http://127.0.0.1:{port}")
        world.fill(100)
        world.plan()
        (landed,) = world.launch()
        (said,) = unsent(world, landed.run_id)
        assert said.startswith("step=lineage_unsent ranges=1 reason=")
        waited = time_of(world, landed.run_id, "step=lineage_unsent") - time_of(world, landed.run_id, "step=publish")
        assert waited < openlineage.PATIENCE_SECONDS + 120  # without a time-out it would wait for ever
    world.assert_all_landed_once()
    assert world.materialized() == {"0-0-100"}


def time_of(world: World, run_id: str, words: str) -> float:
    """Return when the run's log first said the words."""
    return next(event.timestamp for event in world.instance.all_logs(run_id) if words in event.user_message)


def lag_by_tool(world: World) -> dict[int, tuple[str, str, str]]:
    """Run what `kafka-consumer-groups.sh` runs, out of the broker's jars; return CURRENT-OFFSET, LOG-END-OFFSET and LAG."""
    jars = os.pathsep.join(map(str, resolve_jars("broker", world.settings.jars)))
    tool = [find_java(), QUICK_JVM, "-cp", jars, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"]
    command = [*tool, "--bootstrap-server", str(world.settings.bootstrap_servers), "--group", world.topic.group, "--describe"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    header, *lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    rows = [dict(zip(header, line, strict=False)) for line in lines]
    assert all(row["TOPIC"] == world.name for row in rows)
    return {int(row["PARTITION"]): (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for row in rows}


def fill(world: World) -> None:
    world.fill(150, 20)
    world.plan()


def land(world: World, *keys: str) -> list[str]:
    """Land, and every range; return each reason why the group was not moved."""
    world.adapters.watch_step = failed = Heard("mirror_failed")
    assert {verdict.outcome for verdict in world.land(keys or None)} == {Outcome.LANDED}
    return [str(each["reason"]) for each in failed]


def group(world: World) -> dict[int, int]:
    return world.adapters.kafka(world.topic).read_group(world.name, world.topic.group)


@contextmanager
def consuming(world: World) -> Iterator[None]:
    """Have somebody consume the topic with its group while the context is open."""
    with closing(
        KafkaConsumer(
            world.name,
            bootstrap_servers=world.settings.bootstrap_servers,
            group_id=world.topic.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
    ) as member:
        # one poll: kafka-python 3.0.12 forgets the assignment of a rejoin that outlasts the poll it began in, for good
        assert member.poll(timeout_ms=1000 * PATIENCE_SECONDS), "the fault: it is a member, and reads"
        yield


def test_kafkas_own_tool_shows_what_is_landed_as_lag(world: World) -> None:
    """[R-36] [R-59] The group is named as its topic says, so that two lakes over one cluster do not take turns at one."""
    world.topic = dataclasses.replace(world.topic, group_name="my-lake.{topic}")
    fill(world)
    land(world, "0-0-100")
    assert lag_by_tool(world) == {0: ("100", "150", "50"), 1: ("0", "20", "20")}
    land(world)
    assert lag_by_tool(world) == {0: ("150", "150", "0"), 1: ("20", "20", "0")}
    kafka = world.adapters.kafka(world.topic)
    assert kafka.read_group(world.name, f"my-lake.{world.name}") == {0: 150, 1: 20}
    assert kafka.read_group(world.name, f"offsetlake.{world.name}") == {}, "the control"


def test_moving_or_deleting_the_group_changes_nothing_that_is_landed(world: World) -> None:
    """[R-59] The lake stays as it is, the next tick asks for no more, the next run puts it right."""
    fill(world)
    land(world)
    world.tick()
    for harmed, more in (({0: 7, 1: 7}, "1-20-30"), ({}, "1-30-40")):
        before = world.files()
        if harmed:
            world.adapters.kafka(world.topic).move_group(world.name, harmed, world.topic.group)
        else:
            world.operations.delete_group(world.topic.group)
        assert group(world) == harmed, "the fault"
        tick = world.tick()
        assert (tick.due, tick.planned, tick.pending) == ((), 0, 0), harmed
        world.assert_all_landed_once()
        assert world.files() == before, harmed
        world.send_numbered(10, 1)
        world.plan()
        assert [offsets.key for offsets in world.pending] == [more]
        land(world)
        assert group(world) == {0: 150, 1: int(more.rpartition("-")[2])}


def test_a_group_that_somebody_consumes_with_does_not_make_the_run_red_and_is_repaired_by_the_tick(world: World) -> None:
    """[R-59] Kafka refuses to move it: the run says so, `status` by how much lag tools are wrong, the tick why."""
    fill(world)
    with consuming(world):
        (reason,) = land(world)
        assert f"does not move consumer group {world.topic.group} on {world.name}/0 to 150: UnknownMemberIdError" in reason
        assert group(world).get(0) != 150, "the fault: it was not moved"
        world.assert_all_landed_once()
        assert world.status()["group_off"] == 170
        assert any("does not move consumer group" in each for each in world.tick().stalled)
        assert world.status()["group_off"] == 170
    assert world.tick().stalled == ()
    assert group(world) == {0: 150, 1: 20}
    assert world.status()["group_off"] == 0
    world.send_numbered(10, 1)
    world.plan()
    assert land(world) == [], "the control: nobody consumes with it any more"
    assert group(world) == {0: 150, 1: 30}
