"""What Dagster loads: the topics of a project, and the adapters they run on.

`build_defs` makes a fresh Definitions each time; tests pass their own `Adapters`. A wrong defs.yaml affects no other topic,
except where definitions are only checked (`dg check defs`): there it is the error.
"""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from .adapters.system.project_folder import PROJECT, check_home, find_project, is_validating
from .core.errors import BadSetting, TopicsFailed
from .operate.alerts import build_failure_sensor, build_watch
from .orchestration.home.run_locks import hold_own_lock
from .orchestration.pulse.pulse import build_pulse
from .orchestration.topic_defs import build_topic_defs
from .orchestration.topic_set import Broken
from .orchestration.upkeep.housekeeping import build_housekeeping
from .resources import Adapters
from .settings import read_settings
from .topic_files import load_topics
from .topics import BROKEN_TOPICS


def build_defs(
    adapters: Adapters | None = None, *, project: Path | None = None, topics: dg.Definitions | None = None
) -> dg.Definitions:
    """Build the definitions of a project, by default the current folder's; `topics` replaces the project's own."""
    hold_own_lock()
    project = project or find_project()
    if adapters is None:
        check_home(project)
        adapters = Adapters(read_settings(project=project))
    if topics is None:
        found = load_topics(project, adapters)
        if found.broken and is_validating():
            raise BadSetting("; ".join(each.error.message for each in found.broken))
        known = [*found.topics.values()]
        matched = [build_topic_defs(found.topics[name], adapters.settings.lake) for name in sorted(found.found)]
        topics = dg.Definitions.merge(
            found.tree.build_defs(),
            *matched,
            build_pulse(known, found),
            build_watch(known, found.broken),
            build_housekeeping(known),
            build_broken(found.broken),
        )
    return dg.Definitions.merge(
        topics,
        dg.Definitions(sensors=[build_failure_sensor()]),
        dg.Definitions(resources={"adapters": adapters, "pyspark": adapters.pyspark()}, executor=dg.in_process_executor),
    )


def build_broken(broken: Sequence[Broken]) -> dg.Definitions:
    """Build a sensor that fails at each tick while a defs.yaml cannot be used, so that Dagster and `up` tell which one."""
    said = [f"{each.name}: {each.error.message}" for each in broken]

    @dg.sensor(
        name=BROKEN_TOPICS,
        description="Fails while a defs.yaml cannot be used; other topics go on.",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def tell() -> dg.SkipReason:
        if said:
            raise TopicsFailed("some files cannot be used; other topics go on", said)
        return dg.SkipReason("all files can be used")

    return dg.Definitions(sensors=[tell])


@dg.definitions
def defs() -> dg.Definitions:
    """Return the code location `offsetlake`."""
    return build_defs(project=PROJECT)
