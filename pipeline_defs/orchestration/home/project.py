"""A user's own project: the few files by which Dagster, dg and `offsetlake` land their topics.

Invariant: a new project is written into an empty folder only.
"""

import importlib.util
import keyword
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from ...adapters.system.project_folder import ENV_FILE, PACKAGE, PROJECT, check_home, read_env_file, shared_home
from ...core.errors import BadSetting, OffsetlakeError, Refused
from ...settings import read_settings
from ...topics import slug_of

COMPONENT = "offsetlake.KafkaTopic"
DAGSTER_YAML = "dagster.yaml"
_GITIGNORE = """\
.env
.offsetlake/
.tmp_dagster_home_*
__pycache__/
"""
# for the image of deploy/Dockerfile, into which the project is copied; `.env` may have logins
_DOCKERIGNORE = """\
**/.env
**/.offsetlake
**/.venv
**/.git
**/.tmp_dagster_home_*
**/__pycache__
"""
# Dagster has `.env` override the environment; in this form a home that somebody exports still wins
_ENV = """\
# Read by `dagster dev` and by `offsetlake` in this folder. Not to be committed: the path is this machine's.
"""
_ENV_LINE = '{name}="${{{name}:-{path}}}"\n'

_PYPROJECT = """\
[project]
name = "{name}"
version = "0.1.0"
dependencies = ["offsetlake"]

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{package}"
code_location_target_module = "{package}.definitions"
code_location_name = "{package}"
"""
_WORKSPACE = """\
load_from:
  - python_module:
      module_name: {package}.definitions
      location_name: {package}
      working_directory: .
"""
_DEFINITIONS = '''\
"""What Dagster loads: the topics under defs/, and whatever else you merge in here."""

from pathlib import Path

import dagster as dg

from offsetlake import build_defs


@dg.definitions
def defs() -> dg.Definitions:
    """Return the code location."""
    return build_defs(project=Path(__file__).parent.parent)
'''


def plan_project(folder: Path, topics: Sequence[str], bootstrap_servers: str | None) -> Mapping[Path, str]:
    """Return the files of a project that lands the topics, with their texts; raise `Refused` where the folder is not empty.

    `bootstrap_servers` is written into each defs.yaml; with none, the machine's setting holds.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(
            f"{folder} is there and not an empty folder; nothing was written; name a folder that is empty or not there yet"
        )
    package = package_name(folder.absolute().name)
    code = folder / package
    return {
        folder / "pyproject.toml": _PYPROJECT.format(name=package.replace("_", "-"), package=package),
        folder / "workspace.yaml": _WORKSPACE.format(package=package),
        folder / DAGSTER_YAML: read_dagster_yaml(PACKAGE),
        folder / ".gitignore": _GITIGNORE,
        folder / ".dockerignore": _DOCKERIGNORE,
        code / "__init__.py": "",
        code / "definitions.py": _DEFINITIONS,
        **{code / "defs" / folder_name(topic) / "defs.yaml": defs_yaml(topic, bootstrap_servers) for topic in topics},
    }


def write_project(files: Mapping[Path, str]) -> None:
    """Write the files of a planned project; where that fails, delete them all and raise `Refused`."""
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            for each in files:
                with suppress(OSError):
                    each.unlink()
            reason = (error.strerror or type(error).__name__).lower()
            raise Refused(
                f"{path} cannot be written: {reason}; no file of the project is left; "
                "name a folder that this user can make, on a disk with room"
            ) from error


def make_home(home: Path, project: Path) -> None:
    """Make Dagster's home with the project's configuration, where it has none."""
    with _writing(f"DAGSTER_HOME {home}", "let this user write there, or name another folder"):
        home.mkdir(parents=True, exist_ok=True)
        config = home / DAGSTER_YAML
        if not config.exists():
            config.write_text(read_dagster_yaml(project))


@contextmanager
def _writing(what: str, mend: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise BadSetting(f"{what} cannot be written: {reason}; nothing was started; {mend}") from error


def find_other_config(home: Path, project: Path) -> str:
    """Return a text on which dagster.yaml counts where a project's differs from that of Dagster's home; else empty."""
    ours, counts = project / DAGSTER_YAML, home / DAGSTER_YAML
    if not ours.is_file() or ours.read_text() == counts.read_text():
        return ""
    return f"{counts} counts, and {ours} is another one: copy what you have changed, and start again"


def write_env(project: Path, home: Path) -> None:
    """Have a plain `dagster dev` in the project's folder use a home, by a line in `.env`.

    A home that `.env` names already stays: a person wrote it, or another machine's setting.
    """
    make_home(home, project)
    if "DAGSTER_HOME" in read_env_file(project, {}):
        return
    path = project / ENV_FILE
    named = _ENV
    for name, each in (("OFFSETLAKE_HOME", shared_home(home, project)), ("DAGSTER_HOME", home)):
        if each is not None:
            named += _ENV_LINE.format(name=name, path=str(each).replace("\\", "\\\\").replace('"', '\\"'))
    with _writing(str(path), f"let this user write there, or add the line yourself: {named.splitlines()[-1]}"):
        before = path.read_text() if path.exists() else ""
        path.write_text(before + ("\n" if before and not before.endswith("\n") else "") + named)


def read_dagster_yaml(project: Path) -> str:
    """Read the dagster.yaml of a project, or Offsetlake's own where it has none."""
    path = project / DAGSTER_YAML
    return (path if path.is_file() else PACKAGE / DAGSTER_YAML).read_text()


def defs_yaml(topic: str, bootstrap_servers: str | None) -> str:
    """Return the text of a topic's defs.yaml; a name that YAML would read otherwise, such as 123 or null, is quoted."""
    attributes = {"topic": topic, **({"bootstrap_servers": bootstrap_servers} if bootstrap_servers else {})}
    document = {"type": COMPONENT, "attributes": attributes}
    text: str = yaml.safe_dump(document, sort_keys=False, width=10_000)
    return text


def folder_name(topic: str) -> str:
    """Return the folder of a topic's defs.yaml; Dagster passes by those that begin with a dot."""
    return slug_of(topic) if topic.startswith((".", "_")) else topic


def package_name(folder: str) -> str:
    """Return a name for the Python package of a folder, one that no installed package has."""
    name = re.sub(r"\W", "_", folder.lower(), flags=re.ASCII).strip("_") or "lake"
    if name[0].isdigit() or keyword.iskeyword(name) or importlib.util.find_spec(name) is not None:
        name = f"lake_{name}"
    return name


def main() -> int:
    """Write the `.env` of Offsetlake's own checkout for `make setup`; a stale one is refused in one line."""
    try:
        check_home(PROJECT)
        write_env(PROJECT, read_settings(project=PROJECT).dagster_home)
    except OffsetlakeError as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
