"""A Dagster of our own, webserver, daemon and code server, for `up` and the demo: one process group, stopped as one.

What a predecessor left running after a kill -9 is stopped first; what another live process of ours runs is left alone.
Invariant: nothing that it started outlives it.
"""

import json
import os
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, chdir, suppress
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from dagster import DagsterRunStatus
from dagster._core.storage.dagster_run import FINISHED_STATUSES

from ...adapters.system.locks import START_LOCK, Holder, try_start_lock
from ...adapters.system.processes import Process, is_stopped, placed, read_placed, spawn_process, wait_for
from ...adapters.system.project_folder import ENV_FILE, PROJECT, STARTED_BY_US, read_env_file
from ...core.errors import BadSetting, Refused, Unavailable
from .daemons import Listener, find_daemons
from .dagster_home import open_instance
from .run_locks import find_code_server, is_code_server_gone

START_SECONDS = 300
ANSWER_SECONDS = 10
STOP_SECONDS = 30
RUN_SECONDS = 600
PREFERRED_PORT = 3000
LOG = "dagster.log"
LOG_BYTES = 50_000_000  # a log that is longer goes on as dagster.log.1, and is begun anew
_STATE = "dagster.json"
_POLL_SECONDS = 0.25
_LOCATIONS = """
{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError { ... on PythonError
  { message causes { message } } } } } } }
"""
UNANSWERED = "_InactiveRpcError"  # of gRPC: the code server hangs, or is just being started
_INSTANCE = "{ instance { info } }"
_RELOAD = "mutation { reloadWorkspace { __typename } }"
_LAUNCH = """
mutation { launchRun(executionParams: { selector: { jobName: "%s", repositoryName: "__repository__",
  repositoryLocationName: "offsetlake" } }) { __typename ... on LaunchRunSuccess { run { runId } } } }
"""
_STATUS = '{ runOrError(runId: "%s") { ... on Run { status } } }'
_ENDED = {each.value for each in FINISHED_STATUSES}
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy of the environment does not know this machine
MOST_REVIVALS, REVIVAL_SECONDS = 3, 600.0  # what ends more often is hardly mended by another start
LOOKS_WITHOUT, ASKED_EVERY = 5, 30  # of `up`, one a second
MOST_SECONDS_WITHOUT = 30.0  # a code server
DEAF_ASKED_SECONDS, DEAF_SECONDS = 60.0, 300.0  # asked so often, and patient: runs land without it


class DagsterUnavailable(Unavailable):
    """Dagster did not come up."""


class PortTaken(DagsterUnavailable):
    """Another program listens at the port; Dagster's own processes would go on for ever without a UI."""

    kind = DagsterUnavailable.kind


class DagsterServer:
    """`dagster dev` of a project, which runs on loopback while the context is open.

    `folder` keeps its log, its process id, and a lock by which a second one there is refused. A given port must be free; by
    default it is 3000, or any free one.
    """

    def __init__(
        self,
        folder: Path,
        dagster_home: Path,
        workspace: Path | None = None,
        *,
        project: Path = PROJECT,
        port: int | None = None,
    ) -> None:
        self.port = 0
        self._wanted = port
        self._project = project
        self._workspace = workspace or project / "workspace.yaml"
        self._folder = folder
        self._home = dagster_home
        self._state = folder / _STATE
        self._process: Process | None = None
        self._lock = ExitStack()
        self._is_alone = False
        self._storage: object = None
        self._looks_without, self._gone_at = 0, 0.0
        self._asked_at = 0.0  # the webserver
        self._deaf_since: float | None = None
        self._listener, self._code_listener = Listener(), Listener()
        self._revived: list[float] = []

    @property
    def url(self) -> str:
        """The UI's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of `dagster dev`, which all of its processes descend from; 0 where it was not started."""
        return self._process.pid if self._process else 0

    @property
    def log(self) -> Path:
        """What Dagster's processes say."""
        return self._folder / LOG

    def __enter__(self) -> Self:
        self.check_alone()
        with open_instance(self._home) as instance:
            self._storage = _storage_of(instance.info_str())
        try:
            self._serve(_free_port(*([PREFERRED_PORT, 0] if self._wanted is None else [self._wanted])))
        except PortTaken:
            if self._wanted is not None:
                raise
            self._serve(_free_port(0))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()
        self._lock.close()
        self._is_alone = False

    def check_alone(self) -> None:
        """Stop what an earlier Dagster has left running; refuse a home that still has one, or is just getting one.

        With two daemons each tick would be done twice, and so would what it asks for.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._check_home()
        self._is_alone = self._is_alone or self._lock.enter_context(try_start_lock(self._folder))
        self._stop_leftover()
        others = ", ".join(each.text for each in self.find_others())
        if others:
            raise Refused(
                f"a Dagster daemon of {self._home} runs already, {others}: a `dagster dev` of this project, say; nothing was "
                "started; use that one, or end it first"
            )

    def is_running(self) -> bool:
        """Return whether Dagster is still up."""
        return self._process is not None and self._process.is_running()

    def trim_log(self) -> None:
        """Rotate the log where it has become long; it and its predecessor are bounded, whatever fails at each tick."""
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            with suppress(OSError):  # a full disk, say, on which this makes room
                shutil.copyfile(self.log, self.log.with_name(f"{LOG}.1"))
            os.truncate(self.log, 0)  # whoever writes to it appends

    def may_revive(self) -> bool:
        """Return whether Dagster may be restarted: `MOST_REVIVALS` times within `REVIVAL_SECONDS`."""
        now = time.monotonic()
        self._revived = [each for each in self._revived if now - each < REVIVAL_SECONDS]
        return len(self._revived) < MOST_REVIVALS

    def revive(self) -> None:
        """Restart Dagster where it has ended; raise `DagsterUnavailable`, or `OSError` where the disk is full, say."""
        self._revived.append(time.monotonic())
        self._stop()  # some of its processes may be left
        self._serve(_free_port(self.port, 0))

    def revive_code_server(self) -> str:
        """Have Dagster restart a code server that was killed, which nobody else does; return what to say of it.

        A code server that is being replaced is gone for a moment only. Where it does not come back all of Dagster is ended, for
        `revive`: Dagster gives up a code server that is killed as it starts.
        """
        self._looks_without = self._looks_without + 1 if self.is_running() and is_code_server_gone(self._home) else 0
        if self._looks_without <= 1:
            self._gone_at = time.monotonic()
        if self._looks_without == LOOKS_WITHOUT:
            return "Dagster's code server was killed; it is started again"
        if self._looks_without > LOOKS_WITHOUT and time.monotonic() - self._gone_at > MOST_SECONDS_WITHOUT and self._process:
            _stop_group(self._process)
            return "Dagster's code server does not come back, so all of Dagster is ended"
        if self._looks_without % ASKED_EVERY == LOOKS_WITHOUT + 1:
            self.reload()
        return ""

    def reload(self) -> None:
        """Have Dagster load the definitions anew; do nothing where its webserver does not answer just now."""
        with suppress(OSError, HTTPException):
            self._ask(_RELOAD, ANSWER_SECONDS)

    def end_deaf(self, say: Callable[[str], None], is_idle: Callable[[], bool]) -> None:
        """End all of Dagster, for `revive`, where its webserver answers no more, once that has lasted and no run is at work.

        It is asked once a minute, and each time that it does not answer that is said; an error is an answer, of a full disk
        say.
        """
        now = time.monotonic()
        if self._process is None or not self._process.is_running():
            return
        if now - self._asked_at >= DEAF_ASKED_SECONDS:
            if now - self._asked_at > 2 * DEAF_ASKED_SECONDS + ANSWER_SECONDS:  # nobody has asked: this process stood still
                self._deaf_since = None
            self._asked_at = now
            try:
                self._answers_for_home()  # whatever it says
                self._deaf_since = None
            except (OSError, HTTPException):
                self._deaf_since = self._deaf_since or now
                say(
                    "Dagster's webserver does not answer; landing does not need it; all of Dagster is started anew once that "
                    f"has lasted for {DEAF_SECONDS / 60:.0f} minutes and no run is at work"
                )
        if self._deaf_since is not None and now - self._deaf_since > DEAF_SECONDS and is_idle():
            say("Dagster's webserver has not answered for minutes, so all of Dagster is ended and started anew")
            _stop_group(self._process)
            self._deaf_since = None

    def find_others(self) -> list[Holder]:
        """Find the daemons of this home that are not ours: they do each tick a second time."""
        return [each for each in find_daemons(self._home) if not self._is_ours(each)]

    def _is_ours(self, process: Holder) -> bool:
        return self._process is not None and is_led_by(self._process, process)

    def end_hung(self, silent_seconds: float | None, tickless_seconds: float | None, *, are_stopped: bool = False) -> list[str]:
        """Kill our daemon where it hangs, which ends all of Dagster, and our code server where it ticks no more.

        `revive` and `revive_code_server` start others. Where nothing can be read of them, only those that `are_stopped` are
        killed: others may wait as we do. Return a text on each that was killed.
        """
        server = find_code_server(self._home)
        told = []
        for listener, what, running, silent in (
            (self._listener, "daemon", find_daemons(self._home), silent_seconds),
            (self._code_listener, "code server", [server] if server else [], tickless_seconds),
        ):
            ours = [each for each in running if self._is_ours(each) and (not are_stopped or is_stopped(each.pid))]
            for each in listener.find_hung(ours, silent, time.monotonic()):
                told.append(f"Dagster's {what}, {each.text}, has said nothing for minutes; it was ended")
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
        return told

    def find_load_error(self, patience_seconds: float = START_SECONDS) -> str | None:
        """Return why the project's definitions did not load, so that nothing plans and lands; none where they did.

        Other code locations of its workspace may fail: Dagster's UI tells of them, and they stop nothing here.
        It has `UNANSWERED` where only the code server does not answer, which says nothing of them.
        """
        entries = self._ask(_LOCATIONS, patience_seconds)["workspaceOrError"]["locationEntries"]
        own = self._find_own_location()
        ours = [entry for entry in entries if entry["name"] == own] or entries
        found = [entry["locationOrLoadError"] for entry in ours]
        errors = [[error, *error["causes"]] for error in found if error and "message" in error]
        return next((chain[-1]["message"].strip() for chain in errors), None)  # the innermost says what is wrong

    def _find_own_location(self) -> str | None:
        """Return the name of the project's code location, the first of its workspace; none where that names none."""
        with suppress(OSError, yaml.YAMLError, LookupError, TypeError, AttributeError):
            first = yaml.safe_load(self._workspace.read_text())["load_from"][0]
            return next((str(each["location_name"]) for each in first.values()), None)
        return None

    def _ask(self, query: str, patience_seconds: float = START_SECONDS) -> Any:
        body = json.dumps({"query": query}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with _DIRECT.open(request, timeout=patience_seconds) as answer:
            return json.load(answer)["data"]

    def run_job(self, job: str) -> tuple[str, bool]:
        """Run a job and wait for its end; return the run's id and whether it succeeded."""
        launched = self._ask(_LAUNCH % job)["launchRun"]
        if "run" not in launched:
            raise DagsterUnavailable(f"{job} was not launched: {launched['__typename']}; the log is {self.log}")
        run_id = launched["run"]["runId"]

        def read_status() -> str:
            return str(self._ask(_STATUS % run_id)["runOrError"]["status"])

        if not wait_for(lambda: read_status() in _ENDED, RUN_SECONDS, _POLL_SECONDS):
            raise DagsterUnavailable(f"run {run_id} of {job} did not end within {RUN_SECONDS} s; its log is at {self.url}")
        return run_id, read_status() == DagsterRunStatus.SUCCESS.value

    def _serve(self, port: int) -> None:
        """Start Dagster at a port and wait until it answers; try once more where it ends. Where that fails nothing is left."""
        try:
            self._start(port)
        except DagsterUnavailable as error:
            if not error.fields.get("has_ended"):
                raise
            self._start(port)

    def _start(self, port: int) -> None:
        self.port = port
        command = [sys.executable, "-m", "dagster", "dev", "-w", str(self._workspace), "-h", "127.0.0.1"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, "DAGSTER_HOME": str(self._home), "PATH": path, STARTED_BY_US: "1"}
        try:
            with chdir(self._project):  # whose `.env` it reads
                self._process = spawn_process([*command, "-p", str(port)], log=self.log, environment=environment)
            state = {"pid": self._process.pid, "started": self._process.started, "url": self.url}
            self._state.write_text(json.dumps(placed(state, self._state)))
            self._await_answer()
        except BaseException:
            self._stop()
            raise

    def _check_home(self) -> None:
        """Refuse a home that `dagster dev` would not take: a line of `.env` without `${DAGSTER_HOME:-...}` overrides ours."""
        taken = read_env_file(self._project, {**os.environ, "DAGSTER_HOME": str(self._home)}).get("DAGSTER_HOME")
        if taken is not None and Path(taken) != self._home:
            raise BadSetting(
                f"Dagster would take the home {taken} of {self._project / ENV_FILE}, and the environment of this command says "
                f"{self._home}; nothing was started; name one of them in both, or delete the line DAGSTER_HOME in {ENV_FILE}"
            )

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.is_running():
            with suppress(OSError):  # nobody listens yet
                if self._answers_for_home():
                    self._asked_at, self._deaf_since = time.monotonic(), None
                    return
                raise PortTaken(
                    f"another program took {self.url} a moment before Dagster, which would go on without its UI; nothing was "
                    "started; name another port, or none for any that is free"
                )
            time.sleep(_POLL_SECONDS)
        raise DagsterUnavailable(
            f"Dagster did not come up at {self.url}; what is landed stays landed; its log is {self.log}",
            has_ended=not self.is_running(),
        )

    def _answers_for_home(self) -> bool:
        """Return whether a Dagster of our home answers at the port; raise `OSError` where nobody does."""
        try:
            return _storage_of(self._ask(_INSTANCE, ANSWER_SECONDS)["instance"]["info"]) == self._storage
        except (urllib.error.HTTPError, ValueError, LookupError):
            return False

    def _read_state(self) -> tuple[Process, str] | None:
        """Return the Dagster that was started here last, and its UI's address; none where the file is gone, or torn."""
        with suppress(FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            if (state := read_placed(self._state)) is not None:
                return Process(state["pid"], state["started"]), str(state["url"])
        return None

    def _stop_leftover(self) -> None:
        """Stop what an earlier `up` has left running, even if only children of its Dagster are left; refuse a live one."""
        left = self._read_state()
        if not self._is_alone:
            if left is not None and left[0].is_running():
                raise Refused(f"Dagster runs already at {left[1]}; nothing was started; use it, or end it first")
            raise Refused(
                f"another process starts or stops Dagster of {self._home} just now; nothing was started; wait until it runs, "
                f"and use it, or end that process (`lslocks` names who holds {self._folder / START_LOCK})"
            )
        if left is not None and (left[0].is_running() or any(is_led_by(left[0], each) for each in find_daemons(self._home))):
            _stop_group(left[0])

    def _stop(self) -> None:
        if self._process is not None:
            _stop_group(self._process)
        self._state.unlink(missing_ok=True)


def is_led_by(leader: Process, process: Holder) -> bool:
    """Return whether a process is one of this host's, in the process group of a leader."""
    with suppress(ProcessLookupError):
        return process.is_here and os.getpgid(process.pid) == leader.pid
    return False


def _stop_group(process: Process) -> None:
    """Stop a process and all that it started: it leads its own process group."""
    for number, patience_seconds in ((signal.SIGINT, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        try:
            os.killpg(process.pid, number)
            deadline = time.monotonic() + patience_seconds
            while time.monotonic() < deadline:
                process.is_running()  # reaps our own child, which would keep the group alive as a zombie
                os.killpg(process.pid, 0)
                time.sleep(_POLL_SECONDS)
        except ProcessLookupError:
            return


def _storage_of(info: str) -> object:
    """Return where an instance keeps its files, from what Dagster says of the instance; no two homes share it."""
    return yaml.safe_load(info)["local_artifact_storage"]


def _free_port(*wanted: int) -> int:
    """Return the first free port of those wanted on loopback, where 0 stands for any; raise `Refused` where none is."""
    for port in wanted:
        with socket.socket() as probe, suppress(OSError):
            # else a port that was just released counts as taken
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise Refused(f"port {wanted[-1]} of 127.0.0.1 is taken; nothing was started; name another, or none for any that is free")
