"""docs/metrics.md names every metric there is, and no other."""

from __future__ import annotations

import re

from pipeline_defs.operate.metrics import HELP
from pipeline_defs.settings import PROJECT

TEXT = (PROJECT / "docs" / "metrics.md").read_text()


def test_the_table_names_each_metric_once_and_no_other() -> None:
    rows = re.findall(r"^\| .+ \| (`.+`) \|$", TEXT, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`((?:kafka|offsetlake)_\w+)`", row)]
    assert sorted(named) == sorted(HELP)


def test_alerts_and_queries_name_no_other_metric() -> None:
    """Except for kafka_exporter, which is a program."""
    named = {name.removesuffix("_bucket") for name in re.findall(r"\b(?:kafka|offsetlake)_\w+", TEXT)}
    assert named - {"kafka_exporter"} == set(HELP)
