"""What a newcomer finds and does by clicking alone, in a real Chromium at a real Dagster, and the docs' pictures.

One desk for all: `orders` has landed ranges and missing ones, of `payments` the broker has deleted what nobody landed.
The tests run in this order, since a backfill takes half a minute of waiting; each can also be run alone.
"""

import dataclasses
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.settings import Settings
from tests.browser.conftest import Take
from tests.support.browser import load_until, open_dialog, open_page
from tests.support.desk import Desk, fill, measure_beside
from tests.support.world import World

pytestmark = pytest.mark.scenario

RECORDS_PER_RANGE = 400
LOST = 300
FEW = 8  # ranges of the topic that one of very many is measured beside
TICK_TIMES = 15  # of the control's time, at most; measured: 5 with 10,000 ranges, 7 with 100,000
PAGE_TIMES = {10_000: 8, 100_000: 40}  # measured at loads of 1 to 12: 2 to 4 and 17 to 22
PAGES = {
    "partitions": ("?view=partitions", r"Materialized \(\d[\d,]*\)"),
    "range": ("?view=partitions&partition={first}", "landed_by_run"),
    "overview": ("", "Every record of Kafka topic"),
    "events": ("?view=events", "materialized"),
    "lineage": ("?view=lineage", "100% filled"),
}


@pytest.fixture(scope="module")
def orders(settings: Settings, folder: Path) -> Iterator[World]:
    """A topic with five landed ranges and five that are planned."""
    policy = Policy(records_per_range=RECORDS_PER_RANGE, max_age_seconds=0)
    with World(settings, folder, "orders", policy) as world:
        world.fill(1000, 800)
        world.tick()
        world.launch()
        world.send_numbered(800, 0)
        world.send_numbered(500, 1)
        world.tick()
        yield world
        world.delete_topic()  # the tutorial's has the same name


@pytest.fixture(scope="module")
def payments(settings: Settings, orders: World) -> Iterator[World]:
    """A topic of which the broker has deleted what was produced after it was first looked at."""
    with World(settings, orders.folder, "payments", orders.topic.policy) as world:
        world.create_topic()
        world.plan()
        world.send_numbered(LOST)
        world.delete_records(0, LOST)
        world.wait_for_earliest(0, LOST)
        yield world


@pytest.fixture(scope="module")
def desk(orders: World, payments: World) -> Iterator[Desk]:
    """Dagster with both topics, its daemon not begun: no sensor has ticked yet."""
    ranges = {"records_per_range": RECORDS_PER_RANGE}
    words = {"owners": ["team:shop"], "tags": {"domain": "sales"}, "description": "Orders of the shop, as they were placed."}
    topics = {orders.name: ranges | words, payments.name: ranges}
    with Desk(orders.folder / "project", orders.settings, topics) as desk:
        yield desk


@pytest.fixture(scope="module")
def backfill(desk: Desk, chromium: Browser) -> str:
    """The id of a backfill of the missing ranges, launched by clicking before the sensor, which would be first, ticks.

    The daemon begins after it: so it takes the backfill up at once, and says that it ended half a minute later.
    """
    page = open_page(chromium)
    page.goto(f"{desk.url}/assets/raw/orders?view=partitions")
    dialog = open_dialog(page)
    dialog.get_by_role("button", name="Missing", exact=True).click()
    dialog.get_by_text("5 partitions", exact=True).wait_for()
    dialog.get_by_role("button", name="Launch backfill").click()
    said = page.get_by_text(re.compile("Created backfill")).inner_text()
    page.close()
    desk.start_daemon()
    return said.split()[-1]


def test_the_graph_leads_from_kafka_to_the_lake(desk: Desk, page: Page, picture: Take) -> None:
    """Three groups, each asset with its kinds and its state; opened by the key that Dagster's own help names."""
    page.set_viewport_size({"width": 1400, "height": 1000})
    page.goto(f"{desk.url}/asset-groups")
    page.locator("foreignObject").get_by_text("losses", exact=True).filter(visible=True).first.wait_for()
    page.keyboard.press("Alt+KeyE")
    page.get_by_text("50% filled").wait_for()
    assert page.locator("foreignObject").get_by_text("orders", exact=True).filter(visible=True).count() == 3
    picture("graph")


def test_an_asset_says_what_it_is_to_who_has_never_seen_it(desk: Desk, page: Page, picture: Take) -> None:
    """Description, columns, whose it is, where its files lie, what to read on."""
    page.goto(f"{desk.url}/assets/raw/orders")
    page.get_by_text("Every record of Kafka topic").filter(visible=True).wait_for()
    for words in ("Orders of the shop", "record timestamp, UTC", "shop", "domain: sales"):
        page.get_by_text(words).filter(visible=True).first.wait_for()
    page.get_by_text("runbook.md").filter(visible=True).first.wait_for()
    picture("asset")
    page.get_by_role("button", name="Plots").click()
    for name in ("rows", "bytes", "seconds", "lag_seconds"):
        page.get_by_text(name, exact=True).filter(visible=True).first.wait_for()
    page.locator("canvas").first.scroll_into_view_if_needed()
    picture("plots")


def test_missing_ranges_are_seen_and_a_row_is_followed_to_its_run(desk: Desk, orders: World, page: Page, picture: Take) -> None:
    """From the key with the row's offset to its metadata, and by the link there to the run that landed it."""
    manifest = next(m for offsets, m in orders.coverage.manifests.items() if offsets.key == "0-400-800")
    page.goto(f"{desk.url}/assets/raw/orders?view=partitions")
    page.get_by_text("Missing (5)").wait_for()
    page.get_by_text("0-400-800", exact=True).filter(visible=True).first.click()
    page.get_by_text("orders/0 [400, 800)").wait_for()
    assert page.get_by_text(manifest.digest).count()
    picture("range")
    page.get_by_role("row", name="landed_by_run").get_by_role("link").click()
    page.wait_for_url(f"**/runs/{manifest.provenance.run_id}**")
    page.get_by_text("Success").first.wait_for()


def test_a_red_check_says_where_and_what_to_do(desk: Desk, payments: World, backfill: str, page: Page, picture: Take) -> None:
    """[R-41] What the broker deleted before it was landed: which offsets, why, and the command that accepts it."""
    page.goto(f"{desk.url}/assets/losses/payments?view=checks")
    page.get_by_text(f"payments/0 [0, {LOST}): {LOST} offsets deleted by the broker").filter(visible=True).first.wait_for()
    page.get_by_text(f"offsetlake accept-loss payments 0-0-{LOST}").filter(visible=True).first.wait_for()
    picture("red_check")


def test_lag_is_told_on_the_kafka_topic(desk: Desk, backfill: str, page: Page, picture: Take) -> None:
    """[R-43] The first tick notes how far landing is behind; nothing of `payments` is left to land."""
    load_until(page, f"{desk.url}/assets/kafka/payments?view=events", "Observed")
    row = page.get_by_role("row", name=re.compile(r"^lag \d"))
    row.wait_for()
    assert row.inner_text().split() == ["lag", "0"]
    picture("lag")


def test_a_key_that_was_typed_is_refused_and_the_run_says_why(desk: Desk, backfill: str, page: Page, picture: Take) -> None:
    """Dagster lets anybody add any text as a partition; the run is red, and its error says what was expected."""
    page.goto(f"{desk.url}/assets/raw/orders?view=partitions")
    dialog = open_dialog(page)
    dialog.get_by_text("Add a partition").click()
    naming = page.get_by_role("dialog").filter(has_text="Partition name")
    naming.get_by_role("textbox").fill("tuesday")
    picture("bad_key")
    naming.get_by_role("button", name="Save").click()
    naming.wait_for(state="detached")
    dialog.get_by_role("button", name="Launch 1 run").click()
    dialog.wait_for(state="detached")
    failed = "failed, and did not materialize this asset"
    load_until(page, f"{desk.url}/assets/raw/orders?view=partitions&partition=tuesday", failed)
    page.get_by_text(failed).get_by_role("link").click()
    page.wait_for_url("**/runs/**")
    page.get_by_role("button", name="View full message").last.click()
    said = page.get_by_role("dialog").get_by_text("is not a range: expected <kafka partition>-<start>-<end>").first
    said.scroll_into_view_if_needed()
    picture("refusal", said)


def test_the_backfill_of_missing_ranges_ends(desk: Desk, orders: World, backfill: str, page: Page, picture: Take) -> None:
    """[R-16] What was missing is landed, once, and the page of the backfill says so."""
    load_until(page, f"{desk.url}/runs?view=backfills", "Success")
    page.get_by_text(backfill).filter(visible=True).first.wait_for()
    picture("backfill")
    load_until(page, f"{desk.url}/assets/raw/orders?view=partitions", "Materialized (10)")
    page.get_by_text("Missing (0)").wait_for()
    orders.assert_all_landed_once()


def test_the_last_hour_is_backfilled_by_clicking(desk: Desk, orders: World, backfill: str, page: Page, picture: Take) -> None:
    """From Jobs to the Launchpad, whose config says the last hour already; the run's output leads to the backfill."""
    page.goto(desk.url)
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("link", name="backfill_orders").click()
    page.get_by_role("tab", name="Launchpad").click()
    page.locator(".CodeMirror-code").get_by_text("last_minutes").wait_for()
    assert "60" in page.locator(".CodeMirror-code").inner_text()
    button = page.get_by_role("button", name="Launch Run")
    button.and_(page.locator(":enabled")).wait_for()
    picture("last_hour")
    button.click()
    page.wait_for_url("**/runs/**")
    page.get_by_text("Success", exact=True).filter(visible=True).first.wait_for()
    link = page.locator("a[href*='/runs/b/']").filter(visible=True).first
    link.wait_for()
    page.get_by_role("button", name="View full message").last.click()
    page.get_by_text("[Show Markdown]").last.wait_for()
    picture("launched")
    page.get_by_text("[Show Markdown]").last.click()
    page.get_by_role("cell", name="0-400-800").wait_for()
    launched = str(link.get_attribute("href")).rpartition("/")[2]
    assert orders.instance.get_backfill(launched) is not None and launched != backfill
    page.goto(f"{desk.url}{link.get_attribute('href')}")
    page.get_by_text("10 partitions").filter(visible=True).first.wait_for()
    page.get_by_text(launched).filter(visible=True).first.wait_for()


@pytest.fixture(scope="module", params=[10_000, 100_000])
def many(
    request: pytest.FixtureRequest, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, World]]:
    """A topic of that many landed ranges, and one of eight beside it, its control."""
    folder = tmp_path_factory.mktemp("many")
    with _landed(settings, folder, request.param) as world, _landed(settings, folder, FEW) as control:
        yield world, control


@contextmanager
def _landed(settings: Settings, folder: Path, ranges: int) -> Iterator[World]:
    with World(settings, folder, f"many{ranges}_{uuid.uuid4().hex[:6]}") as world:
        world.topic = dataclasses.replace(world.topic, max_keys=100_000)
        fill(world, ranges)
        yield world


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_tick_stays_quick(many: tuple[World, World]) -> None:
    """A tick with 10,000 landed ranges, or 100,000, takes no more than some ticks with eight; nothing of them is due."""
    world, control = many
    seconds, beside = measure_beside(world.tick, control.tick)
    print(f"\n{world.name}: a tick {seconds:.3f} s, with {FEW} ranges {beside:.3f} s, load {os.getloadavg()[0]:.1f}")
    assert world.tick().pending == 0
    assert seconds < TICK_TIMES * beside


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_pages_stay_quick(many: tuple[World, World], chromium: Browser) -> None:
    """How long until a page can be used grows far slower than its ranges: those of eight are measured beside it."""
    world, control = many
    ranges = len(world.coverage.log.ranges)
    topics = {each.name: {"records_per_range": 1, "max_keys": 100_000} for each in many}
    with Desk(world.folder / f"project{ranges}", world.settings, topics) as desk:
        page = open_page(chromium)

        def show(world: World, path: str, words: str) -> None:
            page.goto("about:blank")
            page.goto(f"{desk.url}/assets/raw/{world.name}{path.format(first=next(iter(world.coverage.log.ranges)).key)}")
            page.get_by_text(re.compile(words)).filter(visible=True).first.wait_for()

        times = {}
        for name, (path, words) in PAGES.items():
            seconds, beside = measure_beside(partial(show, world, path, words), partial(show, control, path, words))
            times[name] = seconds / beside
            load = os.getloadavg()[0]
            print(f"\n{ranges:,} ranges: {name} {seconds:.2f} s, of {FEW} {beside:.2f} s, load {load:.1f}", flush=True)
        page.context.close()
    assert all(value < PAGE_TIMES[ranges] for value in times.values()), times
