"""The topics of a project, as its defs.yaml files give them: those that are named, those of patterns, and what is broken.

Nothing here opens a file: `topic_files.py` does. RE2, through pyarrow, matches a pattern in a time that grows with the name
alone, whatever the pattern; with Python's own engine one topic name could stop all others.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from dagster.components.core.defs_module import find_defs_or_component_yaml

from ..core.errors import BadSetting, OffsetlakeError
from ..core.offsets import is_internal, is_topic
from ..topics import Topic


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """The topics whose whole name `topics` matches, and `exclude` does not: regular expressions of RE2.

    Topics of Kafka itself, whose names begin with two underscores, are never among them.
    """

    topics: str
    exclude: str | None = None

    def __str__(self) -> str:
        return self.topics if self.exclude is None else f"{self.topics} without {self.exclude}"

    def matches(self, name: str) -> bool:
        """Return whether a topic of this name is one of them."""
        is_excluded = self.exclude is not None and _matches(self.exclude, name)
        return not is_internal(name) and not is_excluded and _matches(self.topics, name)


def check_pattern(pattern: str) -> str:
    """Return the pattern; raise `ValueError` where it is no regular expression."""
    if "{{" in pattern:
        raise ValueError(f"{pattern!r} has a template, expected a regular expression without one")
    try:
        _matches(pattern, "")
    except pa.ArrowInvalid as error:
        said = str(error).removeprefix("Invalid regular expression: ").partition(": ")[0]
        raise ValueError(f"{pattern!r} is no regular expression of RE2: {said}") from None
    return pattern


def _matches(pattern: str, name: str) -> bool:
    return bool(pc.match_substring_regex(pa.array([name]), pattern=rf"\A(?:{pattern})\z")[0].as_py())


@dataclass(frozen=True, slots=True)
class Broken:
    """A defs.yaml that cannot be used; `name` is its topic's as far as it can be read, else its folder's."""

    name: str
    folder: Path
    error: OffsetlakeError


@dataclass(frozen=True, slots=True)
class PatternFile:
    """A defs.yaml that stands for the topics of a pattern; `topic` returns the one of a name."""

    folder: Path
    pattern: TopicPattern
    topic: Callable[[str], Topic]

    @property
    def template(self) -> Topic:
        """A topic named like the pattern, with the settings of all that match it."""
        return self.topic(str(self.pattern))


@dataclass(frozen=True, slots=True)
class TopicFiles:
    """What the files below a project's folder of topics say; `tree` has all but the broken ones, and is for Dagster.

    `found` are those of `topics` that have no file of their own: the lake has a plan log of them, and they match a pattern.
    `stamps` say when each file was written, as `read_stamps` does.
    """

    tree: dg.ComponentTree
    topics: Mapping[str, Topic]
    broken: Sequence[Broken] = ()
    patterns: Sequence[PatternFile] = ()
    found: Collection[str] = ()
    stamps: Mapping[Path, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The topics, and those of broken files that name one: what is landed of them is still there."""
        return [*self.topics, *(each.name for each in self.broken if is_topic(each.name) and each.name not in self.topics)]

    def find(self, name: str) -> Topic | None:
        """Find a topic that a file names or a pattern matches, whether anything is planned of it yet or not.

        Raises `BadSetting` where the patterns of two files match it.
        """
        if name in self.topics or any(each.name == name for each in self.broken):
            return self.topics.get(name)
        matching = [each for each in self.patterns if each.pattern.matches(name)]
        if len(matching) > 1:
            where = " and ".join(str(file_of(each.folder)) for each in matching)
            raise BadSetting(
                f"topic {name} matches the patterns of {where}, expected one; nothing of it was started, other topics go on; "
                "`exclude` it in all but one, or give it a defs.yaml of its own",
                topic=name,
            )
        return matching[0].topic(name) if matching else None

    def find_new(self, planned: Collection[str]) -> Iterator[Topic]:
        """Yield the `planned` topics that match a pattern and were not known when the files were read.

        One that two patterns match is passed over; the next load of the files reports it.
        """
        for name in planned:
            with suppress(BadSetting):
                topic = self.find(name) if is_topic(name) and name not in self.topics else None
                if topic is not None:
                    yield topic

    def find_broken(self, name: str) -> Broken | None:
        """Return the broken file of a topic, by the topic's name or its folder's."""
        return next((each for each in self.broken if name in {each.name, each.folder.name}), None)


def read_stamps(folder: Path) -> dict[Path, int]:
    """Read when each YAML or Python file below a folder was written: another answer means a file added, edited or deleted."""
    found = dict[Path, int]()
    for parent, _, names in os.walk(folder, followlinks=True):
        for path in (Path(parent, name) for name in names if name.endswith((".yaml", ".yml", ".py"))):
            with suppress(OSError):
                found[path] = path.stat().st_mtime_ns
    return found


def file_of(folder: Path) -> Path:
    """Return the file of a folder that configures its topic, or the path where one is expected."""
    return find_defs_or_component_yaml(folder) or folder / "defs.yaml"
