"""What becomes of a client whose Spark does not answer, ours or somebody else's, and that no token of one is shown."""

import dataclasses
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Self
from unittest.mock import MagicMock, Mock

import grpc
import pytest
from click.testing import CliRunner
from dagster_pyspark import LazyPySparkResource
from py4j.protocol import Py4JError

from pipeline_defs.adapters.kafka.access import OPEN, Access
from pipeline_defs.adapters.spark import engine, remote_engine, spark_liveness, spark_server, spark_serving, spark_session
from pipeline_defs.adapters.spark.engine import Engine, scan_failed
from pipeline_defs.adapters.spark.remote_engine import RemoteEngine
from pipeline_defs.adapters.spark.spark import JAVA_OPTIONS, Spark
from pipeline_defs.adapters.spark.spark_errors import STACK, innermost_cause, is_jvm_spent
from pipeline_defs.adapters.spark.spark_server import Limits, Server
from pipeline_defs.adapters.spark.spark_session import RETRIES
from pipeline_defs.adapters.system import locks
from pipeline_defs.adapters.system.java import find_java, use_java
from pipeline_defs.adapters.system.processes import Process, free_ports, read_process
from pipeline_defs.cli.home import engine as command
from pipeline_defs.core.errors import BadSetting, EngineLost, EngineUnavailable
from pipeline_defs.core.login.client_properties import ClientProperties, Login, Pem, Tls
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import read_settings
from tests.support.killing import QUICK_JVM
from tests.support.world import PATIENCE_SECONDS, World


class Answering(grpc.GenericRpcHandler):
    """A server at an address, which may be of a port that somebody else has: `port` is 0 then."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self._server = grpc.server(ThreadPoolExecutor(8), [self], options=[("grpc.so_reuseport", 0)])
        self.port = self._server.add_insecure_port(address)
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()


class Deaf(Answering):
    """A server that answers calls of what it does not have, and nothing that Spark is asked: a network may do that."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._ended = threading.Event()
        super().__init__()
        self.url = f"sc://127.0.0.1:{self.port}/;use_ssl=false;token=hush-4711"

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        method = str(handler_call_details.method)
        if "SparkConnect" not in method:
            return None
        self.asked.append(method.rpartition("/")[2])
        return grpc.unary_unary_rpc_method_handler(lambda *_: self._ended.wait())

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        super().__exit__(*error)


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deaf]:
    for name in ("GREETING_SECONDS", "SILENT_SECONDS", "WATCH_SECONDS"):
        monkeypatch.setattr(engine, name, 0.1)
    monkeypatch.setattr(spark_session, "FAREWELL_SECONDS", 1.0)
    with Deaf() as found:
        yield found


def test_a_server_that_answers_and_does_nothing_holds_nobody_for_ever(deaf: Deaf) -> None:
    """[R-77] Neither who comes, nor who asks after an error whether it still works, nor who has done and says so.

    One that has lost its folder, say, would be asked again for hours: it is ended.
    """
    ended: list[str] = []
    asker = Engine(lambda: deaf.url, ended.append)
    with pytest.raises(EngineUnavailable, match=f"at 127.0.0.1:{deaf.port}: it listens, and does not do what it is "):
        asker.session({})
    assert not asker._works(deaf.url) and ended == [deaf.url]
    assert "Config" in deaf.asked, "the control: it was asked"

    asker._url, asker._sessions = deaf.url, {(): spark_session.open_session(deaf.url)}
    asker.close()
    assert "ReleaseSession" in deaf.asked, "the control: it was told, and did not answer"


def test_a_job_is_cut_off_where_what_ends_its_stuck_server_fails(deaf: Deaf, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] The disk may be read-only by then: nobody but the watcher would ever notice, and the error is told.

    [R-79] So who asks whether a server works gives up once it is silent: its network may be cut just when a job has failed.
    """
    monkeypatch.setattr(engine, "find_silence", lambda url: "QUIET" if deaf.asked else None)
    assert not RemoteEngine(deaf.url)._works(deaf.url)
    asker = Engine(lambda: deaf.url, Mock(side_effect=error_of(errno.EROFS)))
    asker._url, asker._sessions = deaf.url, {(): spark_session.open_session(deaf.url)}
    outcomes: list[Exception] = []

    def work() -> None:
        try:
            with asker.job({}, "count", "nothing was") as session:
                session.range(3).count()
        except EngineUnavailable as error:
            outcomes.append(error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(PATIENCE_SECONDS)
    (told,) = outcomes
    assert isinstance(told, EngineLost)
    assert "went away (OSError as it was looked after: [Errno 30] Read-only file system); nothing was" in str(told)


class Callers(Answering):
    """Who answers as nothing: the token that each call came with is kept."""

    def __init__(self, address: str) -> None:
        self.tokens: list[str | None] = []
        super().__init__(address)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        self.tokens.append(dict(handler_call_details.invocation_metadata or ()).get("authorization"))


def test_the_token_of_a_server_goes_to_nobody_else_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] Another account may listen at ::1 with the same port: `localhost` is that as well, so nobody is asked by name.

    It is a header: call credentials are Python that gRPC calls under its lock, for which whoever closes a channel waits.
    """
    monkeypatch.delattr(grpc, "access_token_call_credentials")
    if not socket.has_ipv6:
        pytest.skip("no ::1 here")
    (port,) = free_ports(1)
    server = Server(port, "hush-4711", Process(1, "x"), Process(1, "x"), 0.0, "f", "4")
    with Callers(f"[::1]:{port}") as foreign:
        if not foreign.port:
            pytest.skip("no ::1 here")
        with pytest.raises(EngineUnavailable, match="nobody answers there"):
            Engine(lambda: server.url).session({})
        with Callers(f"127.0.0.1:{port}") as ours:
            assert ours.port == port
            with pytest.raises(EngineUnavailable, match="UNIMPLEMENTED"):
                Engine(lambda: server.url).session({})
            assert "Bearer hush-4711" in ours.tokens, "the control: ours is told"
        assert foreign.tokens == []


def own_server(fingerprint: str = "f") -> Server:
    """A server that runs, as far as its state says: it is this process."""
    me = read_process(os.getpid())
    assert me is not None
    return Server(1, "hush-4711", me, me, time.time(), fingerprint, "4")


def write_state(folder: Path, server: Server) -> None:
    spark_server.write_private(folder / spark_server.STATE, dataclasses.asdict(server))


def error_of(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def test_a_starter_that_is_stopped_holds_nobody_up_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] What it has started is used; where there is nothing, who waits is told soon whom for; a server ends as ever."""
    monkeypatch.setattr(spark_server, "START_SECONDS", 0.1)
    server = own_server()
    told = rf"process {os.getpid()} on .* does not go on: .*{tmp_path / '.lock'}; nothing was started; .*`kill -CONT`"
    with locks.hold_start(tmp_path, lambda: None, 0, EngineUnavailable):
        with pytest.raises(EngineUnavailable, match=told):
            spark_server.start_server(tmp_path, {}, "f")
        write_state(tmp_path, server)
        assert spark_server.start_server(tmp_path, {}, "f") == server
        with pytest.raises(EngineUnavailable, match=told):
            spark_server.start_server(tmp_path, {}, "another")
        assert not spark_server.withdraw(tmp_path, server), "it takes away what names it some other time"
    assert spark_server.read_server(tmp_path) == server


def test_a_jvm_that_never_reports_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] Of a server that is not there nothing stays: neither where a run has its own Spark, nor where one is shared."""
    pid, java = tmp_path / "pid", tmp_path / "java_home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho $$ > {pid}.fresh && mv {pid}.fresh {pid}\nexec sleep 600\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))

    def has_ended() -> bool:
        found = read_process(int(pid.read_text()))
        return found is None or not found.is_running()

    monkeypatch.setattr(spark_serving, "START_SECONDS", 2.0)
    with pytest.raises(EngineUnavailable, match=r"does not start: it did not say where it listens within 2 s; nothing "):
        spark_serving._start_jvm({}, tmp_path / "log")
    if pid.exists():  # a machine that is slow may not have come so far
        World.wait_until(has_ended)
        pid.unlink()

    def interrupt(folder: Path, fingerprint: str) -> None:
        if pid.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(spark_server, "find_server", interrupt)
    with pytest.raises(KeyboardInterrupt):
        spark_server.start_server(tmp_path / "engine", {}, "f")
    World.wait_until(has_ended)


def test_a_client_gives_up_a_dead_server_within_seconds() -> None:
    """[R-77] What was to be done is tried again within ten; by Spark's defaults it takes minutes."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    policies = (DefaultPolicy(**RETRIES), DefaultPolicy())
    ours, theirs = (sum(iter(policy.to_state().next_attempt, None)) / 1000 for policy in policies)
    assert ours < 5 and theirs > 60, "theirs is the control"


def test_a_server_that_is_stuck_is_ended(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] Who asks a frozen server would wait for ever; nobody but its clients notices."""
    monkeypatch.setattr(engine, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(spark_liveness, "ANSWER_SECONDS", 0.1)
    url = f"sc://localhost:{listener.getsockname()[1]}"
    ended: list[str] = []
    asker = Engine(lambda: url, ended.append)
    with pytest.raises(EngineUnavailable, match="it listens, and does not answer"):
        asker.session({})
    assert ended == [url]
    listener.close()
    with pytest.raises(EngineUnavailable, match="nobody answers there"):
        asker.session({})
    assert ended == [url], "the control: nobody listens any more, so nothing is there to be ended"


@pytest.mark.parametrize(
    "properties",
    [
        ClientProperties("SASL_SSL", Login("PLAIN", "u", "hush-4711")),
        ClientProperties("SSL", tls=Tls(key=Pem("ssl.keystore.location", "/k.pem"))),
    ],
    ids=["password", "key"],
)
def test_a_login_goes_to_another_machine_through_tls_alone(properties: ClientProperties) -> None:
    """[R-79] It travels with each plan. The controls: loopback, TLS, a token, which goes through TLS only, and no login."""
    login = Access(properties)
    for url in ("sc://spark.example:15002", "sc://10.0.0.7", "sc://spark.example:1/;use_ssl=false"):
        with pytest.raises(BadSetting, match=r"the Kafka login would travel in the clear to the Spark at ") as caught:
            Spark(RemoteEngine(url), "broker:9092", login)
        assert "hush" not in str(caught.value)
        Spark(RemoteEngine(url), "broker:9092", OPEN)
    for url in ("sc://localhost", "sc://127.0.0.1:9", "sc://spark.example:1/;use_ssl=true", "sc://spark.example/;token=a"):
        Spark(RemoteEngine(url), "broker:9092", login)
    Spark(Engine(lambda: "sc://localhost:1"), "broker:9092", login)


def test_a_remote_that_nobody_answers_at_is_told_at_once(listener: socket.socket, tmp_path: Path) -> None:
    """[R-77] Who names a cluster does not land on this machine instead."""
    url = f"sc://localhost:{listener.getsockname()[1]}"
    listener.close()
    settings = dataclasses.replace(read_settings({}, tmp_path), home=tmp_path / "home")
    steps: list[str] = []
    adapters = Adapters(settings, watch_step=lambda step, **_: steps.append(step))
    remote = LazyPySparkResource(spark_config={"spark.remote": url})
    told = f"not answer at {url.removeprefix('sc://')}: nobody answers there; .*OFFSETLAKE_SPARK_REMOTE is its address"
    with pytest.raises(EngineUnavailable, match=told):
        adapters.engine(remote).session({})
    assert not steps and not settings.engine_folder.exists()


def test_a_log_that_is_too_long_is_kept_once_and_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    spark_server.begin_anew_if_long(log)
    log.write_text("0123456789")
    for most, name in ((10, "log"), (9, "log.1")):
        monkeypatch.setattr(spark_server, "LOG_BYTES", most)
        spark_server.begin_anew_if_long(log)
        assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "0123456789")]


@pytest.mark.parametrize("how", ["a file", "a dangling link", ".lock", "request-1.json", "server.json", "server.log"])
def test_a_folder_that_no_server_can_be_in_is_told(tmp_path: Path, how: str) -> None:
    """[R-77] Which, and what to do; with a folder where a file of the server's is it is no better."""
    folder = tmp_path / "engine"
    if how == "a file":
        folder.write_text("")
    elif how == "a dangling link":
        folder.symlink_to(folder.with_name("nothing"))
    else:
        (folder / how / "something").mkdir(parents=True)
    with pytest.raises(EngineUnavailable, match=rf"the folder of the Spark server, {folder}, cannot be used: .*{folder}"):
        spark_server.start_server(folder, {}, "f")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_no_state_is_told(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] It is full, read-only or another's: no bare error of the system."""
    refuse = Mock(side_effect=error_of(number))
    monkeypatch.setattr(spark_server, "write_private", refuse)
    with pytest.raises(EngineUnavailable, match=rf"cannot be used: .*{os.strerror(number)}"):
        spark_server.start_server(tmp_path, {}, "f")
    monkeypatch.setattr(spark_server, "stop_process", refuse)
    (tmp_path / spark_server.STATE).write_text(json.dumps(dataclasses.asdict(own_server())))
    with pytest.raises(EngineUnavailable, match=rf"cannot be used: .*{os.strerror(number)}"):
        spark_server.stop_server(tmp_path)


@pytest.fixture
def sleeper() -> Iterator[Process]:
    """A process to be ended."""
    with subprocess.Popen(["sleep", "600"]) as child:
        found = read_process(child.pid)
        assert found is not None
        yield found
        child.kill()


def test_a_read_only_disk_keeps_no_server_running(sleeper: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] What is to be stopped is stuck, and may be so by that very disk; that its state stays is told."""
    write_state(tmp_path, dataclasses.replace(own_server(), process=sleeper, jvm=sleeper))
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=error_of(errno.EROFS)))
    with pytest.raises(EngineUnavailable, match=r"cannot be used: .*Read-only"):
        spark_server.stop_server(tmp_path, 1)
    assert not sleeper.is_running()


def test_the_jvm_of_a_killed_server_is_ended(sleeper: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] By who starts another one: it may be stopped, and not see that it is alone; one whose process runs is left."""
    own = own_server()
    running: list[bool] = []

    def start(*_: object) -> Server:
        running.append(sleeper.is_running())
        return own

    monkeypatch.setattr(spark_server, "_spawn", start)
    os.kill(sleeper.pid, signal.SIGSTOP)
    for process in (own.process, Process(own.process.pid, "another")):
        write_state(tmp_path, dataclasses.replace(own, process=process, jvm=sleeper))
        assert spark_server.start_server(tmp_path, {}, "another") == own
    assert running == [True, False]


@pytest.mark.parametrize("ask", ["watch", "stop"])
def test_a_server_whose_jvm_hangs_ends_with_it(ask: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] Where it is to go, no client is left to notice that. The JVM is `sleep`: who asks it waits until it has ended."""
    for name in ("WATCH_SECONDS", "HANG_SECONDS", "JVM_END_SECONDS"):
        monkeypatch.setattr(spark_serving, name, 0.1)
    with subprocess.Popen(["sleep", "600"]) as jvm:

        def wait() -> None:
            jvm.wait(PATIENCE_SECONDS)
            raise Py4JError("gone")

        session = MagicMock(stop=wait)
        session.sparkContext._gateway.proc = jvm
        service = session.sparkContext._jvm.org.apache.spark.sql.connect.service.SparkConnectService
        service.listActiveExecutions.side_effect = wait
        try:
            if ask == "watch":
                spark_serving._watch(tmp_path, own_server(), session, threading.Event(), Limits())
            else:
                spark_serving._stop(session)
            assert jvm.poll() == -signal.SIGKILL
        finally:
            jvm.kill()


def test_a_state_that_cannot_be_read_for_a_moment_ends_no_server(tmp_path: Path) -> None:
    """[R-77] A network disk may say so, and the server has a job; the control: a state that is missing is not its own."""
    (tmp_path / spark_server.STATE).mkdir()
    assert spark_server.is_of(tmp_path, own_server())
    (tmp_path / spark_server.STATE).rmdir()
    assert not spark_server.is_of(tmp_path, own_server())


@pytest.mark.parametrize("failing", ["_make_work", "_open_port", "withdraw", "_stop"])
def test_a_server_that_fails_leaves_nothing(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] Its JVM and its folder go, whatever else fails on a disk that is full."""
    monkeypatch.setattr(spark_serving.signal, "signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    make_work = spark_serving._make_work
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as jvm:
        monkeypatch.setattr("pyspark.SparkContext._gateway", SimpleNamespace(proc=jvm))
        for name, answer in {"_describe": own_server(), "_open_port": (None, 1), "_stop": None, "_watch": None}.items():
            monkeypatch.setattr(spark_serving, name, Mock(return_value=answer))

        def refuse(*_: object) -> None:
            make_work(tmp_path)
            raise error_of(errno.ENOSPC)

        monkeypatch.setattr(spark_serving, failing, refuse)
        request = {"config": {}, "fingerprint": "f", "limits": dataclasses.asdict(Limits())}
        spark_server.write_private(tmp_path / "request-1.json", request)
        with pytest.raises(OSError, match="No space"):
            spark_serving.serve(tmp_path, "request-1.json")
        assert jvm.poll() == 0
    assert not list((tmp_path / spark_server.WORK).iterdir())


def test_a_starter_takes_no_server_of_another_one(sleeper: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] That one was killed meanwhile: its server is of another configuration, and reads no request but its own."""
    torn = tmp_path / ".request-torn.json"
    torn.touch()
    commands: list[list[str]] = []

    def spawn(command: list[str], **_: object) -> Process:
        commands.append(command)
        assert not torn.exists()
        (request,) = tmp_path.glob("*.json")
        assert json.loads(request.read_text())["fingerprint"] == "f" and command[-1] == request.name
        write_state(tmp_path, own_server("another's"))
        return sleeper

    monkeypatch.setattr(spark_server, "START_SECONDS", 0.1)
    monkeypatch.setattr(spark_server, "spawn_process", spawn)
    (tmp_path / spark_server.LOG).touch()
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="did not start"):
            spark_server.start_server(tmp_path, {}, "f")
        assert not list(tmp_path.glob("*request*"))
    assert commands[0] != commands[1]


@pytest.mark.parametrize(
    ("given", "lc_all"),
    [
        ({"LC_ALL": "C"}, "C.UTF-8"),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, "C.UTF-8"),
        ({"LC_ALL": "", "LANG": "C"}, "C.UTF-8"),
        ({}, "C.UTF-8"),
        ({"LC_ALL": "de_DE.UTF-8", "LANG": "C"}, "de_DE.UTF-8"),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, None),
    ],
)
def test_a_server_takes_the_letters_of_paths_for_what_they_are(
    given: dict[str, str], lc_all: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-77] Java takes them for ASCII in the locale C, and finds not even its own classes below such a folder."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    spawn = Mock(side_effect=PermissionError)
    monkeypatch.setattr(spark_server, "spawn_process", spawn)
    with pytest.raises(EngineUnavailable):
        spark_server.start_server(tmp_path, {}, "f")
    assert spawn.call_args.kwargs["environment"].get("LC_ALL") == lc_all
    use_java()
    assert os.environ.get("LC_ALL") == lc_all, "in this process likewise"


TRACEBACK = """Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
    serve(Path(sys.argv[1]).absolute())
pyspark.errors.exceptions.base.PySparkRuntimeError: [JAVA_GATEWAY_EXITED] Java gateway process exited.
"""
HEAP, NO_VM = "Invalid maximum heap size: -Xmx4x", "Error occurred during initialization of VM"
FULL = "java.io.IOException: No space left on device"
GOES_ON = "and the next run goes on"
ROOM = f"make room on that disk, {GOES_ON} (`offsetlake sweep --apply` deletes what dead attempts left)"
READ_ONLY = "OSError: [Errno 30] Read-only file system"


@pytest.mark.parametrize(
    ("said", "free", "why"),
    [
        (f"{NO_VM}\n{HEAP}\n{TRACEBACK}", 1, f"{NO_VM} | {HEAP}"),
        (f"killed\n{TRACEBACK}", 1, "killed"),
        (TRACEBACK, 1, TRACEBACK.splitlines()[-1]),
        ("", 1, "it said nothing"),
        (f"{FULL}\n", 1, f"{FULL}; {ROOM}"),
        (f"{TRACEBACK}{READ_ONLY}\n", 1, f"{READ_ONLY}; mount that disk writable, {GOES_ON}"),
        ("", 0, f"it said nothing; {ROOM}"),
    ],
)
def test_a_start_that_fails_says_why(said: str, free: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] Python's traceback says no more than that there is no JVM; what an earlier start said is no reason of this one.

    Of a disk that is full it says what to do: what fails after it is no reason; nor does an empty log say that all was well.
    """
    monkeypatch.setattr(spark_server.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    before = "Error: an earlier one\n"
    (tmp_path / "log").write_text(before + said)
    assert spark_server._why(tmp_path / "log", len(before)) == why


def test_the_jvm_knows_each_of_its_options_and_has_room_for_what_spark_compiles() -> None:
    """Jobs failed where 48 MB of code cache, those of a quick JVM, were full; what ignores unknown options hides a typo."""
    options = [each for each in JAVA_OPTIONS.split() if "IgnoreUnrecognized" not in each]
    java = [find_java(), QUICK_JVM, *options, "-XX:+PrintFlagsFinal", "-version"]
    told = subprocess.run(java, capture_output=True, text=True, check=True).stdout
    flags = {words[1]: words[3] for line in told.splitlines() if len(words := line.split()) > 3 and words[2] in {"=", ":="}}
    assert int(flags["ReservedCodeCacheSize"]) >= 512 << 20
    assert flags["UseParallelGC"] == "true"


def test_a_server_needs_no_folder_but_its_own(tmp_path: Path) -> None:
    """[R-77] The system's own one for what is temporary may be read-only; who names one in the configuration is heard."""
    java = "spark.driver.extraJavaOptions"
    options = spark_serving._local_conf(tmp_path, {java: "-Djava.io.tmpdir=/theirs"})[java].split()
    assert options[:2] == [f'"-Djava.io.tmpdir={tmp_path}"', "-Djava.io.tmpdir=/theirs"], "the last one counts"


def test_what_status_says_of_spark_was_asked(listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-77] One that is frozen runs, and answers nobody; a clock that was set back is not told."""
    monkeypatch.setattr(spark_liveness, "ANSWER_SECONDS", 0.1)
    settings = dataclasses.replace(read_settings({}, tmp_path), home=tmp_path)
    monkeypatch.setattr(command, "read_settings", lambda: settings)
    settings.engine_folder.mkdir()
    server = dataclasses.replace(own_server(), port=listener.getsockname()[1], since=time.time() + 86_400)

    def ask(code: int, *arguments: str) -> str:
        said = CliRunner().invoke(command.status, list(arguments))
        assert said.exit_code == code
        return said.stdout

    write_state(settings.engine_folder, server)
    assert "serves nobody" in ask(1)
    assert json.loads(ask(1, "--json")) == {"running": True, "answers": False, **server.facts}
    monkeypatch.setattr(command, "find_silence", lambda url: None)
    assert "for 0 s" in ask(0)
    settings = dataclasses.replace(settings, engine="in-process")
    assert json.loads(ask(1, "--json")) == {"running": False, "engine": "in-process"}


def test_an_error_of_pythons_in_a_worker_is_told_by_type_and_place() -> None:
    """What it says may be of a record."""
    said = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/site-packages/pyspark/worker.py", line 10, in main
    process()
  File "/home/ann/my_formats.py", line 7, in decode
    return 1 // int(value)
ZeroDivisionError: of a secret

JVM stacktrace:
org.apache.spark.api.python.PythonException
"""
    found = innermost_cause(RuntimeError(said))
    assert found.startswith("Python of a Spark worker raised ZeroDivisionError in decode of my_formats.py, line 7;")
    assert "secret" not in found
    assert innermost_cause(RuntimeError("org.x.Foo\nCaused by: java.io.IOException: no")) == "java.io.IOException: no"


CONFIG = "org.apache.kafka.common.config.ConfigException"
NUMBER_ERROR = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in \
stage 1.0 (TID 1) (192.0.2.2 executor driver): {}: a secret"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (NUMBER_ERROR.format("java.lang.NumberFormatException"), "it raised java.lang.NumberFormatException; what it says is"),
        (NUMBER_ERROR.format("org.apache.spark.X: [CAST_IT]"), "it raised CAST_IT; what it says is in Spark's log"),
        ("x\nCaused by: org.apache.spark.SparkException: [CAST_IT] a secret", "it raised CAST_IT; what"),
        ("x\nCaused by: java.net.URISyntaxException: a secret", "it raised java.net.URISyntaxException; what"),
        ("Job aborted due to stage failure: ExecutorLostFailure (out of memory)", "ExecutorLostFailure (out of memory)"),
        (f"x\nCaused by: {CONFIG}: Invalid value a secret for configuration a.b: no", f"{CONFIG}: a.b has a value that it"),
        ("x\nCaused by: java.net.ConnectException: no route", "java.net.ConnectException: no route"),
        ("x\nCaused by: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] of /a", "[FAILED_READ_FILE.NO_HINT] of /a"),
        ("x\nCaused by: java.lang.OutOfMemoryError: heap", "java.lang.OutOfMemoryError: heap"),
    ],
)
def test_of_an_error_that_may_be_of_a_record_its_class_alone_is_told(said: str, told: str) -> None:
    """What is of files, networks and memory is told in Spark's words, which people need."""
    found = str(scan_failed("decode 1 landed files", RuntimeError(said), "nothing became visible"))
    assert told in found and "secret" not in found


LOST_TASK, FRAME = NUMBER_ERROR.partition("{}")[0], "\n\tat a.B.c(D.java:1)"


@pytest.mark.parametrize(
    ("said", "condition", "is_spent"),
    [
        (f"{LOST_TASK}scala.MatchError: java.lang.NoClassDefFoundError: Could not initialize{FRAME}", None, True),
        (f"x\nCaused by: java.lang.ExceptionInInitializerError: no space{FRAME}", None, True),
        ("x\nCaused by: java.lang.ExceptionInInitializerError: of a record, without a frame", None, False),
        (f"Traceback (most recent call last):\nValueError: x\nCaused by: java.lang.InternalError: a{FRAME}", None, False),
        (f"{LOST_TASK}UnknownReason\nDriver stacktrace:", None, True),
        (NUMBER_ERROR.format("java.lang.NumberFormatException"), None, False),
        (f"x\nCaused by: java.lang.StackOverflowError{FRAME}", None, False),
        (f"no cast of '\njava.lang.NoClassDefFoundError: x{FRAME}'", "CAST_INVALID_INPUT", False),
        (f"x\n\n{STACK}\nCaused by: java.lang.UnsatisfiedLinkError{FRAME}", "CAST_INVALID_INPUT", True),
    ],
)
def test_what_a_jvm_fails_by_for_good_is_told_from_what_a_record_says(said: str, condition: str | None, is_spent: bool) -> None:
    """A full disk can leave such a JVM behind; the words of a record have no server replaced."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    assert is_jvm_spent(SparkConnectGrpcException(said, errorClass=condition)) is is_spent


SECRET = "hush-4711"


def open_adapters(folder: Path, remote: str | None = None) -> Adapters:
    return Adapters(dataclasses.replace(read_settings({}, folder), home=folder / "home", spark_remote=remote))


def configured(url: str) -> LazyPySparkResource:
    return LazyPySparkResource(spark_config={"spark.remote": url})


@pytest.mark.parametrize("url", ["nonsense", "", " ", "http://h", "sc://[::1", "sc://a..b", f"sc://h/;token={SECRET}/a"])
def test_a_remote_of_the_resource_is_checked_as_that_of_the_environment(url: str, tmp_path: Path) -> None:
    said = r"spark\.remote of the `pyspark` resource cannot be used: .*nothing was started"
    with pytest.raises(BadSetting, match=said) as told:
        open_adapters(tmp_path).engine(configured(url))
    assert SECRET not in str(told.value)


def test_a_token_in_the_resource_is_refused_for_dagster_stores_it(tmp_path: Path) -> None:
    """The controls: TLS alone is no secret, and the token of the environment is not in the resource."""
    with pytest.raises(BadSetting, match=r"has the parameter token .*set the whole URL as OFFSETLAKE_SPARK_REMOTE") as told:
        open_adapters(tmp_path).engine(configured(f"sc://h:1/;use_ssl=true;token={SECRET}"))
    assert SECRET not in str(told.value)
    assert isinstance(open_adapters(tmp_path).engine(configured("sc://h:1/;use_ssl=true")), RemoteEngine)
    adapters = open_adapters(tmp_path, f"sc://h:1/;use_ssl=true;token={SECRET}")
    found = adapters.engine(adapters.pyspark())
    assert SECRET not in str(adapters.pyspark().spark_config)
    assert found.url.endswith(SECRET)


def test_what_sparks_client_says_of_a_url_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows the whole path; the control is its own words."""
    from pyspark.errors import PySparkValueError

    url = f"sc://localhost:1/;token={SECRET}/abc"
    with pytest.raises(PySparkValueError, match=SECRET):
        spark_session.open_session(url)
    monkeypatch.setattr(engine.Engine, "_why_silent", lambda *_, **__: None)
    with pytest.raises(BadSetting, match="OFFSETLAKE_SPARK_REMOTE") as told:
        RemoteEngine(url).session({})
    assert SECRET not in "".join(traceback.format_exception(told.value))


def url_of(listener: socket.socket) -> str:
    return f"sc://127.0.0.1:{listener.getsockname()[1]}"


def refuse(listener: socket.socket) -> None:
    """Answer everybody as a web server does, until the socket is closed."""
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return
        with caller:
            caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


KNOCKING = """
import sys
from pipeline_defs.adapters.spark import remote_engine
from pipeline_defs.core.errors import EngineUnavailable
remote_engine.REFUSED_SECONDS = 0.0
try:
    remote_engine.RemoteEngine(sys.argv[1]).session({})
except EngineUnavailable as error:
    print(error)
"""


def test_grpc_prints_nothing_where_a_token_is_for_a_server_without_tls(listener: socket.socket) -> None:
    """It would print a line for each try; what is said has both ways. The control: it prints where it is told to."""
    threading.Thread(target=refuse, args=[listener], daemon=True).start()
    command = [sys.executable, "-c", KNOCKING, f"{url_of(listener)}/;token={SECRET}"]
    plain = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    quiet, loud = (
        subprocess.run(command, env=plain | more, capture_output=True, text=True, check=True, timeout=60)
        for more in ({}, {"GRPC_VERBOSITY": "INFO"})
    )
    assert quiet.stderr == ""
    assert ";use_ssl=true where it speaks TLS; where it does not, with ;use_ssl=false, and without a token" in quiet.stdout
    assert "Handshake failed" in loud.stderr


def test_only_a_remote_that_says_nothing_is_waited_for(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server, or a broker, is none after a minute either. The control says nothing."""
    monkeypatch.setattr(engine.Engine, "_why_silent", lambda *_, **__: "a minute was waited")
    monkeypatch.setattr(remote_engine, "REFUSED_SECONDS", 0.0)
    threading.Thread(target=refuse, args=[listener], daemon=True).start()
    with pytest.raises(EngineUnavailable, match="UNAVAILABLE: "):
        RemoteEngine(url_of(listener)).session({})
    with socket.socket() as frozen:
        frozen.bind(("127.0.0.1", 0))
        frozen.listen()
        monkeypatch.setattr(spark_liveness, "ANSWER_SECONDS", 0.1)
        with pytest.raises(EngineUnavailable, match="a minute was waited"):
            RemoteEngine(url_of(frozen)).session({})
