"""Tables of the documents are what the code says: metrics, settings of a defs.yaml, commands, and the sizing of keeping-up."""

from __future__ import annotations

import re

from pipeline_defs.cli.commands import SECTIONS
from pipeline_defs.operate.metrics import HELP
from pipeline_defs.settings import PROJECT
from tests.support.reference import PAGE, made

METRICS, KEEPING_UP = ((PROJECT / "docs" / f"{name}.md").read_text() for name in ("metrics", "keeping-up"))
ROW = re.compile(r"^\| ([\d,]+) s \| ([\d,]+)/s \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)


def test_the_table_names_each_metric_once_and_no_other() -> None:
    rows = re.findall(r"^\| .+ \| (`.+`) \|$", METRICS, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`((?:kafka|offsetlake)_\w+)`", row)]
    assert sorted(named) == sorted(HELP)


def test_alerts_and_queries_name_no_other_metric() -> None:
    """Except for kafka_exporter, which is a program."""
    named = {name.removesuffix("_bucket") for name in re.findall(r"\b(?:kafka|offsetlake)_\w+", METRICS)}
    assert named - {"kafka_exporter"} == set(HELP)


def constant(name: str) -> float:
    """Return what the table of constants says of a name."""
    (found,) = re.findall(rf"^\| `{name}` \| ([\d.]+) \|", KEEPING_UP, re.MULTILINE)
    return float(found)


def topics(cores: int, records: int, max_age: int) -> int:
    """Return how many topics of two Kafka partitions the formula gives."""
    ranges = 2 / max_age  # a second, of each topic
    by_cores = (cores / 2 - constant("base")) / (ranges * constant("range") + records * constant("record"))
    by_runs = (max_age - constant("run")) / (2 * constant("turn"))
    return int(min(by_cores, by_runs))


def test_the_sizing_table_is_what_the_constants_give() -> None:
    rows = [[int(number.replace(",", "")) for number in row] for row in ROW.findall(KEEPING_UP)]
    assert len(rows) == 6
    for max_age, records, *found in rows:
        assert found == [topics(cores, records, max_age) for cores in (2, 8, 32)], (max_age, records)


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
