"""Bytes through the run's process and Spark's driver for each byte that is landed, on a cluster whose lake is in a bucket.

What anybody says to the store, and the run's process and the driver to each other, goes through proxies that count. The
control is a Spark in the run's own process on the same store, which uploads each byte.
"""

from collections.abc import Mapping
from dataclasses import replace

from ....adapters.spark.spark_liveness import LOOPBACK
from ....adapters.system.jars import resolve_jars
from ....settings import IN_PROCESS
from ...processes import NotMeasured, variables_of
from ..measurement import Bench, Tell
from ..rounds import Load, spread
from . import clients
from .client_cost import run_client
from .loopback import BUCKET, CountingProxy, s3_environment, s3_server, s3a_conf
from .spark_cluster import SparkCluster

LOAD = Load("bench-10000", 10_000, 9_000, 3_000, 1)  # zstd halves it: files of more than 10 MB


def measure_driver_bytes(bench: Bench, tell: Tell) -> dict[str, object]:
    """Land the same ranges once by a cluster and once, as the control, in process; return both shares."""
    folder = bench.folder / "cluster"
    folder.mkdir()
    bench.fill(LOAD, tell)
    tell("driver bytes: jars for S3, some 560 MB, fetched once")
    jars = [*resolve_jars("spark", bench.adapters.settings.jars), *resolve_jars("s3a", bench.adapters.settings.jars)]
    tell("driver bytes: starting a cluster")
    with s3_server(folder) as s3, CountingProxy(s3) as store:
        with SparkCluster(folder / "spark", jars, s3a_conf(store.url)) as cluster:
            tell("driver bytes: landing by the cluster")
            found = count_driver_bytes(bench, cluster, store)
        tell("driver bytes: the control")
        control = count_control(bench, store)
    return {
        "measured": (
            f"{LOAD.ranges_text}, landed by a cluster of two workers into an S3-compatible server: bytes that the run's "
            "process and Spark's driver exchange with the store and with each other, for each byte of the landed files; the "
            "control is a Spark in the run's own process"
        ),
        "per_landed_byte": spread([found]),
        "control": spread([control]),
    }


def count_driver_bytes(bench: Bench, cluster: SparkCluster, store: CountingProxy) -> float:
    """Land by a cluster; return the share of bytes that pass the run's process and Spark's driver."""
    with CountingProxy(f"http://{LOOPBACK}:{cluster.port}") as connect, connect.counting() as said, store.counting() as seen:
        url = cluster.url.replace(f":{cluster.port}/", f":{connect.port}/")
        pid, landed = _land(bench, {"OFFSETLAKE_SPARK_REMOTE": url}, "by-cluster", store)
    ours = seen[pid] + seen[cluster.processes["server"].pid]
    if not seen[pid] or not said or seen.total() - ours < landed:
        raise NotMeasured(f"of {landed:,} bytes landed the proxies saw {dict(seen)} and {dict(said)}, by process")
    return (ours + said.total()) / landed


def count_control(bench: Bench, store: CountingProxy) -> float:
    """Land by a Spark in the run's process; return the same share, which is 1 or more."""
    with store.counting() as seen:
        _, landed = _land(bench, {"OFFSETLAKE_ENGINE": IN_PROCESS}, "in-process", store)
    if seen.total() < landed:
        raise NotMeasured(f"of {landed:,} bytes that were uploaded the proxy saw {dict(seen)}, by process")
    return seen.total() / landed


def _land(bench: Bench, spark: Mapping[str, str], lake: str, store: CountingProxy) -> tuple[int, int]:
    """Land by a process of its own; return its id and the bytes of the landed files."""
    # Dagster's home remembers where the topic is landed
    own = replace(bench.adapters.settings, home=bench.folder, dagster_home=bench.folder / lake, lake=f"s3://{BUCKET}/{lake}")
    environment = {**variables_of(own), **s3_environment(store.url), **spark}
    given = {"name": LOAD.topic, "records_per_range": LOAD.records_per_range}
    return run_client(clients.land_all, bench.folder, environment, **given)
