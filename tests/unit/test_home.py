"""Dagster's home: commands and a plain `dagster dev` of the same folder record in the same place, or somebody is told."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from dagster._cli.utils import get_possibly_temporary_instance_for_cli

from pipeline_defs.cli.commands import cli
from pipeline_defs.core.errors import BadSetting, HistoryUnavailable, Refused
from pipeline_defs.definitions import build_defs
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.home.project import find_other_config, plan_project, write_env, write_project
from pipeline_defs.settings import check_home, read_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what this machine's shell says of homes."""
    for name in [name for name in os.environ if name.startswith(("OFFSETLAKE_", "DAGSTER_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project as `init` writes it, in a folder whose name needs quoting."""
    folder = tmp_path / "my lake's"
    write_project(plan_project(folder, ["orders"], None))
    write_env(folder, read_settings(project=folder).dagster_home)
    return folder


def home_of_dagster_dev(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home that `dagster dev` and `dg dev` open in a folder: by Dagster's own function that both call."""
    with monkeypatch.context() as inside:
        inside.chdir(folder)
        with get_possibly_temporary_instance_for_cli("dagster dev", logger=logging.getLogger("quiet")) as instance:
            return Path(instance.root_directory)


def test_dagster_dev_in_the_folder_takes_the_home_of_the_commands(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = read_settings(project=project).dagster_home
    assert home_of_dagster_dev(project, monkeypatch) == home
    assert home == project / ".offsetlake" / "dagster"
    assert (home / "dagster.yaml").read_text() == (project / "dagster.yaml").read_text()
    (project / ".env").unlink()
    assert ".tmp_dagster_home_" in home_of_dagster_dev(project, monkeypatch).name, "the control: else it is thrown away"


def test_an_exported_home_is_taken_by_both(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is stronger than the file, for Dagster as for the commands."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "elsewhere"))
    homes = (home_of_dagster_dev(project, monkeypatch), read_settings(project=project).dagster_home)
    assert homes == (tmp_path / "elsewhere",) * 2


def test_a_home_that_begins_anew_is_said_unless_it_is_the_projects_own(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """U4: a mistyped DAGSTER_HOME shows nothing of before, and would record elsewhere without a word; it is said once."""
    monkeypatch.chdir(project)
    mistyped = tmp_path / "dagstre"
    with open_instance(mistyped):
        assert f"DAGSTER_HOME {mistyped} was empty: a new history of runs begins there" in capsys.readouterr().err
    for home in (mistyped, read_settings(project=project).dagster_home):
        with open_instance(home):
            assert "a new history" not in capsys.readouterr().err, "the control"


def test_what_a_person_writes_into_the_file_holds_for_the_commands_too(project: Path, tmp_path: Path) -> None:
    (project / ".env").write_text(f"DAGSTER_HOME={tmp_path}/shared\nOFFSETLAKE_LAKE=s3://bucket/lake\n")
    found = read_settings(project=project)
    assert (found.dagster_home, found.lake) == (tmp_path / "shared", "s3://bucket/lake")
    assert read_settings({"OFFSETLAKE_HOME": "/x"}, project).dagster_home == Path("/x/dagster")
    assert read_settings({"OFFSETLAKE_LAKE": "/x"}, project).lake == "/x", "what the environment says itself holds"


def test_a_file_that_came_with_a_moved_folder_is_refused(project: Path, tmp_path: Path) -> None:
    """A copied project would record in the first one's home."""
    check_home(project)
    moved = tmp_path / "moved"
    shutil.copytree(project, moved)
    with pytest.raises(BadSetting, match=r"\.env is .*my lake's/\.offsetlake/dagster, the home of another folder than"):
        check_home(moved)
    for exported in ("DAGSTER_HOME", "OFFSETLAKE_HOME"):  # what `.env` says of Dagster's home does not count then
        check_home(moved, {exported: "/srv/dagster"})
    linked = tmp_path / "link"
    linked.symlink_to(project)
    check_home(linked)


def test_a_home_that_the_environment_moved_is_kept(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next shell: `.env` names both. The control is one that names the default home of another folder alone."""
    (project / ".env").unlink()
    shared = tmp_path / "elsewhere" / ".offsetlake"
    monkeypatch.setenv("OFFSETLAKE_HOME", str(shared))
    write_env(project, read_settings(project=project).dagster_home)
    monkeypatch.delenv("OFFSETLAKE_HOME")
    check_home(project)
    found = read_settings(project=project)
    assert (found.dagster_home, found.lake) == (shared / "dagster", str(shared / "lake"))
    (project / ".env").write_text(f"DAGSTER_HOME={shared}/dagster\n")
    with pytest.raises(BadSetting, match="the home of another folder than"):
        check_home(project)


def test_a_project_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """Below a file, where the system makes no folder, and where the disk is full half-way."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "x", Path("/proc/nope")):
        with pytest.raises(Refused, match=r"cannot be written: (not a directory|no such file or directory); no file"):
            write_project(plan_project(folder, ["orders"], None))
    files = plan_project(tmp_path / "half", ["orders"], None)
    last = max(files)
    last.mkdir(parents=True)
    with pytest.raises(Refused, match="is a directory; no file of the project is left"):
        write_project(files)
    assert [path for path in (tmp_path / "half").rglob("*") if path.is_file()] == []


def test_a_code_location_without_a_home_does_not_load(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would record is deleted when `dagster dev` ends: started in another folder, or in a clone without `.env`."""
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    with pytest.raises(BadSetting, match=r"without DAGSTER_HOME.*nothing was started; .*`offsetlake doctor`"):
        build_defs(project=project)
    monkeypatch.setenv("DAGSTER_HOME", str(project))
    check_home(project)


def test_the_file_keeps_what_it_has_and_one_that_cannot_be_written_is_told_in_one_line(project: Path) -> None:
    (project / ".env").write_text("AWS_REGION=eu-north-1")
    write_env(project, project / ".offsetlake" / "dagster")
    assert (project / ".env").read_text().startswith("AWS_REGION=eu-north-1\n# Read by")
    write_env(project, project / "again")
    assert "again" not in (project / ".env").read_text()
    (project / ".env").unlink()
    (project / ".env").mkdir()
    with pytest.raises(BadSetting, match=r"\.env cannot be written: is a directory; .*add the line yourself: DAGSTER_HOME="):
        write_env(project, project / "home")


@pytest.mark.parametrize(
    ("damage", "reason"), [("torn", "file is not a database"), ("a folder", "unable to open database file")]
)
def test_a_history_that_cannot_be_opened_is_told(damage: str, reason: str, project: Path) -> None:
    home = project / ".offsetlake" / "dagster"
    with open_instance(home):
        runs = home / "history" / "runs.db"  # the control: it is made, and opens
    if damage == "torn":
        runs.write_bytes(b"torn by a power cut" * 9)
    else:
        runs.unlink()
        runs.mkdir()
    with pytest.raises(HistoryUnavailable, match=f"{home} cannot be opened: {reason}; .*offsetlake rebuild"):
        open_instance(home)


def test_up_says_which_of_two_configurations_counts(project: Path) -> None:
    home = project / ".offsetlake" / "dagster"
    assert find_other_config(home, project) == "", "the control"
    (project / "dagster.yaml").write_text("concurrency: {}\n")
    assert find_other_config(home, project).startswith(f"{home / 'dagster.yaml'} counts, and {project / 'dagster.yaml'}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("storage: [\n", r"it is not what Dagster expects in line 2"),
        (
            "storage:\n  postgres: {postgres_url: [hush]}\n",
            "it is not what Dagster expects of its key storage.postgres.postgres_url;",
        ),
        ("run_monitoring:\n  start_timeout: 5\n", "it is not what Dagster expects of its key run_monitoring.start_timeout;"),
        ("concurrency: 5\n", "it is not what Dagster expects;"),
        ("event_log_storage: {module: no_such_module, class: X}\n", ".*import module no_such_module"),
    ],
)
def test_a_configuration_that_dagster_does_not_take_is_told_without_its_values(text: str, reason: str, project: Path) -> None:
    home = project / ".offsetlake" / "dagster"
    (home / "dagster.yaml").write_text(text)
    with pytest.raises(BadSetting, match=f"dagster.yaml cannot be used: {reason}") as told:
        open_instance(home)
    assert "hush" not in str(told.value)


def test_what_is_of_one_machine_is_not_committed(project: Path) -> None:
    ignored = (project / ".gitignore").read_text().splitlines()
    assert {".env", ".offsetlake/", ".tmp_dagster_home_*"} <= set(ignored)


def test_the_demo_is_refused_outside_the_checkout(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topic is not installed; nothing is started before that is said."""
    monkeypatch.chdir(project)
    refused = CliRunner().invoke(cli, ["demo", "--once"])
    assert isinstance(refused.exception, Refused) and "nothing was started" in str(refused.exception)
