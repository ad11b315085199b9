"""Formats on real Spark: from what defs.yaml says to the views, of a user's own, of Kafka's serializers, and each fuzzed."""

import dataclasses
import json
import math
import random
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro
import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from pipeline_defs.adapters.formats import own_formats as own_module
from pipeline_defs.adapters.formats import spark_decoding as decoding_module
from pipeline_defs.adapters.formats.own_formats import GROUP, own_formats
from pipeline_defs.adapters.formats.spark_decoding import SparkDecoder
from pipeline_defs.adapters.formats.spark_wire import head_of
from pipeline_defs.adapters.spark import engine as engine_module
from pipeline_defs.adapters.spark.engine import Engine
from pipeline_defs.adapters.tables.columns_of_table import DEAD_LETTERS, DECODED, text_of
from pipeline_defs.adapters.tables.duck import Duck, no_rows
from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.decode.decoders import SERIALIZED, Decode, Format, Side
from pipeline_defs.core.errors import BadSetting, JobStuck, ScanFailed, UnusableSchema
from pipeline_defs.orchestration.assets.derived_config import BudgetConfig, DecodeConfig, SideConfig
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import Settings
from tests.support import fuzz
from tests.support.decoded import decode
from tests.support.fuzz import avro, draw_message, draw_proto
from tests.support.registry import fake_registry
from tests.support.strategies import draws, mutate
from tests.support.world import World, own_spark

AVRO = {"type": "record", "name": "T", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}
PROTO = 'syntax = "proto3"; message T { int64 id = 1; string name = 2; }'
JSON_SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]}'


# schema, good records of 0, 1 and 2, what bytes of none of them are
FORMATS: dict[str, tuple[str | None, list[bytes], str]] = {
    "json": ("id BIGINT, name STRING", [b'{"id": %d, "name": "n"}' % n for n in range(3)], "not_utf8"),
    "avro": (json.dumps(AVRO), [avro(AVRO, {"id": n, "name": "n"}) for n in range(3)], "avro_malformed"),
    "protobuf": (PROTO, [b"\x08" + bytes([n]) + b"\x12\x01n" for n in range(3)], "protobuf_malformed"),
    "json_schema": (JSON_SCHEMA, [b'{"id": %d, "name": "n"}' % n for n in range(3)], "not_utf8"),
    "string": (None, [b"0", b"1", b"2"], "not_utf8"),
    "integer": (None, [bytes([0, 0, 0, n]) for n in range(3)], "integer_malformed"),
}
BAD = b"\xff\xfe\x00"


@pytest.mark.parametrize(("key", "value"), [("string", "json"), ("integer", "avro"), ("json_schema", "protobuf")])
def test_a_format_from_defs_yaml_to_the_views(world: World, key: str, value: str) -> None:
    sides = {side: SideConfig(format=name, inline_schema=FORMATS[name][0]) for side, name in (("key", key), ("value", value))}
    component = KafkaTopic(topic=world.name, decode=DecodeConfig(**sides, dead_letters=BudgetConfig(records=2, share=0.5)))
    world.topic = dataclasses.replace(component.as_topic(), policy=world.topic.policy)
    world.create_topic(1)
    keys, values = FORMATS[key][1], FORMATS[value][1]
    pairs = [*zip(keys, values, strict=True), (BAD, values[0]), (keys[0], BAD)]
    world.send({"partition": 0, "key": each, "value": other} for each, other in pairs)
    world.plan()
    world.launch()
    (launched,) = world.in_process.decode(list(world.coverage.log.ranges), redo=False)
    assert launched.succeeded, launched.reason
    duck = Duck(world.adapters.lake, [world.name])
    ids = [f"{side}::INTEGER" if FORMATS[name][0] is None else f"{side}.id" for side, name in (("key", key), ("value", value))]
    rows = duck.query(f'SELECT "offset", {", ".join(ids)} FROM decoded."{world.name}" ORDER BY 1')[1]
    assert rows == [(n, n, n) for n in range(3)]
    dead = duck.query(f'SELECT "offset", side, error_class FROM dead_letters."{world.name}" ORDER BY 1')[1]
    assert dead == [(3, "key", FORMATS[key][2]), (4, "value", FORMATS[value][2])]
    of_none = duck.query(f"DESCRIBE {no_rows(DEAD_LETTERS)}")[1]
    assert sorted(of_none) == sorted(duck.query(f'DESCRIBE dead_letters."{world.name}"')[1]), "the view of a table without any"


OWN = """
import threading

from pyspark.sql import Window, functions as f

def hexadecimal(raw):
    return f.unhex(raw.cast("string")).cast("string")

def fails(raw):
    raise LookupError("no such table")

def nothing(raw):
    return 7

def exits(raw):
    raise SystemExit(3)

def interrupts(raw):
    raise KeyboardInterrupt

def blocks(raw):
    threading.Event().wait()

def fills(raw):
    return f.coalesce(raw.cast("string"), f.lit("was null"))

def seconds(raw):
    time = f.timestamp_seconds(raw.cast("string").try_cast("bigint"))
    within = f.array(f.map_from_arrays(f.array(f.lit(1)), f.array(time.cast("date"))))
    return f.when(time.isNotNull(), f.struct(f.when(raw.cast("string") != "-65000000000", time).alias("at"), within))

def several(raw):
    return f.max(raw)

def many(raw):
    return f.explode(f.split(raw.cast("string"), ","))

def neighbours(raw):
    return f.lag(raw).over(Window.partitionBy(raw).orderBy(raw))

def other(raw):
    return f.col("nothing")

def casts(raw):
    return raw.cast("string").cast("int")

def raises(raw):
    return f.raise_error(f.concat(f.lit("boo "), raw.cast("string"))).cast("int")

def parses(raw):
    return f.from_csv(raw.cast("string"), "a int", {"mode": "FAILFAST"})

def matches(raw):
    return f.regexp(f.lit(""), raw.cast("string"))

@f.pandas_udf("string")
def waiting(texts):
    if any(text.startswith("aaa") for text in texts):
        threading.Event().wait()
    return texts

def waits(raw):
    return waiting(raw.cast("string"))

def backtracks(raw):
    return f.regexp_extract(raw.cast("string"), "^((a|aa)+)+$", 1)
"""
RAISING = {
    "casts": "it raised CAST_INVALID_INPUT, SQLSTATE 22018; what it says is in Spark's log",
    "raises": "it raised USER_RAISED_EXCEPTION, SQLSTATE P0001; what",
    "parses": "it raised MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION, SQLSTATE 22023; what",
    "matches": "it raised java.util.regex.PatternSyntaxException; what",
}
NAMED = [*re.findall(r"^def (\w+)\(raw\)", OWN, re.MULTILINE), "missing"]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with formats; own formats are looked for anew."""
    (tmp_path / "my_formats.py").write_text(OWN)
    info = tmp_path / "my_formats-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-formats\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{name} = my_formats:{name}\n" for name in NAMED))
    monkeypatch.syspath_prepend(str(tmp_path))
    own_formats.cache_clear()
    yield info
    own_formats.cache_clear()


def test_a_format_of_a_users_own_decodes(engine: Engine, installed: Path) -> None:
    """[R-67] What its function leaves out is a dead letter; a null stays one: a tombstone would live in the latest table."""
    outcomes = decode(engine, [b"6162", b"zz", None, b""], Side("hexadecimal"))
    assert outcomes.values == ["ab", None, None, ""]
    assert outcomes.classes == [None, "hexadecimal_malformed", None, None]
    assert outcomes.errors[1] == "my_formats:hexadecimal returned null for these bytes"
    assert decode(engine, [None, b"6162"], Side("fills")).values == [None, "6162"]


def test_a_time_of_a_users_own_that_no_reader_can_say_is_a_dead_letter(engine: Engine, installed: Path) -> None:
    years = [b"-62135596800", b"253402300799"]
    found = decode(engine, [b"-65000000000", b"253402300800", None, *years, b"x"], Side("seconds"))
    assert found.classes == ["seconds_malformed"] * 2 + [None] * 3 + ["seconds_malformed"]
    out = "my_formats:seconds returned a date or time out of the years 1 to 9999 for these bytes"
    assert found.errors == [out, out, None, None, None, "my_formats:seconds returned null for these bytes"]
    assert [value and value["at"].year for value in found.values] == [None, None, None, 1, 9999, None]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fails", "it fails: LookupError: no such table"),
        ("nothing", "returns a Spark column, found int"),
        ("missing", "it fails: AttributeError"),
        ("exits", "it fails: SystemExit: 3"),
        ("interrupts", "it fails: KeyboardInterrupt"),
        ("blocks", "it has returned nothing for 1 s"),
        ("other", r"Spark does not take what it returns: \[UNRESOLVED_COLUMN"),
        ("several", "Spark does not take what it returns: "),
        ("many", "Spark does not take what it returns: "),
        ("neighbours", "Spark does not take what it returns: "),
    ],
)
def test_a_function_that_cannot_be_used_is_named(
    engine: Engine, installed: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    """[R-67] Whatever it does, the run goes on with other topics."""
    monkeypatch.setattr(own_module, "CALL_SECONDS", 1.0 if name == "blocks" else own_module.CALL_SECONDS)
    with pytest.raises(BadSetting, match=f"my_formats:{name}, cannot be used: .*{said}"):
        decode(engine, [b"1"], Side(name))


def land_bytes(folder: Path, record: bytes) -> list[Path]:
    """Write a file with one landed record, as far as a decoder reads it."""
    folder.mkdir()
    columns = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "value": pa.binary()}
    row = {"topic": "orders", "partition": 0, "offset": 0, "value": record}
    pq.write_table(pa.Table.from_pylist([row], pa.schema(columns)), folder / "landed.parquet")
    return [folder / "landed.parquet"]


def stage(engine: Engine, files: list[Path], format_: str, folder: Path) -> None:
    decoder = SparkDecoder(engine, Decode(Side(Format.NONE), Side(format_)))
    decoder.stage_decoded(files, decoder.decide(files), str(folder))


@pytest.mark.parametrize("name", RAISING)
def test_what_spark_says_of_a_record_is_told_nowhere(
    engine: Engine, installed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """Which error it is, and whose function may be at fault; a file that cannot be read is named, the control."""
    files = land_bytes(tmp_path / "in", b"card 4111((\nCaused by: java.io.IOException: card 4111")
    with pytest.raises(ScanFailed) as found:
        stage(engine, files, name, tmp_path / "out")
    assert f"1 landed files, value by format {name}, my_formats:{name}: {RAISING[name]}" in str(found.value)
    assert "card" not in "".join((str(found.value), *capfd.readouterr()))
    files[0].write_bytes(b"PAR1")
    with pytest.raises(ScanFailed, match=r"decode 1 landed files: .*landed\.parquet is not a Parquet file"):
        stage(engine, files, Format.STRING, tmp_path / "control")


@pytest.fixture(scope="module")
def own_engine(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A Spark that no other test uses: what is stuck in it ends it, and the jobs of all others with it."""
    with own_spark(settings, tmp_path_factory.mktemp("stuck")) as own:
        adapters = Adapters(own)
        yield adapters.engine(adapters.pyspark())


@pytest.mark.parametrize("name", ["waits", "backtracks"])
def test_a_job_that_is_stuck_is_stopped_and_the_next_one_has_its_place(
    own_engine: Engine, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """[R-67] More files are stuck than there are cores, in Python or in the JVM, where a task hears no interrupt."""
    monkeypatch.setattr(engine_module, "WATCH_SECONDS", 0.2)
    decoder = SparkDecoder(own_engine, Decode(Side(Format.NONE), Side(name)))
    good, bad = (land_bytes(tmp_path / text[:4], text.encode()) for text in ("good", "a" * 60 + "b"))
    decision = decoder.decide(bad)
    with monkeypatch.context() as short:
        short.setattr(decoding_module, "STILL_SECONDS", 3.0)
        with pytest.raises(JobStuck, match=f"9 landed files, .*my_formats:{name}: it finished no file for 3 s and was stopped"):
            decoder.stage_decoded(bad * 9, decision, str(tmp_path / "bad"))
        short.setattr(decoding_module, "STILL_SECONDS_PER_ROW", 300.0)
        decoder.stage_decoded(good, decision, str(tmp_path / "out"), most_rows=1)
    (found,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(found)["value"].to_pylist() == ["good" if name == "waits" else ""]


def test_columns_that_no_table_has_are_one_clear_error() -> None:
    twins = pa.struct([("a", pa.string()), ("A", pa.int32())])
    schema = pa.schema([(name, twins if name == "value" else pa.string()) for name in DECODED])
    with pytest.raises(UnusableSchema, match=r"no Delta table has such columns: .*case-insensitive"):
        text_of(schema)


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")  # Dagster's own
def test_a_format_is_named_in_defs_yaml_as_its_entry_point_is(installed: Path) -> None:
    def load(name: str) -> object:
        return KafkaTopic.resolve_from_yaml(f"topic: orders\ndecode: {{value: {{format: {name}}}}}\n").as_topic()

    found = load("hexadecimal").decode
    assert (found.value.format, found.value.package) == ("hexadecimal", "my-formats 1.2")
    metadata = installed / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.2", "1.3"))
    own_formats.cache_clear()
    assert load("hexadecimal").decode.fingerprint != found.fingerprint, "another version is another decoder"
    with pytest.raises(ValidationError, match="did you mean `hexadecimal`"):
        load("hexadecimel")


def test_a_name_that_two_packages_have_is_refused_where_it_is_used(engine: Engine, installed: Path) -> None:
    """Nothing else is; and one of a format of ours is ours."""
    other = installed.with_name("other-1.dist-info")
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (other / "entry_points.txt").write_text(f"[{GROUP}]\nfails = other:decode\n{Format.STRING} = other:decode\n")
    with pytest.raises(BadSetting, match=r"format fails is to be one entry point of .*, found .*my_formats:fails"):
        decode(engine, [b"1"], Side("fails"))
    assert decode(engine, [b"6162"], Side("hexadecimal")).values == ["ab"]
    assert decode(engine, [b"6162"], Side(Format.STRING)).values == ["6162"]


# as java.nio.ByteBuffer has them, which the serializers use
WIRE = {Format.SHORT: ">h", Format.INTEGER: ">i", Format.LONG: ">q", Format.FLOAT: ">f", Format.DOUBLE: ">d"}
DICE = random.Random(5)
REAL = [struct.pack(kind, each) for kind in (">f", ">d") for each in (0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, -math.nan)]


def drawn(size: int) -> list[bytes]:
    """Draw numbers of all magnitudes, and those around nothing and at the ends, as they are written."""
    whole = [number.to_bytes(8, "big", signed=True)[-size:] for number in (-256, -255, -1, 0, 1, 2, 255, 256)]
    heads = (b"\x7f", b"\x80", b"\x7f\x7f", b"\x7f\xef", b"\xff\x7f", b"\xff\xef", b"\0\x0f", b"\0\x10", b"\0\x7f", b"\0\x80")
    ends = [head + rest * (size - len(head)) for head in heads for rest in (b"\0", b"\xff")]
    return [*whole, *ends, *(each for each in REAL if len(each) == size), *(DICE.randbytes(size) for _ in range(400))]


@pytest.mark.parametrize("name", WIRE)
def test_each_number_is_as_it_was_written_and_bytes_of_another_length_are_set_aside(engine: Engine, name: Format) -> None:
    """To the last bit, so that -0.0 stays that; what is no number stays none."""
    kind, size = WIRE[name], struct.calcsize(WIRE[name])
    right, wrong = drawn(size), [b"\xff" * length for length in (0, 1, size - 1, size + 1, 3 * size, 5_000)]
    found = decode(engine, [None, *right, *wrong, b"\0" * size], Side(name))
    assert found.type == SERIALIZED[name].lower() and found.values[0] is None
    for written, value in zip(right, found.values[1:], strict=False):
        (number,) = struct.unpack(kind, written)
        assert struct.pack(kind, value) == written or (math.isnan(number) and math.isnan(value)), (written, value)
    assert found.values[1 + len(right) :] == [None] * len(wrong) + [0]
    assert found.classes == [None] * (1 + len(right)) + [f"{name}_malformed"] * len(wrong) + [None]
    assert found.errors[1 + len(right) : -1] == [f"found {len(each)} bytes, expected {size}" for each in wrong]


def test_a_uuid_is_text_and_anything_else_is_none(engine: Engine) -> None:
    right = [uuid.UUID(int=DICE.getrandbits(128)) for _ in range(20)]
    wrong = [b"", right[0].bytes, str(right[0]).encode() + b"\n", str(right[0])[:-1].encode(), b"\xff" * 36, b"1-1-1-1-1"]
    records = [None, *(str(each).encode() for each in right), str(right[0]).upper().encode(), *wrong]
    found = decode(engine, records, Side(Format.UUID))
    assert found.type == "string"
    assert found.values == [None, *map(str, right), str(right[0]), *[None] * len(wrong)]
    assert found.classes == [None] * 22 + ["uuid_malformed"] * len(wrong)


# `HUNT=200` draws that many schemas of each
RECORDS = 150
SECRET = "hush"


def read_each(engine: Engine, records: Sequence[bytes | None], side: Side) -> list[tuple[Any, str | None, str | None]]:
    """Return value, error class and error of records in their order; nothing is lost, and no error says what a record says."""
    found = decode(engine, records, side)
    assert [row.offset for row in found.rows] == [*range(len(records))]
    read = [*zip(found.values, found.classes, found.errors, strict=True)]
    for (value, why, error), body in zip(read, records, strict=True):
        assert (why is None) == (error is None)
        assert error is None or (SECRET not in error and len(error) < 1_500), error
        assert why is None or (value is None and body is not None)
    return read


def test_json_is_what_pythons_parser_reads_or_a_dead_letter(engine: Engine) -> None:
    right = wrong = 0
    for seed, dice in draws(1):
        shape = fuzz.draw_shape(dice)
        bodies: list[bytes | None] = [
            fuzz.draw_body(dice, fuzz.draw_value(dice, shape, dice.choice([0.0, 0.0, 0.1]))) for _ in range(RECORDS)
        ]
        bodies = [mutate(dice, body) if body and dice.random() < 0.25 else body for body in bodies]
        for body, (value, why, _) in zip(bodies, read_each(engine, bodies, Side(Format.JSON, fuzz.ddl_of(shape))), strict=True):
            assert body is not None
            try:
                expected = fuzz.expect(body, shape)
            except fuzz.Wrong:
                wrong += 1
                assert why is not None, (seed, body, value)
            else:
                right += 1
                assert why is None and fuzz.is_same(value, expected), (seed, body, why, value, expected)
    assert right and wrong, "the control"


def test_avro_is_what_fastavro_wrote_or_a_dead_letter(engine: Engine) -> None:
    for seed, dice in draws(2):
        schema = fuzz.draw_avro(dice)
        parsed = fastavro.parse_schema(schema)
        data, expected = zip(*(fuzz.draw_datum(dice, schema) for _ in range(RECORDS)), strict=True)
        bodies = [avro(parsed, datum) for datum in data]
        changed = [mutate(dice, body) for body in bodies] + [dice.randbytes(dice.randrange(30)) for _ in range(50)]
        found = read_each(engine, [*bodies, None, *changed], Side(Format.AVRO, json.dumps(schema)))
        for body, value, (read, why, _) in zip(bodies, expected, found, strict=False):
            assert why is None and read == value, (seed, body, why, read, value)
        assert found[RECORDS] == (None, None, None)
        assert any(why for _, why, _ in found[RECORDS:]), "the control"


def test_json_of_a_schema_is_what_another_validator_allows_or_a_dead_letter(engine: Engine) -> None:
    right = wrong = 0
    for seed, dice in draws(1):
        shape = dataclasses.replace(fuzz.draw_shape(dice), is_nullable=False)
        schema = fuzz.schema_of(dice, shape)
        other = jsonschema.Draft202012Validator(schema)
        documents = [fuzz.draw_value(dice, shape, 0.06) for _ in range(RECORDS)]
        bodies = [json.dumps(document).encode() for document in documents]
        changed = [mutate(dice, body) for body in bodies]
        found = read_each(engine, [*bodies, None, *changed], Side(Format.JSON_SCHEMA, json.dumps(schema)))
        for document, body, (value, why, error) in zip(documents, bodies, found, strict=False):
            if other.is_valid(document):
                right += 1
                assert why is None and fuzz.is_same(value, fuzz.expect(body, shape)), (seed, document, why, error, value)
            else:
                wrong += 1
                assert why == "schema_violated", (seed, document, why, value)
    assert right and wrong, "the control"


def _datum(body: bytes) -> bytes:
    """Return a string of Avro: its length, in zigzag, and its bytes."""
    assert len(body) < 64, "longer ones have more bytes of length"
    return bytes([2 * len(body)]) + body


STRINGS: dict[str, tuple[Side, Callable[[bytes], bytes], str]] = {
    "string": (Side(Format.STRING), bytes, "not_utf8"),
    "avro": (Side(Format.AVRO, '"string"'), _datum, "avro_malformed"),
    "json": (Side(Format.JSON, "STRING"), lambda body: b'"' + body + b'"', "not_utf8"),
}


@pytest.mark.parametrize("name", [*STRINGS])
def test_a_string_is_utf8_or_a_dead_letter(engine: Engine, name: str) -> None:
    side, write, bad = STRINGS[name]
    printed = bytes(byte for byte in range(0x20, 0x100) if byte not in b'"\\')  # JSON has no others as they are
    for seed, dice in draws(1):
        every = printed if name == "json" else bytes(range(0x100))
        kinds = [bytes(dice.choices(every, k=dice.randrange(6))) for _ in range(RECORDS)]
        known = ["ü\U0001f600".encode(), "\ufffd".encode(), b"", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]
        bodies = [dice.choice((body, *known, *([] if name == "json" else [b"\0", b"\0\xff"]))) for body in kinds]
        for body, (value, why, _) in zip(bodies, read_each(engine, [write(body) for body in bodies], side), strict=True):
            try:
                assert (value, why) == (body.decode(), None), seed
            except UnicodeDecodeError:
                assert (value, why) == (None, bad), (seed, body)


def test_any_bytes_of_any_wire_format_are_a_row_or_a_dead_letter(engine: Engine) -> None:
    """Heads of registered schemas of every language, of none, cut ones and noise, for a reader of each language."""
    formats = {"AVRO": Format.AVRO, "PROTOBUF": Format.PROTOBUF, "JSON": Format.JSON_SCHEMA}
    texts = {kind: (str(FORMATS[name][0]), FORMATS[name][1][1]) for kind, name in formats.items()}
    texts["PROTOBUF"] = (PROTO, b"\0" + texts["PROTOBUF"][1])  # the first message of its schema
    with fake_registry() as fake:
        for number, (kind, (text, _)) in enumerate(texts.items(), 1):
            fake.put(number, text, kind)
            fake.put(number + 10, "nonsense {", kind)
        for seed, dice in draws(1):
            for number, (kind, (text, body)) in enumerate(texts.items(), 1):
                fake.put_version("orders-value", "latest", number, text, kind)
                heads = [head_of(dice.choice([number, 1, 2, 3, 11, 12, 13, 99, (1 << 31) - 1])) for _ in range(RECORDS)]
                records: list[bytes | None] = [head + dice.choice([body, body, dice.randbytes(4), b""]) for head in heads]
                records = [mutate(dice, each) if each and dice.random() < 0.3 else each for each in records]
                found = read_each(engine, [*records, None, head_of(number) + body], Side(formats[kind], registry=fake.url))
                assert found[-1] == ({"id": 1, "name": "n"}, None, None), (seed, kind)
                for each, (_, why, _) in zip(records, found, strict=False):
                    if each == head_of(number) + body:
                        assert why is None, (seed, kind)
                    elif each and not each.startswith(head_of(number)):
                        assert why is not None, (seed, kind, each)


def test_protobuf_through_spark_loses_and_blames_nothing(engine: Engine) -> None:
    """The columns that ptars makes pass through Spark's workers whole; values are held by tests/unit/test_protobuf.py."""
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    from pipeline_defs.adapters.formats.protobuf_schema import compile_proto, find_message

    for seed, dice in draws(1):
        text = draw_proto(dice)
        kind = find_message(compile_proto(text, {}, "the schema"), "M", "the schema")
        read = GetMessageClass(kind)
        bodies = [draw_message(dice, kind) for _ in range(RECORDS)]
        bodies = [mutate(dice, body) if dice.random() < 0.3 else body for body in bodies]
        side = Side(Format.PROTOBUF, text, message="M")
        for body, (value, why, _) in zip(bodies, read_each(engine, bodies, side), strict=True):
            try:
                read.FromString(body)
            except DecodeError:
                assert why == "protobuf_malformed", (seed, body)
            assert (value is None) == (why is not None), (seed, body)
