"""An S3-compatible server on loopback, with a bucket `lake`, and what tells obstore and Hadoop where it is."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline_defs.edges.processes import free_ports

START_SECONDS = 60
KEY, SECRET = "someone", "secret"


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Give the server's address while it runs."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    log = (folder / "log").open("wb")
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    with log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(urllib.request.Request(f"{url}/lake", method="PUT"), timeout=5):  # noqa: S310
                    break
            except urllib.error.URLError:
                assert time.monotonic() < deadline and server.poll() is None
        try:
            yield url
        finally:
            server.terminate()


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
