"""`offsetlake backfill`: ranges chosen as people speak of them, shown first, and launched as a Dagster backfill."""

import time
from collections.abc import Sequence
from typing import Any

import click
import dagster as dg

from ...core.advice import command, counted
from ...core.errors import DaemonUnavailable, RangesFailed
from ...orchestration.backfilling import (
    BackfillRequest,
    BackfillState,
    follow_backfill,
    launch_backfill,
    preview_rows,
    preview_totals,
)
from ...orchestration.choosing import Choice, select_ranges
from ...orchestration.home.daemons import read_silence
from ...orchestration.home.dagster_home import open_instance
from ...orchestration.runs.moments import duration_text, time_text
from ...topics import Duty
from ..show import find_topic, json_option, on_change_option, open_adapters, print_json, print_table, size_text, topic_argument
from ..terminal import OUT, progress
from .decode import check_decodes

SHOWN = 40  # ranges of the preview; --json has them all
POLL_SECONDS = 1.0
GIVE_UP_SECONDS = 600.0  # of a silent daemon: it may be busy submitting runs


@click.command()
@topic_argument
@click.option("--all", "every", is_flag=True, help="Every range that is landed or is to be.")
@click.option("--missing", is_flag=True, help="What is planned and not landed.")
@click.option("--failed", is_flag=True, help="What is not landed and whose last run failed.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="This range; may be given again.")
@click.option("--offsets", multiple=True, metavar="P:S-E", help="Ranges with these offsets of a Kafka partition.")
@click.option("--generation", type=click.IntRange(min=0), help="Of --offsets; by default the open one.")
@click.option("--last-minutes", type=click.IntRange(min=1), help="Ranges with records of the last so many minutes.")
@click.option("--from-time", metavar="TIME", help="Ranges with records of this time or later, ISO 8601 with its zone.")
@click.option("--to-time", metavar="TIME", help="And before this time.")
@click.option("--time-zone", metavar="NAME", help="Of times without one, such as Europe/Zurich.")
@click.option("--schema", "schema_id", metavar="ID", help="Decoded ranges with rows of this registry id: 7, or value:7.")
@click.option("--dead", is_flag=True, help="Decoded ranges with dead letters.")
@click.option("--outdated", is_flag=True, help="Ranges that an older decoder has decoded.")
@click.option("--decoded", is_flag=True, help="Decode what is chosen (again), instead of landing it.")
@on_change_option
@click.option("--apply", "launch", is_flag=True, help="Launch it (default: dry run).")
@click.option("--no-wait", is_flag=True, help="With --apply: do not wait for its end.")
@json_option
def backfill(topic: str, on_change: str, launch: bool, no_wait: bool, as_json: bool, **chosen: Any) -> None:
    """Land any selection of ranges (again) as a Dagster backfill; shown first, launched with --apply.

    Landed ranges are read again and compared, which changes nothing unless Kafka has them otherwise by now. A time always means
    the same landed ranges; what is not landed is among them unless all its records are older. With --decoded, and by --schema,
    --dead or --outdated, ranges are decoded from what is landed, and Kafka is not asked.

    \b
    Examples:
      offsetlake backfill flights --missing --apply
      offsetlake backfill flights --offsets 0:20000-60000
      offsetlake backfill flights --last-minutes 60
      offsetlake backfill flights --from-time 2026-11-17T10:00+01:00 --to-time 2026-11-17T11:00+01:00
      offsetlake backfill flights --from-time 2026-11-17T10:00 --to-time 2026-11-17T11:00 --time-zone Europe/Zurich
      offsetlake backfill flights --schema 7 --apply
      offsetlake backfill flights --key 0-0-20000 --on-change replace --apply
    """
    choice = Choice(**chosen)
    way = choice.way
    configured, adapters = find_topic(topic), open_adapters()
    if choice.is_of_decoded:
        check_decodes(configured)
    duty = configured.decoding if choice.is_of_decoded else configured.landing
    adapters.check_lake(topic)
    with open_instance(adapters.settings.dagster_home) as instance:
        with progress(f"choosing ranges of {topic}"):
            coverage = adapters.lake.coverage(topic)
            selection = select_ranges(choice, configured, coverage, adapters, instance)
            rows = preview_rows(coverage, selection.ranges)
        keys = [offsets.key for offsets in selection.ranges]
        document = {
            "topic": topic,
            "selected_by": way,
            **preview_totals(rows),
            "left_out": [offsets.key for offsets in selection.left_out],
            "backfill": None,
            "ranges": rows,
        }
        if not as_json:
            _print_preview(topic, document, launch)
        if launch:
            title = f"{command('backfill', topic)} by {way}"
            request = BackfillRequest(selection.ranges, choice.is_redo, on_change, title, duty)
            document["backfill"] = launch_backfill(configured, request, adapters, instance)
            if not as_json:
                OUT.print(f"launched backfill {document['backfill']} of {counted(len(keys), 'range')}", soft_wrap=True)
        if as_json:
            print_json(document)
        if launch and not no_wait:
            _follow(duty, str(document["backfill"]), keys, instance, quiet=as_json)


def _print_preview(topic: str, document: dict[str, Any], launch: bool) -> None:
    rows = document["ranges"]
    columns = ["key", "state", "offsets", "rows", "bytes", "first record", "last record"]
    shown = [
        (
            row["key"],
            row["state"],
            row["offsets"],
            row["rows"],
            "-" if row["bytes"] is None else size_text(row["bytes"]),
            time_text(row["min_timestamp_ms"]),
            time_text(row["max_timestamp_ms"]),
        )
        for row in rows[:SHOWN]
    ]
    print_table(f"{counted(len(rows), 'range')} of {topic} by {document['selected_by']}", columns, shown)
    if len(rows) > SHOWN:
        OUT.print(f"and {len(rows) - SHOWN} more; --json has them all")
    states = ", ".join(f"{count} {state}" for state, count in document["ranges_by_state"].items())
    OUT.print(
        f"{states}; {document['offsets']:,} offsets, of which {document['rows']:,} rows and {size_text(document['bytes'])} are "
        "landed",
        soft_wrap=True,
    )
    if document["left_out"]:
        OUT.print(f"{len(document['left_out'])} are left out: lost, abandoned or skipped (`{command('losses', topic)}`)")
    unknown = document["ranges_by_state"].get("pending", 0)
    if document["selected_by"] == "time" and unknown:
        OUT.print(f"{unknown} of them are not landed: of what time their records are is known once they are", soft_wrap=True)
    if not launch:
        OUT.print("nothing was launched; add --apply")


def _check_alive(topic: str, backfill_id: str, state: BackfillState, total: int, instance: dg.DagsterInstance) -> None:
    silent_seconds = read_silence(instance, "BACKFILL", time.time())
    if silent_seconds is None or silent_seconds > GIVE_UP_SECONDS:
        raise DaemonUnavailable(
            f"backfill {backfill_id} of topic {topic} is launched, but Dagster's daemon has said nothing for "
            f"{duration_text(silent_seconds)}; {len(state.done)} of {total} ranges are done; start the daemon and it goes on, "
            "or cancel it on Dagster's page of backfills"
        )


def _follow(duty: Duty, backfill_id: str, keys: Sequence[str], instance: dg.DagsterInstance, *, quiet: bool) -> None:
    """Show a backfill's progress until it has ended; Ctrl-C leaves the backfill itself alone."""
    state: BackfillState | None = None
    told = 0
    with progress(f"backfill {backfill_id}", len(keys)) as shown:
        for state in follow_backfill(duty, backfill_id, keys, instance):
            at_work = f"{state.runs} runs" if state.runs else "Dagster's daemon is to launch its runs"
            shown.update(len(state.done), text=f"backfill {backfill_id}: {state.status.lower()}, {at_work}")
            if not quiet and len(state.done) not in {told, len(keys)}:
                told = len(state.done)
                OUT.print(f"{told} of {len(keys)} ranges are done, in {state.runs} runs so far", soft_wrap=True)
            if not state.has_ended:
                _check_alive(duty.topic, backfill_id, state, len(keys), instance)
                time.sleep(POLL_SECONDS)
    assert state is not None
    if not state.has_succeeded:
        missing = sorted(set(keys) - state.done)
        raise RangesFailed(
            f"backfill {backfill_id} of topic {duty.topic} ended as {state.status}: {len(state.done)} of {len(keys)} ranges "
            "are landed or as they were; its runs in Dagster say why, and the sensor asks again for what is not landed",
            missing[:20],
        )
    if not quiet:
        OUT.print(
            f"backfill {backfill_id} has ended: {counted(len(state.done), 'range')} in {counted(state.runs, 'run')}",
            soft_wrap=True,
        )
