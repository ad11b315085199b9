"""`offsetlake bench`: this project beside bare Spark, Structured Streaming and a hand-written loop; or one part of it alone."""

import logging
import signal
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from ...adapters.system.extras import require
from ...cli.show import json_option, print_json, print_table
from ...cli.terminal import OUT, progress
from ...settings import read_settings
from ..bench import DERIVED, ENGINE, PULSE, TOPICS

DEFAULT_SIZES = "100,1000,10000"
ROUNDS = {ENGINE: 5, DERIVED: 5, TOPICS: 1, PULSE: 10}
OF_A_PART = {"part", "rounds", "as_json"}  # what may be said where a part is asked for


@click.command()
@click.option(
    "--part",
    type=click.Choice([ENGINE, DERIVED, TOPICS, PULSE]),
    help="This part alone, on the warm Spark. engine: what a run, a client and a backlog cost, when rows are seen, and how "
    "much passes this machine where a cluster lands into a bucket; about 6 minutes, 560 MB of jars for S3 are fetched once. "
    "derived: decoding and the raw table's append beside landing, updates of a latest table beside delta-rs' merge; about 10 "
    "minutes. topics: how long records of 12, 60 and 100 topics wait until a glob shows them; about 25 minutes. "
    "pulse: from produced to visible, and what a history of up to 1,000,000 ranges costs; about 20 minutes.",
)
@click.option("--sizes", default=DEFAULT_SIZES, show_default=True, help="Value sizes in bytes, with commas between.")
@click.option("--records", type=click.IntRange(min=16), help="Records per size; by default so that a turn takes seconds.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help=f"Rounds after the warm-up: 3 by default, of a part {ROUNDS[ENGINE]}, of {PULSE} {ROUNDS[PULSE]}.",
)
@click.option("--systems", help="Systems to run, with commas between; all by default.")
@click.option("--visible", default=3, show_default=True, type=click.IntRange(min=0), help="Repeats of time to visible.")
@json_option
@click.pass_context
def bench(ctx: click.Context, /, part: str | None, rounds: int | None, as_json: bool, **given: Any) -> None:
    """Measure landing against what else people use, on a broker and lake of its own; takes about 10 minutes.

    \b
    Examples:
      offsetlake bench
      offsetlake bench --json > bench.json
      offsetlake bench --part engine --json > engine.json
      offsetlake bench --part derived --json > derived.json
      offsetlake bench --part topics --json > topics.json
      offsetlake bench --part pulse --json > pulse.json
      offsetlake bench --sizes 1000 --rounds 5 --systems offsetlake,bare_spark --visible 0
    """
    require("bench", "the benchmark")
    from ..bench.measurement import require_own_spark, run_part
    from .parts import PARTS, choose_loads, choose_systems, run_bench

    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all of it is stopped then too
    settings = read_settings()
    require_own_spark(settings, is_warm=part is not None)
    if part is not None:
        _check_of_part(ctx, part)
        wanted = None if part == TOPICS else rounds  # which are measured once, and are told as that
        measure = partial(run_part, PARTS[part], settings, wanted or ROUNDS[part])
    else:
        loads, chosen = choose_loads(given["sizes"], given["records"]), choose_systems(given["systems"])
        measure = partial(run_bench, settings, loads, chosen, rounds or 3, given["visible"])
    with progress("starting") as shown:
        report = measure(lambda text: shown.update(text=text))
    if as_json:
        print_json(report)
        return
    (show_whole if part is None else show_part)(report)
    for text in report["missed_targets"]:
        OUT.print(f"missed: {text}")


def _check_of_part(ctx: click.Context, part: str) -> None:
    """Refuse options that a part has no use for."""
    given = [
        parameter.opts[0]
        for parameter in ctx.command.params
        if parameter.name not in (OF_A_PART - {"rounds"} if part == TOPICS else OF_A_PART)
        and ctx.get_parameter_source(str(parameter.name)) is not ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(f"{', '.join(given)} cannot be given with --part; nothing was started")


def show_whole(report: Mapping[str, Any]) -> None:
    """Show the ratios, and what each system did with each load."""
    lines = report["ratios"]
    print_table(
        "ours to theirs: above 1 is faster, bytes below 1 is smaller",
        [name.removeprefix("to_") for name in lines[0]],
        [list(line.values()) for line in lines],
    )
    for load in report["loads"]:
        rows = [
            (name, facts["median_seconds"], facts["records_per_second"], facts["bytes"], facts["files"])
            for name, facts in load["systems"].items()
        ]
        title = f"{load['records']:,} records of {load['value_bytes']:,} B in {load['kafka_partitions']} Kafka partitions"
        print_table(title, ["system", "seconds", "records/s", "bytes", "files"], rows)
    if report["time_to_visible"]:
        OUT.print(f"from produced to visible: {report['time_to_visible']['median_seconds']:.1f} s")


def show_part(report: Mapping[str, Any]) -> None:
    """Show the figures of a part with their spread, and on what they were measured."""
    found = {name: each for name, each in report.items() if isinstance(each, Mapping) and "spread" in each}
    rows = [
        (f"{section}.{name}", figure["median"], figure["least"], figure["greatest"])
        for section, each in found.items()
        for name, figure in each["spread"].items()
    ]
    print_table("the benchmark", ["figure", "median", "least", "greatest"], rows)
    for name, lines in report.get("pulse", {}).items():
        if name in {"topics", "history"}:
            print_table(name, list(lines[0]), [list(line.values()) for line in lines])
    machine = report["environment"]
    OUT.print(
        f"{report['rounds']} rounds on {machine['cores']} cores ({machine['processor']}), load average "
        f"{machine['load_average_before'][0]} before and {machine['load_average_after'][0]} after"
    )
