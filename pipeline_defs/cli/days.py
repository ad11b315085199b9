"""`offsetlake days`: event days brought up to date, through Dagster, in this process."""

from __future__ import annotations

import logging

import click

from ..core.calendar import parse_day
from ..core.day_verdicts import DayDecided
from ..core.days import Days
from ..core.errors import BadKey, BadSetting
from ..day_situation import read_days
from ..days_launching import LaunchedDays, update_through_dagster
from ..launching import open_instance
from ..steps import StepWatcher
from ..topics import Topic
from .progress import Shown, progress
from .runs import print_runs
from .show import find_topic, open_edges, topic_argument
from .terminal import OUT


@click.command()
@topic_argument
@click.option("--day", "chosen", multiple=True, metavar="DAY", help="Make this day anew from all its ranges.")
@click.option("--whole", is_flag=True, help="Make every day anew from all its ranges.")
def days(topic: str, chosen: tuple[str, ...], whole: bool) -> None:
    """Bring a topic's event days up to date with its decoded ranges; a day that is up to date stays as it is.

    \b
    Examples:
      offsetlake days flights
      offsetlake days flights --day 2013-01-01
      offsetlake days flights --whole
    """
    configured, edges = find_topic(topic), open_edges()
    settings = _days_of(configured)
    edges.check_lake(topic)
    situation = read_days(topic, settings, edges.day_files, edges.decodings)
    now_ms = edges.now_ms()
    if whole:
        wanted = sorted(day for day in situation.days if settings.place(day, now_ms) == "held")
    else:
        wanted = [_checked(day, settings, now_ms) for day in chosen]
    wanted = wanted or situation.due(settings, now_ms)
    if not wanted:
        OUT.print(f"no day of {topic} is due; {len(situation.states)} are up to date")
        return
    logging.getLogger("dagster").setLevel(logging.ERROR)
    redo = bool(chosen) or whole
    with open_instance(edges.settings.dagster_home) as instance, progress(f"days of {topic}", len(wanted)) as shown:
        edges.watch_step = shown.watching(_watch(topic, shown))
        runs = update_through_dagster(configured, wanted, edges, instance, redo=redo)
        print_runs(topic, runs, _words, "what is up to date stays so")


def _words(run: LaunchedDays) -> str:
    first, last = run.days[0], run.days[-1]
    return f"brought up to date {first if first == last else f'{len(run.days)} days from {first} to {last}'}"


def _days_of(topic: Topic) -> Days:
    if topic.days is None:
        raise BadSetting(
            f"topic {topic.name} has no `days` in its defs.yaml; nothing was read or written; add `days: {{start: 2013-01-01}}`"
        )
    return topic.days


def _checked(day: str, settings: Days, now_ms: int) -> str:
    try:
        if settings.place(parse_day(day), now_ms) == "held":
            return day
    except ValueError:
        pass
    raise BadKey(
        f"day {day!r} is none of this topic's: expected one from {settings.start} to today, such as {settings.start}; nothing "
        "was read or written"
    )


def _watch(topic: str, shown: Shown) -> StepWatcher:
    def on_step(step: str, **fields: object) -> None:
        if step == "reported_day" and fields["outcome"] != DayDecided.UP_TO_DATE.value:
            shown.advance()
        elif step == "read_decoded":
            shown.update(text=f"days of {topic}, Spark writes {fields['days']} days from {fields['ranges']} ranges")
        elif step == "stage_days":
            shown.update(text=f"days of {topic}")

    return on_step
