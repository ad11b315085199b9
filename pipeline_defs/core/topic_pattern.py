"""Which topics one defs.yaml stands for, where it names them by a pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """The topics whose whole name `topics` matches, and `exclude` does not: regular expressions of Python.

    Topics of Kafka itself, whose names begin with two underscores, are never among them.
    """

    topics: str
    exclude: str | None = None

    def __str__(self) -> str:
        return self.topics if self.exclude is None else f"{self.topics} without {self.exclude}"

    def matches(self, name: str) -> bool:
        """Return whether a topic of this name is one of them."""
        is_excluded = self.exclude is not None and re.fullmatch(self.exclude, name) is not None
        return not name.startswith("__") and not is_excluded and re.fullmatch(self.topics, name) is not None


def check_pattern(pattern: str) -> str:
    """Return the pattern; raise `ValueError` where it is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        at = "" if error.pos is None else f" at character {error.pos + 1}"
        raise ValueError(f"{pattern!r} is no regular expression of Python: {error.msg}{at}") from None
    return pattern
