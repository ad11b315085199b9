"""The comparison of all history with what Dagster shows of it, in a process of its own: a tick looks at what is newer alone.

Only topics are compared of which a frontier document sums something up; of others each tick compares all.
"""

from collections.abc import Mapping, Sequence

import dagster as dg

from ...resources import Edges
from ...topics import Topic
from ..runs.projection import ACTIVE, FAILED
from ..runs.visiting import do_for_each
from .rebuilding import rebuild_topic

COMPARE = "compare_with_lake"
COMPARE_EVERY_MS = 3_600_000
AGAIN_MS = 600_000


def build_comparison(topics: Sequence[Topic]) -> dg.JobDefinition:
    """Build the job that compares the topics of a code location."""
    description = (
        "Compares all that the lake has of each topic with what Dagster shows, and tells it what it lacks. The sensor of the "
        "topics asks for it when it starts, and every hour; a plan log that has lost steps fails it."
    )

    @dg.op(name="compare_history", description=description)
    def compare(context: dg.OpExecutionContext, edges: dg.ResourceParam[Edges]) -> None:
        def compare_one(topic: Topic) -> None:
            if edges.lake.frontiers.has(topic.name):
                found = rebuild_topic(topic, edges, context.instance)
                context.log.info("step=compared topic=%s keys=%s events=%s", topic.name, found.keys, found.events)

        do_for_each(topics, edges, compare_one)

    @dg.job(name=COMPARE, description=description)
    def compare_with_lake() -> None:
        compare()

    return compare_with_lake


def is_comparison_due(topics: Sequence[Topic], tags: Mapping[str, str], instance: dg.DagsterInstance, edges: Edges) -> bool:
    """Return whether a comparison is to be made: none with these tags was since this process began to tick, or for an hour.

    One that failed is made again after ten minutes: it was killed, or found what a person has to mend.
    """
    if not any(edges.lake.frontiers.has(topic.name) for topic in topics):
        return False
    record = next(iter(instance.get_run_records(dg.RunsFilter(job_name=COMPARE, tags={**tags}), limit=1)), None)
    if record is None:
        return True
    asked_ms, now_ms = record.create_timestamp.timestamp() * 1000, edges.now_ms()
    every_ms = AGAIN_MS if record.dagster_run.status in FAILED else COMPARE_EVERY_MS
    is_set_back = edges.opened_ms > now_ms  # the clock, since this process began: it does not say who came first
    is_recent = (asked_ms >= edges.opened_ms or is_set_back) and abs(now_ms - asked_ms) < every_ms
    return not is_recent and record.dagster_run.status not in ACTIVE
