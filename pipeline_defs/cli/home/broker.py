"""`offsetlake broker`: a real Apache Kafka broker on this machine, for trying things out."""

import click

from ...adapters.system.jars import resolve_jars
from ...adapters.testbed.broker import read_broker, start_broker, stop_broker
from ...settings import read_settings
from ..show import json_option, print_json
from ..terminal import ERRORS, OUT, progress


@click.group()
def broker() -> None:
    """Start, stop or look at the embedded Kafka broker (KRaft, one JVM, loopback only).

    \b
    Examples:
      offsetlake broker start
      offsetlake broker status --json
      offsetlake broker stop
    """


@broker.command()
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on; by default a free one.")
def start(port: int | None) -> None:
    """Start the broker, or say where it already runs. Its data stay across restarts.

    \b
    Example:
      offsetlake broker start --port 9092
    """
    settings = read_settings()
    with progress("starting Kafka"):
        running = start_broker(settings.broker, jars=resolve_jars("broker", settings.jars), port=port)
    OUT.print(f"Kafka answers at {running.bootstrap_servers} (pid {running.pid}, log {running.log_path})", soft_wrap=True)
    ERRORS.print(
        f"commands with the home {settings.home} find it, those of another folder by: "
        f"export OFFSETLAKE_BOOTSTRAP_SERVERS={running.bootstrap_servers}",
        soft_wrap=True,
    )


@broker.command()
def stop() -> None:
    """Stop the broker and wait until it is gone.

    \b
    Example:
      offsetlake broker stop
    """
    with progress("stopping Kafka"):
        stopped = stop_broker(read_settings().broker)
    OUT.print("Kafka is stopped" if stopped else "no embedded broker was running")


@broker.command()
@json_option
def status(as_json: bool) -> None:
    """Say whether the broker runs, and where. Exit code 1 where it does not.

    \b
    Example:
      offsetlake broker status --json
    """
    settings = read_settings()
    running = read_broker(settings.broker)
    if as_json:
        print_json({"running": running is not None, "bootstrap_servers": running and running.bootstrap_servers})
    elif running:
        OUT.print(f"Kafka answers at {running.bootstrap_servers} (pid {running.pid})")
    else:
        OUT.print(
            f"no embedded broker of {settings.broker} runs; start it with `offsetlake broker start`; each project has its own"
        )
    if running is None:
        raise SystemExit(1)
