"""A Spark that is a user's own, with jars and settings that it finds in its defaults, as `--packages` gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline_defs.adapters.system.java import archive_options
from tests.conftest import JARS
from tests.support.killing import QUICK_JVM


def spark_defaults(folder: Path, jars: Sequence[Path], conf: Mapping[str, str]) -> Mapping[str, str]:
    """Write the defaults of a small Spark below a folder; return the variables by which it finds them and starts quickly.

    Neither the folder nor the jars are in its JVM's own class path, which is that of the class archive.
    """
    folder.mkdir()
    settings = {
        **conf,
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join(archive_options(JARS, "spark")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # by which Delta lists: 10,000 tasks
        "spark.sql.shuffle.partitions": "2",
        "spark.jars": ",".join(map(str, jars)),
    }
    defaults = folder / "spark-defaults.conf"
    defaults.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return {"PYSPARK_SUBMIT_ARGS": f"--properties-file {defaults} pyspark-shell", "JDK_JAVA_OPTIONS": QUICK_JVM}
