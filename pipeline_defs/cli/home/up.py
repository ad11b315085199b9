"""`offsetlake up`: all that a project needs to run, in one terminal, until Ctrl-C."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from typing import Any

import click
import dagster as dg
from dagster._core.scheduler.instigation import InstigatorState
from sqlalchemy.exc import SQLAlchemyError

from ...adapters.system.jars import resolve_jars
from ...adapters.system.java import find_java
from ...adapters.system.locks import Holder
from ...adapters.system.project_folder import DEFAULT_HOME, defs_folder, find_project
from ...adapters.telemetry.alerting import send_alert
from ...core.advice import some_of
from ...core.errors import BadSetting, EmptySelection
from ...operate.news import FailedSince, FailedTicks, LandedSince, landed_text
from ...orchestration.home.daemons import is_silent, read_sensors, read_silence, tick_silence
from ...orchestration.home.dagster_home import open_instance, why_silent
from ...orchestration.home.dagster_server import (
    ANSWER_SECONDS,
    MOST_REVIVALS,
    REVIVAL_SECONDS,
    UNANSWERED,
    DagsterServer,
    DagsterUnavailable,
)
from ...orchestration.home.dead_runs import UNDER_WAY
from ...orchestration.home.project import find_other_config, make_home, write_env
from ...resources import Adapters
from ...topic_files import load_topics
from ..show import open_adapters, print_broken
from ..terminal import OUT, progress, styled
from .engine import stopping_engine

LOOKS_EVERY_SECONDS = 1.0
RELOAD_EVERY_SECONDS = 60.0
ALARM_SECONDS = 60.0  # between tries to deliver an alert
ALARM_TRIES = 60
_HANGS = "Dagster's code server does not answer, so nothing is planned or landed; one that goes on so is ended and started anew"
_UNLOADED = (
    "the definitions of {} do not load, so nothing is planned or landed: {}; correct them or `.env` (`dg check defs` shows the "
    "place); each minute they are loaded again"
)
_SILENT = "Dagster's history does not answer: {}; what is landed stays landed, and it is asked again each second"
_TWICE = "another Dagster daemon of this project was started, {}: each tick is done twice until one of the two is ended"


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), help="Port of Dagster's UI; by default 3000, or one that is free.")
def up(port: int | None) -> None:
    """Start Dagster for this project and say what lands, until Ctrl-C.

    \b
    Examples:
      offsetlake up
      offsetlake up --port 3001
    """
    is_over = threading.Event()  # Python drops an interrupt that reaches it in a destructor

    def end(number: int, frame: FrameType | None) -> None:
        is_over.set()
        signal.default_int_handler(number, frame)

    _handle_signals(end)  # a background job of a shell begins with SIGINT ignored
    project, adapters = find_project(), open_adapters()
    found = load_topics()
    if not found.topics and not found.patterns:
        print_broken(found.broken)  # else Dagster tells of them
        raise EmptySelection(
            f"no topic is configured in {project}; nothing was started; add {defs_folder(project)}/<topic>/defs.yaml"
        )
    with (
        suppress(KeyboardInterrupt),
        _services(project, adapters, port) as server,
        open_instance(adapters.settings.dagster_home) as instance,
    ):
        if why := server.find_load_error():
            raise DagsterUnavailable(
                f"the definitions of {project} do not load, so nothing would land: {why}; correct them, "
                "`dg check defs` shows the place"
            )
        began = datetime.now(UTC)
        since, failed = LandedSince(instance), FailedSince(instance, began)
        ticks = FailedTicks(instance, began)
        if other_config := find_other_config(adapters.settings.dagster_home, project):
            OUT.print(other_config, soft_wrap=True)
        names = some_of([*(f"topics that match {each.pattern}" for each in found.patterns), *sorted(found.topics)])
        OUT.print(
            styled("Dagster is at ", (server.url, "bold"), f"; it lands {names} by itself; Ctrl-C ends it"), soft_wrap=True
        )
        told, history = set[Holder](), _History(project, _Trouble(adapters))
        definitions, away = _Definitions(project, _Trouble(adapters)), _Trouble(adapters)
        while not is_over.wait(LOOKS_EVERY_SECONDS):
            _revive(server, away)
            server.end_deaf(_say, partial(_is_idle, instance))
            for other in set(server.find_others()) - told:
                OUT.print(_TWICE.format(other.text), soft_wrap=True)
                told.add(other)
            with history.asked():
                now, sensors = time.time(), read_sensors(instance)
                silences = read_silence(instance, "SENSOR", now), tick_silence(sensors, now)
                for ended in server.end_hung(*silences):
                    _say(ended)
                definitions.look(server, is_ticking=not is_silent(silences[1]))
                _tell_news(failed, ticks, since, sensors)
            for ended in server.end_hung(None, None, are_stopped=True) if history.is_locked else ():
                _say(ended)
    OUT.print("everything is stopped; what is landed stays landed")


@dataclass
class _Trouble:
    """A trouble of Dagster's, told once as it begins and once as it ends; neither is tried again after the other."""

    adapters: Adapters
    told: str = field(default="", init=False)  # empty where there is none
    alarm: threading.Event = field(default_factory=threading.Event, init=False)

    def begin(self, text: str) -> None:
        if text != self.told:
            self.alarm.set()
            self.told, self.alarm = text, _alarm(text, self.adapters)

    def end(self, text: str) -> None:
        if self.told:
            self.alarm.set()
            self.told, self.alarm = "", _alarm(text, self.adapters, "")


@dataclass
class _History:
    """Dagster's history as `up` asks it: if it does not answer, on a full disk say, that is told once, and `up` goes on."""

    project: Path
    trouble: _Trouble
    is_locked: bool = field(default=False, init=False)  # by a process that may stand still: no heartbeat can be read then

    @contextmanager
    def asked(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            self.is_locked = "database is locked" in str(error)
            home = self.trouble.adapters.settings.dagster_home
            if not self.trouble.told:
                self.trouble.begin(_SILENT.format(why_silent(error, home)))
            with suppress(BadSetting):  # it is tried again
                make_home(home, self.project)  # one that was deleted begins anew, and the next tick tells it what the lake has
            return
        self.is_locked = False
        self.trouble.end("Dagster's history answers again")


@dataclass
class _Definitions:
    """Whether Dagster can load the definitions; while it cannot, nothing ticks, which is told once."""

    project: Path
    trouble: _Trouble  # why nothing ticks
    asked_at: float = field(default_factory=time.monotonic, init=False)

    def look(self, server: DagsterServer, *, is_ticking: bool) -> None:
        if is_ticking:
            self.trouble.end("Dagster plans and lands again")
            return
        if self.trouble.told and time.monotonic() - self.asked_at > RELOAD_EVERY_SECONDS:  # no sensor sees that they are mended
            self.asked_at = time.monotonic()
            server.reload()
        with suppress(OSError, HTTPException, ValueError, LookupError, TypeError):  # the webserver does not answer just now
            why = server.find_load_error(ANSWER_SECONDS)
            text = _HANGS if UNANSWERED in (why or "") else _UNLOADED.format(self.project, why)
            if why:
                self.trouble.begin(text)


def _tell_news(failed: FailedSince, ticks: FailedTicks, since: LandedSince, sensors: Sequence[InstigatorState]) -> None:
    now = datetime.now(UTC)
    for line in (*failed.read(now), *ticks.read(now, sensors)):
        _say(line, "red")
    for line in ticks.over:
        _say(line)
    if landed := since.read():
        _say(landed_text(landed))


def _say(text: str, style: str = "") -> None:
    OUT.print(styled(f"{datetime.now().astimezone():%H:%M:%S} ", (text, style)), soft_wrap=True)


def _alarm(text: str, adapters: Adapters, style: str = "red") -> threading.Event:
    """Print what Dagster's sensors cannot tell, as they do not run then; tell OFFSETLAKE_ALERT_URLS, for an hour at most.

    Return an event to set once it is over: nobody is told of it any more.
    """
    _say(text, style)
    is_over = threading.Event()

    def tell() -> None:
        left = adapters.settings.alert_urls
        for number in range(ALARM_TRIES):
            undelivered = send_alert("Offsetlake alert", dict.fromkeys(left, text))
            if not undelivered:
                return
            if number == 0:
                _say(f"alert not delivered to {', '.join(undelivered.values())}; it is tried again each minute", "red")
            left = tuple(undelivered)
            if is_over.wait(ALARM_SECONDS):
                return
        _say("an alert was tried for an hour, and is given up", "red")

    threading.Thread(target=tell, daemon=True).start()
    return is_over


def _is_idle(instance: dg.DagsterInstance) -> bool:
    """Return whether certainly no run is at work, or about to be."""
    with suppress(SQLAlchemyError):
        return not instance.get_runs_count(dg.RunsFilter(statuses=UNDER_WAY))
    return False


def _revive(server: DagsterServer, away: _Trouble) -> None:
    """Restart what has ended of Dagster, as often as that may be; raise an alarm where it cannot be started."""
    if not server.is_running():
        _start_again(server, away)
    server.trim_log()
    if said := server.revive_code_server():
        _say(said)


def _start_again(server: DagsterServer, away: _Trouble) -> None:
    often = f"{MOST_REVIVALS} times in {REVIVAL_SECONDS / 60:.0f} minutes"
    if server.may_revive():
        _say(f"Dagster has ended; it is started again; its log is {server.log}")
        try:
            server.revive()
            _say(f"Dagster runs again at {server.url}")
            away.end("Dagster could be started again")
        except (DagsterUnavailable, OSError) as error:
            away.begin(f"{error}; it is tried again, {often}")
    elif not away.told:
        away.begin(f"Dagster has ended again, so nothing lands; it is started again, {often}; its log is {server.log}")


@contextmanager
def _services(project: Path, adapters: Adapters, port: int | None) -> Iterator[DagsterServer]:
    """Run everything that the project's runs need, nested: each is stopped after those within it."""
    settings = adapters.settings
    find_java()
    with progress("looking for Spark's jars, which are fetched the first time: minutes on a slow line"):
        resolve_jars("spark", settings.jars)
    if settings.dagster_home == project.joinpath(*DEFAULT_HOME):
        write_env(project, settings.dagster_home)
    server = DagsterServer(settings.home / "up", settings.dagster_home, project=project, port=port)
    server.check_alone()
    OUT.print("starting Dagster, which takes some 20 seconds")
    with stopping_engine(settings), server:
        try:
            yield server
        finally:
            _handle_signals(signal.SIG_IGN)  # a second Ctrl-C would interrupt the stopping, and leave processes
            OUT.print("stopping Dagster")


def _handle_signals(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)
