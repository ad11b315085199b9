"""Spark's Python workers: which Python they are."""

from __future__ import annotations

import sys


def use_this_python() -> None:
    """Have workers be the Python that this is: pyspark's own default need not be the one that has our packages."""
    from pyspark import SparkContext

    context = SparkContext.getOrCreate()
    if context.pythonExec == "python3":
        context.pythonExec = sys.executable
