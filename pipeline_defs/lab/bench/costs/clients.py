"""What a measurement has done by a process of its own, which knows no more than it is told, and imports no more than it needs.

A function is told what to do through standard input, as the Spark server's token is nobody's to see; the last line that is
printed is what it returns. A parent cannot ask for its peak of memory: Linux counts to a child what the parent itself had when
it started it.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

STARTED = time.monotonic()


def stage(url: str, bootstrap_servers: str, topic: str, ranges: Sequence[Sequence[int]], out: str) -> None:
    """Stage ranges, each as generation, partition, start and end, in one scan by the warm Spark; no Dagster."""
    from ....adapters.spark.engine import Engine
    from ....adapters.spark.spark import Spark
    from ....core.landing.scans import group_scans
    from ....core.offsets import OffsetRange, TopicRange

    (scan,) = group_scans(TopicRange(topic, OffsetRange(*each)) for each in ranges)
    Spark(Engine(lambda: url), bootstrap_servers).stage(scan, "read_committed", out)


def land_all(name: str, records_per_range: int) -> int:
    """Plan and land all that a topic holds, by the environment's settings; return how many bytes the landed files have."""
    from ....core.log.cutting import Policy
    from ....topics import Topic
    from ..systems import land_pending, plan_all

    topic, adapters = Topic(name, Policy(records_per_range=records_per_range)), _open_adapters()
    adapters.check_lake()
    pyspark = adapters.pyspark()
    plan_all(topic, adapters)
    verdicts = land_pending(topic, adapters, adapters.tools(topic, pyspark))
    adapters.engine(pyspark).close()
    files = [each.manifest.file for each in verdicts if each.manifest is not None]
    return sum(file.bytes for file in files if file is not None)


def open_history(name: str) -> tuple[list[float], int]:
    """Read the coverage of a topic of the project in the current folder; return the seconds, and the peak of memory."""
    adapters, began = _open_adapters(), time.monotonic()
    adapters.lake.recent(name)
    return [time.monotonic() - began], _read_peak()


def tick_twice(name: str) -> tuple[list[float], int]:
    """Tick as a code server does: the first time plans, since the second one nothing has happened."""
    from ....orchestration.home.dagster_home import open_instance
    from ....orchestration.pulse.ticking import run_tick
    from ....topic_files import load_topics

    adapters, topic = _open_adapters(), load_topics(Path.cwd()).topics[name]
    with open_instance(adapters.settings.dagster_home) as instance:
        moments = [time.monotonic()]
        for _ in range(2):
            run_tick(replace(topic, policy=replace(topic.policy, budget=10)), instance, adapters)
            moments.append(time.monotonic())
    return [end - start for start, end in pairwise(moments)], _read_peak()


def run_pending(name: str) -> tuple[list[float], int]:
    """Land what is pending through Dagster, from the start of the process on."""
    from ....cli.launching import InProcessRuns, choose_ranges
    from ....orchestration.home.dagster_home import open_instance
    from ....topic_files import load_topics

    adapters, topic = _open_adapters(), load_topics(Path.cwd()).topics[name]
    with open_instance(adapters.settings.dagster_home) as instance:
        ranges = choose_ranges(topic, (), adapters)
        assert ranges, "the tick has planned them"
        assert all(each.succeeded for each in InProcessRuns(topic, adapters, instance).land(ranges, redo=False))
    return [time.monotonic() - STARTED], _read_peak()


def run_command(words: Sequence[str]) -> tuple[list[float], int]:
    """Run the command `offsetlake`; how long its whole process takes is for whoever started it to say."""
    from ....cli import main

    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    return [], _read_peak()


def _open_adapters() -> Any:
    from ....resources import Adapters
    from ....settings import read_settings

    return Adapters(read_settings(project=Path.cwd()))


def _read_peak() -> int:
    from ..usage import read_peak_bytes  # late: what it imports is not of what is measured

    return read_peak_bytes(os.getpid())


if __name__ == "__main__":
    answer = globals()[sys.argv[1]](**json.load(sys.stdin))
    sys.stdout.write(f"\n{json.dumps(answer)}")
