"""docs/reading.md is run: what it says that DuckDB answers without Offsetlake, and what the views answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pipeline_defs.attempt import Attempt
from pipeline_defs.compaction import compact
from pipeline_defs.edges.duck import Duck
from pipeline_defs.edges.lake import Lake
from pipeline_defs.settings import PROJECT
from tests.support.markdown import Block, read_blocks
from tests.support.shell import Shell
from tests.support.world import World

READING = (PROJECT / "docs" / "reading.md").read_text()
BARE = """import duckdb, sys
assert "pipeline_defs" not in sys.modules
print([tuple(map(str, row)) for row in duckdb.sql(sys.argv[1]).fetchall()])"""


def of_world(block: Block, world: World) -> Block:
    """Is a block that speaks of the test's own topic instead of `orders`."""
    return Block(block.language, block.text.replace("orders", world.name), block.line, block.file)


def test_what_reading_says_is_so(world: World, tmp_path: Path) -> None:
    """Every row leads back to its file, range, run, code and plan step, in one statement, without Dagster."""
    world.create_topic(2)
    world.with_policy(records_per_range=400)
    world.send_numbered(503, 0)
    world.send_numbered(497, 1)
    world.plan_and_land()
    reader = Shell(tmp_path / "reader", {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})
    (reader.folder / ".offsetlake").mkdir(parents=True)
    (reader.folder / ".offsetlake" / "lake").symlink_to(world.lake_folder)

    blocks = [of_world(block, world) for block in read_blocks(READING)]
    assert [block.language for block in blocks] == ["sql", "console", "sql", "sql", "sql"]
    counted, one_line, bare, with_views, since = blocks
    assert run_bare(reader, counted) == [("0", "503", "0", "502"), ("1", "497", "0", "496")]
    reader.type_in(one_line, f"reading.md:{one_line.line}")

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

    list(compact(world.name, Attempt("compact", "no-run", "test"), world.tools(), 1, every=True))
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


def run_bare(reader: Shell, block: Block) -> list[tuple[str, ...]]:
    """Runs SQL in a process that has DuckDB and not Offsetlake."""
    return eval(reader.run(sys.executable, "-c", BARE, block.text))  # noqa: S307 (what BARE printed)
