"""The benchmark's arithmetic, what the load is made of, and where benchmark and drills run."""

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipeline_defs.adapters.system.processes import Process
from pipeline_defs.core.errors import BadSetting
from pipeline_defs.lab.bench import rounds
from pipeline_defs.lab.bench.costs import topics_cost
from pipeline_defs.lab.bench.costs.run_cost import UsageLook, net_seconds
from pipeline_defs.lab.bench.usage import read_peak_bytes, read_tree, tree_seconds
from pipeline_defs.lab.bench.watched import split_seconds
from pipeline_defs.lab.cli import parts
from pipeline_defs.lab.cli.bench import bench
from pipeline_defs.lab.cli.drill import drill
from pipeline_defs.lab.cli.parts import choose_loads, choose_systems
from pipeline_defs.lab.drills.report import DRILLS, choose
from pipeline_defs.lab.drills.systems import OURS
from pipeline_defs.lab.processes import NotMeasured

LOAD = rounds.Load("t", 1_000, 16_000, 1_000)


def turn(system: str, number: int, seconds: float, size: int = 0) -> rounds.Turn:
    return rounds.Turn(system, number, rounds.Taken(seconds, 1.0, 1, 1), 16_000, size, 4, {"stage": seconds / 2})


def test_the_warm_up_counts_nowhere_and_one_slow_round_does_not_decide() -> None:
    turns = [turn("offsetlake", number, seconds) for number, seconds in enumerate([99, 2.0, 50.0, 3.0])]
    assert rounds.medians(turns, lambda each: each.taken.seconds) == {"offsetlake": 3.0}
    facts: Any = rounds.summary(LOAD, turns)["systems"]
    expected = {"seconds": [2.0, 50.0, 3.0], "warm_up_seconds": [99], "records_per_second": 5333}
    assert expected.items() <= facts["offsetlake"].items()


def test_a_ratio_above_one_means_that_ours_is_faster_and_a_missed_target_is_named_with_what_was_expected() -> None:
    """And bytes below one that ours are fewer."""
    turns = [turn("offsetlake", 1, 2.0, 100), turn("bare_spark", 1, 1.9), turn("structured_streaming", 1, 4.0, 200)]
    line = rounds.ratios(LOAD, turns)
    expected = {"to_structured_streaming": 2.0, "to_bare_spark": 0.95, "bytes_to_structured_streaming": 0.5}
    assert expected.items() <= line.items()
    assert line["to_hand_written_loop"] is None, "what did not run has no ratio"
    missed = {"value_bytes": 1_000, "to_bare_spark": 0.8, "bytes_to_structured_streaming": 0.7}
    assert rounds.missed_targets([line, missed]) == [
        "to_bare_spark at 1000 B: 0.8, to be at least 0.9",
        "bytes_to_structured_streaming at 1000 B: 0.7, to be at most 0.6",
    ]


@pytest.mark.parametrize("sizes", ["", "abc", "10", "100,,1000"])
def test_a_size_that_is_none_is_refused(sizes: str) -> None:
    with pytest.raises(BadSetting, match="nothing was started"):
        choose_loads(sizes, None)


def test_an_unknown_system_is_refused_and_the_known_ones_named() -> None:
    assert choose_systems("bare_spark, offsetlake") == ["bare_spark", "offsetlake"]
    with pytest.raises(BadSetting, match="bare_spark"):
        choose_systems("flink")
    with pytest.raises(BadSetting, match="system '' is not one of"):
        choose_systems("")  # an empty variable of a script, say: not the quarter of an hour that all of it takes
    assert len(choose_systems(None)) > 2, "the control"


def test_the_parts_of_the_time_to_visible_add_up_to_it() -> None:
    marks = [
        {"at": 101.0, "step": "tick_requested", "runs": 0},
        {"at": 103.0, "step": "tick_requested", "runs": 1},
        *({"at": 104.0 + number, "step": step} for number, step in enumerate(["find", "scan", "stage", "publish"])),
    ]
    seconds = split_seconds(marks, produced_at=100.0, seen_at=107.5)
    assert seconds.pop("total") == pytest.approx(sum(seconds.values())) == 7.5
    assert {"tick_and_plan": 3.0, "scan": 1.0, "seen_by_glob": 0.5}.items() <= seconds.items()


BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
FAMILY = f"""
import subprocess, sys
child = [sys.executable, "-c", {BURN!r}]
subprocess.run([sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *child])
print("ended", flush=True)
sys.stdin.read()
"""


def test_processes_that_ended_below_a_living_one_are_counted() -> None:
    """A run that ends between two looks must not be lost: its parent knows what it used, and what its children did."""
    with subprocess.Popen([sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None and process.stdout.readline() == "ended\n"
        (found,) = read_tree(process.pid)
        process.stdin.close()
    assert found.ended_seconds >= 0.3, "the grandchild's"
    assert found.own_seconds < found.ended_seconds, "the control: the living process itself has hardly worked"


def test_processes_that_still_run_are_counted_with_what_is_above_them() -> None:
    """This process is below its parent, and a process that is nowhere has no tree."""
    found = read_tree(os.getppid())
    assert found[0].pid == os.getppid()
    assert os.getpid() in {each.pid for each in found}
    assert read_peak_bytes(os.getpid()) > 1_000_000
    below, both = tree_seconds(os.getpid()), tree_seconds(os.getpid(), os.getpid())
    assert 0 < below <= both < 1.5 * below, "what two roots share is counted once"
    assert read_tree(2**22 + 1) == []


def test_what_is_used_while_nothing_happens_is_taken_off_and_a_run_on_two_engines_has_no_cost() -> None:
    before, after = UsageLook(10.0, 1.0), UsageLook(20.0, 3.0)
    assert net_seconds(before, after, 0.1) == 1.0
    with pytest.raises(NotMeasured):
        net_seconds(replace(before, server=Process(1, "a")), replace(after, server=Process(1, "b")), 0.1)


NO_USE = [(["--sizes", "100"], "--sizes"), (["--visible", "1", "--records", "99"], "--records, --visible")]
USELESS = [(part, *each) for part in ("engine", "derived", "topics") for each in NO_USE]


@pytest.mark.parametrize(("part", "options", "named"), [*USELESS, ("topics", ["--rounds", "2"], "--rounds")])
def test_what_a_part_has_no_use_for_is_refused(part: str, options: list[str], named: str) -> None:
    """Topics are measured in one round, for minutes."""
    result = CliRunner().invoke(bench, ["--part", part, *options])
    assert result.exit_code == 2
    assert f"{named} cannot be given with --part; nothing was started" in result.output


def test_a_record_waits_until_the_first_look_that_sees_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the warm-up count nowhere, those that nobody has seen stay to be waited for."""
    traffic = topics_cost._Traffic(["t"], counts_from=100.0)
    traffic.acked = {("t", 0, 0): 99.0, ("t", 0, 1): 100.0, ("t", 1, 0): 101.5, ("t", 1, 1): 102.0}
    pq.write_table(pa.table({"topic": ["t"] * 3, "partition": [0, 0, 1], "offset": [0, 1, 0]}), tmp_path / "a.parquet")
    monkeypatch.setattr("pipeline_defs.lab.bench.costs.topics_cost.time.time", lambda: 110.0)
    for _ in range(2):
        traffic.look(tmp_path)
        monkeypatch.setattr("pipeline_defs.lab.bench.costs.topics_cost.time.time", lambda: 120.0)
        traffic.read()
        assert sorted(traffic.waits["t"]) == [8.5, 10.0]
        assert traffic.acked == {("t", 1, 1): 102.0}


class Started(Exception):
    """The measurement that would begin."""


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize(
    ("name", "value", "whole", "part"),
    [
        ("OFFSETLAKE_SPARK_REMOTE", "sc://h:1/;token=hush-4711", BadSetting, BadSetting),
        ("OFFSETLAKE_ENGINE", "in-process", Started, BadSetting),
        ("OFFSETLAKE_ENGINE", "server", Started, Started),
    ],
)
def test_another_spark_than_the_benchmarks_own_is_refused_before_anything_starts(
    name: str, value: str, whole: type[Exception], part: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    start = Mock(side_effect=Started)
    monkeypatch.setattr("pipeline_defs.lab.cli.parts.run_bench", start)
    monkeypatch.setattr(parts, "PARTS", dict.fromkeys(parts.PARTS, start))
    for options, expected in (([], whole), *((["--part", each], part) for each in ("engine", "derived", "topics"))):
        result = CliRunner().invoke(bench, options)
        assert isinstance(result.exception, expected)
        if expected is BadSetting:
            assert name in str(result.exception) and "nothing was started; unset it" in str(result.exception)
            assert "starting" not in result.output and "hush" not in str(result.exception)


def test_elsewhere_ours_alone_is_drilled_without_what_only_this_machine_has() -> None:
    names = ("no_fault", "fill_disk", "lose_leader", "kill_at_written")
    assert len(choose(names, 0, 1, 0, "disk", "local").drills) + 1 == len(names)
    for lake, engine in (("s3", "local"), ("disk", "cluster"), ("s3", "cluster")):
        chosen = choose((), 0, 1, 0, lake, engine)
        assert not chosen.acks and {drill.systems for drill in chosen.drills} == {(OURS,)}
        assert not any(drill.is_of_disk for drill in chosen.drills) and len(chosen.drills) > len(DRILLS) // 2
        for name in names[1:]:
            with pytest.raises(BadSetting, match=f"^{name}: of this machine's disk"):
                choose([name], 0, 1, 0, lake, engine)


@pytest.mark.parametrize(("name", "text"), [("OFFSETLAKE_LAKE", "/nowhere/lake"), ("OFFSETLAKE_SPARK_MASTER", "nonsense")])
def test_nothing_is_said_to_start_where_settings_are_wrong(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control is a drill that begins."""
    said = list[str]()
    monkeypatch.setattr("pipeline_defs.lab.cli.drill.progress", lambda text: nullcontext(said.append(text)))
    monkeypatch.setattr("pipeline_defs.lab.drills.report.run_drills", lambda *_: {"drills": []})
    with monkeypatch.context() as wrong:
        wrong.setenv(name, text)
        assert isinstance(CliRunner().invoke(drill, ["--lake", "s3"]).exception, BadSetting)
    assert said == []
    CliRunner().invoke(drill, [])
    assert said == ["starting broker and Spark"]
