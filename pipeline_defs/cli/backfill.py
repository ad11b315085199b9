"""`offsetlake backfill`: ranges chosen as people speak of them, shown first, and launched as a Dagster backfill."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
import dagster as dg

from ..backfilling import (
    BackfillState,
    check_daemon,
    follow_backfill,
    launch_backfill,
    preview_rows,
    read_silence,
    select_failed,
    select_times,
)
from ..core.coverage import Coverage
from ..core.errors import DaemonUnavailable, RangesFailed, Refused
from ..core.selection import NOTHING_DONE, Selection, choose_all, choose_missing, choose_offsets, parse_offsets
from ..landing import find_ranges
from ..launching import open_instance
from ..moments import duration_text, time_text
from ..resources import Edges
from ..topics import Topic
from .progress import progress
from .show import OUT, find_topic, json_option, open_edges, print_json, print_table, size_text

SHOWN = 40  # ranges of the preview; --json has them all
POLL_SECONDS = 1.0
GIVE_UP_SECONDS = 600.0  # of a daemon that says nothing while it is followed; it may be busy submitting runs
KINDS = "--all, --failed, --missing, --key, --offsets, or --from-time with --to-time"


@click.command()
@click.argument("topic")
@click.option("--all", "every", is_flag=True, help="Every range that is landed or can be.")
@click.option("--missing", is_flag=True, help="What is planned and not landed.")
@click.option("--failed", is_flag=True, help="What is not landed and whose last run failed.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="This range; may be given again.")
@click.option("--offsets", multiple=True, metavar="P:S-E", help="Ranges with these offsets of a Kafka partition.")
@click.option("--generation", type=click.IntRange(min=0), help="Of --offsets; by default the open one.")
@click.option("--from-time", metavar="TIME", help="Ranges with records of this time or later, ISO 8601 with its zone.")
@click.option("--to-time", metavar="TIME", help="And before this time.")
@click.option("--time-zone", metavar="NAME", help="Of times without one, such as Europe/Zurich.")
@click.option(
    "--on-change",
    type=click.Choice(["keep", "replace"]),
    default="keep",
    show_default=True,
    help="What becomes of a landed range that Kafka has otherwise by now.",
)
@click.option("--launch", is_flag=True, help="Launch it; without this it is only shown.")
@click.option("--no-wait", is_flag=True, help="With --launch: do not wait for its end.")
@json_option
def backfill(topic: str, on_change: str, launch: bool, no_wait: bool, as_json: bool, **chosen: Any) -> None:
    """Land any selection of ranges (again) as a Dagster backfill; shown first, launched with --launch.

    Landed ranges are read again and compared, which changes nothing unless Kafka has them otherwise by now. A time always means
    the same landed ranges; what is not landed is among them unless all its records are older.

    \b
    Examples:
      offsetlake backfill flights --missing --launch
      offsetlake backfill flights --offsets 0:20000-60000
      offsetlake backfill flights --from-time 2026-11-17T10:00+01:00 --to-time 2026-11-17T11:00+01:00
      offsetlake backfill flights --from-time 2026-11-17T10:00 --to-time 2026-11-17T11:00 --time-zone Europe/Zurich
      offsetlake backfill flights --key 0-0-20000 --on-change replace --launch
    """
    kind = _kind(chosen)
    configured, edges = find_topic(topic), open_edges()
    edges.check_lake()
    coverage = edges.lake.coverage(topic)
    with open_instance(edges.settings.dagster_home) as instance:
        selection = _select(kind, chosen, configured, coverage, edges, instance)
        keys = [offsets.key for offsets in selection.ranges]
        rows = preview_rows(coverage, selection.ranges)
        document = {
            "topic": topic,
            "selected_by": kind,
            **_totals(rows),
            "left_out": [offsets.key for offsets in selection.left_out],
            "backfill": None,
            "ranges": rows,
        }
        if not as_json:
            _print_preview(topic, document, launch)
        if launch:
            check_daemon(instance, time.time())
            document["backfill"] = launch_backfill(
                configured,
                selection.ranges,
                edges,
                instance,
                redo=kind not in {"missing", "failed"},
                on_change=on_change,
                title=f"offsetlake backfill {topic} by {kind}",
            )
            if not as_json:
                OUT.print(f"launched backfill {document['backfill']} of {len(keys)} ranges", soft_wrap=True)
        if as_json:
            print_json(document)
        if launch and not no_wait:
            _follow(configured, str(document["backfill"]), keys, instance, quiet=as_json)


def _kind(chosen: dict[str, Any]) -> str:
    """Says by what is chosen; refuses none, more than one, and half a time."""
    times = [chosen["from_time"], chosen["to_time"]]
    given = {
        "all": chosen["every"],
        "missing": chosen["missing"],
        "failed": chosen["failed"],
        "key": bool(chosen["keys"]),
        "offsets": bool(chosen["offsets"]),
        "time": any(times),
    }
    kinds = [kind for kind, is_given in given.items() if is_given]
    if len(kinds) != 1:
        found = f"by {' and '.join(kinds)}" if kinds else "by nothing"
        raise Refused(f"ranges are chosen {found}, expected exactly one of {KINDS}; {NOTHING_DONE}")
    if kinds == ["time"] and not all(times):
        raise Refused(f"only one end of a time is given, expected --from-time and --to-time; {NOTHING_DONE}")
    if chosen["generation"] is not None and kinds != ["offsets"]:
        raise Refused(f"--generation belongs to --offsets, found with --{kinds[0]}; {NOTHING_DONE}")
    return kinds[0]


def _select(
    kind: str, chosen: dict[str, Any], topic: Topic, coverage: Coverage, edges: Edges, instance: dg.DagsterInstance
) -> Selection:
    generation = coverage.log.generation if chosen["generation"] is None else chosen["generation"]
    choose: dict[str, Callable[[], Selection]] = {
        "all": lambda: choose_all(coverage),
        "missing": lambda: choose_missing(coverage),
        "failed": lambda: select_failed(topic, coverage, instance),
        "key": lambda: Selection(tuple(find_ranges(topic.name, chosen["keys"], coverage))),
        "offsets": lambda: choose_offsets(coverage, [parse_offsets(text, generation) for text in chosen["offsets"]]),
        "time": lambda: select_times(topic, coverage, *_times(chosen), edges),
    }
    return choose[kind]()


def _times(chosen: dict[str, Any]) -> tuple[int, int]:
    start, end = (_moment(chosen[name], chosen["time_zone"], f"--{name.replace('_', '-')}") for name in _TIMES)
    if start >= end:
        raise Refused(
            f"--from-time {time_text(start)} is not before --to-time {time_text(end)}: no record can be in between; "
            f"{NOTHING_DONE}"
        )
    return start, end


_TIMES = ("from_time", "to_time")


def _moment(text: str, zone: str | None, option: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            if zone is None:
                raise Refused(
                    f"{option} {text} does not say in which time zone; {NOTHING_DONE}; end it with Z or +01:00, or name one: "
                    "--time-zone Europe/Zurich"
                )
            moment = moment.replace(tzinfo=ZoneInfo(zone))
    except ZoneInfoNotFoundError:
        raise Refused(f"--time-zone {zone} is no time zone, expected such as Europe/Zurich; {NOTHING_DONE}") from None
    except ValueError:
        raise Refused(
            f"{option} {text!r} is no time, expected ISO 8601 such as 2026-11-17T10:00+01:00; {NOTHING_DONE}"
        ) from None
    return round(moment.timestamp() * 1000)


def _totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    states = [row["state"] for row in rows]
    return {
        "ranges_by_state": {state: states.count(state) for state in sorted(set(states))},
        "offsets": sum(row["offsets"] for row in rows),
        "rows": sum(row["rows"] or 0 for row in rows),
        "bytes": sum(row["bytes"] or 0 for row in rows),
    }


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
    print_table(f"{len(rows)} ranges of {topic} by {document['selected_by']}", columns, shown)
    if len(rows) > SHOWN:
        OUT.print(f"and {len(rows) - SHOWN} more; --json has them all")
    states = ", ".join(f"{count} {state}" for state, count in document["ranges_by_state"].items())
    OUT.print(
        f"{states}; {document['offsets']:,} offsets, of which {document['rows']:,} rows and {size_text(document['bytes'])} are "
        "landed",
        soft_wrap=True,
    )
    if document["left_out"]:
        OUT.print(f"{len(document['left_out'])} are left out: lost or abandoned (`offsetlake losses {topic}`)")
    unknown = document["ranges_by_state"].get("pending", 0)
    if document["selected_by"] == "time" and unknown:
        OUT.print(
            f"{unknown} of them are not landed: of what time their records are is known once they are", soft_wrap=True
        )
    if not launch:
        OUT.print("nothing was launched; add --launch")


def _check_alive(
    topic: Topic, backfill_id: str, state: BackfillState, total: int, instance: dg.DagsterInstance
) -> None:
    silent_seconds = read_silence(instance, time.time())
    if silent_seconds is None or silent_seconds > GIVE_UP_SECONDS:
        raise DaemonUnavailable(
            f"backfill {backfill_id} of topic {topic.name} is launched, but Dagster's daemon has said nothing for "
            f"{duration_text(silent_seconds)}; {len(state.done)} of {total} ranges are done; start the daemon and it goes on, "
            "or cancel it on Dagster's page of backfills"
        )


def _follow(topic: Topic, backfill_id: str, keys: Sequence[str], instance: dg.DagsterInstance, *, quiet: bool) -> None:
    """Shows how far it is until it has ended; leaving with Ctrl-C leaves the backfill alone."""
    state: BackfillState | None = None
    with progress(f"backfill {backfill_id}", len(keys)) as shown:
        for state in follow_backfill(topic, backfill_id, keys, instance):
            shown.update(len(state.done), f"backfill {backfill_id}: {state.status.lower()}, {state.runs} runs")
            if not state.has_ended:
                _check_alive(topic, backfill_id, state, len(keys), instance)
                time.sleep(POLL_SECONDS)
    assert state is not None
    if not state.has_succeeded:
        missing = sorted(set(keys) - state.done)
        raise RangesFailed(
            f"backfill {backfill_id} of topic {topic.name} ended as {state.status}: {len(state.done)} of {len(keys)} ranges "
            "are landed or as they were; its runs in Dagster say why, and the sensor asks again for what is not landed",
            missing[:20],
        )
    if not quiet:
        OUT.print(f"backfill {backfill_id} has ended: {len(state.done)} ranges in {state.runs} runs", soft_wrap=True)
