"""Topic discovery: topics of a cluster that match a pattern, and that nobody has planned yet, get their first plan step.

The lake alone says which topics a pattern has: those with a plan log. So each code server, run and command finds the same
ones. The code server that ticks goes on with them at once, and is reloaded for Dagster to show them. It is also reloaded after
a defs.yaml was added, edited or deleted, which runs and commands read as it is now.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
from dagster._core.remote_origin import CodeLocationOrigin, GrpcServerCodeLocationOrigin

from ...adapters.system.project_folder import read_env_file
from ...core.errors import NOTE, BadSetting, BrokerUnavailable, OffsetlakeError, as_ours, first_line
from ...resources import Adapters
from ...topics import Topic
from ..runs.visiting import note_silence, refuse_silent
from ..topic_set import PatternFile, TopicFiles, file_of, read_stamps

DISCOVER_SECONDS = 15.0
LOAD_SECONDS = 300.0  # after which a process that tries to load is ended
AGAIN_SECONDS = 300.0  # after which it is tried again, though nothing was edited
RELOAD_SECONDS = 60.0  # within which a code server that was asked to reload is replaced


@dataclass(slots=True)
class Discovery:
    """What a code server that ticks has found: `topics` that it was not loaded with, and the `failures` of the last look."""

    files: TopicFiles | None
    topics: tuple[Topic, ...] = ()
    failures: tuple[str, ...] = ()
    is_edited: bool = field(default=False, init=False)
    _refused: Mapping[Path, int] | None = field(default=None, init=False)  # of what did not load
    _refused_at: float = field(default=0.0, init=False)
    _reason: str = field(default="", init=False)
    _looked: float | None = field(default=None, init=False)
    _asked: float | None = field(default=None, init=False)
    _is_trying: bool = field(default=False, init=False)

    def look(self, origin: CodeLocationOrigin | None, instance: dg.DagsterInstance, adapters: Adapters) -> None:
        """Look every `DISCOVER_SECONDS` for new topics and edited files; where there are any, have the code server reloaded."""
        now = time.monotonic()
        if self.files is None or (self._looked is not None and now - self._looked < DISCOVER_SECONDS):
            return
        stamps = read_stamps(self.files.tree.defs_module_path)
        self.is_edited = stamps != self.files.stamps
        failures = list(plan_new_topics(self.files, adapters))
        try:
            self.topics = tuple(self.files.find_new(adapters.lake.planned_topics())) if self.files.patterns else ()
        except OffsetlakeError as error:
            failures.append(str(error))
        self._looked, self.failures = time.monotonic(), tuple(failures)
        is_refused = stamps == self._refused and now - self._refused_at < AGAIN_SECONDS
        is_asked = self._asked is not None and now - self._asked < AGAIN_SECONDS  # one in vain is repeated
        if (self.topics or self.is_edited) and not (self._is_trying or is_asked or is_refused):
            self._is_trying = True
            threading.Thread(target=self._load_anew, args=(origin, instance, stamps), daemon=True).start()

    def _load_anew(self, origin: CodeLocationOrigin | None, instance: dg.DagsterInstance, stamps: Mapping[Path, int]) -> None:
        """Reload the code location only if it loads: a broken one has no sensor that would see when it is mended."""
        assert self.files is not None
        try:
            if reason := find_why_not(self.files.tree.project_root):
                self._refused, self._refused_at, self._reason, self._asked = stamps, time.monotonic(), reason, None
            else:
                self._refused, self._asked = None, time.monotonic()
                _reload(origin, instance)
        finally:
            self._is_trying = False

    @property
    def refusals(self) -> list[str]:
        """Texts on files that do not load as they are now."""
        if self.files is None or self._refused is None or not (self.topics or self.is_edited):
            return []
        return [f"{self.files.tree.defs_module_path}: not loaded as it is now: {self._reason}"]

    @property
    def text(self) -> str:
        """Text on what Dagster does not show yet, topics that are landed or edited files; empty where it shows all."""
        said = [f"topics that are landed: {', '.join(each.name for each in self.topics)}"] if self.topics else []
        said += ["defs.yaml as it is now"] if self.is_edited else []
        if not said or (self._asked is None and not self._is_trying):
            return ""
        why = "another process tries first whether they load"
        if not self._is_trying and self._asked is not None:
            late = time.monotonic() - self._asked > RELOAD_SECONDS
            why = "reload the code location, which was asked for in vain" if late else "the code location is being reloaded"
        return f"shown once loaded ({why}): {' and '.join(said)}"


def plan_new_topics(files: TopicFiles, adapters: Adapters) -> Iterator[str]:
    """Write the first plan step of each topic that matches a pattern and has none; yield a text on each topic that fails."""

    def plan(file: PatternFile) -> list[str]:
        try:
            return list(_plan_new_topics(file, files, adapters))
        except Exception as error:  # noqa: BLE001 (told by its type: the topics there are go on)
            name = f"topics {file.pattern} of {file_of(file.folder)}"
            return [f"{name}: {as_ours(error, name)}"]

    with ThreadPoolExecutor(max(1, len(files.patterns))) as pool:
        for failures in pool.map(plan, files.patterns):
            yield from failures


def _plan_new_topics(file: PatternFile, files: TopicFiles, adapters: Adapters) -> Iterator[str]:
    known = {*files.names, *adapters.lake.planned_topics()}
    refuse_silent(file.template, adapters)
    with closing(adapters.open_kafka(file.template)) as kafka:  # the shared one is in use by the tick
        try:
            listed = kafka.list_topics()
        except BrokerUnavailable as unavailable:
            note_silence(file.template, unavailable, adapters)
            raise
        for name in listed:
            if name in known or not file.pattern.matches(name):
                continue
            try:
                topic = files.find(name)
                if topic is not None:
                    adapters.planner(topic, "discovery", kafka).commit()
            except OffsetlakeError as error:
                yield f"{name}: {error}"


def find_why_not(project: Path) -> str:
    """Return why a new process could not load a project as it is now; nothing where it could."""
    code = "import sys, pathlib, offsetlake as d; d.build_defs(project=pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(project)]
    try:  # with `.env` as it is now, as a new code server reads it: the one that asks has it as it was
        environment = {**os.environ, **read_env_file(project)}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=LOAD_SECONDS)
    except BadSetting as error:
        return f"mend them first: {error}"
    except subprocess.TimeoutExpired:
        return (
            f"loading them took longer than {LOAD_SECONDS:.0f} s: this machine is busy, or one of them hangs; it is tried again"
        )
    except OSError as error:
        return f"{first_line(error)}; it is tried again"
    if ended.returncode < 0:
        return f"what loaded them was killed by signal {-ended.returncode}; it is tried again"
    said = [line for line in ended.stderr.strip().splitlines() if not line.startswith(NOTE)]
    return f"mend them first: {(said or ['it ended'])[-1]}" if ended.returncode else ""


def _reload(origin: CodeLocationOrigin | None, instance: dg.DagsterInstance) -> None:
    """Have Dagster reload the code location; runs under way go on in their own processes.

    The next ticks see a failure, as they are still of the same code server.
    """
    if isinstance(origin, GrpcServerCodeLocationOrigin):
        origin.create_client().reload_code(timeout=instance.code_server_reload_timeout)
