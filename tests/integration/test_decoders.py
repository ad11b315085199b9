"""Avro, Protobuf and JSON Schema on real Spark, with a real registry; the rules of docs/decoding.md, each by its test.

What is decoded was written by others: fastavro, Confluent's serializers, protobuf's own runtime.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow.parquet
import pytest

from pipeline_defs.adapters.formats import spark_wire
from pipeline_defs.adapters.formats.protobuf_schema import compile_proto, find_message
from pipeline_defs.adapters.formats.spark_decoding import SparkDecoder, raw_ddl
from pipeline_defs.adapters.formats.spark_wire import head_of
from pipeline_defs.adapters.kafka.access import read_access
from pipeline_defs.adapters.kafka.schema_registry import connect
from pipeline_defs.adapters.lake.parquet import RAW_SCHEMA
from pipeline_defs.adapters.spark.engine import Engine
from pipeline_defs.core.decode.columns import NotDdl, parse_ddl
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.decode.schema_text import MOST_LEVELS
from pipeline_defs.core.errors import BadSetting, RegistryUnavailable, UnknownSubject, UnusableSchema
from pipeline_defs.core.login.client_properties import RegistryLogin
from pipeline_defs.core.tables.days import EventTime
from pipeline_defs.core.tables.decoding import Budget, Decided
from tests.conftest import JARS
from tests.support.decoded import RAW, decode, decode_rows, decoding_session
from tests.support.fuzz import avro
from tests.support.registry import RunningRegistry, fake_registry, guarded, running_registry
from tests.support.secured import Authority, write_properties
from tests.support.strategies import raw_row
from tests.support.world import World


@pytest.fixture(scope="module")
def registry() -> Iterator[RunningRegistry]:
    with running_registry(JARS) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def record(name: str, *fields: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


ORDER = record("Order", field("id", "long"), field("note", ["null", "string"], default=None))


def test_plain_avro_of_every_type(engine: Engine) -> None:
    """Every type that Avro has a column for, written by fastavro; a date before 1582 is one like others."""
    at = datetime(2020, 1, 2, 3, 4, 5, 678901, UTC)
    fields: dict[str, tuple[Any, Any]] = {
        "flag": ("boolean", True),
        "small": ("int", -1),
        "large": ("long", 1 << 40),
        "single": ("float", 0.5),
        "double": ("double", 0.1),
        "raw": ("bytes", b"\x00\xff"),
        "text": ("string", "ü"),
        "day": ({"type": "int", "logicalType": "date"}, date(1500, 1, 1)),
        "at": ({"type": "long", "logicalType": "timestamp-micros"}, at),
        "price": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("12.34")),
        "color": ({"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}, "BLUE"),
        "four": ({"type": "fixed", "name": "Four", "size": 4}, b"abcd"),
        "list": ({"type": "array", "items": "int"}, [1, 2]),
        "map": ({"type": "map", "values": "string"}, {"a": "b"}),
        "either": (["int", "string"], "word"),
        "inner": (record("Inner", field("x", "int")), {"x": 7}),
    }
    schema = record("All", *(field(name, kind) for name, (kind, _) in fields.items()))
    datum = {name: value for name, (_, value) in fields.items()}
    outcomes = decode(engine, [avro(schema, datum)], Side(Format.AVRO, schema=json.dumps(schema)))
    either = {"member_int": None, "member_string": "word"}
    assert outcomes.classes == [None]
    assert outcomes.values == [datum | {"at": at.astimezone().replace(tzinfo=None), "either": either}]
    assert outcomes.schemas == {}, "the configuration has all that decides"


def test_what_is_not_one_datum_is_set_aside_alone(engine: Engine) -> None:
    """Cut, with something behind it, empty, of another schema: each is an error of its own record; a null is a null."""
    whole = avro(ORDER, {"id": 5, "note": "word"})
    nulls = avro(record("Order", field("note", ["null", "string"])), {"note": None})
    records = [whole, whole[:-1], whole + b"\0", b"", None, whole + whole, nulls]
    outcomes = decode(engine, records, Side(Format.AVRO, schema=json.dumps(ORDER)))
    bad = "avro_malformed"
    assert outcomes.classes == [None, bad, bad, bad, None, bad, bad]
    assert outcomes.values == [{"id": 5, "note": "word"}, None, None, None, None, None, None]
    assert all("not one datum of the schema" in error for error in outcomes.errors if error)
    assert [error is None for error in outcomes.errors] == [each is None for each in outcomes.classes]
    # Spark gives a struct of nulls for what it cannot read; a record that says null everywhere is told apart
    schema = record("Maybe", field("a", ["null", "int"]), field("b", ["null", "string"]))
    honest = avro(schema, {"a": None, "b": None})
    outcomes = decode(engine, [honest, honest[:1]], Side(Format.AVRO, schema=json.dumps(schema)))
    assert (outcomes.values, outcomes.classes) == ([{"a": None, "b": None}, None], [None, bad])


def test_a_string_of_avro_that_is_not_utf8_makes_no_file_unreadable(engine: Engine, tmp_path: Path) -> None:
    """Spark copies its bytes as they are, and DuckDB then reads nothing of a whole file; at any depth, of keys too."""
    inner = record("In", field("s", ["null", "string"]), field("n", "int"))
    schema = record(
        "Out",
        field("s", "string"),
        field("list", {"type": "array", "items": inner}),
        field("map", {"type": "map", "values": "string"}),
        field("either", ["int", "string"]),
        field("names", {"type": "array", "items": "string"}),
        field("deep", {"type": "array", "items": {"type": "array", "items": "string"}}),
        field("lists", {"type": "map", "values": {"type": "array", "items": "In"}}),
    )

    def body(s: str = "", listed: str | None = None, key: str = "k", mapped: str = "", **others: Any) -> bytes:
        datum = {"s": s, "list": [{"s": None, "n": 0}, {"s": listed, "n": 1}], "map": {key: mapped}, "either": 1}
        datum |= {"names": ["a"], "deep": [["a"], []], "lists": {"k": []}} | others
        return (
            avro(schema, datum).replace(b"MARK", b"\xff\xfe\x80\xc0").replace(b"LEFT", b"abc\xc3").replace(b"REST", b"\xa9abc")
        )

    bad = [body("MARK"), body(listed="MARK"), body(key="MARK"), body(mapped="MARK"), body(either="MARK")]
    bad += [body(names=["a", "MARK"]), body(deep=[["a"], ["MARK"]]), body(lists={"k": [{"s": "MARK", "n": 1}]})]
    bad += [body(names=["LEFT", "REST"]), body(lists={"k": [{"s": "LEFT", "n": 1}, {"s": "REST", "n": 1}]})]
    bad += [body("MARK\0")]
    empty = {"list": [], "map": {}, "names": [], "deep": [], "lists": {}}
    good = [body(), body("\0ü", names=["a\0"]), body("ü", "ü", "ü", "ü", either="ü", names=["ü"]), body(**empty)]
    side = Side(Format.AVRO, schema=json.dumps(schema))
    outcomes = decode(engine, [*good, *bad, None], side)
    assert outcomes.classes == [None] * 4 + ["avro_malformed"] * 11 + [None]
    assert {*outcomes.errors} == {None, "a string in it is not UTF-8"}
    rows = decoding_session(engine).createDataFrame([("t", 0, at, None, each) for at, each in enumerate(good + bad)], RAW)
    decode_rows(rows, side)[0].where("failure IS NULL").select("value").coalesce(1).write.parquet(str(tmp_path / "rows"))
    assert len(duckdb.sql(f"SELECT value FROM read_parquet('{tmp_path}/rows/*.parquet')").fetchall()) == 4


def test_strings_of_wide_and_deep_avro_are_checked_too(engine: Engine) -> None:
    """What Spark's client sends has 100 levels at most; and Java's own strings would have other characters for bad bytes."""
    deep: dict[str, Any] = {"type": "string", "avro.java.string": "String"}
    for n in range(9):
        deep = {"type": "array", "items": record(f"R{n}", field("s", deep))} if n % 3 else {"type": "map", "values": deep}
    schema = record("Wide", *(field(f"c{number}", "string") for number in range(300)), field("deep", deep))

    def body(wide: str, text: str) -> bytes:
        datum: Any = text
        for number in range(9):
            datum = [{"s": datum}] if number % 3 else {"k": datum}
        return avro(schema, {f"c{number}": wide for number in range(300)} | {"deep": datum}).replace(
            b"MARK", b"\xff\xfe\x80\xc0"
        )

    outcomes = decode(
        engine, [body("a", "b"), body("MARK", "b"), body("a", "MARK")], Side(Format.AVRO, schema=json.dumps(schema))
    )
    assert outcomes.classes == [None, "avro_malformed", "avro_malformed"]


def test_the_deepest_schema_that_is_taken_is_decoded(engine: Engine, tmp_path: Path) -> None:
    """Spark's client could not read its columns if it were a few structs deeper; one level more is refused at once."""
    landed = tmp_path / "0.parquet"
    pyarrow.parquet.write_table(RAW_SCHEMA.empty_table(), landed)
    ddl = "at TIMESTAMP"
    for _ in range(MOST_LEVELS):
        ddl = f"d STRUCT<{ddl}>"
    assert parse_ddl(ddl).fields, "the control"
    with pytest.raises(NotDdl, match=f"more than {MOST_LEVELS} levels"):
        parse_ddl(f"d STRUCT<{ddl}>")
    path = ".".join(["value", *["d"] * MOST_LEVELS, "at"])
    decoder = SparkDecoder(engine, Decode(value=Side(Format.JSON, ddl), event_time=EventTime(path)))
    decoder.stage_decoded([landed], decoder.decide([landed]), str(tmp_path / "decoded"))
    assert list((tmp_path / "decoded").glob("*.parquet"))


def test_more_levels_than_the_client_sends_are_told(engine: Engine, tmp_path: Path) -> None:
    """Before anything is decoded; fewer of the same shape are, the control."""
    landed = tmp_path / "0.parquet"
    pyarrow.parquet.write_table(RAW_SCHEMA.empty_table(), landed)
    for levels in (12, 28):
        schema: Any = "string"
        for _ in range(levels):
            schema = {"type": "array", "items": schema}
        decoder = SparkDecoder(engine, Decode(value=Side(Format.AVRO, schema=json.dumps(schema))))
        decision = decoder.decide([landed])
        with pytest.raises(UnusableSchema, match="Spark's client cannot send") if levels > 12 else nullcontext():
            decoder.stage_decoded([landed], decision, str(tmp_path / f"{levels}"))
        assert (tmp_path / f"{levels}").exists() == (levels == 12)


def test_no_bytes_make_spark_fail(engine: Engine) -> None:
    """A length is read before what is so long: some bad bytes that ask for 2 GB must not get them; nor must any others."""
    schema = record(
        "Lengths", field("of", ["string", "bytes", {"type": "array", "items": "int"}, {"type": "map", "values": "int"}])
    )
    claims = [1 << 30, (1 << 31) - 9, (1 << 31) - 1, 1 << 40, -1, -(1 << 62)]
    greedy = [avro("long", branch) + avro("long", claim) for branch in range(5) for claim in claims]
    noise = [bytes((at * 7919 + step * 104729 >> 3) & 0xFF for step in range(at % 23)) for at in range(300)]
    outcomes = decode(engine, [*greedy, *noise, avro(schema, {"of": "word"})], Side(Format.AVRO, schema=json.dumps(schema)))
    assert outcomes.classes[: len(greedy)] == ["avro_malformed"] * len(greedy)
    assert outcomes.classes[-1] is None


def test_interleaved_writers_are_read_as_one(engine: Engine, registry: RunningRegistry, topic: str, tmp_path: Path) -> None:
    """[R-68] Of one landed file one decoded file, whatever wrote its records; the latest version reads, and is recorded."""
    old = record("Order", field("id", "int"))
    new = record("Order", field("id", "long"), field("note", ["null", "string"], default=None))
    first, second = (registry.register(f"{topic}-value", json.dumps(schema)) for schema in (old, new))
    records = [avro(old, {"id": 1}, first), avro(new, {"id": 2, "note": "x"}, second), b"poison"] * 3
    now = datetime(2020, 1, 2, tzinfo=UTC)
    rows = [raw_row((topic, 0, 0, at), now, value) for at, value in enumerate(records)]
    decoding_session(engine).createDataFrame(rows, raw_ddl()).coalesce(1).write.parquet(str(tmp_path / "landed"))
    landed = [*(tmp_path / "landed").glob("*.parquet")]
    decoder = SparkDecoder(engine, Decode(value=Side(Format.AVRO, registry=registry.url)))
    decided = decoder.decide(landed)
    decoder.stage_decoded(landed, decided, str(tmp_path / "decoded"))
    decoder.stage_dead_letters(landed, decided, str(tmp_path / "dead"))
    assert len(landed) == len([*(tmp_path / "decoded").glob("*.parquet")]) == len([*(tmp_path / "dead").glob("*.parquet")]) == 1
    decoded = pyarrow.parquet.read_table(tmp_path / "decoded").to_pylist()
    dead = pyarrow.parquet.read_table(tmp_path / "dead").to_pylist()
    assert [row["value"] for row in decoded] == [{"id": 1, "note": None}, {"id": 2, "note": "x"}] * 3
    assert [row["value_schema_id"] for row in decoded] == [first, second] * 3
    assert [(row["offset"], row["error_class"], row["raw_value"]) for row in dead] == [
        (at, "not_wire_format", b"poison") for at in (2, 5, 8)
    ]
    assert {name: json.loads(text) for name, text in decided.schemas.items()} == {
        "value:reader": new,
        f"value:{first}": old,
        f"value:{second}": new,
    }


def test_a_version_with_other_columns_says_how_others_are_decoded_again(world: World, registry: RunningRegistry) -> None:
    """The defs.yaml is as it was, so that nothing is outdated; what is told makes the topic go on."""
    subject = f"{world.name}-value"
    old, new = record("Order", field("n", "int")), record("Order", field("n", ["int", "string"]))
    world.topic = replace(world.topic, decode=Decode(value=Side(Format.AVRO, registry=registry.url)))
    world.create_topic(1)
    first = registry.register(subject, json.dumps(old))
    world.send([{"partition": 0, "value": avro(old, {"n": 1}, first)}])
    world.plan_and_land()
    (one,) = (offsets.key for offsets in world.coverage.log.ranges)
    assert [each.outcome for each in world.decode([one])] == [Decided.DECODED]
    world.send([{"partition": 0, "value": avro(new, {"n": "x"}, registry.register(subject, json.dumps(new)))}])
    world.plan_and_land()
    two = [offsets.key for offsets in world.coverage.log.ranges][-1]
    (refused,) = world.decode([two])
    assert "where a registry has another version since, `--schema ID`" in refused.violations[0]
    assert [each.outcome for each in world.decode([one], redo=True)] == [Decided.REPLACED]
    assert [each.outcome for each in world.decode([two])] == [Decided.DECODED]
    assert world.query("decoded", '"offset", value.n.member_int, value.n.member_string') == [(0, 1, None), (1, None, "x")]


def test_a_version_that_is_registered_between_good_rows_and_dead_letters_is_that_of_the_next_job(
    world: World, registry: RunningRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job decodes by one version: what the new one could read is a dead letter of this job, and decoded by the next."""
    subject, writers = f"{world.name}-value", f"{world.name}-writers"
    old = record("Order", field("n", "int"))
    new = record("Order", field("n", ["int", "string"]))
    text = record("Order", field("n", "string"))
    number, other = (registry.register(name, json.dumps(of)) for name, of in ((subject, old), (writers, text)))
    world.topic = replace(world.topic, decode=Decode(value=Side(Format.AVRO, registry=registry.url), budget=Budget(1, 0.5)))
    world.create_topic(1)
    values = [avro(old, {"n": 1}, number), avro(text, {"n": "x"}, other), avro(old, {"n": 3}, number)]
    world.send({"partition": 0, "value": value} for value in values)
    world.plan_and_land()
    stage = SparkDecoder.stage_decoded

    def stage_and_register(*given: Any) -> None:
        stage(*given)
        registry.register(subject, json.dumps(new))

    with monkeypatch.context() as patch:
        patch.setattr(SparkDecoder, "stage_decoded", stage_and_register)
        (verdict,) = world.decode()
    assert verdict.outcome is Decided.DECODED, verdict.violations
    assert world.query("decoded", '"offset", value.n') == [(0, 1), (2, 3)]
    assert world.query("dead_letters", '"offset", error_class') == [(1, "incompatible_schema")]
    (again,) = world.decode([verdict.offsets.key], redo=True)
    assert again.outcome is Decided.REPLACED, "the control: the new version is there, and reads all"
    assert again.decoding is not None and (again.decoding.rows, again.decoding.dead) == (3, 0)


# a rule of docs/decoding.md: the writer's field, what it wrote, the reader's field, what is read
RULES: Mapping[str, tuple[dict[str, Any] | None, Any, dict[str, Any] | None, Any]] = {
    "added with a default": (None, None, field("added", "string", default="EUR"), "EUR"),
    "removed": (field("removed", "string"), "x", None, None),
    "renamed, by an alias": (field("before", "long"), 1, field("after", "long", aliases=["before"]), 1),
    "widened from int to long": (field("n", "int"), -1, field("n", "long"), -1),
    "widened from float to double": (field("x", "float"), 0.5, field("x", "double"), 0.5),
    "widened from bytes to string": (field("text", "bytes"), b"x", field("text", "string"), "x"),
    "made nullable": (field("maybe", "long"), 1, field("maybe", ["null", "long"]), 1),
    "moved": (field("last", "string"), "z", field("last", "string"), "z"),
}


def test_a_field_that_changed_is_read_by_its_rule(engine: Engine, registry: RunningRegistry) -> None:
    """What was written before all of the changes reads as what was written after them."""
    before = record("Order", *(rule[0] for rule in RULES.values() if rule[0]))
    after = record("Order", *reversed([rule[2] for rule in RULES.values() if rule[2]]))
    written = {rule[0]["name"]: rule[1] for rule in RULES.values() if rule[0]}
    read = {rule[2]["name"]: rule[3] for rule in RULES.values() if rule[2]}
    first, last = (registry.register("evolved-value", json.dumps(schema)) for schema in (before, after))
    records = [avro(before, written, first), avro(after, read, last)]
    evolved = decode(engine, records, Side(Format.AVRO, registry=registry.url), "evolved")
    assert evolved.classes == [None, None]
    assert evolved.values == [read, read]


def test_what_a_reader_cannot_read_is_set_aside_with_the_reason(engine: Engine, registry: RunningRegistry, topic: str) -> None:
    """A type that changed, a field without default, another record: Avro's own reason; a record that can be read is."""
    reader = record("Order", field("id", "long"))
    writers = [
        record("Order", field("id", "string")),
        record("Order", field("number", "long")),
        record("Refund", field("id", "long")),
        record("Order", field("id", ["null", "long"])),
    ]
    ids = [registry.register(f"{topic}-value", json.dumps(schema)) for schema in writers]
    side = Side(Format.AVRO, registry=registry.url, schema=json.dumps(reader))
    data = [{"id": "one"}, {"number": 1}, {"id": 1}, {"id": None}, {"id": 4}]
    kinds = [0, 1, 2, 3, 3]
    records = [avro(writers[kind], datum, ids[kind]) for kind, datum in zip(kinds, data, strict=True)]
    outcomes = decode(engine, records, side, topic)
    assert outcomes.classes == ["incompatible_schema"] * 4 + [None]
    assert outcomes.values == [None] * 4 + [{"id": 4}]
    assert outcomes.ids == [ids[kind] for kind in kinds]
    reasons = ["type_mismatch at /fields/0/type", "reader_field_missing_default_value at /fields/0", "name_mismatch at /name"]
    assert [reason in row.failure.error for reason, row in zip(reasons, outcomes.rows, strict=False)] == [True] * 3
    assert set(outcomes.schemas) == {str(each) for each in ids}, "the reader's schema is in the configuration"


def test_another_wire_format_and_a_missing_schema_are_told_apart(engine: Engine, registry: RunningRegistry, topic: str) -> None:
    known = registry.register(f"{topic}-value", json.dumps(ORDER))
    other = registry.register(f"{topic}-other", json.dumps({"type": "object", "properties": {}}), "JSON")
    datum = avro(ORDER, {"id": 1, "note": None})
    records = [
        head_of(known) + datum,
        head_of(987654) + datum,
        b"\x00\xff\xff\xff\xff" + datum,
        b"\x01" + head_of(known)[1:] + datum,
        b"\x00\x00",
        b"",
        head_of(other) + b"{}",
        head_of(known) + datum + b"!",
        None,
    ]
    outcomes = decode(engine, records, Side(Format.AVRO, registry=registry.url), topic)
    unknown, unframed = "unknown_schema_id", "not_wire_format"
    expected = [None, unknown, unknown, unframed, unframed, unframed, "wrong_schema_type", "avro_malformed", None]
    assert outcomes.classes == expected
    assert outcomes.ids == [known, 987654, None, None, None, None, other, known, None]
    assert outcomes.rows[1].failure.error == f"registry {registry.url} has no schema 987654"
    assert outcomes.rows[3].failure.error.endswith(f"found {5 + len(datum)} bytes, 01{known:08X}")


def test_an_id_that_was_not_asked_for_is_not_called_unknown(
    engine: Engine, registry: RunningRegistry, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with the most records are asked for, and not what only looks like a head; the control is one id less."""
    ids = [registry.register(f"{topic}-{number}", json.dumps({**ORDER, "doc": str(number)})) for number in range(2)]
    registry.register(f"{topic}-value", json.dumps(ORDER))
    records = [head_of(each) + avro(ORDER, {"id": 1, "note": None}) for each in (ids[0], ids[0], ids[1])]
    records += [b"\x01" + number.to_bytes(4) + b"..." for number in range(3)] * 3
    for most, classes in ((2, [None] * 3), (1, [None, None, "unknown_schema_id"])):
        monkeypatch.setattr(spark_wire, "MOST_IDS", most)
        outcomes = decode(engine, records, Side(Format.AVRO, registry=registry.url), topic)
        assert outcomes.classes == [*classes, *["not_wire_format"] * 9]
    assert f"has no schema {ids[1]}, or was not asked for it, as rows have more than 1 ids" in outcomes.rows[2].failure.error


def test_references_are_followed(engine: Engine, registry: RunningRegistry, topic: str) -> None:
    """Of the reader and of writers, through two steps, by names with and without their namespace."""
    city = record("City", field("name", "string"), namespace="geo")
    place = record("Place", field("city", "geo.City"), field("twin", ["null", "City"], default=None), namespace="geo")
    order = record("Order", field("to", "geo.Place"), field("back", "geo.Place"), namespace="shop")
    registry.register(f"{topic}-city", json.dumps(city))
    registry.register(f"{topic}-place", json.dumps(place), "AVRO", **{"geo.City": (f"{topic}-city", 1)})
    own = registry.register(f"{topic}-value", json.dumps(order), "AVRO", **{"geo.Place": (f"{topic}-place", 1)})
    named: dict[str, Any] = {}
    for schema in (city, place):
        fastavro.parse_schema(schema, named)
    datum = {"to": {"city": {"name": "Rome"}, "twin": {"name": "Paris"}}, "back": {"city": {"name": "Bonn"}, "twin": None}}
    records = [avro(fastavro.parse_schema(order, named), datum, own)]
    assert decode(engine, records, Side(Format.AVRO, registry=registry.url), topic).values == [datum]


def test_a_registry_with_a_login_is_entered_as_the_properties_file_says(
    engine: Engine, registry: RunningRegistry, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A real registry behind TLS and Basic; the controls are nobody, a wrong password, and nobody's authority."""
    known = registry.register(f"{topic}-value", json.dumps(ORDER))
    records = [avro(ORDER, {"id": 1, "note": None}, known)]
    authority, user = Authority("registry"), "reader:hush-4711:x"
    (tmp_path / "ca.pem").write_text(authority.certificate)
    (tmp_path / "server.pem").write_text("".join(authority.issue("server", ["127.0.0.1"])))

    def login(**changes: str) -> RegistryLogin:
        keys = {"basic.auth.user.info": user, "ssl.ca.location": str(tmp_path / "ca.pem")} | changes
        named = {f"schema.registry.{key}": value for key, value in keys.items() if value}
        return read_access(write_properties(tmp_path / f"{uuid.uuid4().hex}.properties", named)).properties.registry

    with guarded(registry, user, tmp_path / "server.pem") as url, caplog.at_level("DEBUG"):
        assert decode(engine, records, Side(Format.AVRO, registry=url), topic, login()).values == [{"id": 1, "note": None}]
        assert connect(url, login()).read_schema(known) is not None
        for changes, expected in [
            ({"basic.auth.user.info": ""}, r"does not let us in \(.*401.*basic.auth.user.info in the file of OFFSETLAKE_KAFKA"),
            ({"basic.auth.user.info": "reader:hush-no"}, r"does not let us in \(.*401"),
            ({"ssl.ca.location": ""}, "CERTIFICATE_VERIFY_FAILED"),
        ]:
            with pytest.raises(RegistryUnavailable, match=expected) as caught:
                connect(url, login(**changes)).read_schema(known)
            assert "hush" not in str(caught.value)
        with pytest.raises(BadSetting, match=r"schema.registry.ssl.ca.location /nowhere cannot be used: No such file"):
            connect(url, login(**{"ssl.ca.location": "/nowhere"}))
    assert "hush" not in caplog.text


def test_a_registry_that_does_not_answer_is_one_error(engine: Engine, registry: RunningRegistry) -> None:
    """No record is set aside for it. The control is every other test."""
    nobody = "http://127.0.0.1:9"
    with pytest.raises(RegistryUnavailable, match=f"registry {nobody} does not answer, within 3 tries"):
        decode(engine, [avro(ORDER, {"id": 1, "note": None}, 1)], Side(Format.AVRO, registry=nobody))
    elsewhere = registry.url.replace("ccompat", "nowhere")
    with pytest.raises(RegistryUnavailable, match=r"with 404, .*, expected what a Schema Registry answers"):
        decode(engine, [b""], Side(Format.AVRO, registry=elsewhere))
    with pytest.raises(UnknownSubject, match="has no subject orders-value"):
        decode(engine, [b""], Side(Format.AVRO, registry=registry.url))
    with pytest.raises(ValueError, match="it has no scheme, expected http:// or https://"):
        decode(engine, [b""], Side(Format.AVRO, registry="nonsense"))


LOWER, UPPER = {"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": {}, "N": {}}
BOMB = {"$ref": "#/$defs/d0", "$defs": {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(24)}}
PROTO = 'syntax = "proto3"; message M { int32 n = 1; }'
UNUSABLE: Mapping[Format, tuple[str, bytes, Mapping[str, str]]] = {
    Format.AVRO: (
        json.dumps(record("R", field("n", "int"))),
        b"\x02",
        {
            "no name of Avro's": json.dumps(record("9 R", field("n", "int"))),
            "a type without a name": '{"type": "record", "fields": [{"type": "int"}]}',
            "fields that are none": '{"type": "record", "name": "R", "fields": 5}',
            "nested beyond all readers": '{"type": "array", "items": ' * 2_000 + '"int"' + "}" * 2_000,
            "beyond the memory": json.dumps(record("R", field("n", {"type": "fixed", "name": "F", "size": 2**31 - 1}))),
            "no JSON": "{",
            "unknown to all": '"gone.Type"',
        },
    ),
    Format.JSON_SCHEMA: (
        json.dumps(LOWER),
        b'{"n": 1}',
        {
            "names that differ in case only": json.dumps({"type": "object", "properties": UPPER}),
            "of somebody's own language": '{"$schema": "http://example.com/mine"}',
            "24 levels that double": json.dumps(BOMB),
            "nested beyond all readers": '{"items": ' * 2_000 + "{}" + "}" * 2_000,
            "a reference to elsewhere": '{"$ref": "http://127.0.0.1:9/x"}',
            "a list": "[]",
        },
    ),
    Format.PROTOBUF: (
        PROTO,
        b"\0\x08\x01",
        {
            "no schema": "nonsense",
            "an import that is gone": 'syntax = "proto3"; import "gone.proto"; message M { int32 n = 1; }',
            "JSON names twice": 'syntax = "proto2"; message M { optional int32 a_b = 1; optional int32 aB = 2; }',
        },
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_one_writers_unusable_schema_sets_aside_its_own_records_only(engine: Engine, name: Format) -> None:
    """And is said of each of them, in few words; a reader's is one error before anything is decoded."""
    text, body, bad = UNUSABLE[name]
    kind = {Format.AVRO: "AVRO", Format.JSON_SCHEMA: "JSON", Format.PROTOBUF: "PROTOBUF"}[name]
    with fake_registry() as fake:
        fake.put_version("orders-value", "latest", 1, text, kind)
        fake.put(1, text, kind)
        for number, broken in enumerate(bad.values(), 2):
            fake.put(number, broken, kind)
        fake.put(99, text, kind, references=[{"name": "gone", "subject": "gone", "version": 1}])
        ids = [1, *range(2, 2 + len(bad)), 99, 1]
        side = Side(name, registry=fake.url)
        outcomes = decode(engine, [head_of(each) + body for each in ids], side)
        assert outcomes.classes == [None, *["unusable_schema"] * (len(ids) - 2), None]
        assert [value and value["n"] for value in outcomes.values] == [1, *[None] * (len(ids) - 2), 1]
        assert outcomes.ids == ids
        errors = [row.failure.error for row in outcomes.rows if row.failure]
        assert all(error.startswith(f"written with schema {each}, ") for each, error in zip(ids[1:], errors[:-1], strict=False))
        assert "has no version 1 of subject gone" in errors[-1]
        assert max(map(len, errors)) < 700
        fake.put_version("orders-value", "latest", 1, next(iter(bad.values())), kind)
        with pytest.raises(UnusableSchema, match=f"schema 1 of registry {fake.url} cannot be used: "):
            decode(engine, [head_of(1) + body], side)
        fake.put_version("orders-value", "latest", 1, text, "AVRO" if kind != "AVRO" else "JSON")
        with pytest.raises(UnusableSchema, match=f"it is {'AVRO' if kind != 'AVRO' else 'JSON'}, expected {kind}"):
            decode(engine, [head_of(1) + body], side)


def message_class(text: str, name: str, **imported: str) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(find_message(compile_proto(text, imported, "the schema"), name, "the schema"))


def proto(body: str) -> str:
    return f'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; {body}'


def test_plain_protobuf_of_every_kind_of_type(engine: Engine) -> None:
    """In one Parquet-ready column; a null is a null, no bytes are a message of defaults, bad bytes an error of their own."""
    text = proto("""
        enum Size { SMALL = 0; LARGE = 1; }
        message Inner { int32 x = 1; repeated string tags = 2; }
        message All {
          int64 id = 1; optional string note = 2; Inner inner = 3; repeated Inner inners = 4; map<string, int32> counts = 5;
          google.protobuf.Timestamp at = 6; Size size = 7; bytes raw = 8; uint64 big = 9; uint32 small = 10;
          oneof choice { string word = 11; int32 number = 12; } double d = 13; bool ok = 14;
        }""")
    kind = message_class(text, "All")
    full = kind(id=-1, note="", inner={"x": 1, "tags": ["a"]}, inners=[{"x": 2}], counts={"k": 3}, size=1, raw=b"\xff")
    full.MergeFrom(kind(big=(1 << 64) - 1, small=(1 << 32) - 1, number=0, d=0.5, ok=True))
    full.at.FromJsonString("2020-01-02T03:04:05.678901Z")
    body = full.SerializeToString()
    bare = bytes.fromhex("2a030a016b")  # an entry of a map without its value, as Rust producers send it
    outcomes = decode(engine, [body, b"", None, body[:-1], bare], Side(Format.PROTOBUF, schema=text, message="All"))
    assert outcomes.classes == [None, None, None, "protobuf_malformed", None]
    nothing = {"note": None, "inner": None, "inners": [], "counts": {}, "at": None, "word": None, "number": None}
    zeros = {"id": 0, "size": "SMALL", "raw": b"", "big": Decimal(0), "small": 0, "d": 0.0, "ok": False}
    at = datetime(2020, 1, 2, 3, 4, 5, 678901, UTC).astimezone().replace(tzinfo=None)
    some = {"id": -1, "note": "", "inner": {"x": 1, "tags": ["a"]}, "inners": [{"x": 2, "tags": []}], "counts": {"k": 3}}
    more = {"at": at, "size": "LARGE", "raw": b"\xff", "big": Decimal((1 << 64) - 1), "small": (1 << 32) - 1}
    read = some | more | {"word": None, "number": 0, "d": 0.5, "ok": True}
    assert outcomes.values == [read, nothing | zeros, None, None, nothing | zeros | {"counts": {"k": 0}}]


def test_protobuf_of_any_writers_is_read_as_one_message(engine: Engine, registry: RunningRegistry, topic: str) -> None:
    """Added, removed, renamed and widened fields by their numbers; what would be passed over in silence is set aside."""
    versions = [
        "message Order { string id = 1; }",
        "message Order { int32 id = 1; string name = 3; string gone = 4; }",
        "message Order { int64 id = 1; optional string note = 2; string title = 3; } message Refund { int64 id = 1; }",
    ]
    ids = [registry.register(f"{topic}-value", proto(version), "PROTOBUF") for version in versions]
    changed, old, new = (message_class(proto(version), "Order") for version in versions)
    refund = message_class(proto(versions[2]), "Refund")
    elsewhere = registry.register(f"{topic}-other", json.dumps(ORDER))
    usual = [head_of(each) + b"\0" for each in ids]
    records = [
        usual[1] + old(id=-5, name="x", gone="y").SerializeToString(),
        usual[2] + new(id=6, note="n", title="z").SerializeToString(),
        head_of(ids[2]) + b"\2\0" + new(id=7).SerializeToString(),
        usual[0] + changed(id="8").SerializeToString(),
        head_of(ids[2]) + b"\2\2" + refund(id=9).SerializeToString(),
        usual[2] + b"\xff",
        head_of(elsewhere) + b"\0",
        head_of(987654) + b"\0",
        b"?",
        None,
    ]
    outcomes = decode(engine, records, Side(Format.PROTOBUF, registry=registry.url, message="Order"), topic)
    assert outcomes.values[:3] == [
        {"id": -5, "note": None, "title": "x"},
        {"id": 6, "note": "n", "title": "z"},
        {"id": 7, "note": None, "title": ""},
    ]
    assert outcomes.values[3:] == [None] * 7
    assert outcomes.classes[3:] == [
        *("incompatible_schema", "other_message", "protobuf_malformed", "wrong_schema_type"),
        *("unknown_schema_id", "not_wire_format", None),
    ]
    assert outcomes.rows[3].failure.error.endswith("id = 1 was written as string, expected int64")
    assert outcomes.ids == [ids[1], ids[2], ids[2], ids[0], ids[2], ids[2], elsewhere, 987654, None, None]
    assert set(outcomes.schemas) == {"reader", *map(str, ids)}


def test_a_message_that_may_be_another_one_is_set_aside_and_says_so(engine: Engine) -> None:
    """Serializers count what protoc makes of a map among the nested messages, or do not; the control: both can mean one."""
    text = """syntax = "proto3"; package s; message Outer { map<string, int32> m = 1;
      message Inner { int32 n = 1; } message Other { int32 n = 1; } }"""
    alone = text.replace("message Other { int32 n = 1; } ", "")
    with fake_registry() as fake:
        fake.put_version("orders-value", "latest", 1, text, "PROTOBUF")
        fake.put(1, text, "PROTOBUF")
        fake.put(2, alone, "PROTOBUF")
        starts = [(1, b"\4\0\0"), (1, b"\4\0\2"), (1, b"\4\0\4"), (2, b"\4\0\0"), (2, b"\4\0\2")]
        side = Side(Format.PROTOBUF, registry=fake.url, message="Inner")
        outcomes = decode(engine, [head_of(each) + path + b"\x08\x05" for each, path in starts], side)
    assert outcomes.values == [{"n": 5}, None, None, {"n": 5}, {"n": 5}]
    assert outcomes.classes == [None, "other_message", "other_message", None, None]
    assert outcomes.errors[1].startswith("it is s.Outer.Inner or s.Outer.Other of schema 1: ")
    assert outcomes.errors[2] == "another message of schema 1, expected s.Outer.Inner"


def test_a_schema_at_which_ptars_panics_is_unusable(engine: Engine) -> None:
    """Protobuf itself has nothing against a field `_x` beside an optional `x`."""
    text = 'syntax = "proto3"; message M { optional int32 x = 1; int32 _x = 2; }'
    with pytest.raises(UnusableSchema, match="the protobuf schema of the value cannot be used: ptars, which makes columns of"):
        decode(engine, [b""], Side(Format.PROTOBUF, schema=text))
    assert decode(engine, [b""], Side(Format.PROTOBUF, schema=text.replace("_x", "y"))).values == [{"x": None, "y": 0}]


def test_json_is_checked_by_its_schema_and_has_its_columns(engine: Engine) -> None:
    """What is not plain is text; nothing passes unchecked; a map never has a key twice, which DuckDB cannot read."""
    schema = {
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "integer", "minimum": 0},
            "name": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "by": {"type": "object", "additionalProperties": {"type": "number"}},
            "free": {},
            "inner": {"$ref": "#/$defs/inner"},
        },
        "$defs": {"inner": {"type": "object", "properties": {"x": {"type": "boolean"}}}},
    }
    full = {"id": 1, "name": None, "tags": ["a"], "by": {"k": 1.5}, "free": {"a": [1]}, "inner": {"x": True}}
    bad = [b'{"id": -1}', b"{}", b"{", b"\xff", b'{"id": 1} 2', b'{"id": 1000000000000000000000}', b"null"]
    bad += [b'{"id": NaN, "name": 5}', '{"id": "x"}'.encode("utf-16")]  # what Python would take for JSON, and check
    bad += [b'{"id": -9}]}', b'{"id": 1}]} x', b'{"id": 1}},"x":{"v":{"id": 2}', b'{"id": 1, "id": -9}']
    bad += [b'{"id": -9, "z": ' + b"[" * 980 + b"]" * 980 + b"}"]  # Spark reads it, and Python does not
    bad += [b'{"id": 1, "by": {"k": 1, "k": 2}}', b'{"id": 1, "by": {"k": "x"}}']
    records = [json.dumps(full).encode(), None, *bad, b'{"id": -9, "id": 2, "more": 3}']
    outcomes = decode(engine, records, Side(Format.JSON_SCHEMA, schema=json.dumps(schema)))
    violated, malformed = "schema_violated", "json_malformed"
    wrong = [violated, violated, malformed, "not_utf8", malformed, "json_mismatch", violated]
    wrong += [malformed, "not_utf8", malformed, malformed, malformed, violated, violated, "json_mismatch", violated]
    assert outcomes.classes == [None, None, *wrong, None]
    nothing = dict.fromkeys(["name", "tags", "by", "free", "inner"])
    assert outcomes.values == [full | {"free": '{"a":[1]}'}, None, *[None] * len(bad), {"id": 2} | nothing]
    assert outcomes.rows[2].failure.error == "at /id: not as minimum 0 says (/properties/id/minimum)"
    assert outcomes.rows[3].failure.error == 'at /: "id" is a required property (/required)'


def test_json_of_any_writers_has_one_set_of_columns(engine: Engine, registry: RunningRegistry, topic: str) -> None:
    """Each document is checked by the schema it was written with; what has no place in the reader's columns is said."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    registry.register(f"{topic}-place", json.dumps(city), "JSON")
    old = {"type": "object", "properties": {"id": {"type": "string"}, "gone": {"type": "integer"}}}
    new = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "at": {"$ref": "place.json"}, "n": {"type": "integer"}},
        "required": ["n"],
    }
    other = {"type": "object", "properties": {"n": {"type": "string"}}}
    texts = [json.dumps(each) for each in (other, old, new)]
    ids = [registry.register(f"{topic}-value", text, "JSON") for text in texts[:2]]
    ids.append(registry.register(f"{topic}-value", texts[2], "JSON", **{"place.json": (f"{topic}-place", 1)}))
    documents = [
        (1, b'{"id": "a", "gone": 5}'),
        (2, b'{"id": "b", "n": 1, "at": {"city": "Rome"}}'),
        (2, b'{"id": "b"}'),
        (2, b'{"n": 1, "at": {}}'),
        (0, b'{"n": "one"}'),
        (2, b"{"),
    ]
    records = [*(head_of(ids[version]) + body for version, body in documents), head_of(987654) + b"{}", b"{}", None]
    outcomes = decode(engine, records, Side(Format.JSON_SCHEMA, registry=registry.url), topic)
    assert outcomes.classes == [
        *(None, None, "schema_violated", "schema_violated", "json_mismatch", "json_malformed"),
        *("unknown_schema_id", "not_wire_format", None),
    ]
    assert outcomes.values[:2] == [{"id": "a", "at": None, "n": None}, {"id": "b", "at": {"city": "Rome"}, "n": 1}]
    assert outcomes.ids[:6] == [ids[version] for version, _ in documents]
    assert outcomes.rows[3].failure.error == 'at /at: "city" is a required property (/required)'
    assert set(outcomes.schemas) == {"reader", *map(str, ids)}


def test_what_confluents_serializers_write_is_read(engine: Engine, registry: RunningRegistry, topic: str) -> None:
    """Avro by the record's name; of Protobuf a nested message with an import, whose descriptors are sent in base64."""
    from confluent_kafka.schema_registry import SchemaRegistryClient, record_subject_name_strategy
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    order = json.dumps(record(f"R{topic}", field("id", "int"), namespace="shop"))
    place = 'syntax = "proto3"; package geo; message Place { string city = 1; }'
    shop = (
        'syntax = "proto3"; package shop; import "geo/place.proto";'
        "message Void { int32 x = 1; } message Outer { message Order { geo.Place to = 1; } Order order = 1; }"
    )
    kind = message_class(shop, "Order", **{"geo/place.proto": place})
    schema = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}
    with SchemaRegistryClient({"url": registry.url}) as client:
        by_name = AvroSerializer(client, order, conf={"subject.name.strategy": record_subject_name_strategy})
        imported = ProtobufSerializer(kind, client, {"use.deprecated.format": False})
        for name, serializer, datum, more, read in (
            (Format.AVRO, by_name, {"id": 7}, {"subject": "record_name", "message": f"shop.R{topic}"}, {"id": 7}),
            (Format.PROTOBUF, imported, kind(to={"city": "Rome"}), {"message": "shop.Outer.Order"}, {"to": {"city": "Rome"}}),
            (Format.JSON_SCHEMA, JSONSerializer(json.dumps(schema), client), {"id": 7}, {}, {"id": 7}),
        ):
            of = f"{topic}-{name}"
            written = serializer(datum, SerializationContext(of, MessageField.VALUE))
            assert decode(engine, [written], Side(name, registry=registry.url, **more), of).values == [read], name


def times_of(kind: Any) -> dict[str, Any]:
    many, by = {"type": "array", "items": ["null", kind]}, {"type": "map", "values": kind}
    return record("Times", field("one", kind), field("many", many), field("by", by))


@pytest.mark.parametrize(
    ("name", "a_day"),
    [
        ("date", 1),
        ("timestamp-millis", 86_400_000),
        ("timestamp-micros", 86_400_000_000),
        ("local-timestamp-micros", 86_400_000_000),
    ],
)
def test_a_time_of_avro_that_no_calendar_has_is_set_aside(engine: Engine, name: str, a_day: int) -> None:
    """Readers of the files say another one for it, or nothing: pyarrow, DuckDB, Polars; at any depth."""
    kind = "int" if name == "date" else "long"
    schema, numbers = times_of({"type": kind, "logicalType": name}), times_of(kind)
    first, last = -719_162 * a_day, 2_932_896 * a_day  # of the year 1, and 9999-12-31

    def body(one: int = 0, listed: int = 0, mapped: int = 0) -> bytes:
        return avro(numbers, {"one": one, "many": [None, listed], "by": {"k": mapped}})

    good = [body(), body(first, first, first), body(last, last, last), avro(numbers, {"one": 0, "many": [], "by": {}})]
    before, after = first - 1, last + a_day
    bad = [body(before), body(after), body(listed=before), body(listed=after), body(mapped=after)]
    found = decode(engine, [*good, None, *bad], Side(Format.AVRO, schema=json.dumps(schema)))
    assert found.classes == [None] * 5 + ["avro_malformed"] * 5
    assert {*found.errors[5:]} == {"a date or time in it is not of the years 1 to 9999"}
