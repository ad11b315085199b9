"""What a newcomer finds and does by clicking where a topic is decoded: dead letters, a mended decoder, latest records, days.

One desk for all, without a daemon: what is clicked runs at once, and nothing else does. Each test can also be run alone, and
the one that decodes again comes after those that look at what was there before.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Page

from pipeline_defs.component import KafkaTopic
from pipeline_defs.settings import Settings
from tests.browser.conftest import Take
from tests.support.browser import load_until, open_dialog
from tests.support.decoded import DecodedTopic
from tests.support.desk import Desk
from tests.support.world import World

pytestmark = pytest.mark.scenario

AT_ONCE = """
telemetry: {enabled: false}
nux: {enabled: false}
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
"""
TOO_STRICT, MENDED = "at TIMESTAMP, guests INT NOT NULL", "at TIMESTAMP, guests INT"
DAY, NEXT_DAY = "2025-01-01", "2025-01-02"


def attributes(schema: str) -> dict[str, Any]:
    """What `defs.yaml` says of the topic."""
    value = {"format": "json", "inline_schema": schema}
    return {
        "topic": "visits",
        "records_per_range": 20,
        "max_age_seconds": 0,
        "decode": {"key": {"format": "string"}, "value": value, "dead_letters": {"records": 10, "share": 1.0}},
        "days": {"start": DAY, "event_time": "value.at"},
        "latest": {},
    }


def visit(number: int) -> dict[str, Any]:
    """A record: of ten houses, eight of 40 on the second day; 5 is cut off, 6 does not say how many guests, 20 not when."""
    known: dict[str, Any] = {"at": f"{NEXT_DAY if number > 30 else DAY}T12:00:00Z", "guests": number}
    value = json.dumps({name: said for name, said in known.items() if (number, name) not in {(6, "guests"), (20, "at")}})
    return {"partition": 0, "key": b"house-%d" % (number % 10), "value": value.encode()[: 9 if number == 5 else None]}


@pytest.fixture(scope="module")
def visits(settings: Settings, folder: Path) -> Iterator[World]:
    """A topic of two ranges, landed, and decoded by a schema that is too strict."""
    (folder / "dagster").mkdir()
    (folder / "dagster" / "dagster.yaml").write_text(AT_ONCE)
    with World(settings, folder, "visits") as world:
        world.topic = KafkaTopic(**attributes(TOO_STRICT)).as_topic()
        world.create_topic()
        world.send(visit(number) for number in range(39))
        world.send([{"partition": 0, "key": b"house-9", "value": None}])
        world.tick()
        world.launch()
        ranges = [*world.coverage.log.ranges]
        for launched in world.in_process.decode(ranges, redo=False):
            assert launched.succeeded, launched.reason
        yield world


@pytest.fixture(scope="module")
def desk(visits: World) -> Iterator[Desk]:
    """Dagster over the topic with its decoder mended: what is there was decoded before that. Runs use the tests' Spark."""
    topics = {"visits": {name: said for name, said in attributes(MENDED).items() if name != "topic"}}
    with Desk(visits.folder / "project", visits.settings, topics) as desk:
        yield desk


def test_what_could_not_be_decoded_is_seen_with_why_and_where(desk: Desk, page: Page, picture: Take) -> None:
    """[R-67] From the check, which says how many of which range and the command that shows them, to the range's own facts."""
    page.goto(f"{desk.url}/assets/decoded/visits?view=checks")
    words = "range visits/0 [0, 20): 2 of 20 records could not be decoded (1 json_malformed, 1 json_mismatch)"
    page.get_by_text(words).filter(visible=True).first.wait_for()
    page.get_by_text("offsetlake dead-letters visits --key 0-0-20").filter(visible=True).first.wait_for()
    picture("dead_letters")
    page.get_by_role("link", name="Partitions").or_(page.get_by_role("tab", name="Partitions")).first.click()
    page.get_by_text("0-0-20", exact=True).filter(visible=True).first.click()
    page.get_by_role("row", name="dead_letters 2").wait_for()
    page.get_by_role("row", name="error_classes").wait_for()
    page.get_by_text("0-20-40", exact=True).filter(visible=True).first.click()
    page.get_by_role("row", name="dead_letters 0").wait_for()  # the control


def test_a_day_says_which_ranges_it_is_of_and_a_check_which_rows_are_of_none(desk: Desk, page: Page, picture: Take) -> None:
    """[R-89] From a check of what is decoded to the day, and from that to the decoded asset; a tombstone has no time."""
    page.goto(f"{desk.url}/assets/decoded/visits?view=checks")
    page.get_by_text("rows_outside_of_days").filter(visible=True).first.click()
    page.get_by_text("range visits/0 [20, 40): 1 rows have no event time").filter(visible=True).first.wait_for()

    page.set_viewport_size({"width": 1200, "height": 900})
    page.goto(f"{desk.url}/assets/days/visits?view=partitions&partition={NEXT_DAY}")
    page.get_by_role("row", name="last_ranges 0-20-40").wait_for()
    page.get_by_role("row", name="rows 8", exact=True).wait_for()
    picture("day")
    page.get_by_role("link", name="Overview").or_(page.get_by_role("tab", name="Overview")).last.click()
    page.get_by_role("link", name="decoded / visits").filter(visible=True).first.click()
    page.wait_for_url("**/assets/decoded/visits**")


def test_a_range_is_decoded_again_by_clicking_once_its_decoder_is_mended(desk: Desk, visits: World, page: Page) -> None:
    """[R-69] The schema no longer asks for what one record lacks: that one is a row now, and no other range is changed."""
    before = {offsets.key: decoding for offsets, decoding in visits.decodings.items()}
    page.goto(f"{desk.url}/assets/decoded/visits?view=partitions&partition=0-0-20")
    page.get_by_role("row", name="dead_letters 2").wait_for()
    dialog = open_dialog(page)
    dialog.get_by_text("1 partition", exact=True).wait_for()
    dialog.get_by_role("button", name="Launch 1 run").click()
    dialog.wait_for(state="detached")
    load_until(page, f"{desk.url}/assets/decoded/visits?view=partitions&partition=0-0-20", "replaced")
    page.get_by_role("row", name="dead_letters 1").wait_for()
    page.get_by_role("row", name="revision 1").wait_for()
    after = {offsets.key: decoding for offsets, decoding in visits.decodings.items()}
    assert (before["0-0-20"].dead, after["0-0-20"].dead) == (2, 1)
    assert after["0-20-40"] == before["0-20-40"]


def test_the_latest_records_are_made_by_clicking(desk: Desk, visits: World, page: Page) -> None:
    """Ten houses, of which one has left: nine rows, a tombstone, and a check of a share of the keys."""
    page.goto(f"{desk.url}/assets/latest/visits")
    page.get_by_role("button", name="Materialize").first.click()
    page.get_by_text("Launched run").filter(visible=True).first.wait_for()
    load_until(page, f"{desk.url}/assets/latest/visits?view=events", "tombstones")
    for words in ("keys 9", "tombstones 1", "ranges_read 2"):
        page.get_by_role("row", name=words, exact=True).wait_for()
    load_until(page, f"{desk.url}/assets/latest/visits?view=checks", "Passed")
    shown = DecodedTopic(visits.adapters.lake, "visits", pa.string()).shown()
    assert sorted(row[4] for row in shown) == [f"house-{number}" for number in range(9)]
