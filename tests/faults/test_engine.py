"""The warm Spark: one per home, for its owner alone, replaced when it dies, gone when nobody wants it; each row once."""

import dataclasses
import fcntl
import importlib.metadata
import json
import math
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline_defs.adapters.spark import engine, spark_server
from pipeline_defs.adapters.spark.engine import Engine
from pipeline_defs.adapters.spark.remote_engine import RemoteEngine
from pipeline_defs.adapters.spark.spark import SCAN_CONF
from pipeline_defs.adapters.spark.spark_server import STATE, WORK, Limits, read_server, read_state, start_server, stop_server
from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.system.java import archive_options
from pipeline_defs.adapters.system.processes import stop_process
from pipeline_defs.core.errors import EngineLost, EngineUnavailable, EngineUnfit
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.lab.processes import plain_environment
from pipeline_defs.settings import Settings
from tests.conftest import JARS
from tests.support.killing import Striker, run_module
from tests.support.world import PATIENCE_SECONDS, World, own_spark

pytestmark = pytest.mark.scenario

SMALL: Mapping[str, str] = {
    "spark.master": "local[1]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": " ".join(f'"{option}"' for option in archive_options(JARS, "spark")),
    "spark.ui.enabled": "false",
}
SOON = Limits(last_call_seconds=1.0)
ERROR_SECONDS = 60  # by Spark's defaults a client tries for minutes


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "engine"
    stop_server(tmp_path / "engine")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home with nothing but jars, whose Spark is stopped at the end."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "jars").symlink_to(JARS)
    yield home
    stop_server(home / "engine")


def has_ended(server: spark_server.Server) -> bool:
    return not server.process.is_running() and not server.jvm.is_running()


def leftovers(folder: Path) -> list[str]:
    return sorted(
        each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.name not in {spark_server.LOG, ".lock"}
    )


def test_who_starts_at_once_gets_one_server_that_nobody_else_can_use(folder: Path, tmp_path: Path) -> None:
    """[R-77] On loopback, by a token told to nobody; who needs one after a kill cleans up; JVM and server end together."""
    held = os.open(tmp_path / "held", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(held, True)
    fcntl.flock(held, fcntl.LOCK_EX)
    with ThreadPoolExecutor(3) as pool:
        servers = set(pool.map(lambda _: start_server(folder, SMALL, "f"), range(3)))
    (server,) = servers
    os.close(held)
    again = os.open(tmp_path / "held", os.O_RDWR)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a lock of whoever started it ends with them
    os.close(again)

    assert Engine(lambda: server.url).session({}).range(3).count() == 3, "the control: with the token it answers"
    listening = [each for each in psutil.Process(server.jvm.pid).net_connections() if each.status == psutil.CONN_LISTEN]
    assert server.port in {each.laddr.port for each in listening}
    assert {each.laddr.ip.removeprefix("::ffff:") for each in listening} <= {"127.0.0.1", "::1"}
    for url in (server.url.replace(server.token, uuid.uuid4().hex), server.url.partition(";token")[0]):
        with pytest.raises(EngineUnavailable, match=f"at 127.0.0.1:{server.port}: UNAUTHENTICATED") as refused:
            Engine(lambda url=url: url).session({})  # type: ignore[misc]
        assert server.token not in str(refused.value)
    with pytest.raises(EngineUnfit, match=r"its Kafka source is not there, .*kafka.*; its spark-avro is not there, "):
        RemoteEngine(server.url).session({})  # it has no jars
    assert stat.S_IMODE((folder / STATE).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    lines = [" ".join(psutil.Process(pid).cmdline()) for pid in (server.process.pid, server.jvm.pid)]
    assert server.token not in (folder / spark_server.LOG).read_text() + str(server.facts) + "".join(lines)

    assert spark_server.find_server(folder, "f") == server
    os.kill(server.process.pid, signal.SIGKILL)
    World.wait_until(lambda: has_ended(server))
    assert (folder / STATE).exists() and list((folder / WORK).iterdir()), "the fault: it left something"
    second = start_server(folder, SMALL, "f")
    assert second.process != server.process
    assert [each.name for each in (folder / WORK).iterdir()] == [str(second.process.pid)]
    os.kill(second.jvm.pid, signal.SIGKILL)
    World.wait_until(lambda: has_ended(second))
    assert leftovers(folder) == [WORK]


def test_a_server_that_is_idle_or_of_another_configuration_ends_and_one_that_is_old_serves_no_new_client(folder: Path) -> None:
    """[R-77] Nothing runs that nobody wants, and nobody is cut off who had just found it."""
    first = start_server(folder, SMALL, "f", SOON)
    second = start_server(folder, SMALL, "another", Limits(old_seconds=0.0, last_call_seconds=60.0))
    World.wait_until(lambda: spark_server.find_server(folder, "another") is None)
    assert Engine(lambda: second.url).session({}).range(3).count() == 3, "whoever had found it is served still"
    third = start_server(folder, SMALL, "another", dataclasses.replace(SOON, idle_seconds=1.0))
    assert third.process != second.process
    assert stop_process(second.process, PATIENCE_SECONDS), "the control: it does not end while it may be asked"
    World.wait_until(lambda: has_ended(first) and has_ended(second) and has_ended(third))
    assert leftovers(folder) == [WORK]


def test_a_server_that_goes_takes_no_job_of_another_one_along(folder: Path) -> None:
    """[R-77] Jobs of one process share an engine: one that was withdrawn finishes what it does."""
    patient = Limits(last_call_seconds=PATIENCE_SECONDS)  # another one may take long to start
    shared = Engine(lambda: start_server(folder, SMALL, "f", patient).url)
    with shared.job({}, "count", "nothing was") as old:
        assert old.range(3).count() == 3
        first = read_server(folder)
        assert first is not None
        (folder / STATE).unlink()  # as a server does that is idle or old
        with shared.job({}, "count", "nothing was") as new:
            assert new.range(2).count() == 2 and new is not old
        assert old.range(3).count() == 3, "it is left to finish what it does"
    with shared.job({}, "count", "nothing was") as healthy:
        assert healthy is new
        lost = pytest.raises(EngineLost, match=r"could not count: the server at .* went away; nothing was")
        with lost, shared.job({}, "count", "nothing was") as closed:
            shared.close()
            closed.range(1).count()
        with shared.job({}, "count", "nothing was") as again:
            assert again.range(1).count() == 1
    stop_process(first.process, PATIENCE_SECONDS)


def test_a_state_that_is_torn_is_nobodys(folder: Path) -> None:
    """[R-77] A power cut must not leave a home that nobody can run in."""
    folder.mkdir()
    process = {"pid": os.getpid(), "started": "x"}
    state = {"port": 1, "token": "t", "process": process, "jvm": process, "since": 0, "fingerprint": "f", "spark": "4"}
    (folder / STATE).write_text(json.dumps(state))
    assert read_state(folder) is not None, "the control"
    ports = (json.dumps(state | {"port": port}) for port in ("x", None, 0, 1 << 16))
    for text in ("[" * 100_000, "", "{", "[]", '{"port": 1}', '{"process": {"pid": 1, "started": "x"}}', *ports):
        (folder / STATE).write_text(text)
        assert read_state(folder) is None and read_server(folder) is None


@pytest.fixture(scope="module")
def killable(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of a warm Spark of this file's own: what follows a killed one is the next test's to kill."""
    with own_spark(settings, tmp_path_factory.mktemp("killable")) as own:
        yield own


@pytest.fixture
def lonely(killable: Settings, tmp_path: Path) -> Iterator[World]:
    """A world whose Spark is its own, to be killed."""
    policy = Policy(records_per_range=10, max_age_seconds=0)
    with World(killable, tmp_path, policy=policy) as world:
        world.create_topic(2)
        yield world


def striker_of(world: World, *signals: tuple[str, signal.Signals]) -> Striker:
    """Return who sends signals to the Spark of a world while it writes."""

    def strike() -> None:
        server = read_server(world.settings.engine_folder)
        assert server is not None
        for process, number in signals:
            os.kill(getattr(server, process).pid, number)

    return Striker(world, strike)


KILLED = ("jvm", signal.SIGKILL)
FROZEN = (("process", signal.SIGSTOP), ("jvm", signal.SIGSTOP))


def test_ranges_whose_spark_freezes_are_read_again_by_another_one(lonely: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] Soon and not after minutes, in a folder of their own: what the dead one has written counts for nothing."""
    monkeypatch.setattr(engine, "SILENT_SECONDS", 10.0)
    monkeypatch.setattr(engine, "WATCH_SECONDS", 1.0)
    lonely.send_numbered(1000, 0)
    lonely.send_numbered(1000, 1)
    lonely.plan()
    lost: list[tuple[float, str]] = []
    striker = striker_of(lonely, *FROZEN)

    def on_step(step: str, **fields: Any) -> None:
        striker.on_step(step, **fields)
        if step == "engine_lost" and "went away" in fields["reason"]:  # a start whose port another took is no death
            lost.append((time.monotonic(), fields["reason"]))

    verdicts = lonely.land(on_step=on_step)
    assert striker.struck_at and len(lost) == 1, "the fault: it was struck in the middle of a scan"
    assert lost[0][0] - striker.struck_at < ERROR_SECONDS
    assert "went away; nothing became visible" in lost[0][1]
    assert {verdict.outcome for verdict in verdicts} == {Outcome.LANDED} and len(verdicts) == 200
    lonely.assert_all_landed_once()
    assert not list((lonely.lake_folder / "staging").rglob("*.parquet"))


def test_a_spark_that_remembers_a_full_disk_is_replaced(lonely: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] A JVM unpacks zstd as it first writes; if it cannot, it never will, however much room there is later."""
    folder = lonely.settings.engine_folder
    stop_server(folder)
    lonely.send_numbered(10, 0)
    lonely.plan()
    lonely.adapters.engine(lonely.adapters.pyspark()).session(SCAN_CONF)
    first = read_server(folder)
    assert first is not None

    def failures() -> str:
        verdicts = lonely.land()
        assert {each.outcome for each in verdicts} == {Outcome.FAILED}
        return "".join(violation for each in verdicts for violation in each.violations)

    room = resource.prlimit(first.jvm.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(first.jvm.pid, resource.RLIMIT_FSIZE, (1000, room[1]))
    assert "zstd" in failures(), "the fault"
    resource.prlimit(first.jvm.pid, resource.RLIMIT_FSIZE, room)
    monkeypatch.setattr(spark_server, "SPENT_SECONDS", math.inf)
    assert failures() and read_server(folder) == first, "the control, as for a server that has just started"
    monkeypatch.setattr(spark_server, "SPENT_SECONDS", 0.0)
    (folder / spark_server.SPENT).touch()
    assert failures() and read_server(folder) == first, "its predecessor was replaced just now"
    monkeypatch.setattr(spark_server, "AGAIN_SECONDS", 0.0)
    assert {each.outcome for each in lonely.land()} == {Outcome.LANDED}
    lonely.assert_all_landed_once()
    World.wait_until(lambda: has_ended(first))


def test_at_most_once_what_a_dead_spark_was_reading_is_abandoned(lonely: World) -> None:
    """[R-77] It is claimed, so nobody reads it again; what was not begun is landed by another Spark, in the same run."""
    lonely.topic = dataclasses.replace(lonely.topic, delivery=Delivery.AT_MOST_ONCE)
    for records_per_range, ranges in ((10, 120), (5, 150)):  # sizes apart are read by scans apart
        lonely.with_policy(records_per_range=records_per_range)
        lonely.send_numbered(records_per_range * ranges, 0)
        lonely.plan()
    striker = striker_of(lonely, KILLED)
    verdicts = lonely.land(on_step=striker.on_step)
    failed = {verdict.offsets for verdict in verdicts if verdict.outcome is Outcome.FAILED}
    assert striker.struck_at and [*map(len, failed)] == [10] * 120, "the fault: it died in mid-scan"
    told = [verdict.violations[0] for verdict in verdicts if verdict.offsets in failed]
    assert all("went away; nothing became visible; what was claimed for this scan is abandoned" in each for each in told)
    assert len(verdicts) == 270
    again = lonely.land([offsets.key for offsets in failed])
    assert {verdict.offsets for verdict in again} == failed
    assert all("was claimed by attempt" in verdict.violations[0] for verdict in again)
    values = [row[3] for row in lonely.rows()]
    assert len(values) == len(set(values)) == 5 * 150


def test_the_command_starts_shows_and_stops_it(home: Path) -> None:
    """[R-77] It tells no token; who looks starts nothing, and exit code 1 says that nothing runs."""
    environment = plain_environment() | {"OFFSETLAKE_HOME": str(home), "OFFSETLAKE_SPARK_DRIVER_MEMORY": "512m"}

    def run_engine(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_module("pipeline_defs.cli", "engine", *arguments, env=environment)

    nothing = run_engine("status", "--json")
    assert (nothing.returncode, json.loads(nothing.stdout)) == (1, {"running": False})
    assert not (home / "engine").exists()
    started = run_engine("restart")
    told = f"Spark {importlib.metadata.version('pyspark')} runs"
    assert started.returncode == 0 and told in started.stdout, started.stderr
    server = read_server(home / "engine")
    assert server is not None
    shown = run_engine("status", "--json")
    assert (shown.returncode, json.loads(shown.stdout)) == (0, {"running": True, "answers": True, **server.facts})
    assert f"(pid {server.process.pid})" in run_engine("status").stdout
    assert "Spark is stopped" in run_engine("stop").stdout and has_ended(server)
    assert leftovers(home / "engine") == [WORK], "it leaves its log"
    assert "no Spark was running" in run_engine("stop").stdout
    assert server.token not in started.stdout + started.stderr + shown.stdout


# a system that is read-only but for Offsetlake's folders, as the units of deploy/ have it, in a mount namespace
UNSHARE = [shutil.which("unshare") or "", "--uts", "--mount", "--propagation", "private"]
# as systemd does: ProtectSystem=strict leaves /dev, /proc and /sys; what is below ReadWritePaths is mounted over itself first
STRICT = """
mount --bind "$OFFSETLAKE_HOME" "$OFFSETLAKE_HOME"
findmnt --raw --noheadings --output TARGET |
grep -Ev '^/(dev|proc|sys)(/|$)' | grep -Fvx "$OFFSETLAKE_HOME" |
while read -r each
do mount -o remount,bind,ro "$each"
done
"""
PRIVATE_TMP = "mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /var/tmp\n"
CONTROL = "if touch {} 2>/dev/null; then exit 99; fi\n"
RUN = f'hostname unknown-to-all; exec "{sys.executable}" -m pipeline_defs.cli engine restart\n'


def can_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.skipif(not can_unshare(), reason="needs a mount namespace of its own, which Linux gives to root")
@pytest.mark.parametrize("private", [True, False], ids=["private /tmp", "no /tmp"])
def test_spark_starts_where_only_its_home_is_writable(home: Path, private: bool) -> None:
    """With a /tmp of its own, as the units have it, and without any; the control: nothing else can be written.

    Nobody knows an address of the machine's name.
    """
    resolve_jars("spark", JARS)
    script = STRICT + CONTROL.format("/etc/x") + (PRIVATE_TMP if private else CONTROL.format("/tmp/x")) + RUN
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    environment |= {"OFFSETLAKE_HOME": str(home), "OFFSETLAKE_SPARK_DRIVER_MEMORY": "1g"}
    done = subprocess.run([*UNSHARE, "sh", "-euc", script], env=environment, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "runs" in done.stdout, said
