"""A Dagster code location for the benchmark: some topics, their own lake and broker, and a mark at every step.

Marks are lines of JSON with a time, appended by every process of that Dagster. Nothing here comes from the environment.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg

from ...core.log.cutting import Policy
from ...core.steps import StepWatcher
from ...operate.alerts import build_watch
from ...orchestration.pulse.pulse import build_pulse
from ...orchestration.topic_defs import build_topic_defs
from ...orchestration.upkeep.housekeeping import build_housekeeping
from ...resources import Adapters
from ...settings import Settings
from ...topics import Topic

_CODE = """from pathlib import Path

from {module} import {name}

defs = {name}(Path(__file__).parent)
"""


def write_location(folder: Path, settings: Settings, *topics: Topic, built_by: str = f"{__name__}.build_location") -> Path:
    """Write a workspace with this location below a folder of its own; return the workspace's path.

    `built_by` is the function that the location calls with the folder for its definitions.
    """
    folder.mkdir()
    document = {"settings": asdict(settings), "topics": {each.name: asdict(each.policy) for each in topics}}
    (folder / "location.json").write_text(json.dumps(document, default=str))
    module, _, name = built_by.rpartition(".")
    (folder / "location.py").write_text(_CODE.format(module=module, name=name))
    workspace = folder / "workspace.yaml"
    workspace.write_text("load_from:\n  - python_file: {relative_path: location.py, location_name: offsetlake}\n")
    return workspace


def build_location(folder: Path, watch_step: StepWatcher | None = None) -> dg.Definitions:
    """Build the definitions that `write_location` described; steps are marked unless somebody else watches them."""
    document = json.loads((folder / "location.json").read_text())
    given: dict[str, Any] = document["settings"]
    given |= {"home": Path(given["home"]), "dagster_home": Path(given["dagster_home"])}
    settings = Settings(**given)
    adapters = Adapters(settings, watch_step=watch_step or partial(mark, folder))
    topics = [Topic(name, Policy(**policy)) for name, policy in document["topics"].items()]
    return dg.Definitions.merge(
        *(build_topic_defs(topic, settings.lake) for topic in topics),
        build_pulse(topics),
        build_watch(topics),
        build_housekeeping(topics),
        dg.Definitions(resources={"adapters": adapters, "pyspark": adapters.pyspark()}, executor=dg.in_process_executor),
    )


def mark(folder: Path, step: str, **fields: object) -> None:
    """Append one mark; a line is one write, so processes do not tear each other's."""
    with (folder / "marks.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.time(), "step": step, **fields}, default=str) + "\n")


def read_marks(folder: Path) -> list[Mapping[str, Any]]:
    """Read the marks so far, in order of time."""
    path = folder / "marks.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted((json.loads(line) for line in lines), key=lambda line: float(line["at"]))
