"""What a run's process loads before it does anything: it costs CPU once per run."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import subprocess
import sys


def count_frozen(answers: multiprocessing.SimpleQueue[int]) -> None:
    """Load Dagster and then this package, and tell how much the collector does not look at."""
    for name in ("dagster", "pipeline_defs"):
        importlib.import_module(name)
    answers.put(gc.get_freeze_count())


def test_a_process_of_a_run_searches_dagster_for_no_garbage() -> None:
    """Dagster spawns a process per run, as here; what it has loaded when it loads this package stays."""
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.SimpleQueue()
    child = spawn.Process(target=count_frozen, args=(answers,))
    child.start()
    frozen = answers.get()
    child.join()
    assert frozen > 10_000
    assert gc.get_freeze_count() == 0, "the control: this process was not spawned so, and ends as any other"


def test_definitions_load_nothing_that_few_runs_need() -> None:
    """Spark's client and what it needs is loaded by the first scan; DuckDB by who asks a question of the lake."""
    late = ["duckdb", "pandas", "grpc_status", "pyspark.sql.connect", "confluent_kafka", "pipeline_defs.cli"]
    code = f"import sys, pipeline_defs.definitions; print([name for name in {late} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
