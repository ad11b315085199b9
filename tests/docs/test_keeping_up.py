"""docs/keeping-up.md: its sizing table is what its constants and its formula give."""

from __future__ import annotations

import re

from pipeline_defs.settings import PROJECT

TEXT = (PROJECT / "docs" / "keeping-up.md").read_text()
ROW = re.compile(r"^\| ([\d,]+) s \| ([\d,]+)/s \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)


def constant(name: str) -> float:
    """Return what the table of constants says of a name."""
    (found,) = re.findall(rf"^\| `{name}` \| ([\d.]+) \|", TEXT, re.MULTILINE)
    return float(found)


def topics(cores: int, records: int, max_age: int) -> int:
    """Return how many topics of two Kafka partitions the formula gives."""
    ranges = 2 / max_age  # a second, of each topic
    by_cores = (cores / 2 - constant("base")) / (ranges * constant("range") + records * constant("record"))
    by_runs = (max_age - constant("run")) / (2 * constant("turn"))
    return int(min(by_cores, by_runs))


def test_the_sizing_table_is_what_the_constants_give() -> None:
    rows = [[int(number.replace(",", "")) for number in row] for row in ROW.findall(TEXT)]
    assert len(rows) == 6
    for max_age, records, *found in rows:
        assert found == [topics(cores, records, max_age) for cores in (2, 8, 32)], (max_age, records)
