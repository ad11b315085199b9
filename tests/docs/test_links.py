"""What the documents point to is there: files, headings, and the files of the code that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline_defs.settings import PROJECT
from tests.support.markdown import documents, without_blocks

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_LAYERS = "core|adapters|landing|tables|orchestration|operate|cli|lab"
_FILE = re.compile(rf"`((?:pipeline_defs|assets|tests|docs)/[\w./-]*|(?:{_LAYERS})/[\w./-]*\.py)`")
_ROOMS = ("", "pipeline_defs/")  # the map of the code names files as they lie in the package


def anchors(document: Path) -> set[str]:
    """Are the anchors that the headings of a document have, as code hosts derive them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    """Returns the relative links of a document that lead nowhere."""
    broken = []
    for link in _LINK.findall(without_blocks(document.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("document", documents(), ids=[str(path.relative_to(PROJECT)) for path in documents()])
def test_every_relative_link_leads_somewhere_and_every_file_that_a_document_names_exists(document: Path) -> None:
    """A file that was moved or renamed would be looked for in vain; `assets/orders/` is the README's own example."""
    assert broken_links(document) == []
    named = {path for path in _FILE.findall(document.read_text()) if not path.startswith("assets/orders/")}
    assert [path for path in sorted(named) if not any((PROJECT / room / path).exists() for room in _ROOMS)] == []


def test_every_folder_of_the_code_says_what_is_in_it() -> None:
    """And docs/architecture.md names each of the layers that they are in."""
    text, package = (PROJECT / "docs" / "architecture.md").read_text(), PROJECT / "pipeline_defs"
    folders = {path.parent for path in package.rglob("*.py")} - {package / "offsetlake"}
    assert all((folder / "__init__.py").read_text().startswith('"""') for folder in folders)
    assert [path.name for path in package.iterdir() if path in folders and f"\n{path.name} " not in text] == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    """Control: a file or a heading that is not there, beside ones that are; links in blocks are examples."""
    (tmp_path / "there.md").write_text("# A heading: one\n")
    document = tmp_path / "document.md"
    document.write_text(
        "[a](there.md) [b](there.md#a-heading-one) [c](gone.md) [d](there.md#gone) [e](https://example.org/x)\n"
        "```text\n[f](gone.md)\n```\n"
    )
    assert broken_links(document) == ["gone.md", "there.md#gone"]
