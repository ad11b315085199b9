"""`offsetlake bench`: this project beside bare Spark, Structured Streaming and a hand-written loop; or one part of it alone."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

from ..settings import read_settings
from .show import json_option, print_json, print_table
from .terminal import ERRORS, OUT, Words

if TYPE_CHECKING:
    from ..bench.measurement import Tell

DEFAULT_SIZES = "100,1000,10000"
ENGINE = "engine"
OF_A_PART = {"part", "rounds", "as_json"}  # what may be said where a part is asked for


@click.command()
@click.option(
    "--part",
    type=click.Choice([ENGINE]),
    help="This part alone: what a run, a client and a backlog cost on the warm Spark, when rows are seen, and how much passes "
    "this machine where a cluster lands into a bucket. About 6 minutes; 560 MB of jars for S3 are fetched once.",
)
@click.option("--sizes", default=DEFAULT_SIZES, show_default=True, help="Value sizes in bytes, with commas between.")
@click.option(
    "--records", type=click.IntRange(min=16), help="Records per size; by default so that a turn takes seconds."
)
@click.option(
    "--rounds", type=click.IntRange(min=1), help="Rounds after the warm-up: 3 by default, of the part `engine` 5."
)
@click.option("--systems", help="Systems to run, with commas between; all by default.")
@click.option("--visible", default=3, show_default=True, type=click.IntRange(min=0), help="Repeats of time to visible.")
@click.option(
    "--derived/--no-derived", default=True, show_default=True, help="Decoding, compaction and the latest state, too."
)
@json_option
@click.pass_context
def bench(
    ctx: click.Context,
    part: str | None,
    sizes: str,
    records: int | None,
    rounds: int | None,
    systems: str | None,
    visible: int,
    derived: bool,
    as_json: bool,
) -> None:
    """Measure landing against what else people use, on a broker and lake of its own; takes about 15 minutes.

    \b
    Examples:
      offsetlake bench
      offsetlake bench --json > bench.json
      offsetlake bench --part engine --json > engine.json
      offsetlake bench --sizes 1000 --rounds 5 --systems offsetlake,bare_spark --visible 0
    """
    from ..bench.engine import Profile, run_engine_bench
    from ..bench.measurement import require_own_spark
    from ..bench.report import choose_loads, choose_systems, run_bench

    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all of it is stopped then too
    settings = read_settings()
    require_own_spark(settings, is_warm=part == ENGINE)
    if part == ENGINE:
        _check_of_part(ctx)
        with _telling() as tell:
            report = run_engine_bench(settings, Profile(rounds=rounds) if rounds else Profile(), tell)
        if as_json:
            print_json(report)
        else:
            show_engine(report)
        return
    loads, chosen = choose_loads(sizes, records), choose_systems(systems)
    with _telling() as tell:
        report = run_bench(settings, loads, chosen, rounds or 3, visible, tell, with_derived=derived)
    if as_json:
        print_json(report)
        return
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
        title = (
            f"{load['records']:,} records of {load['value_bytes']:,} B in {load['kafka_partitions']} Kafka partitions"
        )
        print_table(title, ["system", "seconds", "records/s", "bytes", "files"], rows)
    if report["time_to_visible"]:
        OUT.print(f"from produced to visible: {report['time_to_visible']['median_seconds']:.1f} s")
    if report["derived"]:
        show_derived(report["derived"])
    if report["upsert"]:
        show_upsert(report["upsert"])
    for text in report["missed_targets"]:
        OUT.print(f"missed: {text}")


@contextmanager
def _telling() -> Iterator[Tell]:
    columns = (SpinnerColumn(), Words(), TimeElapsedColumn())
    with Progress(*columns, console=ERRORS) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda text: bar.update(task, description=text)


def _check_of_part(ctx: click.Context) -> None:
    """Refuse options that a part has no use for."""
    given = [
        (parameter.opts if ctx.params[str(parameter.name)] is not False else parameter.secondary_opts)[0]
        for parameter in ctx.command.params
        if parameter.name not in OF_A_PART
        and ctx.get_parameter_source(str(parameter.name)) is not ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(f"{', '.join(given)} cannot be given with --part; nothing was started")


def show_engine(report: Mapping[str, Any]) -> None:
    """Show the figures of the part `engine` with their spread, and on what they were measured."""
    found = report["engine"]
    rows = [(name, figure["median"], figure["least"], figure["greatest"]) for name, figure in found["spread"].items()]
    machine = report["environment"]
    print_table("the engine", ["figure", "median", "least", "greatest"], rows)
    parts = ", ".join(f"{name} {seconds}" for name, seconds in found["details"]["run"]["median_by_part"].items())
    OUT.print(f"CPU seconds of a run by part: {parts}")
    OUT.print(
        f"{report['rounds']} rounds on {machine['cores']} cores ({machine['processor']}), load average "
        f"{machine['load_average_before'][0]} before and {machine['load_average_after'][0]} after"
    )
    for text in report["missed_targets"]:
        OUT.print(f"missed: {text}")


def show_derived(found: Mapping[str, Any]) -> None:
    """Shows seconds and rates of landing and of what is derived, and the ratios between them."""
    rows = [(name, value, found["records_per_second"][name]) for name, value in found["median_seconds"].items()]
    title = f"{found['records']:,} records of {found['value_bytes']:,} B, landed, decoded and compacted"
    print_table(title, ["what", "seconds", "records/s"], rows)
    OUT.print(f"times as long as landing: {', '.join(f'{name} {value}' for name, value in found['ratios'].items())}")


def show_upsert(found: Mapping[str, Any]) -> None:
    """Shows what an update of a latest state takes, beside a recomputation and delta-rs' merge."""
    rows = [(name, seconds, found["median_cpu_seconds"][name]) for name, seconds in found["median_seconds"].items()]
    title = f"latest by key: {found['records']:,} records in {found['ranges']} ranges, {found['keys']:,} keys"
    print_table(title, ["what", "seconds", "CPU seconds"], rows)
