"""A process to be killed: runs one tick, or lands or replaces through Dagster, and stands still at a named protocol step.

It prints `REACHED <step>` and waits; the parent proves the half-done state, then sends SIGKILL, or a line to go on.
Usage: `python -m tests.support.crash_child SETTINGS_JSON`.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from pathlib import Path
from typing import Any

from pipeline_defs.component import build_topic_defs
from pipeline_defs.core.delivery import Delivery
from pipeline_defs.core.planning import Policy
from pipeline_defs.launching import land_through_dagster, open_instance
from pipeline_defs.resources import Edges
from pipeline_defs.sensors import run_tick
from pipeline_defs.settings import Settings
from pipeline_defs.topics import Topic


def describe(settings: Settings, topic: Topic, action: str, step: str, nth: int) -> str:
    """Is the argument that makes a child do `action` and stop at the `nth` passing of `step`."""
    plain = {name: str(value) for name, value in dataclasses.asdict(settings).items()}
    return json.dumps(
        {
            "settings": plain,
            "topic": topic.name,
            "policy": dataclasses.asdict(topic.policy),
            "delivery": topic.delivery,
            "action": action,
            "step": step,
            "nth": nth,
        }
    )


def main(argument: str) -> None:
    task = json.loads(argument)
    given: dict[str, Any] = task["settings"]
    for name in ("home", "dagster_home"):
        given[name] = Path(given[name])
    passed = 0

    def watch(step: str, **fields: object) -> None:
        nonlocal passed
        passed += step == task["step"]
        if step == task["step"] and passed == task["nth"]:
            print(f"REACHED {step}", flush=True)
            sys.stdin.readline()

    edges = Edges(Settings(**given), watch_step=watch)
    topic = Topic(task["topic"], Policy(**task["policy"]), delivery=Delivery(task["delivery"]))
    with open_instance(edges.settings.dagster_home) as instance:
        if task["action"] == "tick":
            run_tick(topic, instance, edges)
            watch("tick_requested")
        else:
            coverage, replace = edges.lake.coverage(topic.name), task["action"] == "replace"
            ranges = sorted(coverage.manifests) if replace else coverage.pending()
            how: dict[str, Any] = {"redo": True, "on_change": "replace"} if replace else {"redo": False}
            for launched in land_through_dagster(topic, ranges, edges, instance, topics=build_topic_defs(topic), **how):
                print(f"ENDED {launched.succeeded} {launched.reason}", flush=True)
    print("FINISHED", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(sys.argv[1])
