"""YAML as people mean it: what PyYAML would read otherwise than it looks, or not at all, is refused with its line.

Dagster reads the same text afterwards. Invariants: no text ends in anything but a `Sketch` or one `NotYaml`; nothing is
constructed, so a text of repeated anchors costs no more than its nodes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MOST_VALUES = 20_000  # of a file whose anchors are written out
DEEPEST = 50
LONGEST_NUMBER = 100
LONGEST_SHOWN = 60
_INT, _FLOAT, _BOOL, _NULL, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null", "merge"))
_PLAIN_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "seq", "map", "merge")
)
_TEXT_LIKE = frozenset({"true", "false"})


class NotYaml(ValueError):
    """What is wrong with a text, all of it, each with its line."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Document:
    """What one document of a defs.yaml says of itself, without its being right."""

    type: str | None = None
    topic: str | None = None


def shown(text: str) -> str:
    """Return a text as a message may show it: short, on one line."""
    cut = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return re.sub(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\uffef]", "?", cut)


def sketch(text: str) -> list[Document]:
    """Return what each document says of itself; of a text that cannot be read, nothing."""
    try:
        return [_sketch_one(node) for node in _compose(text)]
    except NotYaml:
        return []


def check_yaml(text: str) -> None:
    """Raise `NotYaml` for a text that PyYAML cannot read, or would read otherwise than a person."""
    nodes = _compose(text)
    if not nodes:
        raise NotYaml("it is empty, expected `type` and `attributes`")
    problems: list[str] = []
    for node in nodes:
        _count(node, {}, ())
        if isinstance(node, MappingNode):
            problems += _refuse(node, set())
        else:
            problems.append(f"line {_line(node)}: expected the keys `type` and `attributes`")
    if problems:
        raise NotYaml(*dict.fromkeys(problems))


def _compose(text: str) -> list[Node]:
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:  # PyYAML would call itself as often
                raise NotYaml(f"line {event.start_mark.line + 1}: nested more than {DEEPEST} levels deep")
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
    except NotYaml:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise NotYaml(f"it is no YAML: {shown(str(error))}") from None


def _count(node: Node, counted: dict[int, int], within: tuple[int, ...]) -> int:
    """Return how many values a node is with its anchors written out; refuse too many, and one that contains itself."""
    if id(node) in within:
        raise NotYaml(f"line {_line(node)}: the anchor contains itself")
    if id(node) not in counted:
        counted[id(node)] = 1 + sum(_count(each, counted, (*within, id(node))) for each in _inner(node))
    if counted[id(node)] > MOST_VALUES:
        raise NotYaml(f"line {_line(node)}: more than {MOST_VALUES:,} values where its anchors are written out")
    return counted[id(node)]


def _inner(node: Node) -> Iterator[Node]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield from (key, value)
    elif isinstance(node, SequenceNode):
        yield from node.value


def _refuse(node: Node, seen: set[int]) -> Iterator[str]:
    """Name what is wrong in a node and below it, once where an anchor stands for it in several places."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if node.tag not in _PLAIN_TAGS:
        yield f"line {_line(node)}: the tag {shown(node.tag)} is not read here, expected texts, numbers, lists and keys"
    if isinstance(node, MappingNode):
        yield from _refuse_keys(node)
    if isinstance(node, ScalarNode):
        yield from _refuse_scalar(node)
    for each in _inner(node):
        yield from _refuse(each, seen)


def _refuse_keys(node: MappingNode) -> Iterator[str]:
    lines: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            yield f"line {_line(key)}: a key is a list or a mapping, expected a text"
        elif key.tag == _NULL or (key.tag == _BOOL and key.value.lower() in _TEXT_LIKE):
            yield f"line {_line(key)}: the key {shown(key.value)} is no text, expected it in quotes: '{shown(key.value)}'"
        elif key.tag == _MERGE and isinstance(value, ScalarNode):
            yield f"line {_line(key)}: << takes in the keys of a mapping, found {shown(value.value)}"
        elif key.value in lines:
            yield f"line {_line(key)}: `{shown(key.value)}` is there twice, first in line {lines[key.value]}"
        else:
            lines[key.value] = _line(key)


def _refuse_scalar(node: ScalarNode) -> Iterator[str]:
    """Refuse what YAML 1.1, which PyYAML reads, takes for another value than YAML 1.2 and people do."""
    text = node.value
    if "\0" in text:
        yield f"line {_line(node)}: a value has a NUL character"
    if node.style is not None:  # quoted, or a block: a text
        return
    if node.tag in {_INT, _FLOAT} and not _PLAIN_NUMBER.fullmatch(text):
        yield (
            f"line {_line(node)}: {shown(text)} is written so that YAML reads another number, expected digits such as 3600, "
            "or a text in quotes"
        )
    elif node.tag == _INT and len(text) > LONGEST_NUMBER:
        yield f"line {_line(node)}: a number of {len(text):,} digits, expected at most {LONGEST_NUMBER}"
    elif node.tag == _BOOL and text.lower() not in _TEXT_LIKE:
        yield f"line {_line(node)}: {shown(text)} is read as true or false, expected a text in quotes: '{shown(text)}'"


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
