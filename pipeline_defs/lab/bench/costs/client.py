"""The client process that `client_cost.py` measures: a session of the warm Spark, one scan, its write; no Dagster.

It reads what to do from its standard input, as the server's token is nobody's to see, and imports no more than it needs.
"""

import json
import sys

from ....adapters.spark.engine import Engine
from ....adapters.spark.spark import Spark
from ....core.landing.scans import group_scans
from ....core.offsets import OffsetRange, TopicRange


def stage(url: str, bootstrap_servers: str, topic: str, ranges: list[list[int]], folder: str) -> None:
    """Stage ranges, each as generation, partition, start and end, in one scan."""
    (scan,) = group_scans(TopicRange(topic, OffsetRange(*each)) for each in ranges)
    Spark(Engine(lambda: url), bootstrap_servers).stage(scan, "read_committed", folder)


if __name__ == "__main__":
    stage(**json.load(sys.stdin))
