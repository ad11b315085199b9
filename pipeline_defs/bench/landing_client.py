"""The run's process that `driver_bytes.py` counts the bytes of: it plans and lands one topic, as its environment says where.

It takes the topic and how many records a range has, and prints how many bytes the landed files have; it ends with an error
where a range is not landed.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from ..attempt import Attempt
from ..core.errors import RangesFailed
from ..core.planning import Policy
from ..core.verdicts import Outcome
from ..landing import land
from ..resources import Edges
from ..settings import read_settings
from ..topics import Topic
from .systems import plan_all


def land_all(topic: Topic) -> int:
    """Plan and land all that a topic holds, by the environment's settings; return how many bytes the landed files have."""
    edges = Edges(read_settings(project=Path.cwd()))
    edges.check_lake()
    pyspark = edges.pyspark()
    plan_all(topic, edges)
    keys = [offsets.key for offsets in edges.lake.coverage(topic.name).pending()]
    attempt = Attempt(f"bench-{uuid.uuid4().hex[:8]}", "bench", "bench")
    verdicts = list(land(topic.name, keys, attempt, edges.tools(topic, pyspark)))
    edges.engine(pyspark).close()
    red = [each for each in verdicts if each.outcome is not Outcome.LANDED]
    if red:
        raise RangesFailed("the benchmark's own landing failed", [text for each in red for text in each.violations])
    files = [each.manifest.file for each in verdicts if each.manifest is not None]
    return sum(file.bytes for file in files if file is not None)


if __name__ == "__main__":
    sys.stdout.write(f"{land_all(Topic(sys.argv[1], Policy(records_per_range=int(sys.argv[2]))))}")
