"""The defs.yaml files of a project, each read by itself, so that a wrong one affects no other topic.

Dagster's own loader stops at the first wrong file, so it is given only the right ones. The lake says which topics a pattern
has. Invariant: a file that is left out is in `broken`, with one error that names it; commands show it, and `build_defs` has
Dagster show it.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.core.context import ComponentDeclLoadContext
from dagster.components.core.decl import (
    ComponentDecl,
    DefsFolderDecl,
    YamlFileDecl,
    build_filesystem_component_decl_from_context,
)
from dagster.components.core.defs_module import EXPLICITLY_IGNORED_GLOB_PATTERNS, ComponentPath, CompositeYamlComponent
from dagster.components.resolved.errors import ResolutionException
from dagster_shared.check import CheckError
from dagster_shared.error import DagsterError, DagsterUnresolvableSymbolError
from pydantic import ValidationError

from .adapters.system.project_folder import find_project, is_validating
from .adapters.system.text_files import UnreadableText, read_text_file
from .adapters.system.yaml_text import Document, NotYaml, check_yaml, shown, sketch
from .component import KafkaTopic
from .core.advice import meant
from .core.errors import BadSetting, OffsetlakeError, Refused, first_line
from .core.offsets import is_topic
from .orchestration.assets.yaml_model import problems_of
from .orchestration.home.project import COMPONENT
from .orchestration.topic_set import Broken, PatternFile, TopicFiles, file_of, read_stamps
from .resources import Adapters
from .settings import read_settings
from .topics import Topic

_WRONG = (
    *(ComponentTreeException, DagsterError, DagsterUnresolvableSymbolError, ResolutionException, CheckError),
    *(OffsetlakeError, ValidationError, yaml.YAMLError),
    *(ValueError, TypeError, KeyError, AttributeError, ImportError, OSError, RuntimeError),
)
"""Errors that a user's file can make Dagster raise; any other is our own mistake."""


def read_topic_files(project: Path, planned: Callable[[], Collection[str]] = tuple) -> TopicFiles:
    """Read the topics of a project; nothing is started, no broker is asked, and an error in one file affects no other.

    `planned` returns the topics that have a plan log in the lake; it is asked for a pattern's topics, where a file has one.
    """
    if not any((project / name).is_file() for name in ("pyproject.toml", "dg.toml")):
        raise Refused(
            f"there is no project in {project} or above it, expected a folder with pyproject.toml and topics; nothing was read "
            "or written; go into one, or make one: `offsetlake init NAME --bootstrap-servers HOST:PORT`"
        )
    tree = _open_tree(project)
    stamps = read_stamps(tree.defs_module_path)  # before a file is read: one that is saved meanwhile may be read as it was
    broken: dict[Path, Broken] = {}
    _declare_all(tree, broken)
    topics: dict[str, list[tuple[Topic, Path]]] = defaultdict(list)
    patterns: list[PatternFile] = []
    for decl in _topic_decls(tree.find_root_decl()):
        folder = decl.context.path
        try:
            for component in _load(tree, decl):
                topic = component.as_topic(project)  # of a pattern too: an error for one topic is one for all
                if component.pattern is None:
                    topics[topic.name].append((topic, folder))
                else:
                    patterns.append(PatternFile(folder, component.pattern, partial(component.as_topic, project)))
        except _WRONG as error:
            broken[folder] = _explain(folder, error)
    for name, found in topics.items():
        if len(found) > 1:
            broken |= {folder: _twice(name, folder, [each for _, each in found]) for _, folder in found}
    if broken:
        tree = _open_tree(project)
        _declare_all(tree, broken)
    good = {name: topic for name, ((topic, folder), *_) in topics.items() if folder not in broken}
    left_out = [each for _, each in sorted(broken.items())]
    for name, found in topics.items():
        left_out += [_beside(name, broken[folder]) for _, folder in found if folder in broken and broken[folder].name != name]
    patterns = [each for each in patterns if each.folder not in broken]
    own = TopicFiles(tree, good, left_out, patterns, stamps=stamps)
    return _with_found(own, planned) if patterns else own


def _open_tree(project: Path) -> dg.ComponentTree:
    """Open Dagster's component tree of a project, nothing loaded; raise `BadSetting` where the package cannot be imported."""
    try:
        return dg.ComponentTree.for_project(project)
    except Exception as error:
        raise BadSetting(
            f"the Python package of {project} cannot be imported: {_said(error)}; expected the `root_module` of its "
            "pyproject.toml, with a folder `defs` in it; nothing was read or written; correct it"
        ) from error


def _with_found(own: TopicFiles, planned: Callable[[], Collection[str]]) -> TopicFiles:
    """Return the files with the topics of their patterns; a topic with a file of its own, right or wrong, belongs to none."""
    topics, broken = dict(own.topics), [*own.broken]
    try:
        names = [name for name in planned() if is_topic(name) and name not in own.names]
    except OffsetlakeError as error:
        return replace(own, broken=[*broken, *(Broken(str(each.pattern), each.folder, error) for each in own.patterns)])
    for name in names:
        try:
            if (found := own.find(name)) is not None:
                topics[name] = found
        except BadSetting as error:
            broken.append(Broken(name, own.patterns[0].folder, error))
    return replace(own, topics=topics, broken=broken, found=topics.keys() - own.topics.keys())


def _declare_all(tree: dg.ComponentTree, broken: dict[Path, Broken]) -> None:
    """Declare to the tree all of its files but the broken ones; add those that cannot be read to `broken`."""
    loc = ComponentPath.from_path(tree.defs_module_path)
    context = tree.decl_load_context.for_component_loc(loc)
    decl = _declare(context, broken) or DefsFolderDecl(
        context=context, loc=loc, children={}, source_tree=None, component_file_model=None
    )
    tree.state_tracker.set_cache_data(loc, component_decl=decl)


def _declare(context: ComponentDeclLoadContext, broken: dict[Path, Broken]) -> ComponentDecl[Any] | None:
    """Return what Dagster's loader would for a path, but check each defs.yaml by itself; none where nothing is to be loaded."""
    path = context.path
    if path in broken:
        return None
    file = file_of(path)
    if file.exists() or file.is_symlink():  # a dangling link counts as unreadable
        try:
            _check_file(file)
            return build_filesystem_component_decl_from_context(context)
        except _WRONG as error:
            broken[path] = _explain(path, error)
            return None
    if not path.is_dir():
        try:
            return build_filesystem_component_decl_from_context(context)
        except Exception as error:  # noqa: BLE001 (a person's own Python, which is imported: anything)
            broken[path] = Broken(str(path), path, _error(path, _said(error)))
            return None
    children = {}
    for each in sorted(path.iterdir()):
        if not any(each.relative_to(path).match(pattern) for pattern in EXPLICITLY_IGNORED_GLOB_PATTERNS):
            decl = _declare(context.for_component_loc(ComponentPath.from_path(each)), broken)
            if decl is not None:
                children[each] = decl
    if not children:
        return None
    return DefsFolderDecl(
        context=context, loc=ComponentPath.from_path(path), children=children, source_tree=None, component_file_model=None
    )


def _check_file(file: Path) -> None:
    try:
        check_yaml(read_text_file(file))
    except (UnreadableText, NotYaml) as error:
        raise _error(file, str(error)) from None


def _topic_decls(root: ComponentDecl[Any]) -> Iterator[YamlFileDecl]:
    for decl in root.iterate_all_component_decls():
        if isinstance(decl, YamlFileDecl) and any(issubclass(each.component_type, KafkaTopic) for each in decl.decls):
            yield decl


def _load(tree: dg.ComponentTree, decl: YamlFileDecl) -> Iterator[KafkaTopic]:
    found = tree.load_structural_component_at_loc(decl.loc)
    if isinstance(found, CompositeYamlComponent):
        yield from (each for each in found.components if isinstance(each, KafkaTopic))


def _twice(name: str, folder: Path, folders: Sequence[Path]) -> Broken:
    files = sorted({str(file_of(each)) for each in folders})
    where = " and ".join(files) if len(files) > 1 else f"several documents, parted by `---`, of {files[0]}"
    return Broken(
        name,
        folder,
        BadSetting(
            f"a topic has one defs.yaml, found more: topic {name} in {where}; nothing of it was started, other topics go on; "
            "take all but one away"
        ),
    )


def _beside(name: str, other: Broken) -> Broken:
    """Return a topic as broken, since it shares its file with something that is."""
    return Broken(name, other.folder, BadSetting(f"topic {name} has no file of its own: {other.error.message}"))


def _explain(folder: Path, error: BaseException) -> Broken:
    """Return a broken file, with an error that says what is wrong in it in our own words."""
    file = file_of(folder)
    documents = _sketch(file)
    name = next((each.topic for each in documents if each.topic), None) or folder.name
    own = next((each for each in _chain(error) if isinstance(each, OffsetlakeError)), None)
    if own is not None:
        is_named = own.message.startswith(str(file))
        return Broken(shown(name), folder, own if is_named else type(own)(f"{file}: {own.message}", **own.fields))
    return Broken(shown(name), folder, _error(file, _reason(error, documents)))


def _reason(error: BaseException, documents: Sequence[Document]) -> str:
    place = ""
    for each in _chain(error):
        if isinstance(each, ValidationError):
            return "; ".join(f"{place if not said.startswith('line ') else ''}{said}" for said in problems_of(each))
        if isinstance(each, DagsterError | ValueError) and not place:
            wrong = [each for each in documents if each.type is not None and each.type != COMPONENT]
            if wrong and not isinstance(each, ResolutionException):
                found = str(wrong[0].type)
                return f"`type` is {shown(found)}, expected {COMPONENT}{meant(found, [COMPONENT])}"
        if isinstance(each, ResolutionException):
            place = _place_of(str(each))
        elif not isinstance(each, ComponentTreeException):
            return place + shown_reason(str(each) or type(each).__name__)
    return f"{place}it cannot be read"


def _said(error: Exception) -> str:
    """Return class and first line of the error that ended an import."""
    return shown_reason(f"{type(error).__name__}: {first_line(error)}")


def shown_reason(text: str) -> str:
    """Return somebody else's error text in one line, cut after 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:300]}..."


def _place_of(text: str) -> str:
    """Return line and key from what Dagster says of a value, `<file>:<line> - attributes.<key>`; empty without both."""
    head, _, path = text.partition("\n")[0].partition(" - ")
    line = head.rpartition(":")[2]
    return f"line {line}: `{path.removeprefix('attributes.')}`: " if path and line.isdigit() else ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes: Dagster wraps what a file's values raise."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _error(file: Path, reason: str) -> BadSetting:
    return BadSetting(f"{file} cannot be used: {reason}; nothing of it was started, other topics go on; correct the file")


def _sketch(file: Path) -> list[Document]:
    try:
        return sketch(read_text_file(file))
    except UnreadableText:
        return []


def load_topics(project: Path | None = None, adapters: Adapters | None = None) -> TopicFiles:
    """Read the topics of a project, without starting anything; a wrong defs.yaml hides no other topic.

    Where a file has a pattern, the lake is asked which topics that has.
    """
    project = project or find_project()
    if str(project) not in sys.path:  # its own package is not installed
        sys.path.insert(0, str(project))

    def planned() -> Sequence[str]:
        if is_validating():
            return ()  # only the files are checked
        return (adapters or Adapters(read_settings(project=project))).lake.planned_topics()

    return read_topic_files(project, planned)
