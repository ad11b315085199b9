"""docs/reading.md is run: what DuckDB, pyarrow, Polars and Spark say of a lake, `offsetlake.read` and the views."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.system.jars import read_pins, resolve_jars
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.tables.decoding import Budget
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.lab.bench.costs.loopback import s3_environment, s3a_conf
from pipeline_defs.lab.processes import variables_of
from tests.conftest import JARS
from tests.support.markdown import Block, Shell, open_shell, read_blocks
from tests.support.readers import spark_defaults
from tests.support.world import World

pytestmark = pytest.mark.scenario

READING = (PROJECT / "docs" / "reading.md").read_text()
BARE = """import duckdb, sys
assert "pipeline_defs" not in sys.modules
print([tuple(map(str, row)) for row in duckdb.sql(sys.argv[1]).fetchall()])"""


LAKE = ".offsetlake/lake"
COUNTED = "[(0, 503, 502), (1, 497, 496)]\n"
OFFSETS = sum(range(503)) + sum(range(497))
NOT_UTF8, TOMBSTONE = 496, 495  # offsets of Kafka partition 1, whose records are newer than those of 0
LATEST = sum(range(496, 503)) + sum(range(495))  # of keys from k496 the record in 0, of those before k495 that in 1
DERIVED = f"[(999, {OFFSETS - NOT_UTF8})]\n[(1, {NOT_UTF8}, 'not_utf8')]\n[(502, {LATEST})]\n"
ANSWERS = {  # by what a block of Python imports first
    "duckdb": f"1000\n{COUNTED}{DERIVED}",
    "polars": f"{COUNTED}{DERIVED}",
    "pyspark": f"{COUNTED}{DERIVED}",
    "offsetlake": f"400 399\n{COUNTED}{503 - 450 + 497 - 450}\n96 [(502, {LATEST})]\n",
}


def of_world(block: Block, world: World) -> Block:
    """A block that speaks of the test's own topic instead of `orders`."""
    return Block(block.language, block.text.replace("orders", world.name), block.line, block.file)


@pytest.fixture
def landed(world: World) -> World:
    """What every block speaks of, with a raw table."""
    world.keep_raw_table()
    world.create_topic(2)
    world.with_policy(records_per_range=400)
    return world


def send(world: World) -> None:
    """Land, decode and find the latest of records of which one is not UTF-8 and one deletes its key."""
    values = {NOT_UTF8: b"\xff", TOMBSTONE: None}
    world.send_numbered(503, 0)
    world.send({"partition": 1, "key": b"k%d" % n, "value": values.get(n, b"v%d" % n)} for n in range(497))
    decode = Decode(Side(Format.STRING), Side(Format.STRING), Budget(10, 1.0))
    world.topic = dataclasses.replace(world.topic, decode=decode, latest=Latest())
    world.plan_and_land()
    world.decode()
    world.update_latest()


def reader_of(world: World, folder: Path) -> Shell:
    """Who stands in a folder, with this machine's warm Spark, and for a Spark of their own little memory."""
    shell = open_shell(folder / "reader", **variables_of(world.settings))
    (shell.folder / LAKE).parent.mkdir(parents=True)
    return shell


def python_blocks(world: World, place: str = LAKE) -> dict[str, str]:
    """The blocks of Python by what they import first, with the lake at a place of theirs."""
    blocks = [of_world(each, world).text.replace(LAKE, place) for each in read_blocks(READING) if each.language == "python"]
    return {text.split()[1].partition(".")[0]: text for text in blocks}


def test_what_reading_says_is_so(landed: World, tmp_path: Path) -> None:
    """Every row leads back to its file, range, run, code and plan step, in one statement, without Dagster."""
    world = landed
    send(world)
    reader = reader_of(world, tmp_path)
    (reader.folder / LAKE).symlink_to(world.lake_folder)

    blocks = [of_world(block, world) for block in read_blocks(READING)]
    assert [block.language for block in blocks if block.language != "python"] == ["sql", "sql", "sql", "sql"]
    counted, bare, with_views, since = (block for block in blocks if block.language != "python")
    assert run_bare(reader, counted) == [("0", "503", "0", "502"), ("1", "497", "0", "496")]

    found = run_bare(reader, bare)
    assert [(int(p), int(o)) for p, o, *_ in found] == sorted(world.sent)
    manifests = {o.key: m for o, m in world.coverage.manifests.items()}
    for partition, offset, file, sha256, key, run, attempt, code, _, step, _ in found:
        manifest = manifests[key]
        assert (int(partition), manifest.digest) == (manifest.offsets.partition, sha256)
        assert int(offset) in manifest.offsets and file.startswith(manifest.offsets.stem)
        provenance = manifest.provenance
        assert (run, attempt, code) == (provenance.run_id, provenance.attempt, provenance.code_version)
        assert int(step) == provenance.plan_seq

    blocks_of_python = python_blocks(world)
    assert blocks_of_python.keys() == ANSWERS.keys()
    for name in ("duckdb", "polars", "offsetlake"):
        assert reader.run(sys.executable, "-c", blocks_of_python[name]) == ANSWERS[name]
    reader.environment.update(spark_defaults(tmp_path / "conf", resolve_jars("delta", JARS), {}))
    assert reader.run(sys.executable, "-c", blocks_of_python["pyspark"]) == ANSWERS["pyspark"]

    assert world.compact()
    views = Duck(Lake(world.settings.lake), [world.name])
    names, rows = views.ask(with_views.text)
    documents: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in rows]
    assert [(row["partition"], row["offset"]) for row in documents] == sorted(world.sent)
    assert [(str(row["range"]), row["sha256"], row["run"]) for row in documents] == [
        (key, sha256, run) for _, _, _, sha256, key, run, *_ in found
    ]
    assert [row[:3] for row in views.ask(since.text)[1]] == [
        (key, "landed", manifests[key].rows) for key in ("0-0-400", "0-400-503", "1-0-400", "1-400-497")
    ]


def test_the_jars_that_reading_names_are_those_that_are_pinned() -> None:
    (version,) = (name for name in read_pins("delta") if name.startswith("delta-spark"))
    assert f"io.delta:{version.removesuffix('.jar').replace('2.13-', '2.13:')}" in READING


@pytest.fixture
def in_bucket(landed: World, bucket: str, s3: str, tmp_path: Path) -> tuple[World, Shell]:
    """The same rows in a bucket, and who knows it by the environment."""
    landed.move_lake(f"{bucket}/{landed.name}")
    send(landed)
    reader = reader_of(landed, tmp_path)
    reader.environment.update(s3_environment(s3))
    return landed, reader


def test_a_table_in_a_bucket_is_read_with_the_same_words(in_bucket: tuple[World, Shell]) -> None:
    """DuckDB, by way of pyarrow, and Polars."""
    world, reader = in_bucket
    blocks = python_blocks(world, world.settings.lake)
    for engine in ("duckdb", "polars"):
        assert reader.run(sys.executable, "-c", blocks[engine]) == ANSWERS[engine]


@pytest.mark.long
def test_spark_reads_a_table_in_a_bucket_with_the_same_words(in_bucket: tuple[World, Shell], s3: str, tmp_path: Path) -> None:
    """Its client of S3 is half a gigabyte of jars, so this is for long tests."""
    world, reader = in_bucket
    jars = (*resolve_jars("delta", JARS), *resolve_jars("s3a", JARS))
    reader.environment.update(spark_defaults(tmp_path / "conf", jars, s3a_conf(s3)))
    place = world.settings.lake.replace("s3://", "s3a://")
    assert reader.run(sys.executable, "-c", python_blocks(world, place)["pyspark"]) == ANSWERS["pyspark"]


def run_bare(reader: Shell, block: Block) -> list[tuple[str, ...]]:
    """Run SQL in a process that has DuckDB and not Offsetlake."""
    return eval(reader.run(sys.executable, "-c", BARE, block.text))  # noqa: S307 (what BARE printed)
