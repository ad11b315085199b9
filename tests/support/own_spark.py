"""A Spark that is a user's own, with jars and settings that it finds in its defaults, as `--packages` gives them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.killing import QUICK_JVM


def spark_defaults(folder: Path, jars: Sequence[Path], conf: Mapping[str, str]) -> Mapping[str, str]:
    """Write the defaults of a small Spark below a folder; return the variables by which it finds them and starts quickly."""
    folder.mkdir()
    settings = {
        **conf,
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # by which Delta lists: 10,000 tasks
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraClassPath": os.pathsep.join(map(str, jars)),
    }
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return {"SPARK_CONF_DIR": str(folder), "JDK_JAVA_OPTIONS": QUICK_JVM}
