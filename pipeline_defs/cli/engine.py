"""`offsetlake engine`: the warm Spark of this home."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from ..edges.spark_server import read_server, stop_server
from ..moments import duration_text
from ..settings import IN_PROCESS, Settings, read_settings
from .progress import progress
from .show import json_option, open_edges, print_json
from .terminal import OUT


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
    if settings.engine == IN_PROCESS:
        return "each run starts its own (OFFSETLAKE_ENGINE=in-process)"
    server = read_server(settings.engine_folder)
    if server is None:
        return "none runs; the next run starts it"
    since = duration_text(time.time() - server.since)
    return f"Spark {server.spark} answers at localhost:{server.port} for {since} (pid {server.process.pid})"


@engine.command()
@json_option
def status(as_json: bool) -> None:
    """Say whether it runs, and since when. Exit code 1 where it does not, which is no error.

    \b
    Example:
      offsetlake engine status --json
    """
    settings = read_settings()
    server = read_server(settings.engine_folder)
    if as_json:
        print_json({"running": server is not None, **(server.facts if server else {})})
    else:
        OUT.print(spark_text(settings))
    if server is None:
        raise SystemExit(1)


@engine.command()
def stop() -> None:
    """Stop it; what it does for a run fails, and is tried again by that run with another one.

    \b
    Example:
      offsetlake engine stop
    """
    with progress("stopping Spark"):
        stopped = stop_server(read_settings().engine_folder)
    OUT.print("Spark is stopped" if stopped else "no Spark was running")


@engine.command()
def restart() -> None:
    """Stop it where it runs, and start it.

    \b
    Example:
      offsetlake engine restart
    """
    edges = open_edges()
    with progress("starting Spark"):
        stop_server(edges.settings.engine_folder)
        version = edges.engine(edges.pyspark()).version
    OUT.print(f"Spark {version} runs")
