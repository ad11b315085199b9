"""The drills themselves: their faults are proven, their numbers right, and against a broken build they are red.

The long ones run every drill, hold docs/delivery.md's table against them, and break one line of a copy of the code.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.lab.drills import systems
from pipeline_defs.lab.drills.arena import Arena, Row
from pipeline_defs.lab.drills.recovery import recover_from_failed_write, recover_from_kill
from pipeline_defs.lab.drills.report import DRILLS
from pipeline_defs.lab.drills.systems import KILLS, LOOP, OURS, TUTORIAL, DoesNotEnd, System, run_to_end
from pipeline_defs.settings import Settings
from tests.conftest import JARS
from tests.support.markdown import read_table
from tests.support.power import find_processes
from tests.support.world import World

DELIVERY = (PROJECT / "docs" / "delivery.md").read_text()


SAYS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "nothing": lambda row: not row["doubled"] and not row["lost"],
    "doubles": lambda row: row["doubled"] > 0 and not row["lost"],
    "may double": lambda row: not row["lost"],
    "abandons": lambda row: row["lost"] > 0 and not row["doubled"],
    "may abandon": lambda row: not row["doubled"],
}


def start_drills(home: Path, *arguments: str, code: Path = PROJECT, **environment: str) -> subprocess.Popen[str]:
    """Start the command as a person would, on the code of a folder."""
    home.mkdir(exist_ok=True)
    if not (home / "jars").exists():
        (home / "jars").symlink_to(JARS)
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline_defs.cli", "drill", *arguments],
        cwd=code,
        env={**os.environ, "PYTHONPATH": str(code), "OFFSETLAKE_HOME": str(home), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_drills(home: Path, *arguments: str, code: Path = PROJECT) -> tuple[int, dict[str, Any]]:
    with start_drills(home, "--json", *arguments, code=code) as process:
        out, err = process.communicate()
    assert out, err[-2000:]
    return process.returncode, json.loads(out)


def broken_build(folder: Path, file: str, line: str, instead: str) -> Path:
    """Copy the code and break one line of it, which must be there once."""
    for tree in ("pipeline_defs", "assets"):
        shutil.copytree(PROJECT / tree, folder / tree, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "dagster.yaml", "workspace.yaml"):
        shutil.copy2(PROJECT / name, folder / name)
    path = folder / file
    text = path.read_text()
    assert text.count(line) == 1
    path.write_text(text.replace(line, instead))
    return folder


def assert_right(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["fault_proven"], row
        assert row["missing"] == 0, row
        assert row["doubled"] == 0 or row["policy"] == Delivery.AT_LEAST_ONCE, row
        assert row["produced"] == row["landed"] + row["lost"], row


@pytest.fixture
def arena(settings: Settings, tmp_path: Path) -> Iterator[Arena]:
    arena = Arena(settings, tmp_path / "arena")
    yield arena
    arena.close()


@pytest.mark.parametrize(
    "kill", [pytest.param(True, marks=pytest.mark.long, id="crash"), pytest.param(False, id="failed write")]
)
def test_the_consumer_of_the_tutorials_never_shows_what_a_crash_or_a_failed_write_took(arena: Arena, kill: bool) -> None:
    """Its client has committed what it never wrote: started again and again, it reads on behind the gap."""
    row = recover(arena, TUTORIAL, kill=kill)
    assert (row.fault_proven, row.produced) == (True, 800 if kill else 102)
    assert (row.missing, row.doubled, row.seconds_until_whole) == (400 if kill else 100, 0, "never")


def test_a_loop_that_commits_after_its_write_is_whole_again_by_itself(arena: Arena) -> None:
    """The control: the same fault and supervisor; nothing is missing, and the time is told."""
    row = recover(arena, LOOP, kill=False)
    assert (row.fault_proven, row.missing, row.doubled) == (True, 0, 0)
    assert isinstance(row.seconds_until_whole, float)


def recover(arena: Arena, name: str, *, kill: bool) -> Row:
    system = arena.system(name)
    (recover_from_kill if kill else recover_from_failed_write)(arena, system)
    return arena.judge(system, "recovery", 0.0)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_documents_table_of_recovery_is_what_the_drills_find(tmp_path: Path) -> None:
    """docs/delivery.md: which system is whole again by itself, and what is missing or doubled then."""
    code, report = run_drills(tmp_path / "home", "recover_from_kill", "recover_from_failed_write")
    rows = report["drills"]
    assert code == 0
    assert_right([row for row in rows if row["system"] == OURS])
    assert all(row["fault_proven"] for row in rows)
    table = {(drill, system): said for system, drill, *said in read_table(DELIVERY, "| system | drill |")}
    assert table.keys() == {(row["drill"], row["system"]) for row in rows}
    for row in rows:
        missing, doubled, seconds = table[row["drill"], row["system"]]
        assert (bool(int(missing)), bool(int(doubled))) == (row["missing"] > 0, row["doubled"] > 0), row
        assert (seconds == "never") == (row["seconds_until_whole"] == "never"), row


@pytest.mark.long
def test_a_drill_that_is_terminated_while_dagster_runs_leaves_no_process(tmp_path: Path) -> None:
    """SIGTERM in the middle of a run, which Dagster would take for that run alone: broker, Spark and drill end."""
    drilling = start_drills(tmp_path, "no_fault", TMPDIR=str(tmp_path))
    at_work = "offsetlake-drill-*/d1/lake/staging/*"  # the fault
    World.wait_until(lambda: any(tmp_path.glob(at_work)), 120, every_seconds=0.1)
    assert len(find_processes("OFFSETLAKE_HOME", str(tmp_path))) > 2, "broker and Spark are there"
    drilling.terminate()
    said = drilling.communicate(timeout=60)
    assert drilling.returncode, said
    # Spark's JVM ends by itself once nobody holds the other end of its input
    World.wait_until(lambda: not find_processes("OFFSETLAKE_HOME", str(tmp_path)), 30)
    assert not list(tmp_path.glob("offsetlake-drill-*"))


def test_a_run_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it takes what is raised in it for a failure of its own, as Dagster does."""

    class Stubborn:
        def run(self, watch: Callable[..., None]) -> None:
            del watch
            try:
                threading.Event().wait()
            except DoesNotEnd:
                threading.Event().wait()

    for name in ("END_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(systems, name, 0.2)
    with pytest.raises(DoesNotEnd, match=r"not at its end after 0\.2 s"):
        run_to_end(cast("System", Stubborn()))


@pytest.mark.long
def test_each_system_lands_what_is_there_where_no_fault_is_brought_about(tmp_path: Path) -> None:
    """The control of all drills, in one process: Offsetlake makes it a client of Spark, of which the peers know nothing."""
    code, report = run_drills(tmp_path / "home", "no_fault")
    assert code == 0
    assert [row["verdict"] for row in report["drills"]] == ["right"] * len(report["drills"])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_drill_is_right_and_the_documents_table_is_what_they_find(tmp_path: Path) -> None:
    """[R-19] [R-41] As drills: 0 missing and 0 doubled under effectively_once; the other policies do what they say."""
    code, report = run_drills(tmp_path / "home")
    rows = report["drills"]
    assert code == 0
    assert {row["drill"].partition(",")[0] for row in rows} == {*DRILLS, "lose_leader"}
    acks = {row["policy"]: bool(row["lost"]) for row in rows if row["system"] == "kafka_producer"}
    assert acks == {"acks=0": True, "acks=1": True, "acks=all": False, "acks=all, idempotent": False}
    assert_right([row for row in rows if row["system"] == OURS])
    (loop,) = (row for row in rows if (row["drill"], row["system"]) == ("kill_at_written", LOOP))
    assert loop["fault_proven"] and loop["missing"] == 0 < loop["doubled"], "a loop that commits after its work doubles it"
    kills = {(row["drill"], row["policy"]): row for row in rows if row["system"] == OURS}
    table = read_table(DELIVERY, "| killed at |")
    assert [step for step, *_ in table] == list(KILLS[OURS])
    for step, *cells in table:
        for policy, cell in zip(Delivery, cells, strict=True):
            row = kills.get((f"kill_at_{step}", policy))
            assert (row is None) == (cell == ""), (step, policy)
            assert row is None or SAYS[cell](row), (cell, row)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_random_schedules_end_with_every_row_once(tmp_path: Path) -> None:
    """[R-18] And a schedule can be run again alone, by its seed and number."""
    code, report = run_drills(tmp_path / "home", "--schedules", "60", "--seed", "11")
    assert (code, report["schedules"]["count"], report["schedules"]["failed"]) == (0, 60, [])
    assert report["schedules"]["kills"] >= 60
    assert_right(report["drills"])


BROKEN = {
    "published before it is committed": (
        "overtake",
        "pipeline_defs/resources.py",
        "delivery=topic.delivery,",
        "delivery=type(topic.delivery).AT_LEAST_ONCE,",
    ),
    "what is committed is not rolled forward": (
        "kill_at_commit",
        "pipeline_defs/landing/committing.py",
        "        elif not work.coverage.is_landed(offsets):\n",
        "        elif False:\n",
    ),
    "what is rolled forward is not verified": (
        "tear_staged_file",
        "pipeline_defs/landing/redo.py",
        "has_file = manifest.file is None or has_bytes_of(manifest, manifest.file.path, lake)",
        "has_file = True",
    ),
}


@pytest.mark.parametrize(("_drill", "file", "line", "_instead"), BROKEN.values(), ids=BROKEN)
def test_what_a_broken_build_breaks_is_there(_drill: str, file: str, line: str, _instead: str) -> None:
    """The test of broken builds is a long one: what it breaks may move meanwhile."""
    assert (PROJECT / file).read_text().count(line) == 1


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("drill", "file", "line", "instead"), BROKEN.values(), ids=BROKEN)
def test_a_broken_build_turns_a_drill_red(tmp_path: Path, drill: str, file: str, line: str, instead: str) -> None:
    """Proves that the drills can fail: one line of a copy of the code is broken, and the row says what it does."""
    code, report = run_drills(tmp_path / "home", drill, code=broken_build(tmp_path / "code", file, line, instead))
    assert code == 1
    assert any(row["verdict"] != "right" for row in report["drills"] if row["policy"] == Delivery.EFFECTIVELY_ONCE)


def test_the_documents_name_drills_that_exist() -> None:
    named = set(re.findall(r"`((?:kill|expire|abort|leave|add|lose|delete|overtake|compact|recreate)\w*)`", DELIVERY))
    assert named <= {*DRILLS, "lose_leader"}
