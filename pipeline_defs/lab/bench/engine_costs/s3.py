"""An S3-compatible server on loopback, with a bucket `lake`, and what tells obstore and Hadoop where it is."""

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ....adapters.spark.spark_knock import LOOPBACK
from ....adapters.system.processes import free_ports, spawn_process, stop_process
from ...waiting import wait_until_ready

BUCKET = "lake"
KEY, SECRET = "someone", "secret"


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Give the server's address while it runs, its log in a folder; raise `NotMeasured` where it does not."""
    (port,) = free_ports(1)
    url = f"http://{LOOPBACK}:{port}"
    log = folder / "s3.log"
    moto = Path(sys.executable).with_name("moto_server")
    server = spawn_process([str(moto), "-H", LOOPBACK, "-p", str(port)], log=log)
    try:
        wait_until_ready(lambda: _make_bucket(url), server, log)
        yield url
    finally:
        stop_process(server, 5)


def _make_bucket(url: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=5):  # noqa: S310 (ours)
            return True
    except urllib.error.URLError:
        return False


def s3_environment(url: str) -> Mapping[str, str]:
    """Return what tells obstore where S3 is, as its users do: the environment."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def s3a_conf(url: str) -> Mapping[str, str]:
    """Return what tells the executors of a cluster where S3 is, as its operators do: the server's configuration."""
    return {
        "spark.hadoop.fs.s3a.endpoint": url,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
