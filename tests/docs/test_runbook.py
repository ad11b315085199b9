"""The runbook has a paragraph for each kind of error, and each error leads to its own."""

from __future__ import annotations

import ast
import re
import traceback

import pytest

from pipeline_defs.core.errors import RUNBOOK, BadKey
from pipeline_defs.settings import PROJECT
from tests.docs.test_links import anchors

TEXT = (PROJECT / RUNBOOK).read_text()


def kinds() -> set[str]:
    """Reads every `kind` that a class of the package gives itself."""
    found = set()
    for path in (PROJECT / "pipeline_defs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found |= {
                    line.value.value
                    for line in node.body
                    if isinstance(line, ast.Assign)
                    and ast.unparse(line.targets[0]) == "kind"
                    and isinstance(line.value, ast.Constant)
                }
    return found


def test_every_kind_has_its_paragraph_and_no_other_has() -> None:
    assert set(re.findall(r"^### `(\w+)`$", TEXT, re.MULTILINE)) == kinds()
    assert {"bad_key", "demo_stuck"} <= kinds(), "the control: both rooms are seen"


@pytest.mark.parametrize("kind", sorted(kinds()))
def test_the_link_leads_to_a_heading(kind: str) -> None:
    assert kind in anchors(PROJECT / RUNBOOK)


def test_a_traceback_shows_the_link() -> None:
    """As Dagster shows an error of a run."""
    text = "".join(traceback.format_exception_only(BadKey("key 1-2 is no key")))
    assert f"see {RUNBOOK}#bad_key" in text
