"""The command line as a person or a program uses it: what is printed, the exit code, and what is said to who asks too much."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from click.testing import CliRunner, Result

from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.cli.commands import cli
from pipeline_defs.cli.home.doctor import _rows_of
from pipeline_defs.core.errors import BadKey, OffsetlakeError
from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.lab.processes import plain_environment, variables_of
from pipeline_defs.settings import Settings
from tests.support.commands import Run, commands_of
from tests.support.killing import run_module
from tests.support.world import World

PLAN = ("plan", "flights", "--apply")
Ended = subprocess.CompletedProcess[str]
Offsetlake = Callable[..., Ended]
pytestmark = pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster's, as it reads YAML


@pytest.fixture(scope="module")
def environment(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A machine's environment of its own: lake and Dagster home are fresh, the broker is the session's."""
    folder = tmp_path_factory.mktemp("commands")
    own = dataclasses.replace(settings, lake=str(folder / "lake"), dagster_home=folder / "dagster")
    return plain_environment() | variables_of(own)


@pytest.fixture(scope="module")
def offsetlake(environment: dict[str, str]) -> Offsetlake:
    """Run the command in a process of its own."""

    def run(*arguments: str, **changed: str) -> Ended:
        return run_module("pipeline_defs.cli", *arguments, env={n: v for n, v in (environment | changed).items() if v})

    return run


@pytest.fixture(scope="module")
def flights(offsetlake: Offsetlake, tmp_path_factory: pytest.TempPathFactory) -> Offsetlake:
    """Have 500 flights produced, planned and landed by commands alone."""
    file = tmp_path_factory.mktemp("flights") / "flights.jsonl"
    file.write_text("".join(json.dumps({"tailnum": f"N{n % 7}", "n": n}) + "\n" for n in range(500)))
    produced = offsetlake("produce", "flights", "--file", str(file), "--key-field", "tailnum", "--partitions", "2")
    assert produced.returncode == 0, produced.stderr
    assert "500 records acknowledged by flights" in produced.stdout
    planned = offsetlake("plan", "flights", "--apply", "--through-end", "--json")
    assert planned.returncode == 0, planned.stderr
    landed = offsetlake("land", "flights", "--pending")
    assert landed.returncode == 0, landed.stderr
    assert "Warning" not in landed.stderr, "what Dagster calls beta is nothing to a user"
    return offsetlake


@pytest.fixture(scope="module")
def inside(flights: Offsetlake, environment: dict[str, str]) -> Offsetlake:
    """Run the command in this process, which knows it already: how a process of it ends is held by the other tests."""

    def run(*arguments: str, **changed: str) -> Ended:
        ended = CliRunner().invoke(cli, arguments, env=environment | changed)
        assert isinstance(ended.exception, SystemExit | None), ended.exception
        return subprocess.CompletedProcess(arguments, ended.exit_code, ended.stdout, ended.stderr)

    return run


def document(run: Ended) -> Any:
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_the_installed_command_says_what_it_can_do(environment: dict[str, str]) -> None:
    command = Path(sys.executable).with_name("offsetlake")
    run = subprocess.run([command, "--help"], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0
    assert {"plan", "land", "status", "audit", "losses", "accept-loss"} <= set(run.stdout.split())


def test_status_says_lag_pace_and_what_to_do(inside: Offsetlake) -> None:
    (answer,) = document(inside("status", "flights", "--json"))
    rows = answer["partitions"]
    assert [row["partition"] for row in rows] == [0, 1]
    assert sum(row["landed_offset"] for row in rows) == 500
    assert {(row["lag"], row["pending_ranges"]) for row in rows} == {(0, 0)}
    assert all(row["last_landed_at_ms"] > 0 for row in rows)
    assert answer["landed_per_second"] > 0
    shown = inside("status").stdout
    (advice,) = (line for line in shown.splitlines() if line.startswith("flights: "))
    assert advice.startswith("flights: `offsetlake decode flights --due`, or start Dagster")


def test_metrics_answer_scrapes_until_they_end(flights: Offsetlake, inside: Offsetlake, environment: dict[str, str]) -> None:
    """Where no host is given nobody else reaches them; another process cannot have the same port; the end is clean."""
    command = [sys.executable, "-m", "pipeline_defs.cli", "metrics", "--listen", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stderr is not None
        line = server.stdout.readline()
        match = re.fullmatch(r"metrics at (http://127\.0\.0\.1:(\d+)/metrics), maps at (\S+)/TOPIC; Ctrl-C ends\n", line)
        assert match is not None, line + server.stderr.read()
        answer = requests.get(match[1], timeout=60)
        text = answer.text
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert 'kafka_consumergroup_lag_sum{consumergroup="offsetlake.flights",topic="flights"} 0.0' in text
        drawn = requests.get(f"{match[3]}/flights", timeout=60)
        assert drawn.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "<title>coverage of flights</title>" in drawn.text
        refused = flights("metrics", "--listen", match[2])
        assert refused.returncode == 2 and f"cannot listen on 127.0.0.1:{match[2]}: Address already in use" in refused.stderr
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
        said = server.stderr.read().splitlines()
        assert [line for line in said if not line.startswith("reading the topics")] == [], "but what it waits for"
    assert "kafka_topic_partitions" in inside("metrics", "flights").stdout
    assert "expected [HOST:]PORT" in inside("metrics", "--listen", "here:there").stderr


def test_map_draws_the_topic_in_the_terminal_and_in_a_file(flights: Offsetlake, inside: Offsetlake, tmp_path: Path) -> None:
    drawn = inside("map", "flights")
    assert drawn.returncode == 0, drawn.stderr
    assert all(f"│ p {partition} │ {'█' * 50} │" in drawn.stdout for partition in (0, 1))
    file = tmp_path / "maps" / "flights.html"
    missing = flights("map", "flights", "--out", str(file))
    assert missing.returncode == 2 and f"there is no folder {file.parent}" in missing.stderr
    assert "Traceback" not in missing.stderr and not file.parent.exists()
    file.parent.mkdir()
    written = inside("map", "flights", "--out", str(file))
    assert written.returncode == 0, written.stderr
    assert f"2 ranges of flights drawn in {file}" in written.stdout
    assert "<title>coverage of flights</title>" in file.read_text()
    (tmp_path / "a-file").write_text("")
    refused = flights("map", "flights", "--out", str(tmp_path / "a-file" / "map.html"))
    assert refused.returncode == 2 and "cannot write the map to" in refused.stderr and "Traceback" not in refused.stderr


def test_sql_has_a_view_per_topic_and_ranges(inside: Offsetlake) -> None:
    sql = "SELECT sum(r.rows) AS rows, count(*) AS joined FROM flights f JOIN ranges r ON f.partition = r.partition"
    assert document(inside("sql", sql, "--json"))[0]["joined"] == 500
    assert "500" in inside("sql", "SELECT count(*) FROM flights").stdout


def test_trace_follows_a_row_to_its_code(flights: Offsetlake, inside: Offsetlake) -> None:
    answer = document(inside("trace", "flights", "0", "3", "--json"))
    assert answer["row"]["offset"] == 3
    assert Path(answer["file"]).is_file()
    assert answer["state"] == "landed" and answer["plan_step"] == 0
    assert all(answer[name] for name in ("run", "attempt", "code_version", "sha256", "writer", "range"))
    hidden = Path(answer["file"]).rename(Path(answer["file"]).with_suffix(".hidden"))
    lost = flights("trace", "flights", "0", "3")
    hidden.rename(answer["file"])
    assert lost.returncode == 1 and f"{answer['file']}, which has the record, is gone" in lost.stderr


def test_audit_is_green_then_red_for_a_missing_file(inside: Offsetlake, environment: dict[str, str]) -> None:
    findings = document(inside("audit", "flights", "--replay", "all", "--json"))
    assert {f["check"] for f in findings} == {
        *("tiling", "completeness", "published_digest", "raw_table"),
        *("decoded_completeness", "decoded_digest", "latest_recomputed", "broker", "losses", "replay"),
    }
    assert all(f["passed"] for f in findings)
    file = next(Path(environment["OFFSETLAKE_LAKE"], "data").rglob("*.parquet"))
    hidden = file.rename(file.with_suffix(".hidden"))
    red = inside("audit", "flights", "--replay", "none")
    hidden.rename(file)
    assert red.returncode == 1
    assert "its file is not published" in red.stdout


@pytest.fixture
def old_java(tmp_path: Path) -> Path:
    """A Java that says it is version 11."""
    java = tmp_path / "jdk11" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    return java.parent.parent


def test_landing_a_landed_range_again_is_a_visible_no_op_and_needs_a_java_only_where_no_spark_runs(
    flights: Offsetlake, environment: dict[str, str], old_java: Path
) -> None:
    key = min(offsets.key for offsets in Lake(environment["OFFSETLAKE_LAKE"]).coverage("flights").manifests)
    again = flights("land", "flights", "--key", key, JAVA_HOME=str(old_java))
    assert again.returncode == 0, again.stderr
    assert "landed 1 range in run" in again.stdout and again.stdout.endswith(": 1 unchanged\n")
    log = Path(environment["OFFSETLAKE_HOME"], "engine", "server.log").read_text()
    spoken = ("Setting Spark log level", "log4j", "NativeCodeLoader", "incubator modules")
    assert spoken[0] in log, "the control: Spark says it"
    assert [words for words in spoken if words in again.stdout + again.stderr] == []
    red = flights("land", "flights", "--key", key, JAVA_HOME=str(old_java), OFFSETLAKE_ENGINE="in-process")
    assert red.returncode == 1
    assert "ranges_failed" in red.stderr and "17" in red.stderr
    assert "Traceback" not in red.stderr
    assert "nothing of flights is pending" in flights("land", "flights", "--pending").stdout
    preview = document(flights("plan", "flights", "--json"))
    assert (preview["committed"], preview["ranges"], preview["open_transactions"]) == (False, [], [])


def test_rebuild_restores_a_lost_dagster_home(inside: Offsetlake, tmp_path: Path) -> None:
    """[R-34] From the command line: an empty Dagster gets keys and materialisations from the lake."""
    rebuilt = inside("rebuild", "flights", DAGSTER_HOME=str(tmp_path / "new"))
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert "flights: 2 keys and 2 materialisations restored from the lake" in rebuilt.stdout


def test_doctor_is_green_here(flights: Offsetlake) -> None:
    answers = {answer["what"]: answer for answer in document(flights("doctor", "--json"))}
    assert set(answers) == {"java", "jars", "spark", "broker", "lake", "dagster home", "topics", "topic flights"}
    assert all(answer["ok"] for answer in answers.values())
    (risk,) = answers["topic flights"]["found"]
    assert risk == "replication.factor is 1: a broker's disk that fails takes acknowledged records with it"
    durable: Any = {
        name: SimpleNamespace(risks=risks, promise="kept") for name, risks in {"a": ["x"], "b": ["x"], "c": []}.items()
    }
    assert [*_rows_of(durable)] == [("topics a, b", "risk", "x"), ("topic c", "ok", "kept")], "once for all of which it is so"


def test_doctor_says_what_is_wrong_and_what_to_do(flights: Offsetlake, old_java: Path, tmp_path: Path) -> None:
    wrong = {"JAVA_HOME": str(old_java), "OFFSETLAKE_LAKE": str(tmp_path / "lake")}
    run = flights("doctor", "--json", OFFSETLAKE_BOOTSTRAP_SERVERS="127.0.0.1:1", **wrong)
    assert run.returncode == 1
    answers = {answer["what"]: answer for answer in json.loads(run.stdout)}
    assert "11" in answers["java"]["found"] and "17" in answers["java"]["found"]
    assert "127.0.0.1:1 does not answer" in answers["broker"]["found"]
    assert "correct OFFSETLAKE_LAKE" in answers["lake"]["found"]
    assert [name for name, answer in answers.items() if answer["ok"]] == ["jars", "spark", "dagster home"]


@pytest.mark.parametrize(
    ("arguments", "changed", "code", "words"),
    [
        (("land", "flights", "--key", "0-0-07"), {}, 2, "is not a range: expected <kafka partition>-<start>-<end>"),
        (("status", "nope"), {}, 2, f"known are flights; nothing was written; add {PROJECT}/assets/nope/defs.yaml"),
        (("sql", "SELECT nonsense"), {}, 2, "DuckDB refuses the statement"),
        (("trace", "flights", "0", "999999"), {}, 2, "is in no link of the plan log"),
        (("produce", "absent", "--file", "pyproject.toml"), {}, 2, "absent does not exist at 127.0.0.1:"),
        (("doctor",), {"OFFSETLAKE_LAKES": "x"}, 2, "environment variable OFFSETLAKE_LAKES is not one of"),
        (PLAN, {"OFFSETLAKE_BOOTSTRAP_SERVERS": "127.0.0.1:1"}, 1, "the Kafka broker at 127.0.0.1:1 does not answer"),
        (PLAN, {"OFFSETLAKE_LAKE": "{tmp_path}/lake"}, 1, "lake_unavailable.*has nothing of topic flights"),
    ],
)
def test_bad_requests_and_what_is_not_there_are_one_clear_error(
    flights: Offsetlake, tmp_path: Path, arguments: tuple[str, ...], changed: dict[str, str], code: int, words: str
) -> None:
    """[R-76] What was landed by commands is known to Dagster's home: where the lake is gone no command makes another one."""
    run = flights(*arguments, **{name: value.format(tmp_path=tmp_path) for name, value in changed.items()})
    assert run.returncode == code and re.search(words, run.stderr, re.DOTALL) and "Traceback" not in run.stderr, run.stderr
    assert re.search("nothing was|nothing is|tables are|nothing of it", run.stderr), run.stderr
    assert all(name in run.stderr for name in changed) and not (tmp_path / "lake").exists()


GOOD = "".join(f'{{"n": {n}}}\n' for n in range(30))
TRANSACTIONS = ("--transactional-id", "loader", "--records-per-transaction", "20")


@pytest.mark.parametrize(
    ("lines", "options", "code", "words", "records", "markers"),
    [
        (GOOD, (), 0, "30 records acknowledged by", 30, {0}),
        (GOOD, ("--acks", "0"), 0, "30 records.*with acks=0 none of them is acknowledged", 30, {0}),
        (GOOD, TRANSACTIONS, 0, "30 records.*committed to", 30, {2}),
        # aborted before a record of it was sent, or after
        (f"{GOOD}no record\n", TRANSACTIONS, 2, "records.jsonl:31 *is not a record", 20, {1, 2}),
        (f'{{"n": "{os.urandom(5_000).hex()}"}}\n', (), 1, "of 1 records 0 are acknowledged and 1 are not", 0, {0}),
    ],
    ids=["all", "0", "transactions", "a bad line", "larger than the topic allows"],
)
def test_produce_says_what_was_acknowledged_and_what_was_not(
    flights: Offsetlake,
    settings: Settings,
    tmp_path: Path,
    lines: str,
    options: tuple[str, ...],
    code: int,
    words: str,
    records: int,
    markers: set[int],
) -> None:
    """Transactions leave two markers in the log; of one with a bad line what was committed stays, and none is left open."""
    topic, file = f"produced-{uuid.uuid4().hex[:8]}", tmp_path / "records.jsonl"
    file.write_text(lines)
    with Kafka(str(settings.bootstrap_servers)) as kafka:
        kafka.create_topic(topic, 1, {"max.message.bytes": "2000"})
        run = flights("produce", topic, "--file", str(file), *options)
        assert kafka.read_open_transactions(topic, time.time_ns() // 1_000_000) == []
        end = kafka.read_watermarks(topic, "read_committed")[0].end
        spans = list(kafka.read_spans(topic, 0, [(0, end)], "read_committed"))
    assert run.returncode == code, run.stderr
    assert re.search(words, (run.stdout + run.stderr).replace("\n", " "))
    found = {kind: sum(span.end - span.start for span in spans if span.kind is kind) for kind in SpanKind}
    assert found[SpanKind.DATA] == records and found[SpanKind.CONTROL] in markers


@pytest.fixture
def quiet(settings: Settings, tmp_path: Path) -> Iterator[World]:
    """A topic on the broker with 40 young records, for which no Spark is needed."""
    with World(settings, tmp_path, f"t{uuid.uuid4().hex[:10]}") as world:
        world.with_policy(records_per_range=1000, max_age_seconds=600)
        world.fill(40)
        yield world


@pytest.fixture
def run(quiet: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    commands = commands_of("work.land", quiet, monkeypatch)
    return lambda verb, *arguments: commands(verb, quiet.name, *arguments)


def test_a_plan_says_that_a_tail_waits_for_its_age_and_how_to_cut_it(quiet: World, run: Run) -> None:
    """Before the log is opened and after; once the tail is cut nothing waits: the control."""
    for arguments in ([], ["--apply"], []):
        said = run("plan", *arguments).stdout
        assert f"40 offsets of {quiet.name} wait, the oldest for " in said
        assert f"10 min old; to cut now: offsetlake plan {quiet.name} --apply --through-end" in said
    waiting = json.loads(run("plan", "--json").stdout)["waiting"]
    assert waiting["offsets"] == 40 and 0 <= waiting["age_seconds"] < 600
    cut = run("plan", "--apply", "--through-end").stdout
    assert "planned 1 range" in cut and "1 ranges" not in cut and "wait" not in cut
    assert json.loads(run("plan", "--json").stdout)["waiting"] is None


def test_a_key_that_is_nearly_there_is_answered_with_the_one_that_is(quiet: World, run: Run) -> None:
    """Also where all is planned, so that `plan` has no key to show."""
    quiet.plan()
    refused = run("land", "--key", "0-0-41")
    assert isinstance(refused.exception, BadKey)
    assert "0-0-41 (the nearest there is: 0-0-40)" in str(refused.exception)
    assert f"`offsetlake backfill {quiet.name} --all` lists those there are" in str(refused.exception)
    nowhere = run("land", "--key", "7-0-41")
    assert isinstance(nowhere.exception, BadKey) and "nearest" not in str(nowhere.exception)


NOON_MS = 1_763_377_200_000  # 2025-11-17T11:00:00Z
MINUTE_MS = 60_000


@pytest.fixture
def backfill(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command on a world of five ranges of 10 minutes each, of which the last is not landed."""
    world.create_topic(retention_ms="-1")
    world.with_policy(records_per_range=10)
    world.send({"partition": 0, "value": b"%d" % n, "timestamp_ms": NOON_MS + n * MINUTE_MS} for n in range(50))
    world.plan()
    world.land([offsets.key for offsets in world.pending[:4]])
    commands = commands_of("work.backfill", world, monkeypatch)
    return lambda *arguments: commands("backfill", world.name, *arguments)


def chosen(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.exception
    document: dict[str, Any] = json.loads(result.stdout)
    return document


REFUSED: list[tuple[tuple[str, ...], str]] = [
    ((), "by nothing, expected exactly one of --all"),
    (("--all", "--missing"), "by all and missing, expected exactly one"),
    (("--all", "--generation", "0"), "--generation belongs to --offsets"),
    (("--all", "--time-zone", "Nope"), "--time-zone belongs to --from-time"),
    (("--from-time", "2025-11-17T11:00Z"), "expected --from-time and --to-time"),
    (("--from-time", "2025-11-17T11:00", "--to-time", "2025-11-17T12:00"), "does not say in which time zone"),
    (("--from-time", "last Tuesday", "--to-time", "2025-11-17T12:00Z"), "is no time, expected ISO 8601"),
    (("--from-time", "2025-11-17T11:00", "--to-time", "2025-11-17T12:00", "--time-zone", "Mars/X"), "Mars/X is no time zone"),
    (
        ("--from-time", "2025-10-26T02:30", "--to-time", "2025-10-26T04:00", "--time-zone", "Europe/Zurich"),
        "expected 2025-10-26T02:30:00+02:00 or 2025-10-26T02:30:00+01:00",
    ),
    (
        ("--from-time", "2025-03-30T01:00", "--to-time", "2025-03-30T02:30", "--time-zone", "Europe/Zurich"),
        "2025-03-30T02:30 is no one moment in Europe/Zurich",
    ),
    (("--from-time", "2025-11-17T12:00Z", "--to-time", "2025-11-17T11:00Z"), "is not before --to-time"),
    (("--from-time", "1965-01-01T00:00Z", "--to-time", "1950-01-01T00:00Z"), "1965-01-01T00:00:00+00:00 is not before"),
    (("--last-minutes", "5", "--missing"), "by missing and last_minutes, expected exactly one"),
    (("--last-minutes", "5"), "no range with a record of that time"),
    (("--from-time", "2027-11-17T11:00Z", "--to-time", "2027-11-17T12:00Z"), "no range with a record of that time"),
    (("--offsets", "0:45-60"), "[50, 60) of"),
    (("--offsets", "7:0-5"), "it holds nothing of that Kafka partition"),
    (("--offsets", "0-45-60"), "are not P:S-E"),
    (("--key", "0-0-11"), "are not in the plan log"),
    (("--failed",), "has no failed range"),
    (("--all", "--apply"), "no Dagster daemon executes backfills"),
]


def test_each_way_to_choose_shows_what_it_means_and_what_cannot_be_meant_is_one_error(world: World, backfill: Run) -> None:
    """A time is the records' own; of what is not landed nobody knows whether it is younger, or from before 1970."""
    before_1970 = ("--from-time", "1950-01-01T00:00Z", "--to-time", "1965-01-01T00:00Z")
    ten_past = ("--from-time", "2025-11-17T12:10+01:00", "--to-time", "2025-11-17T12:30+01:00")
    in_zurich = ("--from-time", "2025-11-17T12:10", "--to-time", "2025-11-17T12:30", "--time-zone", "Europe/Zurich")
    now_ms = world.adapters.now_ms
    world.adapters.now_ms = lambda: NOON_MS + 54 * MINUTE_MS
    late = ("--from-time", "2025-11-17T11:39Z", "--to-time", "2025-11-17T11:41Z")
    for arguments, keys in (
        (ten_past, ["0-10-20", "0-20-30", "0-40-50"]),
        (in_zurich, ["0-10-20", "0-20-30", "0-40-50"]),
        (late, ["0-30-40", "0-40-50"]),
        (before_1970, ["0-40-50"]),
        (("--last-minutes", "15"), ["0-30-40", "0-40-50"]),
        (("--offsets", "0:19-21"), ["0-10-20", "0-20-30"]),
        (("--offsets", "0:0-1", "--offsets", "0:49-50"), ["0-0-10", "0-40-50"]),
        (("--missing",), ["0-40-50"]),
        (("--key", "0-30-40"), ["0-30-40"]),
        (("--all",), ["0-0-10", "0-10-20", "0-20-30", "0-30-40", "0-40-50"]),
    ):
        found = chosen(backfill(*arguments, "--json"))
        assert [row["key"] for row in found["ranges"]] == keys, arguments
        assert found["backfill"] is None
    assert (found["offsets"], found["rows"], found["ranges_by_state"]) == (50, 40, {"landed": 4, "pending": 1})
    shown = backfill("--all").stdout
    assert "4 landed, 1 pending; 50 offsets, of which 40 rows" in shown and "nothing was launched; add --apply" in shown
    world.adapters.now_ms = now_ms
    for arguments, words in REFUSED:
        result = backfill(*arguments)
        assert isinstance(result.exception, OffsetlakeError), (arguments, result.stdout)
        assert words in str(result.exception) and "nothing was" in str(result.exception), arguments
    assert not world.instance.get_backfills()


def test_a_time_means_the_same_ranges_before_landing_after_it_and_when_kafka_has_nothing(world: World, backfill: Run) -> None:
    """[R-64] But for what is not landed, which is never left out for being too young; the last record is an older one."""
    world.send([{"partition": 0, "value": b"late", "timestamp_ms": NOON_MS + 15 * MINUTE_MS}])
    world.plan()
    time = ("--from-time", "2025-11-17T11:10Z", "--to-time", "2025-11-17T11:30Z")
    keys: Callable[[], list[str]] = lambda: [row["key"] for row in chosen(backfill(*time, "--json"))["ranges"]]  # noqa: E731
    assert keys() == ["0-10-20", "0-20-30", "0-40-50", "0-50-51"]
    assert "2 of them are not landed" in backfill(*time).stdout
    world.land()
    landed = keys()
    assert landed == ["0-10-20", "0-20-30", "0-50-51"]
    assert "not landed" not in backfill(*time).stdout
    world.delete_records(0, 51)
    world.wait_for_earliest(0, 51)
    assert keys() == landed, "the control: Kafka has no record left"
