"""`offsetlake engine`: the warm Spark of this home."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from ...adapters.spark.spark_liveness import LOOPBACK, find_silence, place_of
from ...adapters.spark.spark_server import read_server, stop_server
from ...core.errors import Refused
from ...orchestration.runs.moments import duration_text
from ...settings import IN_PROCESS, Settings, read_settings
from ..show import json_option, open_adapters, print_json
from ..terminal import OUT, progress


@contextmanager
def stopping_engine(settings: Settings) -> Iterator[None]:
    """Stop the warm Spark of the home when the context ends."""
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
    return _look(settings)[1]


def _look(settings: Settings) -> tuple[dict[str, Any], str, bool]:
    """Return the state of the home's own Spark, as a document and in words, and whether it answers."""
    if settings.engine == IN_PROCESS:
        return {"running": False, "engine": IN_PROCESS}, "each run starts its own (OFFSETLAKE_ENGINE=in-process)", False
    server = read_server(settings.engine_folder)
    if server is None:
        return {"running": False}, "none runs; the next run starts it", False
    place, silence = f"{LOOPBACK}:{server.port}", find_silence(server.url)
    if silence is None:
        since = duration_text(max(0.0, time.time() - server.since))  # a clock may have been set back
        text = f"Spark {server.spark} answers at {place} for {since} (pid {server.process.pid})"
    else:
        text = (
            f"Spark {server.spark} runs at {place} (pid {server.process.pid}) and serves nobody: {silence}; the next run ends "
            "it after a minute, `offsetlake engine restart` now"
        )
    return {"running": True, "answers": silence is None, **server.facts}, text, silence is None


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
    document, text, answers = _look(settings) if settings.spark_remote is None else _ask_remote(settings.spark_remote)
    if as_json:
        print_json(document)
    else:
        OUT.print(text)
    if not answers:
        raise SystemExit(1)


def _ask_remote(remote: str) -> tuple[dict[str, Any], str, bool]:
    place, adapters = place_of(remote), open_adapters()
    with progress(f"asking the Spark at {place}"):
        version = adapters.engine(adapters.pyspark()).version
    document = {"running": True, "remote": place, "spark": version}
    return document, f"Spark {version} answers at {place} (OFFSETLAKE_SPARK_REMOTE)", True


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
    adapters = open_adapters()
    _refuse_remote(adapters.settings)
    with progress("starting Spark"):
        stop_server(adapters.settings.engine_folder)
        version = adapters.engine(adapters.pyspark()).version
    OUT.print(f"Spark {version} runs")
