"""A project's folder: where it is, the variables of its `.env`, and the Dagster home that its commands share.

Invariant: each process that works in a project reads the same variables, as `dagster dev` resolves them in that folder.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream
from dotenv.variables import parse_variables

from ...core.errors import BadSetting
from ...core.setting_values import VARIABLES
from .text_files import UnreadableText, read_text_file

PACKAGE = Path(__file__).parents[2]
PROJECT = PACKAGE.parent  # Offsetlake's own checkout; a user's project is found by `find_project`
DISTRIBUTION = "offsetlake"
DOCS = next((each for each in (PACKAGE / "docs", PROJECT / "docs") if each.is_dir()), PACKAGE / "docs")
ENV_FILE = ".env"
STARTED_BY_US = "_IS_STARTED_BY_UP"  # set for what `offsetlake up` starts, which shares the commands' home
_VARIABLE = re.compile(r"^\$|\$\{")  # as shells have them; a folder's name may have the sign
DEFAULT_HOME = (".offsetlake", "dagster")  # of Dagster, in the project's folder


def find_project(folder: Path | None = None) -> Path:
    """Return the project that a folder, by default the current one, lies in: a dg project that depends on Offsetlake.

    Where there is none at or above it: Offsetlake's own checkout, or the folder itself where only the package is installed.
    """
    start = (folder or Path.cwd()).absolute()
    fallback = PROJECT if _is_project(PROJECT) else start
    return next((each for each in (start, *start.parents) if _is_project(each)), fallback)


def defs_folder(project: Path) -> Path:
    """Return the folder below which a project's topics are configured, one folder with a defs.yaml for each."""
    dg = _read_pyproject(project).get("tool", {}).get("dg", {}).get("project", {})
    root = dg.get("root_module", project.name)
    return project.joinpath(*dg.get("defs_module", f"{root}.defs").split("."))


def _is_project(folder: Path) -> bool:
    pyproject = _read_pyproject(folder)
    try:
        names = [pyproject["project"].get("name", ""), *pyproject["project"].get("dependencies", [])]
        return "project" in pyproject["tool"]["dg"] and any(_distribution(name) == DISTRIBUTION for name in names)
    except (KeyError, TypeError, AttributeError):
        return False  # somebody else's


def _distribution(requirement: str) -> str:
    """Return the package that a requirement such as `offsetlake[demo]>=1` names."""
    return re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0].lower()


def _read_pyproject(folder: Path) -> Mapping[str, Any]:
    """Return a folder's pyproject.toml, empty where there is none; raise `BadSetting` for one that cannot be read.

    If it were passed over, a command would act on another project's lake.
    """
    path = folder / "pyproject.toml"
    try:
        path.lstat()
    except OSError:  # there is none, or the folder is another user's
        return {}
    try:
        return tomllib.loads(read_text_file(path))
    except (UnreadableText, tomllib.TOMLDecodeError) as error:
        raise BadSetting(
            f"{path} cannot be read, so which project this is is not known: {error}; nothing was read or written; correct it"
        ) from None


def read_env_file(project: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a project's `.env`, resolved as `dagster dev` resolves them in that folder."""
    environment = os.environ if environment is None else environment
    path = project / ENV_FILE
    found: dict[str, str] = {}
    if path.is_dir() or not (path.exists() or path.is_symlink()):  # a folder of that name is a virtual environment
        return found
    try:
        lines = list(parse_stream(StringIO(read_text_file(path))))
    except UnreadableText as error:
        raise BadSetting(f"{path} cannot be read: {error}; nothing was started; correct or delete it") from None
    for each in lines:
        wrong = "has a NUL character" if "\0" in each.original.string else "is not NAME=value" if each.error else None
        wrong = "has no value" if each.value is None and each.key in VARIABLES else wrong
        if wrong:
            line = each.original.line + len(each.original.string) - len(each.original.string.lstrip("\n"))
            raise BadSetting(f"{path}, line {line}: it {wrong}; nothing was started; correct that line")
        if each.key is not None and each.value is not None:
            atoms = parse_variables(each.value)
            found[each.key] = "".join(atom.resolve({**environment, **found}) for atom in atoms)
    return found


def load_env_file() -> None:
    """Set the variables of the project's `.env` that other libraries read, a store's login say, as `dagster dev` does.

    `read_settings` takes our own variables from the file itself.
    """
    for name, value in read_env_file(find_project()).items():
        if name not in VARIABLES:
            os.environ.setdefault(name, value)


def with_env_file(project: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment, filled up from a project's `.env`: values of the environment itself win.

    An `OFFSETLAKE_HOME` of the environment moves Dagster's home as well.
    """
    found = read_env_file(project, environment)
    if environment.get("OFFSETLAKE_HOME"):
        found.pop("DAGSTER_HOME", None)
    return {**found, **environment}


def check_home(project: Path, environment: Mapping[str, str] | None = None) -> None:
    """Refuse a Dagster home that commands and `dagster dev` would not share.

    | found | consequence |
    |---|---|
    | `.env` names the default home of another folder: the project was moved or copied | runs are recorded there |
    | `.env` names another home than OFFSETLAKE_HOME of the environment, and `dagster dev` takes it | two homes |
    | `dagster dev` has no home: started elsewhere than in the project's folder, or `.env` is missing | runs are forgotten |

    `dg check defs` records nothing, so it needs no home.
    """
    env = os.environ if environment is None else environment
    plain = {name: value for name, value in env.items() if name != "DAGSTER_HOME"}
    found = read_env_file(project, plain)
    home, moved_to = found.get("DAGSTER_HOME"), found.get("OFFSETLAKE_HOME")
    is_meant = bool(home and moved_to) and Path(str(home)) == path_of("OFFSETLAKE_HOME", str(moved_to), project) / "dagster"
    is_used = env.get("DAGSTER_HOME", home) == home and ("DAGSTER_HOME" in env or not env.get("OFFSETLAKE_HOME"))
    if home is not None and is_used and not is_meant and _is_of_another(Path(home), project):
        raise BadSetting(
            f"DAGSTER_HOME in {project / ENV_FILE} is {home}, the home of another folder than {project}, which was moved or "
            "copied; nothing was started; delete that line: `offsetlake up` writes the right one"
        )
    moved = env.get("OFFSETLAKE_HOME")
    is_ours = STARTED_BY_US in env or is_validating(env)
    if moved and env.get("DAGSTER_IS_DEV_CLI") and home is not None and env.get("DAGSTER_HOME") == home and not is_ours:
        meant = path_of("OFFSETLAKE_HOME", moved, project) / "dagster"
        if moved != moved_to and Path(home) != meant:
            raise BadSetting(
                f"OFFSETLAKE_HOME is {moved}, so that commands record in {meant}, and {project / ENV_FILE} has `dagster dev` "
                f"record in {home}, which no command would see; nothing was started; use `offsetlake up`, or export "
                f"DAGSTER_HOME={meant} too; where {home} is meant, unset OFFSETLAKE_HOME"
            )
    if env.get("DAGSTER_IS_DEV_CLI") and not env.get("DAGSTER_HOME") and not is_validating(env):
        raise BadSetting(
            "Dagster was started by `dagster dev` without DAGSTER_HOME, so it forgets at its end what it recorded, and no "
            "command sees it; nothing was started; use `offsetlake up`, or run `offsetlake doctor` and then `dagster dev` in "
            f"{project}, whose {ENV_FILE} names the home"
        )


def shared_home(home: Path, project: Path) -> Path | None:
    """Return the environment's `OFFSETLAKE_HOME` where a Dagster home lies in it and is another folder's default; else none."""
    moved = os.environ.get("OFFSETLAKE_HOME")
    found = path_of("OFFSETLAKE_HOME", moved, project) if moved else None
    return found if found is not None and home == found / "dagster" and _is_of_another(home, project) else None


def is_validating(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether definitions are loaded only to be checked, by `dg check defs` say."""
    return bool((os.environ if environment is None else environment).get("DAGSTER_IS_DEFS_VALIDATION_CLI"))


def _is_of_another(home: Path, project: Path) -> bool:
    """Return whether a path is the default Dagster home of a folder that is not the project."""
    return home.parts[-2:] == DEFAULT_HOME and home.parents[1].resolve() != project.resolve()


def path_of(name: str, text: str, project: Path) -> Path:
    """Return the path that a setting names, which a project's folder is the start of; raise `BadSetting`."""
    if _VARIABLE.search(text):
        raise BadSetting(
            f"{name} is {text}, in which nobody replaces a variable; nothing was started; in .env write it as ${{HOME}}, or "
            "write the whole path"
        )
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise BadSetting(
            f"{name} is {text}, and this machine knows no home of {Path(text).parts[0]}; nothing was started; write the whole "
            "path"
        ) from None
    return path if path.is_absolute() else project / path
