"""Settings of one machine, read once from the environment; nothing else in the package reads it.

Secrets come only this way. What belongs to a topic is in its defs.yaml, never here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .core.errors import BadSetting

PACKAGE = Path(__file__).parent
PROJECT = PACKAGE.parent

# name -> (default, what it is); README shows this table, a test holds them together
VARIABLES: Mapping[str, tuple[str, str]] = {
    "OFFSETLAKE_BOOTSTRAP_SERVERS": (
        "the embedded broker if it runs, else localhost:9092",
        "Kafka brokers to read from, `host:port,host:port`",
    ),
    "OFFSETLAKE_LAKE": (".offsetlake/lake", "where the lake lies: a path, or a URL (s3://, gs://, az://)"),
    "OFFSETLAKE_SPARK_MASTER": ("local[*]", "Spark master"),
    "OFFSETLAKE_SPARK_DRIVER_MEMORY": ("4g", "heap of the Spark driver, as Spark writes it"),
    "OFFSETLAKE_HOME": (".offsetlake", "jars, the embedded broker and Dagster's own state"),
    "DAGSTER_HOME": (".offsetlake/dagster", "Dagster's instance folder"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Is what differs per machine. `bootstrap_servers` is none where only the embedded broker can tell it.

    `lineage` says whether OpenLineage's own client is configured: it reads its own variables and file.
    """

    home: Path
    lake: str
    bootstrap_servers: str | None
    spark_master: str
    spark_driver_memory: str
    dagster_home: Path
    lineage: bool = False

    @property
    def jars(self) -> Path:
        """Is the folder of the resolved jars."""
        return self.home / "jars"

    @property
    def broker(self) -> Path:
        """Is the folder of the embedded broker."""
        return self.home / "broker"


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the environment; refuses an `OFFSETLAKE_` variable it does not know, which is most likely a typing error."""
    env = os.environ if environment is None else environment
    unknown = sorted(name for name in env if name.startswith("OFFSETLAKE_") and name not in VARIABLES)
    if unknown:
        raise BadSetting(
            f"environment variable {unknown[0]} is not one of {', '.join(VARIABLES)}; nothing was started; correct or "
            "unset it"
        )
    home = _path(env.get("OFFSETLAKE_HOME") or ".offsetlake")
    lake = env.get("OFFSETLAKE_LAKE") or str(home / "lake")
    return Settings(
        home=home,
        lake=lake if "://" in lake else str(_path(lake)),
        bootstrap_servers=env.get("OFFSETLAKE_BOOTSTRAP_SERVERS") or None,
        spark_master=env.get("OFFSETLAKE_SPARK_MASTER") or "local[*]",
        spark_driver_memory=env.get("OFFSETLAKE_SPARK_DRIVER_MEMORY") or "4g",
        dagster_home=_path(env.get("DAGSTER_HOME") or str(home / "dagster")),
        lineage=_has_lineage(env),
    )


@cache
def code_version() -> str:
    """Is the package's version and a digest of its sources, so that lineage names the code that really ran."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    try:
        number = version("offsetlake")
    except PackageNotFoundError:
        number = "0+source"
    return f"{number}+{digest.hexdigest()[:12]}"


def _has_lineage(env: Mapping[str, str]) -> bool:
    """Looks where OpenLineage's client looks for a receiver; without one it would print events, which nobody asked for."""
    if env.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    names = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
    if any(env.get(name) for name in names) or any(name.startswith("OPENLINEAGE__TRANSPORT") for name in env):
        return True
    return any((folder / "openlineage.yml").is_file() for folder in (Path.cwd(), Path("~/.openlineage").expanduser()))


def _path(text: str) -> Path:
    """Takes relative paths from the project's folder, so that every process means the same place."""
    path = Path(text).expanduser()
    return path if path.is_absolute() else PROJECT / path
