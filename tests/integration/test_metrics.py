"""Metrics: what a Prometheus reads, held against what was produced; a broker that is down takes away only its part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from pipeline_defs.adapters.telemetry.prometheus import metrics_text
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.tables.days import GONE, Days, EventTime
from pipeline_defs.core.tables.decoding import Budget
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.operate.metrics import HELP, read_metrics
from pipeline_defs.operate.tables import latency_text, read_tables, table_text
from pipeline_defs.orchestration.assets.days import day_event, report_days
from pipeline_defs.resources import Edges
from pipeline_defs.tables.latest import update
from pipeline_defs.topics import Topic
from tests.support.world import World

HOUR_MS = 3_600_000


class Scrape:
    """Is what a real parser reads of the text, by name and label values without the topic's."""

    def __init__(self, world: World, edges: Edges | None = None, others: Sequence[Topic] = ()) -> None:
        text = metrics_text(read_metrics([*others, world.topic], edges or world.edges, world.instance))
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
    world.send([{"partition": 0, "value": b"x", "timestamp_ms": world.edges.now_ms() - HOUR_MS}] * 150)
    with world.begin_transaction() as producer:
        world.send([{"partition": 1, "value": b"y"}] * 50, producer)
        producer.commit_transaction()
    world.wait_until(lambda: world.watermarks(1).end == 51)
    world.plan()
    world.land(["1-0-51", "0-0-100"])
    world.delete_records(0, 120)
    world.wait_for_earliest(0, 120)
    damaged = dataclasses.replace(world.topic, name=f"damaged-{world.name}")
    world.edges.lake.store.put_new(f"plan/{damaged.name}/{0:020d}.json", b"{}", "staging/scratch")
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

    scrape = Scrape(world, Edges(dataclasses.replace(world.settings, bootstrap_servers="127.0.0.1:1"), kafka_timeout_seconds=1))
    assert scrape("offsetlake_up") == 0 and scrape("offsetlake_topic_error", "broker_unavailable") == 1
    assert scrape("kafka_topic_partitions") is None and scrape("offsetlake_landed_offset", "0") == 100
    assert scrape("offsetlake_landed_records_total", "0") == 100


def test_latency_is_from_a_records_timestamp_until_it_could_be_read(world: World) -> None:
    """[R-94] In the metrics, in `status` and on each range; what was landed again, or before the last hour, does not count."""
    world.create_topic()
    now_ms = world.edges.now_ms()
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
    events = world.instance.fetch_materializations(world.topic.asset_key, limit=10).records
    shown = [each.asset_materialization.metadata for each in events if each.asset_materialization]
    assert sorted(round(float(str(each["latency_p95_seconds"].value)), -2) for each in shown) == [100, 700]
    later = world.edges.now_ms() + 2 * HOUR_MS
    world.edges.now_ms = lambda: later
    assert world.status()["latency_p95_seconds"] is None and Scrape(world)(histogram, "raw", "+Inf") == 160


def test_derived_tables_say_what_waits_for_them_and_what_was_set_aside(world: World) -> None:
    """[R-90] [R-94] Each table by itself: what is broken of one leaves the figures of the other."""
    value = Side(Format.JSON, "n BIGINT")
    world.topic = dataclasses.replace(world.topic, decode=Decode(Side(Format.STRING), value, Budget(10, 1.0)), latest=Latest())
    world.create_topic()
    world.send([{"partition": 0, "key": b"k", "value": b'{"n": %d}' % n} for n in range(9)])
    world.send([{"partition": 0, "key": b"k", "value": b"{cut off"}])
    world.plan_and_land()
    assert table_figures(world) == {"decoded": (-1, 1, None), "latest": (-1, 0, None)}
    world.decode()
    scrape = Scrape(world, Edges(world.settings))
    assert table_figures(world) == {"decoded": (0, 0, None), "latest": (-1, 1, None)}
    assert scrape("offsetlake_dead_letters") == 1
    waited = scrape("offsetlake_table_waiting_seconds", "latest")
    assert waited is not None and 0 <= waited < 600
    assert scrape("offsetlake_table_waiting_seconds", "decoded") == 0
    edges = Edges(world.settings)
    update(world.name, Latest(), Attempt("update", "no-run", "test"), edges.latest_tools())
    assert table_figures(world)["latest"] == (1, 0, None)
    shown = [table_text(each, world.edges.now_ms()) for each in documents(world)]
    assert shown == ["decoded: version 0, 9 rows of 1 range, 1 dead letter", "latest: version 1"]
    decoded, latest = map(latency_text, documents(world))
    assert decoded.startswith("records of the last hour within ") and decoded.endswith("(p95)")
    assert latest == "", "a table that is made anew has brought nothing in late"
    world.send([{"partition": 0, "key": b"k", "value": b'{"n": %d}' % n} for n in range(9)])
    world.plan_and_land()
    world.decode()
    update(world.name, Latest(), Attempt("again", "no-run", "test"), edges.latest_tools())
    scrape = Scrape(world, Edges(world.settings))
    waits = [scrape("offsetlake_latency_last_hour_seconds", table, "0.95") for table in ("raw", "decoded", "latest")]
    assert None not in waits and [scrape("offsetlake_latency_seconds_count", each) for each in ("raw", "decoded")] == [19, 18]
    assert waits[2] is not None and 0 < waits[2] < 600


def test_days_say_which_is_the_newest_that_was_told_and_how_many_are_not(world: World) -> None:
    """[R-90] In the status and the metrics; a day that has lost its rows is none that it has."""
    at = EventTime("value.at")
    decode = Decode(Side(Format.STRING), Side(Format.JSON, "at DATE"), Budget(10, 1.0), at)
    world.topic = dataclasses.replace(world.topic, decode=decode, days=Days("2013-01-01", at))
    world.create_topic()

    def add(*days: str) -> None:
        world.send([{"partition": 0, "key": b"k", "value": b'{"at": "%s"}' % day.encode()} for day in days])
        world.plan_and_land()
        world.decode()

    def told() -> tuple[str, float | None, float | None]:
        scrape = Scrape(world, Edges(world.settings))
        figures = scrape("offsetlake_newest_day_timestamp_seconds"), scrape("offsetlake_untold_days")
        assert scrape("offsetlake_table_version", "days") is None, "days are no table"
        return table_text(documents(world)[-1], world.edges.now_ms()), *figures

    add("2013-01-01", "2013-01-03")
    assert told() == ("days: Dagster was told of 0; 2 wait to be told", None, 2)
    report_days(world.topic, world.instance, Edges(world.settings))
    third = datetime(2013, 1, 3, tzinfo=UTC).timestamp()
    assert told() == ("days: Dagster was told of 2, the newest 2013-01-03", third, 0)
    edges = Edges(world.settings)
    gone = day_event(world.topic, "2013-01-05", GONE, edges.decodings.read_ranges(world.name).table, edges)
    world.instance.report_runless_asset_event(gone)
    add("2013-01-02", "2013-01-03")
    assert told() == ("days: Dagster was told of 2, the newest 2013-01-03; 2 wait to be told", third, 2)


def documents(world: World) -> list[dict[str, Any]]:
    return read_tables(world.topic, world.coverage, Edges(world.settings), world.instance)


def table_figures(world: World) -> dict[str, tuple[float | None, float | None, str | None]]:
    """Return version, waiting ranges and kind of error of each table, as the status has them and a scrape."""
    scrape = Scrape(world, Edges(world.settings))
    found = {}
    for each in documents(world):
        name = each["table"]
        figures = tuple(scrape(f"offsetlake_table_{figure}", name) for figure in ("version", "waiting_ranges"))
        assert figures == (each.get("version"), each.get("waiting_ranges"))
        assert scrape("offsetlake_table_error", name, each.get("kind", "")) == (1 if "kind" in each else None)
        found[name] = (*figures, each.get("kind"))
    return found
