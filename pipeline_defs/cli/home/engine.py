"""`offsetlake engine`: the warm Spark of this home."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from ...adapters.spark.spark_knock import LOOPBACK, find_silence, place_of
from ...adapters.spark.spark_server import Server, read_server, stop_server
from ...core.errors import Refused
from ...orchestration.runs.moments import duration_text
from ...resources import Edges
from ...settings import IN_PROCESS, Settings, read_settings
from ..progress import progress
from ..show import json_option, open_edges, print_json
from ..terminal import OUT


@contextmanager
def stopping_engine(settings: Settings) -> Iterator[None]:
    """Stop the warm Spark of the home at the end."""
    try:
        yield
    finally:
        if stop_server(settings.engine_folder):
            OUT.print("Spark is stopped")


@click.group()
def engine() -> None:
    """Look at, stop or restart the warm Spark that all runs of this home share. It starts by itself with the first run.

    \b
    Examples:
      offsetlake engine status
      offsetlake engine restart
    """


def spark_text(settings: Settings) -> str:
    """Return in words which Spark the next run of this home uses; raise `EngineUnavailable` where its state is unreadable."""
    if settings.spark_remote is not None:
        return f"that of {place_of(settings.spark_remote)} (OFFSETLAKE_SPARK_REMOTE)"
    if settings.engine == IN_PROCESS:
        return "each run starts its own (OFFSETLAKE_ENGINE=in-process)"
    return _server_text(*_look(settings))


def _look(settings: Settings) -> tuple[Server | None, str | None]:
    """Return the home's own server, none where there is none, and why it says nothing, none where it answers."""
    server = read_server(settings.engine_folder)
    return server, find_silence(server.url) if server is not None else None


def _server_text(server: Server | None, silence: str | None) -> str:
    if server is None:
        return "none runs; the next run starts it"
    place = f"{LOOPBACK}:{server.port}"
    if silence is not None:
        return (
            f"Spark {server.spark} runs at {place} (pid {server.process.pid}) and serves nobody: {silence}; the next run ends "
            "it after a minute, `offsetlake engine restart` now"
        )
    since = duration_text(max(0.0, time.time() - server.since))  # a clock may have been set back
    return f"Spark {server.spark} answers at {place} for {since} (pid {server.process.pid})"


@engine.command()
@json_option
def status(as_json: bool) -> None:
    """Say whether the warm Spark runs and answers, and since when. Exit code 1 where it does not, which is no error.

    Of the server that OFFSETLAKE_SPARK_REMOTE names: whether it answers, and can do what is asked of it.

    \b
    Example:
      offsetlake engine status --json
    """
    settings = read_settings()
    if settings.spark_remote is not None:
        _show_remote(open_edges(), as_json=as_json)
        return
    if settings.engine == IN_PROCESS:
        if as_json:
            print_json({"running": False, "engine": IN_PROCESS})
        else:
            OUT.print(spark_text(settings))
        raise SystemExit(1)
    server, silence = _look(settings)
    answers = server is not None and silence is None
    if as_json:
        print_json({"running": server is not None, **({"answers": answers, **server.facts} if server else {})})
    else:
        OUT.print(_server_text(server, silence))
    if not answers:
        raise SystemExit(1)


def _show_remote(edges: Edges, *, as_json: bool) -> None:
    place = place_of(str(edges.settings.spark_remote))
    with progress(f"asking the Spark at {place}"):
        version = edges.engine(edges.pyspark()).version
    if as_json:
        print_json({"running": True, "remote": place, "spark": version})
    else:
        OUT.print(f"Spark {version} answers at {place} (OFFSETLAKE_SPARK_REMOTE)")


def _refuse_remote(settings: Settings) -> None:
    if settings.spark_remote is not None:
        raise Refused(
            f"OFFSETLAKE_SPARK_REMOTE names the Spark at {place_of(settings.spark_remote)}, which was not started here; "
            "nothing was done; stop or restart it where it was started"
        )


@engine.command()
def stop() -> None:
    """Stop the warm Spark; what it does for a run fails, and is tried again by that run with another one.

    \b
    Example:
      offsetlake engine stop
    """
    settings = read_settings()
    _refuse_remote(settings)
    with progress("stopping Spark"):
        stopped = stop_server(settings.engine_folder)
    OUT.print("Spark is stopped" if stopped else "no Spark was running")


@engine.command()
def restart() -> None:
    """Stop the warm Spark where it runs, and start it.

    \b
    Example:
      offsetlake engine restart
    """
    edges = open_edges()
    _refuse_remote(edges.settings)
    with progress("starting Spark"):
        stop_server(edges.settings.engine_folder)
        version = edges.engine(edges.pyspark()).version
    OUT.print(f"Spark {version} runs")
