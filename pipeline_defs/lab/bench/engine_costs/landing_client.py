"""The run's process that `driver_bytes.py` counts the bytes of: it plans and lands one topic, as its environment says where.

It takes the topic and how many records a range has, and prints how many bytes the landed files have; it ends with an error
where a range is not landed.
"""

import sys
from pathlib import Path

from ....core.log.planning import Policy
from ....resources import Edges
from ....settings import read_settings
from ....topics import Topic
from ..systems import land_pending, plan_all


def land_all(topic: Topic) -> int:
    """Plan and land all that a topic holds, by the environment's settings; return how many bytes the landed files have."""
    edges = Edges(read_settings(project=Path.cwd()))
    edges.check_lake()
    pyspark = edges.pyspark()
    plan_all(topic, edges)
    verdicts = land_pending(topic, edges, edges.tools(topic, pyspark))
    edges.engine(pyspark).close()
    files = [each.manifest.file for each in verdicts if each.manifest is not None]
    return sum(file.bytes for file in files if file is not None)


if __name__ == "__main__":
    sys.stdout.write(f"{land_all(Topic(sys.argv[1], Policy(records_per_range=int(sys.argv[2]))))}")
