"""docs/metrics.md names every metric there is, with its labels, and no other."""

from __future__ import annotations

import re

from pipeline_defs.operate.metrics import HELP
from pipeline_defs.settings import PROJECT


def test_the_table_is_what_is_exported() -> None:
    text = (PROJECT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \| (.+) \|$", text, re.MULTILINE)
    assert rows == [(name, ", ".join(labels), words) for name, (labels, words) in HELP.items()]
    assert {name.removesuffix("_bucket") for name in re.findall(r"offsetlake_\w+", text)} <= set(HELP)
