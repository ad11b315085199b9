"""A real Spark cluster on loopback, of the wheel's jars: a master, workers and a Connect server, each to be killed alone.

The benchmark measures on it, and the tests have it die.
"""

import json
import os
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from ....adapters.spark.spark_liveness import LOOPBACK, is_listening
from ....adapters.spark.spark_server import CONNECT_MODE, TOKEN
from ....adapters.spark.spark_serving import CONNECT_CONF
from ....adapters.system.java import find_java
from ....adapters.system.processes import Process, free_ports, read_process, spawn_process, stop_process
from ....adapters.testbed.broker import QUICK_JAVA
from ...processes import wait_until_ready

WORKERS = 2
JVM = " ".join(QUICK_JAVA)
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
CONF: Mapping[str, str] = {
    **CONNECT_CONF,
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.executor.extraJavaOptions": JVM,
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.network.timeout": "60s",
}


@dataclass
class SparkCluster:
    """A standalone master, two workers of one core and a Connect server at `port`, running while the context is open."""

    folder: Path
    jars: Sequence[Path]
    conf: Mapping[str, str] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    processes: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._master_port, self._master_page, self.port = free_ports(3)

    @property
    def url(self) -> str:
        """Address of the Connect server as OFFSETLAKE_SPARK_REMOTE takes it, token included."""
        return f"sc://localhost:{self.port}/;token={self.token}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            ports = ("--port", str(self._master_port), "--webui-port", str(self._master_page))
            self._start("master", "master.Master", "--host", LOOPBACK, *ports)
            self._wait_for("master", lambda: self._has_workers(0))
            for number in range(WORKERS):
                self.start_worker(number)
            self.start_server()
            self._wait_for("master", lambda: self._has_workers(WORKERS))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop all of it, the server first, executors too; the ids are those of processes that were started here."""
        for name in reversed(self.processes):
            for process in [*self.executors(name), self.processes[name]]:
                stop_process(process, 5)

    def start_worker(self, number: int) -> None:
        """Start a worker of one core, which the master knows a moment later."""
        self._start(
            f"worker{number}",
            *("worker.Worker", "--host", LOOPBACK, "--cores", "1", "--memory", "1g"),
            *("--webui-port", "0", "--work-dir", str(self.folder / f"work{number}")),
            f"spark://{LOOPBACK}:{self._master_port}",
        )

    def start_server(self) -> None:
        """Start the Connect server, at the same port and with the same token each time, and wait until it has executors."""
        # where they lie: of what is named as jars each executor copies half a gigabyte, twice
        classes, work = os.pathsep.join(map(str, self.jars)), self.folder / "server"
        work.mkdir(exist_ok=True)
        conf = {
            **CONF,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.extraJavaOptions": f"{JVM} -Duser.dir={work}",  # where it makes its folder `artifacts`
            "spark.driver.extraClassPath": classes,
            "spark.executor.extraClassPath": classes,
            **self.conf,
        }
        options = [each for name, value in conf.items() for each in ("--conf", f"{name}={value}")]
        master = ("--master", f"spark://{LOOPBACK}:{self._master_port}")
        self._start("server", "SparkSubmit", *master, *options, "--class", CONNECT, "spark-internal")
        self._wait_for("server", lambda: is_listening(self.url))

    def kill(self, name: str) -> None:
        """Kill a process by SIGKILL, a worker with its executors, as a machine that goes away."""
        for process in [self.processes[name], *self.executors(name)]:
            stop_process(process, 0)

    def executors(self, worker: str) -> list[Process]:
        """Process below a worker: its executors, and their Python workers."""
        process = self.processes[worker]
        if not worker.startswith("worker") or not process.is_running():
            return []
        found = (read_process(each.pid) for each in psutil.Process(process.pid).children(recursive=True))
        return [each for each in found if each is not None]

    def _has_workers(self, number: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._master_page}/json/", timeout=5) as answer:
                workers = json.load(answer)["workers"]
        except urllib.error.URLError:
            return False  # it listens in a moment
        return [worker["state"] for worker in workers].count("ALIVE") == number

    def _wait_for(self, name: str, is_ready: Callable[[], bool]) -> None:
        wait_until_ready(is_ready, self.processes[name], self.folder / f"{name}.log")

    def _start(self, name: str, main: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        environment = {
            **{key: value for key, value in os.environ.items() if key != CONNECT_MODE},
            "JAVA_HOME": str(find_java().parent.parent),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            "SPARK_DAEMON_MEMORY": "1g" if name == "server" else "256m",
            "PYSPARK_PYTHON": sys.executable,
            TOKEN: self.token,
        }
        command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{main}", *arguments]
        self.processes[name] = spawn_process(command, log=self.folder / f"{name}.log", environment=environment)
