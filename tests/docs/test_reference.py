"""docs/reference.md says of each key of a defs.yaml what the component says, and of each command what it says itself."""

from __future__ import annotations

import re

from pipeline_defs.cli.commands import SECTIONS
from tests.support.reference import PAGE, made


def test_the_reference_is_what_the_code_says() -> None:
    assert PAGE.read_text() == made(), "write it anew: python -m tests.support.reference"


def test_the_reference_has_each_key_with_what_it_means() -> None:
    """Control: of the component, and of what stands below one of its keys."""
    page = made()
    for key in ("max_age_seconds", "inline_schema", "sequence"):
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{key}` |"))
        assert len(row.split("|")[3].split()) > 3


def test_the_reference_has_each_command_with_what_it_does() -> None:
    """Control: of each command or its group; one with an argument and options, and one of a group."""
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", made().partition("## Commands")[2], re.MULTILINE))
    assert {usage.split()[0] for usage in rows} == {name for section in SECTIONS.values() for name in section}
    assert min(len(what.partition("(`")[0].split()) for what in rows.values()) > 3
    assert "`--key KEY`" in rows["land TOPIC"] and "broker stop" in rows
