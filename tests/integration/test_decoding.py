"""Decoding of landed ranges on a real broker and real Spark: what is decoded, set aside, redone, and told of event days."""

import dataclasses
import importlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipeline_defs.adapters.formats.spark_decoding import SparkDecoder, raw_ddl
from pipeline_defs.adapters.spark.engine import Engine
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.adapters.tables.decodings import count_days
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.cli.launching import InProcessRuns
from pipeline_defs.cli.work.decode import SAID
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import BadKey, Refused
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.core.tables.days import Days, EventTime
from pipeline_defs.core.tables.decoded_table import TREE
from pipeline_defs.core.tables.decoding import Budget, Decided
from pipeline_defs.definitions import build_defs
from pipeline_defs.landing import staging_places
from pipeline_defs.landing.appending import append_landed
from pipeline_defs.operate.reader import read
from pipeline_defs.operate.reports import trace_row
from pipeline_defs.operate.tables import read_tables, table_text
from pipeline_defs.orchestration.assets.decoded_asset import report_days
from pipeline_defs.orchestration.assets.decoded_checks import check_decoded, check_outside, read_dead_letters
from pipeline_defs.orchestration.home.project import plan_project, write_project
from pipeline_defs.orchestration.pulse.rebuilding import rebuild_topic
from pipeline_defs.orchestration.pulse.ticking import run_derive_tick
from pipeline_defs.orchestration.runs.tries import trying
from pipeline_defs.orchestration.upkeep.compacting import compact_tables
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import Settings
from tests.support.decoded import decoding_session
from tests.support.lakes import list_encodings_falling
from tests.support.markdown import read_blocks
from tests.support.pulse import queue_run, run_pulse
from tests.support.redecoding import Heard
from tests.support.strategies import raw_row
from tests.support.world import World

SCHEMA = "id BIGINT NOT NULL, name STRING"


def record(number: int) -> dict[str, object]:
    return {"key": b"k%d" % number, "value": json.dumps({"id": number, "name": f"n{number}"}).encode()}


POISON = {
    b"\xff\xfe": "not_utf8",
    b'{"id": 1, "name": "\xff"}': "not_utf8",
    b"": "json_malformed",
    b'{"id": 1}{"id": 2}': "json_malformed",
    b"{'id': 1}": "json_malformed",
    b"null": "json_mismatch",
    b"5": "json_mismatch",
    b'[{"id": 1}]': "json_mismatch",
    b'{"id": "one"}': "json_mismatch",
    b'{"id": 1.5}': "json_mismatch",
    b'{"name": "without id"}': "json_mismatch",
    b'{"id": null}': "json_mismatch",
}


def test_one_poison_record_stops_and_loses_nothing_else(world: World) -> None:
    """[R-67] It is set aside, bytes and error. [R-69] A redo that reads more replaces the dead letters of that range alone."""
    world.derive("id INT NOT NULL, name STRING")
    world.create_topic(2)
    world.send({**record(n), "partition": 0} for n in range(100))  # the control: a range without poison
    places = world.send({"partition": 1, "key": b"k", "value": value} for value in POISON)
    world.send({**record(n), "partition": 1} for n in range(100 - len(POISON) - 1))
    world.send([{"partition": 1, "key": b"k0", "value": None}])
    world.plan_and_land()
    clean, poisoned = world.decode()
    assert (clean.outcome, poisoned.outcome) == (Decided.DECODED, Decided.DECODED), clean.violations + poisoned.violations

    assert world.query("decoded", "key, value") == [
        *((f"k{n}", {"id": n, "name": f"n{n}"}) for n in range(100)),
        *((f"k{n}", {"id": n, "name": f"n{n}"}) for n in range(100 - len(POISON) - 1)),
        ("k0", None),
    ]
    letters = world.query("dead_letters", '"partition", "offset", raw_key, raw_value, side, error_class')
    assert letters == [
        (*place, b"k", value, "value", error) for place, (value, error) in zip(places, POISON.items(), strict=True)
    ]
    assert clean.decoding is not None and clean.decoding.dead_letters is None
    for verdict in (clean, poisoned):
        assert verdict.decoding is not None
        manifest = world.coverage.manifests[verdict.offsets]
        gone = sum(hole.end - hole.start for hole in manifest.holes)
        assert verdict.decoding.rows + verdict.decoding.dead + gone == len(verdict.offsets)
    assert poisoned.decoding is not None
    assert sum(poisoned.decoding.error_classes.values()) == len(POISON)
    errors = dict(world.query("dead_letters", "raw_value, error"))
    assert errors[b'{"id": "one"}'] == "id: expected INT, found string"
    assert errors[b"{'id': 1}"].startswith("the text is not one JSON value, or one beyond")

    before = {path: path.read_bytes() for path in (world.lake_folder / TREE).rglob("*.parquet")}
    world.derive("id DOUBLE NOT NULL, name STRING")
    assert world.decode() == [], "a changed decoder makes nothing due by itself"
    assert [verdict.outcome for verdict in world.decode([clean.offsets.key])] == [Decided.ALREADY_DECODED]
    (redone,) = world.decode([poisoned.offsets.key], redo=True)
    assert (redone.outcome, redone.decoding and redone.decoding.revision) == (Decided.REPLACED, 1)
    assert world.query("decoded", "value")[100] == ({"id": 1.5, "name": None},), "the first of them that is decoded"
    assert world.query("dead_letters", "raw_value") == [(value,) for value in POISON if value != b'{"id": 1.5}']
    assert clean.decoding == world.decodings[clean.offsets]
    assert {path: path.read_bytes() for path in before} == before


def test_when_kafka_has_nothing_any_more_the_same_is_decoded_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-71] Replay from what is landed: topic and documents gone, the same digests come out, whatever JVM wrote them.

    A footer that lists encodings in another order is made the one that it was. A job tells each few seconds how many of its
    files Spark has written, and the command shows it (`cli/work/decode.py`).
    """
    monkeypatch.setattr(staging_places, "TELL_SECONDS", 0.0)
    told = Heard("files_decoded")
    world.derive(SCHEMA)
    world.create_topic(1)
    world.send({**record(n), "partition": 0} for n in range(199))
    world.send([{"partition": 0, "key": b"k", "value": b"poison"}])
    world.plan_and_land()
    first = {verdict.offsets: verdict.decoding and verdict.decoding.digest for verdict in world.decode(on_step=told)}
    assert len(first) == 2 and None not in first.values()
    assert told and all(each["of"] == 2 and each["files"] in {0, 1, 2} for each in told)
    assert SAID["files_decoded"].format(**told[0]) == f", Spark has written {told[0]['files']} of 2 files"
    world.delete_topic()
    keys, stage = [offsets.key for offsets in first], SparkDecoder.stage_decoded

    def stage_as_another_jvm(decoder: SparkDecoder, files: Any, decided: Any, folder: str, most_rows: int) -> None:
        stage(decoder, files, decided, folder, most_rows)
        for path in Path(folder).glob("*.parquet"):
            list_encodings_falling(path)

    for number, by in enumerate((stage, stage_as_another_jvm)):
        monkeypatch.setattr(SparkDecoder, "stage_decoded", by)
        assert [verdict.outcome for verdict in world.decode(keys, redo=True)] == [Decided.UNCHANGED, Decided.UNCHANGED]
        (world.lake_folder / "tables/decoded").rename(world.lake_folder / f"lost{number}")
        afresh = world.decode(keys)
        assert {each.offsets: each.decoding and each.decoding.digest for each in afresh} == first, by


def test_what_is_not_what_was_landed_does_not_become_visible(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-67] A range above its budget, a row in neither file, a changed landed file: each fails by name, and shows nothing."""
    world.derive(SCHEMA)
    world.create_topic(1)
    world.send({**record(n), "partition": 0} for n in range(99))
    world.send([{"partition": 0, "key": b"k", "value": b"poison"}])
    world.plan_and_land()
    world.derive(SCHEMA, budget=Budget(0, 1.0))
    (above,) = world.decode()
    assert above.outcome is Decided.FAILED
    assert "1 of 100 records cannot be decoded (1 json_malformed)" in above.violations[0]
    assert "nothing became visible; first offset 99: the text is not one JSON value" in above.violations[0]
    world.derive(SCHEMA)
    with monkeypatch.context() as patch:
        patch.setattr(SparkDecoder, "stage_dead_letters", lambda _, files, decided, folder, *more: Path(folder).mkdir())
        (lost,) = world.decode()
    assert lost.outcome is Decided.FAILED
    assert "99 decoded rows + 0 dead letters are not its 100 landed rows, each once" in lost.violations[0]
    (landed,) = (world.lake_folder / "data").rglob("*.parquet")
    right = landed.read_bytes()
    landed.unlink()
    landed.write_bytes(right.replace(b"parquet-mr", b"parquet-mx"))  # the same rows and as many bytes: only the digest tells
    assert landed.read_bytes() != right, "the fault"
    (torn,) = world.decode()
    assert torn.outcome is Decided.FAILED
    assert "the landed file does not have the digest" in torn.violations[0]
    assert world.query("decoded", '"offset"') == world.query("dead_letters", '"offset"') == []
    landed.write_bytes(right)
    assert [verdict.outcome for verdict in world.decode()] == [Decided.DECODED], "the control"


def test_a_lake_at_a_path_with_signs_of_patterns_is_read_and_no_other(settings: Settings, tmp_path: Path) -> None:
    """I15: landed, decoded, found by SQL and by offset; the lake that the pattern would mean has other rows."""
    topic, name, decoy = "paths", "la*e[1] {a,b}? [!x]", "lake1 {a,b}y z"
    assert fnmatchcase(decoy, name), "the fault"
    with World(settings, tmp_path / name, topic) as world, World(settings, tmp_path / decoy, topic) as other:
        world.create_topic()
        world.send({"partition": 0, "value": b"%d" % n if n else b"\xff"} for n in range(30))
        both = [world, other]
        for each in both:
            each.topic = dataclasses.replace(each.topic, decode=Decode(value=Side(Format.STRING)))
            each.plan_and_land()
        for path in (other.lake_folder / "data").rglob("*.parquet"):
            pq.write_table(pq.read_table(path).slice(0, 5), path)
        assert {verdict.outcome for verdict in world.decode()} == {Decided.DECODED}
        duck = Duck(world.adapters.lake, [topic])
        assert duck.ask(f'SELECT count(*) FROM "{topic}"')[1] == [(30,)]
        assert duck.query(f'SELECT count(*) FROM decoded."{topic}"')[1] == [(29,)]
        assert trace_row(world.topic, 0, 7, world.adapters)["row"]["value"] == b"7"
        assert read_dead_letters(world.topic, None, 10, world.adapters)[0] == 1
        assert Duck(other.adapters.lake, [topic]).query(f'SELECT count(*) FROM "{topic}"')[1] == [(5,)], "the control"


START = "2013-01-01"
AT = EventTime("value.at")
DAGSTER = (PROJECT / "docs" / "dagster.md").read_text()


def configure(world: World, event_time: EventTime = AT, schema: str = "at TIMESTAMP, n BIGINT") -> None:
    """Have a topic decoded and counted by day."""
    world.derive(schema, event_time=event_time, days=Days(START, event_time))


def event(day: str, number: int, partition: int = 0) -> dict[str, object]:
    """Return a record of an event at noon of a day."""
    return timed(f"{day}T12:00:00Z", number, partition)


def timed(at: object, number: int, partition: int = 0) -> dict[str, object]:
    """Return a record of an event at that time, or without one."""
    value = {"n": number} | ({} if at is None else {"at": at})
    return {"partition": partition, "key": b"k%d" % number, "value": json.dumps(value).encode()}


def told(world: World) -> dict[str, dict[str, Any]]:
    """Return the facts of each day as Dagster shows them."""
    events = world.events(world.topic.days_key)
    return {str(each.partition): {name: value.value for name, value in each.metadata.items()} for each in events}


def numbers(world: World, day: str) -> list[int]:
    found = read(world.name, day=day, lake=world.settings.lake)
    return [value["n"] for value in found["value"].to_pylist()]


def decode_in_runs(world: World) -> None:
    """Decode what is due through Dagster."""
    adapters = Adapters(world.settings, now_ms=world.adapters.now_ms, watch_step=world.adapters.watch_step)
    due = adapters.decodings.read_ranges(world.name).find_due(world.coverage)
    for run in InProcessRuns(world.topic, adapters, world.instance).decode(due, redo=False):
        assert run.succeeded, run.reason


def test_a_late_record_makes_its_day_news_and_no_other(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-89] From Kafka to a day's event, and to the asset of one's own downstream that is asked for that day alone."""
    _, block = [each for each in read_blocks(DAGSTER) if each.language == "python"]
    (tmp_path / "order_totals.py").write_text(block.text.replace("orders", world.name))
    monkeypatch.syspath_prepend(tmp_path)
    totals = importlib.import_module("order_totals").order_totals
    monkeypatch.setenv("OFFSETLAKE_LAKE", world.settings.lake)
    configure(world)
    world.create_topic()
    world.with_policy(records_per_range=10)
    world.send(event(f"2013-01-0{1 + n // 10}", n) for n in range(30))
    world.plan_and_land()
    decode_in_runs(world)
    assert {day: (facts["rows"], facts["ranges"]) for day, facts in told(world).items()} == {
        f"2013-01-0{n}": (10, 1) for n in (1, 2, 3)
    }
    defs = build_defs(world.adapters, topics=dg.Definitions.merge(world.definitions, dg.Definitions(assets=[totals])))
    before = dg.evaluate_automation_conditions(defs, world.instance)
    world.send([*(event("2013-01-04", n) for n in range(30, 39)), event("2013-01-01", 39)])
    world.plan_and_land()
    decode_in_runs(world)
    after = dg.evaluate_automation_conditions(defs, world.instance, cursor=before.cursor)
    assert after.get_requested_partitions(totals.key) == {"2013-01-01", "2013-01-04"}
    assert dg.materialize([totals], partition_key="2013-01-01", instance=world.instance).success
    assert [each.metadata["rows"].value for each in world.events(totals.key)] == [11]
    assert numbers(world, "2013-01-01") == [*range(10), 39]


def test_a_compacted_table_is_sorted_by_event_time_and_tells_of_no_day(world: World) -> None:
    """[R-91] From many ranges of two Kafka partitions one file, and one of dead letters, by real Spark; then a redo of one."""
    configure(world)
    world.create_topic(2)
    world.with_policy(records_per_range=10)
    for partition in (0, 1):
        world.send(event(f"2013-01-0{1 + n * 7 % 5}", n, partition) for n in range(30))
    world.send([{"partition": 1, "key": b"k", "value": b"{cut off"}, timed(None, 99)])
    world.plan_and_land()
    decode_in_runs(world)
    days = [trace_row(world.topic, 0, offset, world.adapters)["decoded"]["day"] for offset in (1, 30)]
    assert days == ["2013-01-03", None]
    before, expected = told(world), {day: sorted(numbers(world, day)) for day in told(world)}
    adapters = Adapters(world.settings)
    assert len(adapters.decodings.read_ranges(world.name).table.files) == 8
    tools = world.tools()
    verdicts = [*compact_tables(world.topic, "test", tools, adapters, every=True)]
    assert {each.outcome for each in verdicts} == {CompactionOutcome.COMPACTED}, verdicts
    table = DeltaTable(adapters.lake.store.url(f"tables/decoded/{world.name}"))
    (rows,) = table.file_uris(file_pruning_predicate=[("_dead", "=", "false")])
    times = pq.ParquetFile(rows).read(["event_time"])["event_time"]
    assert times.null_count == 1 and pc.is_null(times).to_pylist()[0], "a row without one comes first"
    assert times.drop_null().to_pylist() == sorted(times.drop_null().to_pylist())
    assert report_days(world.topic, world.instance, adapters) == [] and told(world) == before
    assert {day: sorted(numbers(world, day)) for day in before} == expected
    assert [*compact_tables(world.topic, "test", tools, adapters, every=True)] == [], "what is compacted is compacted"
    configure(world, schema="at TIMESTAMP, n BIGINT, more STRING")
    world.decode([next(iter(world.coverage.log.ranges)).key], redo=True)
    assert check_decoded(world.topic, Adapters(world.settings)).violations == ()
    assert {day: sorted(numbers(world, day)) for day in before} == expected


def test_a_filter_of_another_reader_finds_what_is_there(world: World) -> None:
    """[R-85] By any column, with and without statistics: delta-rs takes a column without for null, and drops whole files."""
    configure(world)
    world.create_topic()
    world.with_policy(records_per_range=4)
    odd = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", None, "2024-05-05T00:00:00Z"]
    world.send([timed(at, n) for n, at in enumerate([*odd, *odd[3:] * 4, *odd[2:3] * 4])])
    world.send([{"partition": 0, "key": b"k", "value": b"{cut off"}])
    world.plan_and_land()
    world.decode()
    adapters = Adapters(dataclasses.replace(world.settings, has_raw_table=True))
    append_landed(world.name, adapters.lake, adapters.now_ms)
    assert_filters_find_what_is_there(world, adapters)
    assert [*compact_tables(world.topic, "test", world.tools(), adapters, every=True)]
    assert_filters_find_what_is_there(world, adapters)


def assert_filters_find_what_is_there(world: World, adapters: Adapters) -> None:
    moment = pa.scalar(datetime(2020, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC"))
    for kind, key in (("raw", b"k1"), ("decoded", "k1")):
        table = DeltaTable(adapters.lake.store.url(f"tables/{kind}/{world.name}"))
        rows, dataset = table.to_pyarrow_table(), table.to_pyarrow_dataset()
        filters = [pc.field(name).is_valid() for name in rows.column_names]
        filters += [~each for each in filters]
        filters += [pc.field("topic") == world.name, pc.field("key") == key, pc.field("timestamp") >= moment]
        if kind == "decoded":
            filters += [pc.field("error_class") == "json_malformed", pc.field("event_time") >= moment]
            filters += [pc.field("event_time") < moment]
        for each in filters:
            assert dataset.to_table(filter=each).num_rows == rows.filter(each).num_rows, f"{kind}: {each}"
        assert rows.filter(pc.field("timestamp") >= moment).num_rows == 13, "the control: there are such rows"


@pytest.mark.parametrize("through", [decode_in_runs, run_pulse])
def test_a_tick_beside_the_run_that_tells_of_days_tells_of_none(world: World, through: Callable[[World], object]) -> None:
    """[R-89] Each day once: the run still has the ranges while it tells."""
    configure(world)
    world.create_topic()
    days, ticked = ["2013-01-01", "2013-01-02", "2013-01-03"], list[str]()
    world.send(event(day, n) for n, day in enumerate(days))
    world.plan_and_land()

    def watch(step: str, **fields: Any) -> None:
        if step == "reported_day":
            run_derive_tick(world.topic, world.instance, Adapters(world.settings), world.known)
            ticked.append(fields["day"])

    world.adapters.watch_step = watch
    through(world)
    assert ticked == days, "the fault: ticks in the middle of it"
    records = world.instance.fetch_materializations(world.topic.days_key, limit=100).records
    assert sorted(str(each.partition_key) for each in records) == days


def test_what_a_crash_or_a_wipe_left_untold_is_told_by_the_next_tick_and_by_a_rebuild(world: World) -> None:
    """[R-89] A range that is decoded otherwise is news of the days that it had rows of, and of those that it has."""
    configure(world)
    world.create_topic()
    world.send(event("2013-01-01", n) for n in range(5))
    world.plan_and_land()
    adapters = Adapters(world.settings)
    key = next(iter(world.coverage.log.ranges)).key
    run = queue_run(world.instance, world.topic.decoding.job)
    with trying(world.instance, world.topic.decoding, [key], run.run_id, adapters.now_ms) as done:
        world.decode()
        run_derive_tick(world.topic, world.instance, adapters, world.known)
        assert told(world) == {}, "the run that has the range tells of it"
        done.add(key)
    for process in (adapters, adapters, Adapters(world.settings)):
        for _ in range(2):  # the second one finds that there is no news, and looks no further from then on
            run_derive_tick(world.topic, world.instance, process, world.known)
        assert {day: facts["rows"] for day, facts in told(world).items()} == {"2013-01-01": 5}
        assert report_days(world.topic, world.instance, Adapters(world.settings)) == [], "the control: nothing is news"
        world.instance.wipe_assets([world.topic.days_key])
        assert told(world) == {}, "the fault"
    assert report_days(world.topic, world.instance, Adapters(world.settings)) == ["2013-01-01"]

    configure(world, EventTime("value.n", "s"))
    adapters = Adapters(world.settings)
    assert report_days(world.topic, world.instance, adapters) == [], "rows that were counted otherwise are still there"
    assert "were counted by another event time" in check_outside(world.topic, adapters).violations[0]
    assert world.topic.days is not None
    world.decode([offsets.key for offsets in world.coverage.log.ranges], redo=True)
    assert report_days(world.topic, world.instance, Adapters(world.settings)) == [START], "no row is of it any more"
    assert told(world)[START]["rows"] == 0
    assert "5 rows are of days before" in check_outside(world.topic, Adapters(world.settings)).violations[0]

    configure(world)
    world.decode([offsets.key for offsets in world.coverage.log.ranges], redo=True)
    world.instance.wipe_assets([world.topic.days_key])
    rebuild_topic(world.topic, Adapters(world.settings), world.instance)
    assert told(world)[START]["rows"] == 5


@pytest.mark.parametrize(
    ("schema", "event_time", "at"),
    [
        ("at TIMESTAMP, n BIGINT", AT, "2013-01-02T12:00:00.000001Z"),
        ("at DATE, n BIGINT", AT, "2013-01-02"),
        ("at BIGINT, n BIGINT", EventTime("value.at", "s"), 1_357_128_000),
        ("at BIGINT, n BIGINT", EventTime("value.at", "us"), 1_357_128_000_000_001),
        ("n BIGINT", EventTime(), None),
    ],
)
def test_whatever_the_type_the_table_has_the_event_time_and_when_its_files_begin_and_end(
    engine: Engine, tmp_path: Path, schema: str, event_time: EventTime, at: object
) -> None:
    """[R-89] A reader's filter passes over files by the log; none that has a row of the day: a moment is rounded away."""
    noon = datetime(2013, 1, 2, 12, tzinfo=UTC)
    values = [timed(at, n)["value"] for n in range(3)] + [timed(None, 3)["value"]] * (at is not None)
    rows = [raw_row(("t", 0, 0, n), noon, value) for n, value in enumerate([*values, None])]
    landed = tmp_path / "landed.parquet"
    decoder = SparkDecoder(engine, Decode(Side(), Side(Format.JSON, schema), event_time=event_time))
    raw = decoding_session(engine).createDataFrame(rows, raw_ddl())
    pq.write_table(raw.toArrow(), landed)
    decoder.stage_decoded([landed], decoder.decide([landed]), str(tmp_path / "decoded"))
    (file,) = (tmp_path / "decoded").glob("*.parquet")
    column = pq.read_table(file)["event_time"]
    times = column.drop_null().cast("int64").to_pylist()
    assert len(times) == (3 if at is not None else 4) and column.null_count == 2 * (at is not None)
    assert {micros // 86_400_000_000 for micros in times} == {15_707}
    days, first_ms, last_ms = count_days(file, event_time)
    assert days == ({"2013-01-02": 3, "none": 1, "tombstone": 1} if at is not None else {"2013-01-02": 4})
    assert first_ms is not None and last_ms is not None
    assert first_ms * 1000 <= min(times) and max(times) <= last_ms * 1000


def test_a_day_is_read_in_each_form_and_what_cannot_be_is_refused(world: World) -> None:
    """[R-85] Equal to a plain filter over all decoded rows; of a day without rows there are none, with all columns."""
    configure(world)
    world.create_topic(2)
    for partition in (0, 1):
        world.send(event(f"2013-01-0{1 + n % 3}", n, partition) for n in range(9))
    world.send([timed(None, 99), timed("2013-01-01T23:59:59.999999Z", 100), timed("2013-01-02T00:00:00Z", 101)])
    world.send([{"partition": 0, "key": b"k", "value": b"{cut off"}])
    world.plan_and_land()
    lake = world.settings.lake
    with pytest.raises(Refused, match=r"nothing of topic .* is decoded in the lake"):
        read(world.name, day=START, lake=lake)
    world.decode()
    expected = sorted([*range(0, 9, 3), *range(0, 9, 3), 100])
    arrow = read(world.name, day=START, lake=lake)
    assert sorted(value["n"] for value in arrow["value"].to_pylist()) == expected
    places = list(zip(arrow["partition"].to_pylist(), arrow["offset"].to_pylist(), strict=True))
    assert places == sorted(places)
    relation = read(world.name, day=START, lake=lake, as_="duckdb")
    assert sorted(row[0] for row in relation.project("value.n").fetchall()) == expected
    frame = read(world.name, day=START, lake=lake, as_=world.adapters.engine(world.adapters.pyspark()).session({}))
    assert sorted(row[0] for row in frame.select("value.n").collect()) == expected
    nothing = read(world.name, day="2014-01-01", lake=lake)
    assert (len(nothing), nothing.schema) == (0, arrow.schema)
    with pytest.raises(BadKey, match="expected a day such as 2013-01-01, found '2013-1-1'"):
        read(world.name, day="2013-1-1", lake=lake)
    with pytest.raises(Refused, match="a range and a day are given"):
        read(world.name, day=START, range="0-0-9", lake=lake)
    with_days = world.topic

    def status() -> str:
        return table_text(read_tables(with_days, world.coverage, world.adapters, world.instance)[-1], 0)

    assert "none can be read" not in status(), "the control"
    world.topic = dataclasses.replace(world.topic, days=None, decode=dataclasses.replace(world.topic.decode, event_time=None))
    world.decode([next(iter(world.coverage.log.ranges)).key], redo=True)
    with pytest.raises(Refused, match=r"have their event time from none and value\.at, expected one column of all") as refused:
        read(world.name, day=START, lake=lake)
    assert status().endswith(f"; none can be read: {str(refused.value).partition(': ')[2]}") and "--outdated" in status()
    assert Path(lake).exists()


SIZES = dg.AssetKey("order_sizes")


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster's, as it reads YAML
def test_an_asset_of_ones_own_reads_each_range(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the partitions of the raw asset, and is asked for where one of them landed."""
    block, _ = [each for each in read_blocks(DAGSTER) if each.language == "python"]
    project = tmp_path / f"lake_{world.name}"
    write_project(plan_project(project, [world.name], None))
    (project / project.name / "defs" / "order_sizes.py").write_text(block.text.replace("orders", world.name))
    monkeypatch.setenv("OFFSETLAKE_LAKE", world.settings.lake)
    monkeypatch.chdir(project)
    defs = build_defs(world.adapters, project=project)

    world.fill(150, 0)
    world.tick()
    before = dg.evaluate_automation_conditions(defs, world.instance)
    assert before.get_num_requested(SIZES) == 0, "nothing has landed yet"
    world.launch()
    keys = world.materialized()
    assert keys == {"0-0-100", "0-100-150"}
    after = dg.evaluate_automation_conditions(defs, world.instance, cursor=before.cursor)
    assert after.get_requested_partitions(SIZES) == keys

    sizes = defs.resolve_assets_def(SIZES)
    assert sizes.partitions_def == world.topic.partitions
    for key, count in (("0-0-100", 100), ("0-100-150", 50)):
        assert dg.materialize([sizes], partition_key=key, instance=world.instance).success
        said = {name: value.value for name, value in world.events(SIZES)[-1].metadata.items()}
        assert said == {"rows": count, "largest": len(b"v99") if count == 100 else len(b"v149")}
