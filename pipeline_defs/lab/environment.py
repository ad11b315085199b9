"""The environment of processes that are run with settings of their own."""

import os

from ..settings import Settings

OURS = ("OFFSETLAKE_", "DAGSTER_")


def plain_environment(*others: str) -> dict[str, str]:
    """Return this process's environment without our variables and Dagster's, and without those of other prefixes."""
    return {name: value for name, value in os.environ.items() if not name.startswith((*OURS, *others))}


def variables_of(settings: Settings) -> dict[str, str]:
    """Return the variables of a machine's settings; all of them, so that its commands share one warm Spark."""
    return {
        "DAGSTER_HOME": str(settings.dagster_home),
        "OFFSETLAKE_HOME": str(settings.home),
        "OFFSETLAKE_LAKE": settings.lake,
        "OFFSETLAKE_BOOTSTRAP_SERVERS": str(settings.bootstrap_servers),
        "OFFSETLAKE_SPARK_MASTER": settings.spark_master,
        "OFFSETLAKE_SPARK_DRIVER_MEMORY": settings.spark_driver_memory,
    }
