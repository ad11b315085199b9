"""YAML whose faults are told with their line: what PyYAML cannot read, and repeated keys, of which it takes the last.

Dagster reads the same text afterwards. Invariants: whatever the text, nothing but `NotYaml` is raised; no object is
constructed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

LONGEST_SHOWN = 60


class NotYaml(ValueError):
    """What is wrong with a text, all of it, each with its line."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Document:
    """What one document of a defs.yaml says of itself, right or wrong."""

    type: str | None = None
    topic: str | None = None


def shown(text: str) -> str:
    """Return a text as a message may show it: short, on one line."""
    cut = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return re.sub(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\uffef]", "?", cut)


def sketch(text: str) -> list[Document]:
    """Return what each document says of itself; nothing if the text cannot be read."""
    try:
        return [_sketch_one(node) for node in _compose(text)]
    except NotYaml:
        return []


def check_yaml(text: str) -> None:
    """Raise `NotYaml` for a text that PyYAML cannot read, or that has a key twice."""
    nodes = _compose(text)
    if not nodes:
        raise NotYaml("it is empty, expected `type` and `attributes`")
    problems: list[str] = []
    for node in nodes:
        if isinstance(node, MappingNode):
            problems += _find_twice(node, set())
        else:
            problems.append(f"line {_line(node)}: expected the keys `type` and `attributes`")
    if problems:
        raise NotYaml(*dict.fromkeys(problems))


def _compose(text: str) -> list[Node]:
    try:
        return [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise NotYaml(f"line {line}: the character 0x{error.character:02x} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        said = shown(str(error.problem or error.context).replace("\t", "\\t"))
        hint = ", indent by spaces" if "'\\t'" in said else ""
        raise NotYaml(f"{where}{said}{hint}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # the third of `\UFFFFFFFF`
        raise NotYaml(f"it is no YAML: {shown(str(error))}") from None


def _inner(node: Node) -> Iterator[Node]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield from (key, value)
    elif isinstance(node, SequenceNode):
        yield from node.value


def _find_twice(node: Node, seen: set[int]) -> Iterator[str]:
    """Name the keys that are repeated in a mapping, in a node or below it; once for an anchor that is in many places."""
    if id(node) in seen:
        return
    seen.add(id(node))
    lines: dict[str, int] = {}
    for key, _ in node.value if isinstance(node, MappingNode) else ():
        if isinstance(key, ScalarNode) and key.value in lines:
            yield f"line {_line(key)}: `{shown(key.value)}` is there twice, first in line {lines[key.value]}"
        elif isinstance(key, ScalarNode):
            lines[key.value] = _line(key)
    for each in _inner(node):
        yield from _find_twice(each, seen)


def _sketch_one(node: Node) -> Document:
    attributes = _value(node, "attributes")
    return Document(_scalar(_value(node, "type")), _scalar(_value(attributes, "topic")))


def _value(node: Node | None, name: str) -> Node | None:
    found = None
    if isinstance(node, MappingNode):
        for key, value in node.value:
            found = value if isinstance(key, ScalarNode) and key.value == name else found
    return found


def _scalar(node: Node | None) -> str | None:
    return node.value if isinstance(node, ScalarNode) else None


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1
