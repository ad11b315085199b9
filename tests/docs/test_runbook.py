"""The runbook has a paragraph for each kind of error, and each error leads to its own."""

from __future__ import annotations

import importlib
import pkgutil
import re
import traceback
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

import pipeline_defs
from pipeline_defs.cli.commands import cli
from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.errors import BadKey, OffsetlakeError, Refused
from pipeline_defs.operate.documents import explain
from pipeline_defs.orchestration.assets.derived_config import BudgetConfig, DaysConfig, DecodeConfig, LatestConfig, SideConfig
from pipeline_defs.settings import DOCS, VARIABLES
from tests.support.markdown import without_blocks
from tests.support.messages import texts

TEXT = (DOCS / "runbook.md").read_text()
LACKED = re.compile(r"\b(?:assets|docs)/|[a-z] runbook")
KEY_IN_DEFS = re.compile(r"`(?:\w+\.)*(\w+)`(?: of `\w+`)? in defs\.yaml")
MODELS = (KafkaTopic, DecodeConfig, SideConfig, BudgetConfig, DaysConfig, LatestConfig)
FIELDS = {name for model in MODELS for name in model.model_fields}


def kinds() -> set[str]:
    """Return the kinds of all errors of the package."""
    for module in pkgutil.walk_packages(pipeline_defs.__path__, "pipeline_defs."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return {error.kind for error in _errors(OffsetlakeError)}


def _errors(kind: type[OffsetlakeError]) -> Iterator[type[OffsetlakeError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _errors(each)


def test_every_kind_has_its_paragraph_and_no_other_has() -> None:
    assert set(re.findall(r"^### `(\w+)`$", TEXT, re.MULTILINE)) == kinds()
    assert {"bad_key", "demo_stuck"} <= kinds(), "the control: both rooms are seen"


def test_explain_lists_every_kind(capfd: pytest.CaptureFixture[str]) -> None:
    listed = CliRunner().invoke(cli, ["explain"]).output + capfd.readouterr().out
    assert kinds() <= set(re.findall(r"\w+", listed))


def test_explain_prints_the_paragraph_of_each_kind() -> None:
    """What it prints names no document by a path, for a user's project has none."""
    for kind in kinds():
        text = explain(kind)
        assert len(text.split()) > 6 and kind in text, kind
        assert not re.search(r"\]\((?!https?:)", text) and "docs/" not in text, kind


def test_explain_prints_a_document_whose_links_are_commands() -> None:
    for name in (path.stem for path in DOCS.glob("*.md")):
        assert not re.search(r"\]\((?!\w+:)", without_blocks(explain(name))), name


def test_an_unknown_kind_is_told_the_nearest() -> None:
    with pytest.raises(Refused, match="did you mean `broker_unavailable`"):
        explain("broker_unavaliable")


def test_a_traceback_names_the_command() -> None:
    """As Dagster shows an error of a run."""
    text = "".join(traceback.format_exception_only(BadKey("key 1-2 is no key")))
    assert "offsetlake explain bad_key" in text


def test_no_text_of_a_program_names_a_file_that_a_user_lacks() -> None:
    """A user's project has `<package>/defs/<topic>/defs.yaml` and no `docs/` and `assets/`; the table of settings is ours."""
    table = {text for pair in VARIABLES.values() for text in pair}
    named = [(where, text) for where, text in texts() if LACKED.search(text) and text not in table]
    assert named == []
    assert LACKED.search("see docs/runbook.md") and LACKED.search("in assets/*/defs.yaml"), "the control"


def test_keys_of_defs_yaml_that_a_message_names_exist() -> None:
    """A message that says `schema` in defs.yaml sends its reader to a key that is refused."""
    named = {(where, key) for where, text in texts() for key in KEY_IN_DEFS.findall(text)}
    assert len(named) > 5, "the control: such messages are found"
    assert {(where, key) for where, key in named if key not in FIELDS} == set()
