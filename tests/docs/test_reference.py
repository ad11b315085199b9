"""docs/reference.md says of each key of a defs.yaml what the component says."""

from __future__ import annotations

from tests.support.reference import PAGE, made


def test_the_reference_is_what_the_code_says() -> None:
    assert PAGE.read_text() == made(), "write it anew: python -m tests.support.reference"


def test_the_reference_has_each_key_with_what_it_means() -> None:
    """Control: of the component, and of what stands below one of its keys."""
    page = made()
    for key in ("max_age_seconds", "inline_schema", "sequence"):
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{key}` |"))
        assert len(row.split("|")[3].split()) > 3
