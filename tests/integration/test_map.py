"""The map of a real topic: holes, a failure and a loss are in it as lake, broker and Dagster's runs have them."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from pathlib import Path

import dagster as dg
import pytest

from pipeline_defs.core.errors import Refused
from pipeline_defs.core.landing.picture import CAUSES, NOT_LANDED, UNDECODED, LinkLook, Picture
from pipeline_defs.orchestration.assets.checks import MAPPED
from pipeline_defs.orchestration.map.draw import page, read_picture, write_page
from pipeline_defs.orchestration.map.words import summary
from pipeline_defs.resources import Edges
from tests.support.pulse import audited
from tests.support.world import World


def test_the_map_shows_what_is_landed_failed_lost_and_still_to_come(world: World) -> None:
    world.create_topic(2)
    with world.begin_transaction() as producer:
        world.send([{"partition": 0, "value": b"x"}] * 80, producer)
        producer.commit_transaction()
    world.send_numbered(130, partition=1)
    world.wait_until(lambda: world.watermarks(0).end == 81)
    world.plan()
    (landed,) = world.launch([offsets for offsets in world.pending if offsets.partition == 0])
    in_the_way = world.lake_folder / "data" / world.name / "g0" / "p0001"
    in_the_way.write_text("in the way")
    first = [offsets for offsets in world.pending if offsets.key == "1-0-100"]
    (failed,) = world.try_launch(first)
    assert not failed.succeeded, "the fault"
    in_the_way.unlink()
    world.delete_records(1, 110)
    world.wait_for_earliest(1, 110)
    world.send_numbered(7, partition=1)

    picture, remark = read_picture(world.topic, world.edges, world.instance)
    assert remark == ""
    assert [(line.partition, line.count, line.earliest, line.end) for line in picture.lines] == [
        *((0, 1, 0, 81), (1, 2, 110, 137))
    ]
    assert [LinkLook(look) for look in picture.looks] == [LinkLook.LANDED, LinkLook.FAILED, LinkLook.PLANNED]
    assert [picture.run_ids[run] for run in picture.runs] == [landed.run_id, failed.run_id, ""]
    gone = Counter({(at, CAUSES[cause].value): count for at, cause, count in picture.totals})
    assert gone == {(0, "transaction_marker"): 1, (1, "lost"): 100, (2, "lost"): 10}
    assert picture.notes[1].startswith("failed 1 times in a row; 100 offsets deleted by the broker")

    away = Edges(dataclasses.replace(world.settings, bootstrap_servers="127.0.0.1:1"), kafka_timeout_seconds=1)
    alone, remark = read_picture(world.topic, away, world.instance)
    assert "From the lake alone: the Kafka broker at 127.0.0.1:1 does not answer" in remark
    assert alone.looks == picture.looks and {line.end for line in alone.lines} == {None}


def test_the_audit_writes_the_map_of_the_longest_name_and_shows_it_in_words(world: World) -> None:
    """What Dagster shows of the check: where the file is, and the bars; as the nightly job runs it.

    Of its 249 characters Dagster allows many in no name: runs, keys, checks and the map's file work as ever.
    """
    world.topic = dataclasses.replace(world.topic, name=f"{world.name}{'-._' * 79}-")
    assert len(world.name) == 249
    world.fill(250)
    world.plan()
    world.launch(world.pending[:2])
    assert world.materialized() == {"0-0-100", "0-100-200"}
    assert world.rows() == sorted(row for (_, offset), row in world.sent.items() if offset < 200)
    world.settings = world.edges.settings = dataclasses.replace(
        world.settings, home=world.folder, pages_url="http://127.0.0.1:9308"
    )
    check = audited(world, MAPPED)
    path, words = check.metadata["map"].value, check.metadata["coverage"].value
    assert check.passed and isinstance(check.metadata["map"], dg.PathMetadataValue)
    assert Path(str(path)) == world.folder / "maps" / f"{world.name}.html"
    assert f"<title>coverage of {world.name}</title>" in Path(str(path)).read_text()
    assert check.metadata["open_the_map"] == dg.MetadataValue.url(f"http://127.0.0.1:9308/map/{world.name}")
    assert "p 0 " + "█" * 40 + "░" * 10 in str(words)
    assert "| p 0 | 2 | 1 | 0 | 0 | 0 | 0 |" in str(words)


def test_a_map_is_written_to_a_file_alone(tmp_path: Path) -> None:
    """A device or pipe of that name stays one, and a link leads where it did."""
    file, link, pipe = (tmp_path / name for name in ("map.html", "link.html", "pipe"))
    link.symlink_to(file)
    os.mkfifo(pipe)
    write_page(picture := Picture("orders"), "", 0, link)
    assert link.is_symlink() and file.read_text() == page(picture, 0, "")
    with pytest.raises(Refused, match="pipe: it is no file; nothing was written"):
        write_page(picture, "", 0, pipe)
    assert pipe.is_fifo()


def test_the_map_shows_what_is_decoded_what_waits_and_what_was_set_aside(world: World) -> None:
    """[R-90] A decoded table that cannot be read takes the rest of the map not along."""
    world.derive("n BIGINT")
    world.create_topic()
    world.send({"partition": 0, "value": b"{cut off" if n in {3, 5} else b'{"n": 1}'} for n in range(400))
    world.plan()
    world.land(["0-0-100", "0-100-200", "0-200-300"])
    world.decode(["0-0-100", "0-100-200"])
    picture, _ = read_picture(world.topic, world.edges, world.instance)
    assert picture.dead_letters.tolist() == [2, 0, UNDECODED, NOT_LANDED]
    assert "| ranges of | landed | planned |" in summary(picture) and "| decoded | not decoded yet | dead letters |" in (
        summary(picture)
    )
    assert "| p 0 | 3 | 1 | 0 | 0 | 0 | 0 | 2 | 1 | 2 |" in summary(picture)
    (world.lake_folder / "tables" / "decoded" / world.name / "_delta_log" / f"{1:020d}.json").write_text("{torn")
    broken, remark = read_picture(world.topic, Edges(world.settings), world.instance)
    assert "What is decoded cannot be read: " in remark and f"{1:020d}.json" in remark
    assert not broken.dead_letters and broken.looks == picture.looks
    assert "| p 0 | 3 | 1 | 0 | 0 | 0 | 0 |\n" in f"{summary(broken)}\n"
