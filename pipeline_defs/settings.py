"""Settings of one machine, read once from the environment; nothing else in the package reads it.

Secrets come only this way. What belongs to a topic is in its defs.yaml, never here.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .adapters.system.extras import require
from .adapters.system.project_folder import DISTRIBUTION, PACKAGE, find_project, path_of, with_env_file
from .adapters.telemetry.alerting import check_alert_urls
from .core.errors import BadSetting
from .core.setting_values import (
    VARIABLES,
    check_dagster_home,
    check_lake,
    check_master,
    check_memory,
    check_own_home,
    check_plain,
    check_remote,
    check_web_address,
    shown_value,
)

S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")  # where obstore looks for an S3-compatible store
TRUE = ("1", "true", "on", "yes", "y")  # as obstore reads it
PREFIX = "OFFSETLAKE_"
SERVER, IN_PROCESS = "server", "in-process"  # engines
_SERVICE_LINK = re.compile(
    r"[A-Z0-9_]+_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_PROTOCOLS = ("tcp://", "udp://", "sctp://")
_PORT_ENDS = ("_TCP_PORT", "_UDP_PORT", "_SCTP_PORT")

MOST_LANES = 8

CHECKS: Mapping[str, Callable[[str], str]] = {
    "OFFSETLAKE_HOME": check_plain,
    "DAGSTER_HOME": check_plain,
    "OFFSETLAKE_KAFKA_PROPERTIES": check_plain,
    "OFFSETLAKE_LAKE": check_lake,
    "OFFSETLAKE_SPARK_MASTER": check_master,
    "OFFSETLAKE_SPARK_DRIVER_MEMORY": check_memory,
    "OFFSETLAKE_SPARK_REMOTE": check_remote,
    "OFFSETLAKE_ALERT_URLS": check_alert_urls,
    "OFFSETLAKE_PAGES_URL": check_web_address,
}
"""Check of each value that is set; addresses of brokers are checked where they are used."""
HOME_CHECKS: Mapping[str, Callable[[str], str]] = {"OFFSETLAKE_HOME": check_own_home, "DAGSTER_HOME": check_dagster_home}
"""Check of a home's whole path, as it is written and with its links resolved."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one machine. `bootstrap_servers` is none where only the embedded broker knows its address.

    `lineage` says whether OpenLineage's own client is configured: it reads its own variables and file.
    """

    home: Path
    lake: str
    bootstrap_servers: str | None
    spark_master: str
    spark_driver_memory: str
    dagster_home: Path
    alert_urls: tuple[str, ...] = field(default=(), repr=False)  # may hold secrets
    lineage: bool = False
    pages_url: str | None = None
    engine: str = SERVER
    spark_remote: str | None = field(default=None, repr=False)  # may have a token
    has_raw_table: bool = False
    lanes: int = 1
    run_retention_days: int | None = 30
    kafka_properties: Path | None = None  # the file, which has the secrets; `adapters/kafka/access.py` reads it

    @property
    def tasks_at_once(self) -> int:
        """Tasks that Spark runs in parallel, at least: n of `local[n]`, else this machine's cores; no cluster is asked."""
        told = re.fullmatch(r"local\[(\d+)\]", self.spark_master)
        return int(told[1]) if told else os.cpu_count() or 1

    @property
    def jars(self) -> Path:
        """The folder of the resolved jars."""
        return self.home / "jars"

    @property
    def engine_folder(self) -> Path:
        """Folder of the warm Spark server."""
        return self.home / "engine"

    @property
    def spark_log(self) -> Path:
        """File that keeps what the JVMs of commands print."""
        return self.home / "logs" / "spark.log"

    @property
    def broker(self) -> Path:
        """The folder of the embedded broker."""
        return self.home / "broker"


def check_names(environment: Mapping[str, str]) -> None:
    """Refuse a misspelt variable of ours, and one that has our prefix and is none of ours; raises `BadSetting`.

    Variables that Kubernetes injects for each Service of the namespace are ignored, whatever the Service is called. Dagster
    has other variables like `DAGSTER_HOME`, so of that name only a slip of a letter or two counts, and no longer name.
    """
    ours = [name for name in VARIABLES if name.startswith(PREFIX)]
    for name, value in sorted(environment.items()):
        if name in VARIABLES or is_service_link(name, value):
            continue
        meant = get_close_matches(name.upper(), ours, n=1, cutoff=0.85)
        if not name.startswith("DAGSTER_HOME_"):
            meant = meant or get_close_matches(name.upper(), ["DAGSTER_HOME"], n=1, cutoff=0.9)
        if meant or name.startswith(PREFIX):
            raise BadSetting(
                f"environment variable {name} is not one of {', '.join(VARIABLES)}; nothing was started; "
                + (f"{meant[0]} was probably meant: correct it" if meant else "correct or unset it")
                + ", in the shell or in .env"
            )


def is_service_link(name: str, value: str) -> bool:
    """Return whether Kubernetes (or Docker's links) made a variable, such as `OFFSETLAKE_PORT=tcp://10.0.0.1:80`."""
    if not _SERVICE_LINK.fullmatch(name):
        return False
    return not name.endswith("_PORT") or value.startswith(_PROTOCOLS) or name.endswith(("_SERVICE_PORT", *_PORT_ENDS))


def read_settings(environment: Mapping[str, str] | None = None, project: Path | None = None) -> Settings:
    """Read the environment; refuse variables as `check_names` does.

    The project's `.env` counts where the environment sets nothing. Relative paths start at the project's folder, so every
    process means the same place.
    """
    project = project or find_project()
    env = with_env_file(project, os.environ if environment is None else environment)
    check_names(env)
    for name, check in CHECKS.items():
        _check_value(name, env.get(name) or "", check)
    if env.get("OFFSETLAKE_SPARK_REMOTE") and env.get("OFFSETLAKE_ENGINE"):
        raise BadSetting(
            f"OFFSETLAKE_ENGINE is {env['OFFSETLAKE_ENGINE']}, and OFFSETLAKE_SPARK_REMOTE names another Spark, expected one "
            "of the two; nothing was started; unset the other"
        )
    _check_s3(env)
    if lineage := _has_lineage(env):
        _check_value("OPENLINEAGE_URL", env.get("OPENLINEAGE_URL") or "", check_web_address)
        require("openlineage", "lineage, which OPENLINEAGE_URL or openlineage.yml asks for,")
    home = _folder("OFFSETLAKE_HOME", env.get("OFFSETLAKE_HOME") or ".offsetlake", project)
    lake, properties = env.get("OFFSETLAKE_LAKE") or str(home / "lake"), env.get("OFFSETLAKE_KAFKA_PROPERTIES")
    return Settings(
        home=home,
        lake=lake if "://" in lake else str(_folder("OFFSETLAKE_LAKE", lake, project)),
        bootstrap_servers=env.get("OFFSETLAKE_BOOTSTRAP_SERVERS") or None,
        spark_master=env.get("OFFSETLAKE_SPARK_MASTER") or "local[*]",
        spark_driver_memory=env.get("OFFSETLAKE_SPARK_DRIVER_MEMORY") or "4g",
        dagster_home=_folder("DAGSTER_HOME", env.get("DAGSTER_HOME") or str(home / "dagster"), project),
        alert_urls=tuple((env.get("OFFSETLAKE_ALERT_URLS") or "").split()),
        lineage=lineage,
        engine=_one_of(env, "OFFSETLAKE_ENGINE", (SERVER, IN_PROCESS)),
        spark_remote=env.get("OFFSETLAKE_SPARK_REMOTE") or None,
        has_raw_table=_one_of(env, "OFFSETLAKE_RAW_TABLE", ("off", "on") if "://" in lake else ("on", "off")) == "on",
        lanes=int(_one_of(env, "OFFSETLAKE_LANES", tuple(map(str, range(1, MOST_LANES + 1))))),
        run_retention_days=_days("OFFSETLAKE_RUN_RETENTION_DAYS", env, "30"),
        kafka_properties=path_of("OFFSETLAKE_KAFKA_PROPERTIES", properties, project) if properties else None,
        pages_url=(env.get("OFFSETLAKE_PAGES_URL") or "").rstrip("/") or None,
    )


@cache
def code_version() -> str:
    """Return the package's version and a digest of its sources, so that lineage names the code that really ran."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name != DISTRIBUTION:  # it lies beside the package once that is installed
            digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    try:
        number = version("offsetlake")
    except PackageNotFoundError:
        number = "0+source"
    return f"{number}+{digest.hexdigest()[:12]}"


def _has_lineage(env: Mapping[str, str]) -> bool:
    """Return whether OpenLineage's client would find a receiver; without one it would print events, which nobody asked for."""
    if env.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    names = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
    if any(env.get(name) for name in names) or any(name.startswith("OPENLINEAGE__TRANSPORT") for name in env):
        return True
    folders = [Path.cwd()]
    with suppress(RuntimeError):  # a user unknown to the machine has no home
        folders.append(Path("~/.openlineage").expanduser())
    with suppress(OSError):  # a home that this user may not read
        return any((folder / "openlineage.yml").is_file() for folder in folders)
    return False


def _one_of(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """Return a setting that must be one of the `allowed` values, by default the first; raise `BadSetting`."""
    found = env.get(name) or allowed[0]
    if found not in allowed:
        raise BadSetting(
            f"{name} is {shown_value(found)}, expected {' or '.join(allowed)}; nothing was started; correct or unset it"
        )
    return found


def _days(name: str, env: Mapping[str, str], default: str) -> int | None:
    """Return a number of days, none for `off`; raise `BadSetting`."""
    found = env.get(name) or default
    if found == "off":
        return None
    if not re.fullmatch(r"[1-9]\d{0,3}", found, re.ASCII):
        raise BadSetting(
            f"{name} is {shown_value(found)}, expected a number of days from 1 to 9999, or off; nothing was started; correct "
            "or unset it"
        )
    return int(found)


def _check_value(name: str, text: str, check: Callable[[str], str]) -> None:
    if not text:
        return
    try:
        check(check_plain(text))
    except ValueError as error:
        raise BadSetting(f"{name} cannot be used: {error}; nothing was started; correct it") from None


def _check_s3(env: Mapping[str, str]) -> None:
    """Refuse an S3-compatible store's address with which each request would fail by an error that names no variable."""
    if not (env.get("OFFSETLAKE_LAKE") or "").startswith(("s3://", "s3a://")):
        return
    for name in S3_ENDPOINTS:
        address = env.get(name)
        if not address:
            continue
        _check_value(name, address, check_web_address)
        if address.startswith("http:") and env.get("AWS_ALLOW_HTTP", "").lower() not in TRUE:
            raise BadSetting(
                f"{name} is {address}, which is in the clear, and AWS_ALLOW_HTTP does not say true, expected https:// or that; "
                "nothing was started; correct one of the two"
            )


def _folder(name: str, text: str, project: Path) -> Path:
    """Return the folder that a setting names, which need not exist; refuse what cannot be one."""
    path, wrong = path_of(name, text, project), ""
    with suppress(OSError):  # whoever reads or writes there reports it
        wrong = "something else is there" if path.exists() and not path.is_dir() else ""
        if hanging := [each for each in (path, *path.parents) if each.is_symlink() and not each.exists()]:
            wrong = f"{hanging[0]} is a link to {hanging[0].readlink()}, which is not there"
    if not wrong and name in HOME_CHECKS:
        try:
            HOME_CHECKS[name](str(path))
            HOME_CHECKS[name](str(path.resolve()))
        except ValueError as error:
            wrong = str(error)
    if wrong:
        raise BadSetting(f"{name} is {path}, expected a folder, there or not yet: {wrong}; nothing was started; correct it")
    return path
