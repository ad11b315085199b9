"""docs/protocol.md and the tests hold each other: no requirement without a test, no test of one that is not written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from pipeline_defs.settings import PROJECT

PROTOCOL = (PROJECT / "docs" / "protocol.md").read_text()
_ID = re.compile(r"\[(R-\d+)\]")
_REQUIREMENT = re.compile(r"^\*\*\[(R-\d+)\]\*\* (.*?)(?=^\*\*\[R-\d+\]\*\*|^## |\Z)", re.MULTILINE | re.DOTALL)


def held_by(document: str) -> list[tuple[str, tuple[str, ...]]]:
    """Reads the requirements of a document in order, each with the tests that it names."""
    return [
        (found[1], tuple(re.findall(r"^- `(test_\w+)`$", found[2], re.MULTILINE)))
        for found in _REQUIREMENT.finditer(document)
    ]


REQUIREMENTS = held_by(PROTOCOL)


def named_in(source: str) -> Iterator[tuple[str, set[str]]]:
    """Yields each test function of a file with the requirements that its docstring or body names."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            assert node.end_lineno is not None
            yield node.name, set(_ID.findall("\n".join(lines[node.lineno - 1 : node.end_lineno])))


@cache
def ids_by_test() -> Mapping[str, frozenset[str]]:
    """Is each test of the suite with the requirements it names; this folder, which reads them, is left out."""
    here = Path(__file__).parent
    found: dict[str, frozenset[str]] = {}
    for path in sorted((PROJECT / "tests").rglob("test_*.py")):
        if path.parent != here:
            for name, ids in named_in(path.read_text()):
                found[name] = found.get(name, frozenset()) | ids
    return found


def test_requirements_are_numbered_from_1_without_a_gap() -> None:
    assert [number for number, _ in REQUIREMENTS] == [f"R-{n}" for n in range(1, len(REQUIREMENTS) + 1)]


@pytest.mark.parametrize(("number", "tests"), REQUIREMENTS, ids=[number for number, _ in REQUIREMENTS])
def test_a_requirement_is_held_by_tests_that_name_it(number: str, tests: tuple[str, ...]) -> None:
    """Each test that the document names is there, and names the requirement in its docstring or body."""
    assert tests, f"[{number}] names no test"
    assert [name for name in tests if number not in ids_by_test().get(name, ())] == []


def test_every_requirement_that_a_test_names_is_in_the_document_with_that_test() -> None:
    document = dict(REQUIREMENTS)
    strays = {
        name: number for name, ids in ids_by_test().items() for number in ids if name not in document.get(number, ())
    }
    assert strays == {}


def test_what_a_document_does_not_define_is_not_a_reference() -> None:
    """A requirement that another document, or the code, points to exists."""
    known = {number for number, _ in REQUIREMENTS}
    files = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "pipeline_defs").rglob("*.py")]
    assert {number for file in files for number in _ID.findall(file.read_text())} <= known


def test_the_reading_sees_what_it_must_see() -> None:
    """Control: a document and a test that do not agree are seen as such."""
    document = "# x\n\n**[R-1]** One.\n- `test_a`\n- `test_b`\n\n## Next\n\n- `test_c`\n\n**[R-3]** None.\n"
    assert held_by(document) == [("R-1", ("test_a", "test_b")), ("R-3", ())]
    source = 'def test_a():\n    """[R-1] It."""\n\ndef helper():\n    """[R-2]"""\n\ndef test_b():\n    x = "[R-9]"\n'
    assert dict(named_in(source)) == {"test_a": {"R-1"}, "test_b": {"R-9"}}
