"""Which topics a project has, by its defs.yaml files and, where one has a pattern, by the lake; nothing is built of them."""

import sys
from collections.abc import Sequence
from pathlib import Path

from .resources import Edges
from .settings import find_project, is_validating, read_settings
from .topic_files import TopicFiles, read_topic_files


def load_topics(project: Path | None = None, edges: Edges | None = None) -> TopicFiles:
    """Read the topics of a project, without starting anything; a wrong defs.yaml hides no other topic.

    Where one has a pattern, the lake is asked which topics it has.
    """
    project = _importable(project or find_project())

    def planned() -> Sequence[str]:
        if is_validating():
            return ()  # what is checked are the files
        return (edges or Edges(read_settings(project=project))).lake.planned_topics()

    return read_topic_files(project, planned)


def _importable(project: Path) -> Path:
    """Have the project's own package be found: it is not installed."""
    if str(project) not in sys.path:
        sys.path.insert(0, str(project))
    return project
