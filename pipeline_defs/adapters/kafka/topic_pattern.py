"""Which topics one defs.yaml stands for, where it names them by a pattern: matched by RE2, through pyarrow.

RE2 takes a time that grows with the name alone, whatever the pattern; Python's own would let one topic name stop all others.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...core.offsets import is_internal


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
