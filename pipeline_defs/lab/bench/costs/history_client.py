"""A process that opens a long history, ticks over it, or lands what is new of it; it prints the seconds that took, in order.

`open` reads the topic's coverage. `tick` is two of a code server: the first one plans, since the second one nothing
has happened. `run` lands what is pending through Dagster, from the start of the process on.
"""

import json
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

STARTED = time.monotonic()


def measure(what: str, name: str) -> list[float]:
    """Do it for a topic of the project in the current folder, by the environment's settings; return the seconds."""
    from ....cli.launching import InProcessRuns, choose_ranges
    from ....orchestration.home.dagster_home import open_instance
    from ....orchestration.pulse.ticking import run_tick
    from ....resources import Edges
    from ....settings import read_settings
    from ....topic_files import load_topics

    edges = Edges(read_settings(project=Path.cwd()))
    topic = load_topics(Path.cwd()).topics[name]
    began = time.monotonic()
    if what == "open":
        edges.lake.recent(name)
        return [time.monotonic() - began]
    with open_instance(edges.settings.dagster_home) as instance:
        if what == "tick":
            moments = [time.monotonic()]
            for _ in range(2):
                run_tick(replace(topic, policy=replace(topic.policy, budget=10)), instance, edges)
                moments.append(time.monotonic())
            return [end - start for start, end in pairwise(moments)]
        ranges = choose_ranges(topic, (), edges)
        assert ranges, "the tick has planned them"
        assert all(each.succeeded for each in InProcessRuns(topic, edges, instance).land(ranges, redo=False))
    return [time.monotonic() - STARTED]


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"seconds": measure(sys.argv[1], sys.argv[2])}))
