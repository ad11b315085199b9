"""The status table is read at a glance: in 100 columns, with offsets in the billions, nothing is folded or cut."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from pipeline_defs.cli import show
from pipeline_defs.cli.look import glance

NOW_MS = 1_700_000_000_000
BILLIONS = 4_294_967_296


def document(topic: str, **changed: Any) -> dict[str, Any]:
    row = {
        "partition": 11,
        "landed_offset": BILLIONS,
        "end_offset": BILLIONS + 123_456_789,
        "lag": 123_456_789,
        "lag_seconds": 7200.0,
        "pending_ranges": 1234,
        "failed_ranges": 3,
        "last_landed_at_ms": NOW_MS - 95_000,
        "seconds_to_loss": 90_000.0,
        "open_transactions": [],
    }
    totals = {
        "lag": 12 * 123_456_789,
        "lag_bytes": 2**40,
        "lag_seconds": 7200.0,
        "landed_per_second": 123_456.7,
        "pending_ranges": 14_808,
        "failed_ranges": 36,
        "landed_ranges": 99_999,
        "seconds_to_loss": 90_000.0,
        "next_action": "nothing to do: everything is landed",
    }
    return {"topic": topic, "generation": 2, **totals, "partitions": [row], "tables": [], **changed}


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Console:
    """Is a terminal of 100 columns that remembers what it was shown."""
    console = Console(width=100, record=True, highlight=False, file=io.StringIO())
    monkeypatch.setattr(show, "OUT", console)
    monkeypatch.setattr(glance, "OUT", console)
    return console


def test_a_hundred_columns_are_enough_for_billions(printed: Console) -> None:
    glance.print_status([document("flights")], NOW_MS, by_partition=True)
    text = printed.export_text()
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 100, text
    (total,) = [line for line in lines if "│ flights" in line]
    (partition,) = [line for line in lines if "4,294,967,296" in line]
    assert [word.strip() for word in total.split("│")[1:-1]] == [
        *("flights", "1,481,481,468", "1.0 TiB", "2 h", "123,457", "14,808", "36", "99,999", "25 h")
    ]
    assert [word.strip() for word in partition.split("│")[1:-1]] == [
        *("11", "4,294,967,296", "4,418,424,085", "123,456,789", "2 h", "1,234", "3", "95 s ago", "25 h")
    ]
    assert "flights: nothing to do: everything is landed" in lines


def test_a_topic_that_the_broker_lacks_hides_no_other(printed: Console) -> None:
    error = {"error": "no such topic", "kind": "unknown_topic"}
    absent = {"topic": "absent", **error, "next_action": "create it", "partitions": [], "tables": []}
    glance.print_status([absent, document("flights")], NOW_MS, by_partition=False)
    text = printed.export_text()
    assert "unknown_topic" in text and "no such topic" in text and "absent: create it" in text and "│ flights" in text
