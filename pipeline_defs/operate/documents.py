"""Offsetlake's own documents, as the installed package or the checkout has them: the runbook's paragraphs, and whole files.

Links between documents become the command that prints them, since a user's project has none of these files.
"""

import re
from collections.abc import Mapping

from ..core.advice import meant
from ..core.errors import Refused
from ..settings import DOCS

_PARAGRAPH = re.compile(r"^### `(\w+)`\n+(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)([^)#\s]*)(?:#[^)\s]*)?\)")


def read_runbook() -> Mapping[str, str]:
    """Return the runbook's paragraphs by the kind of error that they are about, in its order."""
    return {kind: _with_commands(text).strip() for kind, text in _PARAGRAPH.findall((DOCS / "runbook.md").read_text())}


def explain(name: str) -> str:
    """Return what there is to read of a kind of error, or of a document by its name, as Markdown."""
    runbook = read_runbook()
    if name in runbook:
        return f"## {name}\n\n{runbook[name]}\n"
    documents = {path.stem: path for path in DOCS.glob("*.md")}
    if name in documents:
        return _with_commands(documents[name].read_text())
    raise Refused(
        f"{name} is neither a kind of error nor a document{meant(name, [*runbook, *documents])}; `offsetlake explain` lists "
        f"the kinds, documents are {', '.join(sorted(documents))}"
    )


def _with_commands(text: str) -> str:
    """Return Markdown whose links lead to what a user has: other documents by their command, else the words alone."""

    def replace(link: re.Match[str]) -> str:
        words, path = link[1], link[2]
        document = DOCS / path
        if path.endswith(".md") and document.parent == DOCS and document.is_file():
            command = f"`offsetlake explain {document.stem}`"
            return command if words.endswith(".md") else f"{words} ({command})"
        return words

    return _LINK.sub(replace, text)
