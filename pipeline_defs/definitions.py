"""What Dagster loads: the topics of a project, and the edges they run on.

`build_defs` makes a fresh Definitions each time; tests pass their own edges.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import dagster as dg
from dagster.components.core.component_tree import ComponentTreeException
from pydantic import ValidationError

from .alerts import build_failure_sensor
from .component import KafkaTopic
from .core.errors import BadSetting
from .housekeeping import build_sweep
from .resources import Edges
from .settings import PROJECT, check_home, find_project, read_settings
from .topics import Topic


def build_defs(
    edges: Edges | None = None, *, project: Path | None = None, topics: dg.Definitions | None = None
) -> dg.Definitions:
    """Builds the definitions of a project, by default the current folder's; `topics` replaces those that it has."""
    project = project or find_project()
    if edges is None:
        check_home(project)
        edges = Edges(read_settings(project=project))
    if topics is None:
        read_components(project)
    return dg.Definitions.merge(
        topics or dg.load_from_defs_folder(path_within_project=_importable(project)),
        build_sweep(),
        dg.Definitions(sensors=[build_failure_sensor()]),
        dg.Definitions(
            resources={"edges": edges, "pyspark": edges.pyspark()},
            executor=dg.in_process_executor,
        ),
    )


def load_topics(project: Path | None = None) -> dict[str, Topic]:
    """Reads the topics of a project by name, without starting or asking anything; raises `BadSetting`."""
    try:
        root = project or find_project()
        topics = [component.as_topic(root) for component in read_components(root)]
    except (ComponentTreeException, ValidationError) as error:
        cause = error.__cause__ or error
        raise BadSetting(f"a defs.yaml is wrong: {cause}; nothing was started; correct that line") from error
    return {topic.name: topic for topic in topics}


def read_components(project: Path) -> list[KafkaTopic]:
    """Read what the project's defs.yaml say, one per topic; raises `BadSetting` where two are of one topic."""
    components = dg.ComponentTree.for_project(_importable(project)).get_all_components(of_type=KafkaTopic)
    files: dict[str, list[str]] = defaultdict(list)
    for component in components:
        files[component.topic].append(component.place)
    twice = [
        f"topic {topic} in {' and '.join(sorted(found))}" for topic, found in sorted(files.items()) if len(found) > 1
    ]
    if twice:
        raise BadSetting(
            f"a topic has one defs.yaml, found more: {'; '.join(twice)}; nothing was started; take all but one of each away"
        )
    return components


def _importable(project: Path) -> Path:
    """Have the project's own package be found: it is not installed."""
    if str(project) not in sys.path:
        sys.path.insert(0, str(project))
    return project


@dg.definitions
def defs() -> dg.Definitions:
    """Is the code location `offsetlake`."""
    return build_defs(project=PROJECT)
