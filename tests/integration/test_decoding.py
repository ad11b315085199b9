"""Decoding of landed ranges on a real broker and real Spark: what is decoded, what is set aside, and redone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.decoding.spark_decoding import SparkDecoder
from pipeline_defs.adapters.formats.decoded import Decoded
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.cli.work.decode import SAID
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.tables.decoded_table import TREE
from pipeline_defs.core.tables.decoding import Budget, Decided, DecodeVerdict
from pipeline_defs.landing import staging_places
from pipeline_defs.operate.reports import trace_row
from pipeline_defs.orchestration.assets.decoded_checks import read_dead_letters
from pipeline_defs.settings import Settings
from pipeline_defs.tables.decoding import decode
from tests.support.footers import list_encodings_falling
from tests.support.world import World, new_attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline_defs.adapters.spark.engine import Engine

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
    """[R-67] A poison record is set aside, bytes and error; all others are decoded; the equation holds.

    [R-69] Redo with a decoder that reads more replaces the dead letters of that range, and of no other.
    """
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


def test_when_kafka_has_nothing_any_more_the_same_is_decoded_again(
    world: World, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-71] Replay from what is landed: topic and documents gone, the same digests come out, whatever JVM wrote them.

    A footer that lists encodings in another order is made the one that it was. A job tells each few seconds how many of its
    files Spark has written, and the command shows it (`cli/work/decode.py`).
    """
    monkeypatch.setattr(staging_places, "TELL_SECONDS", 0.0)
    told: list[dict[str, object]] = []

    def on_step(step: str, **fields: object) -> None:
        if step == "files_decoded":
            told.append(fields)

    world.derive(SCHEMA)
    world.create_topic(1)
    world.send({**record(n), "partition": 0} for n in range(199))
    world.send([{"partition": 0, "key": b"k", "value": b"poison"}])
    world.plan_and_land()
    first = {verdict.offsets: verdict.decoding and verdict.decoding.digest for verdict in world.decode(on_step=on_step)}
    assert len(first) == 2 and None not in first.values()
    assert told and all(each["of"] == 2 and each["files"] in {0, 1, 2} for each in told)
    assert SAID["files_decoded"].format(**told[0]) == f", Spark has written {told[0]['files']} of 2 files"
    world.delete_topic()
    again = decode_with(world, engine, "shuffles encodings", redo=True)
    assert [verdict.outcome for verdict in again] == [Decided.UNCHANGED, Decided.UNCHANGED]
    for fault in ("", "shuffles encodings"):
        (world.lake_folder / "tables/decoded").rename(world.lake_folder / f"lost{fault}")
        afresh = decode_with(world, engine, fault)
        assert {each.offsets: each.decoding and each.decoding.digest for each in afresh} == first, fault


class BadSpark(SparkDecoder):
    """Loses the dead letters of a job, or lists encodings as another JVM might."""

    def __init__(self, engine: Engine, decode: Decode, fault: str) -> None:
        super().__init__(engine, decode)
        self._fault = fault

    def stage_decoded(self, files: Sequence[Path], decided: Decoded, folder: str, most_rows: int = 0) -> None:
        super().stage_decoded(files, decided, folder)
        if self._fault == "shuffles encodings":
            for path in Path(folder).glob("*.parquet"):
                list_encodings_falling(path)

    def stage_dead_letters(self, files: Sequence[Path], decided: Decoded, folder: str, most_rows: int = 0) -> None:
        if self._fault == "loses dead letters":
            Path(folder).mkdir()
        else:
            super().stage_dead_letters(files, decided, folder)


def decode_with(world: World, engine: Engine, fault: str, *, redo: bool = False) -> list[DecodeVerdict]:
    """Decodes all that is landed with a decoder that has a fault."""
    assert world.topic.decode is not None
    decoder = BadSpark(engine, world.topic.decode, fault)
    tools = world.edges.decode_tools(world.topic.decode, world.edges.pyspark())
    keys = [offsets.key for offsets in world.coverage.log.ranges]
    return list(decode(world.name, keys, new_attempt(redo=redo), dataclasses.replace(tools, decoder=lambda: decoder)))


def test_what_is_not_what_was_landed_does_not_become_visible(world: World, engine: Engine) -> None:
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
    (lost,) = decode_with(world, engine, "loses dead letters")
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


def test_a_lake_at_a_path_with_signs_of_patterns_is_read_and_no_other(
    settings: Settings, spark: SparkSession, tmp_path: Path
) -> None:
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
        duck = Duck(world.edges.lake, [topic])
        assert duck.ask(f'SELECT count(*) FROM "{topic}"')[1] == [(30,)]
        assert duck.query(f'SELECT count(*) FROM decoded."{topic}"')[1] == [(29,)]
        assert trace_row(world.topic, 0, 7, world.edges)["row"]["value"] == b"7"
        assert read_dead_letters(world.topic, None, 10, world.edges)[0] == 1
        assert Duck(other.edges.lake, [topic]).query(f'SELECT count(*) FROM "{topic}"')[1] == [(5,)], "the control"
