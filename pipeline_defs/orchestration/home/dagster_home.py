"""Dagster's home: opens its instance, which has the history of runs and events."""

import shlex
import shutil
from pathlib import Path

import click
import dagster as dg
from dagster._check import CheckError
from sqlalchemy.exc import SQLAlchemyError
from yaml import MarkedYAMLError, YAMLError

from ...adapters.system.project_folder import DEFAULT_HOME, find_project
from ...core.errors import BadSetting, HistoryUnavailable, first_line
from .project import DAGSTER_YAML, make_home

_ROOM_BYTES = 2**20  # less than SQLite needs to go on


def is_begun(home: Path) -> bool:
    """Return whether a home has a history or a dagster.yaml: somebody may have deleted the latter while Dagster runs."""
    return any((home / name).exists() for name in (DAGSTER_YAML, "history"))


def open_instance(home: Path) -> dg.DagsterInstance:
    """Open the Dagster instance of a home; give the home the project's dagster.yaml where it has none.

    A new home other than the project's own is announced: it may be a typing error, and shows nothing of earlier runs.
    Raises `HistoryUnavailable` and `BadSetting`.
    """
    project = find_project()
    is_new = not is_begun(home)
    make_home(home, project)
    if is_new and home != project.joinpath(*DEFAULT_HOME):
        click.echo(
            f"DAGSTER_HOME {home} was empty: a new history of runs begins there, and what was recorded elsewhere is not shown; "
            f"if that is not meant, correct DAGSTER_HOME and delete {home}",
            err=True,
        )
    try:
        return dg.DagsterInstance.from_config(str(home))
    except (SQLAlchemyError, OSError) as error:
        raise HistoryUnavailable(
            f"Dagster's history in {home} cannot be opened: {why_silent(error, home)}; nothing was started, and the lake is "
            "not touched; see that its database runs and can be read; what is damaged beyond repair may be moved away, all of "
            f"{home}: `offsetlake rebuild TOPIC` gives a new history what the lake knows"
        ) from error
    except (YAMLError, dg.DagsterError, CheckError, ImportError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise BadSetting(
            f"{home / 'dagster.yaml'} cannot be used: {_why_unusable(error)}; nothing was started; correct it: "
            f"`DAGSTER_HOME={shlex.quote(str(home))} dagster instance info` says more"
        ) from error


def why_silent(error: Exception, home: Path) -> str:
    """Return why a history does not answer: the driver's error without its SQL, and whether it is gone or its disk full."""
    cause = first_line(getattr(error, "orig", None) or error)
    if not home.exists():
        return f"{cause}: the folder {home} is gone"
    is_full = shutil.disk_usage(home).free < _ROOM_BYTES
    return f"{cause}: the disk of {home} is full, make room there" if is_full else cause


def _why_unusable(error: Exception) -> str:
    """Return why Dagster refuses its configuration, without any value of it, which may have a login in it."""
    if isinstance(error, ImportError | CheckError):
        return str(error).splitlines()[0]
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    key = _key_of(error) if isinstance(error, dg.DagsterInvalidConfigError) else ""
    return "it is not what Dagster expects" + (f" in line {mark.line + 1}" if mark else f" of its key {key}" if key else "")


def _key_of(error: dg.DagsterInvalidConfigError) -> str:
    """Return the path of the first key that Dagster refuses, such as `retention.sensor`; empty for none."""
    parts = [part for each in error.errors[:1] for part in (*each.stack.entries, each.error_data)]
    return ".".join(part.field_name for part in parts if hasattr(part, "field_name"))  # a place in a list has none
