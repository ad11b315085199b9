"""The files of deploy/, as far as a machine without Docker and Kubernetes can check them, and what docs/deploy.md shows."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from dagster._core.instance.config import storage_config_schema
from dotenv import dotenv_values

from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.core.errors import BadSetting
from pipeline_defs.core.setting_values import VARIABLES
from pipeline_defs.settings import check_names
from tests.support.markdown import read_blocks

DEPLOY = PROJECT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
TEXT = (PROJECT / "docs" / "deploy.md").read_text()
FOREIGN = {"AWS_", "DAGSTER_PG_", "POSTGRES_", "KAFKA_", "MINIO_", "MC_HOST_"}  # variables of other programs
LOOPBACK = ("127.0.0.1:", "[::1]:")
PINNED = re.compile(r"[\w./-]+:(?!latest$)[\w.-]*\d[\w.-]*")
DAGSTER = re.search(r"^dagster==([\d.]+)", (PROJECT / "requirements.lock").read_text(), re.MULTILINE)
# folders that docs/deploy.md or the image makes
MADE = {"/etc/offsetlake", "/opt/offsetlake", "/srv/offsetlake", "/srv/offsetlake/my_lake", "/var/lib/offsetlake"}


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def compose_services() -> Mapping[str, Mapping[str, Any]]:
    return load("compose.yaml")["services"]  # type: ignore[no-any-return]


def variables() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each place where a file of deploy/ sets variables of ours."""
    yield "offsetlake.env", {name: value or "" for name, value in dotenv_values(DEPLOY / "offsetlake.env").items()}
    for name, service in compose_services().items():
        if str(service["image"]).startswith("offsetlake:"):
            yield f"compose.yaml: {name}", service["environment"]
    for deployment in load("kubernetes/values.yaml")["dagster-user-deployments"]["deployments"]:
        yield f"values.yaml: {deployment['name']}", {each["name"]: each["value"] for each in deployment["env"]}
    found = re.findall(r"\b((?:OFFSETLAKE|DAGSTER)_\w+)=(\S+)", (DEPLOY / "Dockerfile").read_text())
    yield "Dockerfile", dict(found)


@pytest.mark.parametrize(("where", "given"), list(variables()), ids=[where for where, _ in variables()])
def test_every_variable_is_one_that_is_read(where: str, given: Mapping[str, str]) -> None:
    """A variable that nobody reads would be a setting that does nothing."""
    assert given
    check_names(given)
    assert [n for n in given if n not in VARIABLES and not n.startswith(tuple(FOREIGN))] == []
    with pytest.raises(BadSetting, match="OFFSETLAKE_LAKE was probably meant"):
        check_names({**given, "OFFSETLAKE_LAK": "/x"})  # the control


def test_dagster_yaml_is_the_projects_own_with_a_storage() -> None:
    """What `init` writes and what a deployment uses differ in `storage` alone, and Dagster takes it."""
    found = load("dagster.yaml")
    assert {k: v for k, v in found.items() if k != "storage"} == yaml.safe_load((PROJECT / "dagster.yaml").read_text())
    assert set(found["storage"]) <= set(storage_config_schema().config_type.fields), "kinds that the installed Dagster knows"
    assert found["storage"]["postgres"]["postgres_db"]["scheme"] == "postgresql+psycopg2"
    shown = [block.text for block in read_blocks(TEXT) if block.text.startswith("storage:")]
    assert [yaml.safe_load(each)["storage"] for each in shown] == [found["storage"]], "what docs/deploy.md shows"
    database = found["storage"]["postgres"]["postgres_db"]
    names = {each["env"] for each in database.values() if isinstance(each, dict) and "env" in each}
    assert load("kubernetes/values.yaml")["postgresql"]["postgresqlParams"] == database["params"]
    for where, given in variables():
        if where.startswith(("offsetlake.env", "compose.yaml")):
            assert names <= set(given), where


def test_images_and_versions_are_pinned() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    images = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    images += [str(service["image"]) for service in compose_services().values()]
    assert [image for image in images if not PINNED.fullmatch(image)] == []
    assert not PINNED.fullmatch("postgres:latest"), "the control"
    assert not PINNED.fullmatch("postgres"), "the control"
    assert "--require-hashes" in text
    assert DAGSTER is not None
    assert f"--version {DAGSTER[1]} " in (DEPLOY / "kubernetes" / "values.yaml").read_text()


def test_only_loopback_is_published() -> None:
    ports = [port for service in compose_services().values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not str(port).startswith(LOOPBACK)] == []
    for unit in UNITS:
        assert not re.search(r"(?:--host|-h) (?!127\.0\.0\.1)", unit.read_text()), unit.name
    assert load("kubernetes/values.yaml")["dagsterWebserver"]["service"]["type"] == "ClusterIP"


def test_compose_names_what_it_has() -> None:
    """Services, volumes and files that are named are there; what a person gives is asked for by a message."""
    document = load("compose.yaml")
    services = document["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith(".") else source in document["volumes"], volume
        build = service.get("build")
        if build:
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    given = re.findall(r"\$\{(\w+)(:\?)?", (DEPLOY / "compose.yaml").read_text())
    assert {name for name, asked in given if not asked} == set()
    assert {name for name, _ in given} == {"PROJECT", "POSTGRES_PASSWORD", "S3_SECRET"}
    asked = {each["grpc_server"]["host"] for each in load("workspace.compose.yaml")["load_from"]}
    assert asked == {"code"} <= set(services)


def test_code_server_and_workspaces_agree() -> None:
    """One port and one location everywhere: Dagster's history of a location goes by its name."""
    servers = [each["grpc_server"] for name in ("workspace.yaml", "workspace.compose.yaml") for each in load(name)["load_from"]]
    assert {(each["port"], each["location_name"]) for each in servers} == {(4000, "my_lake")}
    unit = (DEPLOY / "systemd" / "offsetlake-code.service").read_text()
    assert "--port 4000 " in unit
    assert "--location-name my_lake\n" in unit
    deployment = load("kubernetes/values.yaml")["dagster-user-deployments"]["deployments"][0]
    assert (deployment["port"], deployment["dagsterApiGrpcArgs"][-1]) == (4000, "my_lake")
    assert compose_services()["code"]["command"][-1] == "my_lake"


def commands() -> Iterator[tuple[str, list[str]]]:
    for unit in UNITS:
        found = re.search(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
        assert found is not None
        yield unit.name, found[1].split()
    for name, service in compose_services().items():
        if str(service["image"]).startswith("offsetlake:"):
            yield f"compose: {name}", service["command"]


@cache
def help_of(program: Path, *words: str) -> str:
    """Return what a program says of itself; units and containers run the same ones."""
    return subprocess.run([program, *words, "--help"], check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize(("where", "command"), list(commands()), ids=[where for where, _ in commands()])
def test_the_options_of_a_command_are_those_of_the_installed_dagster(where: str, command: list[str]) -> None:
    program = Path(sys.executable).parent / PurePosixPath(command[0]).name
    assert program.is_file()
    words = [word for word in command[1:3] if not word.startswith("-")]
    told = help_of(program, *(words[:1] if program.name == "dagster-daemon" else words))
    options = [word for word in command[1:] if word.startswith("-")]
    assert options
    assert [option for option in options if not re.search(rf"(?<![\w-]){option}\b", told)] == []


@pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])
def test_a_unit_is_what_systemd_takes(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    for path in re.findall(r"(?<![\w.])/(?:etc|opt|srv|var)[\w./-]*", text):
        assert any(path == made or path.startswith(f"{made}/") for made in MADE), path
    assert all(made in TEXT for made in MADE), "docs/deploy.md makes each"
    assert {"ProtectSystem=strict", "PrivateTmp=yes"} <= set(text.splitlines()), "no JVM and no Spark starts without a /tmp"
    assert "Restart=always\n" in text, "a daemon that gives way to another one ends with success, and is to wait"
    analyze = shutil.which("systemd-analyze")
    if analyze is None:  # macOS: at least each line is a section, an assignment or empty
        assert [line for line in text.splitlines() if line and not re.match(r"\[\w+\]$|\w+=", line)] == []
        return
    installed = tmp_path / unit.name
    installed.write_text(text.replace("/opt/offsetlake/.venv/bin/", f"{Path(sys.executable).parent}/"))
    for name in ("offsetlake-code.service", "offsetlake-daemon.service"):
        if name != unit.name:
            shutil.copy(DEPLOY / "systemd" / name, tmp_path)
    done = subprocess.run([analyze, "verify", "--man=no", installed], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if line.startswith((unit.name, str(installed)))]
    assert (done.returncode, ours) == (0, [])
    installed.write_text(installed.read_text().replace("Restart=always", "Restart=sometimes"))
    done = subprocess.run([analyze, "verify", "--man=no", installed], capture_output=True, text=True, check=False)
    assert "parse service restart" in done.stderr, "the control"


def test_the_settings_can_be_read_by_the_user_of_the_units_and_by_nobody_else() -> None:
    installed = re.search(r"^install (.*) deploy/offsetlake\.env /etc/offsetlake/offsetlake\.env$", TEXT, re.MULTILINE)
    assert installed is not None
    assert installed[1] == "-D -o root -g offsetlake -m 0640"
    assert "mode 0640" in (DEPLOY / "offsetlake.env").read_text().splitlines()[0]
    for unit in UNITS:
        assert "Group=offsetlake\n" in unit.read_text()


def test_the_settings_are_the_same_to_a_shell() -> None:
    """`docs/deploy.md` has a person's command read them by `.`; a value with a `;` would be two commands."""
    given = {name: value or "" for name, value in dotenv_values(DEPLOY / "offsetlake.env").items()}
    script = f". {DEPLOY / 'offsetlake.env'}; env -0"
    said = subprocess.run(["sh", "-aeuc", script], env={}, check=True, capture_output=True, text=True).stdout
    found = dict(line.split("=", 1) for line in said.split("\0") if line)
    assert {name: found.get(name) for name in given} == given


def test_no_image_has_a_projects_logins() -> None:
    """A project is copied from its own folder, or lies inside the checkout."""
    from pipeline_defs.orchestration.home.project import plan_project

    files = {path.name: text for path, text in plan_project(Path("nowhere/my_lake"), ["orders"], None).items()}
    for text in (files[".dockerignore"], (DEPLOY / "Dockerfile.dockerignore").read_text()):
        assert {"**/.env", "**/.offsetlake", "**/.venv", "**/.git"} <= set(text.splitlines())


def test_compose_and_build_are_shown_with_the_same_project() -> None:
    """Compose takes a relative path from deploy/, `docker build` from where it is called: so both are shown a whole one."""
    shown = re.findall(
        r"\b(?:PROJECT|project)=(\S+)",
        "".join([TEXT, (DEPLOY / "compose.yaml").read_text(), (DEPLOY / "Dockerfile").read_text()]),
    )
    assert len(shown) == 3
    assert set(shown) == {"$PWD/../my_lake"}


def test_values_name_what_the_image_has() -> None:
    from pipeline_defs.orchestration.home.daemons import AnnouncedRunCoordinator

    values = load("kubernetes/values.yaml")
    custom = values["dagsterDaemon"]["runCoordinator"]["config"]["customRunCoordinator"]
    assert (custom["module"], custom["class"]) == (AnnouncedRunCoordinator.__module__, AnnouncedRunCoordinator.__name__)
    images = [values[name]["image"] for name in ("dagsterWebserver", "dagsterDaemon")]
    images += [each["image"] for each in values["dagster-user-deployments"]["deployments"]]
    assert len({(image["repository"], image["tag"]) for image in images}) == 1, "one image, one version, everywhere"
    assert f"{values['dagsterHome']} " in (DEPLOY / "Dockerfile").read_text()
    own = yaml.safe_load((PROJECT / "dagster.yaml").read_text())
    assert values["additionalInstanceConfig"]["concurrency"] == own["concurrency"]
