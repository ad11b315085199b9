"""A lake whose path has signs that patterns are made of: what is read is this lake, and all of it."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.tables.decoding import Decided
from pipeline_defs.operate.reports import trace_row
from pipeline_defs.orchestration.assets.decoded_checks import read_dead_letters
from pipeline_defs.settings import Settings
from tests.support.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
