"""`offsetlake doctor`: what this machine lacks, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable

import click

from ..core.durability import Durability
from ..core.errors import OffsetlakeError
from ..definitions import load_topics
from ..edges.jars import resolve_jars
from ..edges.java import find_java
from ..launching import open_instance
from ..resources import Edges
from .show import json_option, open_edges, print_json, print_table


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check Java, jars, broker, lake, Dagster home and topics. Exit code 1 where something is wrong.

    The last lines say of each topic what the loss of a broker would take: a risk is no error.

    \b
    Example:
      offsetlake doctor
    """
    edges = open_edges()
    questions: dict[str, Callable[[], str]] = {
        "java": lambda: str(find_java()),
        "jars": lambda: f"{len(resolve_jars('spark', edges.settings.jars))} in {edges.settings.jars}",
        "broker": lambda: _ask_broker(edges),
        "lake": lambda: _ask_lake(edges),
        "dagster home": lambda: _ask_dagster(edges),
        "topics": lambda: _ask_topics(edges),
    }
    answers: dict[str, tuple[bool, str]] = {}
    for name, question in questions.items():
        if name == "topics" and not answers["broker"][0]:
            answers[name] = False, "not asked: the broker does not answer"  # waiting twice tells nothing more
        else:
            answers[name] = _ask(question)
    durable = read_durabilities(edges) if answers["topics"][0] else {}
    if as_json:
        found = [{"what": name, "ok": ok, "found": found} for name, (ok, found) in answers.items()]
        risks = [{"what": f"topic {name}", "ok": True, "found": list(each.risks)} for name, each in durable.items()]
        print_json([*found, *risks])
    else:
        rows = [(name, "ok" if ok else "WRONG", found) for name, (ok, found) in answers.items()]
        for name, each in durable.items():
            rows += [(f"topic {name}", "risk", risk) for risk in each.risks] or [(f"topic {name}", "ok", each.promise)]
        print_table("doctor", ["what", "", "found"], rows)
    if not all(ok for ok, _ in answers.values()):
        raise SystemExit(1)


def _ask(question: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, question()
    except OffsetlakeError as error:
        return False, str(error)


def _ask_broker(edges: Edges) -> str:
    topics = edges.kafka().list_topics()  # first: what is wrong of its address or the properties file is said here
    return f"{edges.bootstrap_servers()} answers over {edges.access().properties}, {len(topics)} topics"


def _ask_lake(edges: Edges) -> str:
    edges.check_lake()
    return f"{edges.settings.lake} can be written"


def _ask_dagster(edges: Edges) -> str:
    with open_instance(edges.settings.dagster_home) as instance:
        return f"{edges.settings.dagster_home}, {instance.get_runs_count()} runs"


def read_durabilities(edges: Edges) -> dict[str, Durability]:
    """Read of each topic what the loss of a broker would take."""
    return {name: edges.kafka(topic).read_durability(name) for name, topic in sorted(load_topics().items())}


def _ask_topics(edges: Edges) -> str:
    found = []
    for name, topic in sorted(load_topics().items()):
        topic_id = edges.kafka(topic).read_topic_id(name)
        found.append(
            name if topic_id else f"{name} (no topic id: recreation shows only as an end offset below the head)"
        )
    return ", ".join(found) or "none configured: add assets/<topic>/defs.yaml"
