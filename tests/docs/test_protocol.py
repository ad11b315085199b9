"""docs/protocol.md and the tests hold each other: each requirement has a test, and each id that is cited is defined."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pipeline_defs.settings import PROJECT

LAST = 100  # the newest requirement
PROTOCOL = (PROJECT / "docs" / "protocol.md").read_text()
_DEFINED = re.compile(r"^\*\*\[(R-\d+)\]\*\* \S", re.MULTILINE)
_NAMED = re.compile(r"\[(R-\d+)\]")
_CITED = re.compile(r"\bR-\d+\b")


def read_tests() -> dict[str, str]:
    """Return the text of each Python file below `tests`, by its path; this folder, which reads them, is left out."""
    here = Path(__file__).parent
    paths = [path for path in sorted((PROJECT / "tests").rglob("*.py")) if not path.is_relative_to(here)]
    return {str(path.relative_to(PROJECT)): path.read_text() for path in paths}


def read_documents_and_code() -> dict[str, str]:
    """Return the text of each document and each file of the package, by its path."""
    paths = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "pipeline_defs").rglob("*.py")]
    return {str(path.relative_to(PROJECT)): path.read_text() for path in paths}


def named_by_tests(source: str) -> Iterator[str]:
    """Yield the ids that the test functions of a file name, in their docstrings or bodies."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            assert node.end_lineno is not None
            yield from _NAMED.findall("\n".join(lines[node.lineno - 1 : node.end_lineno]))


def find_untested(document: str, tests: Iterable[str]) -> list[str]:
    """Return the requirements of a document that no test names."""
    named = {number for source in tests for number in named_by_tests(source)}
    return [number for number in _DEFINED.findall(document) if number not in named]


def find_undefined(document: str, texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the ids that texts cite and the document does not define, by the path of the text."""
    defined = set(_DEFINED.findall(document))
    cited = {path: set(_CITED.findall(text)) - defined for path, text in texts.items()}
    return {path: strays for path, strays in cited.items() if strays}


def test_requirements_are_numbered_from_1_to_the_last_without_a_gap() -> None:
    """Define each number once, in order."""
    assert _DEFINED.findall(PROTOCOL) == [f"R-{number}" for number in range(1, LAST + 1)]


def test_each_requirement_has_a_test_that_names_it() -> None:
    """Name each requirement in the docstring or body of a test."""
    assert find_untested(PROTOCOL, read_tests().values()) == []


def test_each_requirement_that_is_cited_is_defined() -> None:
    """Cite in tests, documents and code only requirements that there are."""
    assert find_undefined(PROTOCOL, read_tests() | read_documents_and_code()) == {}


def test_a_requirement_without_a_test_and_an_unknown_id_are_seen() -> None:
    """Control: see a requirement that only a helper names, and ids that nothing defines."""
    document = "# x\n\n**[R-1]** One.\n\n**[R-2]** Two, as R-1.\n\n## Next\n\nNo **[R-3]** here.\n"
    source = 'def test_a():\n    """[R-1] It."""\n\ndef helper():\n    """[R-2]"""\n\ndef test_b():\n    x = "[R-9]"\n'
    assert find_untested(document, [source]) == ["R-2"]
    assert find_untested(document, [source, "def test_c():\n    x = 1  # [R-2]\n"]) == []
    assert find_undefined(document, {"protocol.md": document}) == {"protocol.md": {"R-3"}}
    assert find_undefined(document, {"test_x.py": source, "a.md": "see [R-1, R-8](protocol.md), R-2"}) == {
        "test_x.py": {"R-9"},
        "a.md": {"R-8"},
    }
