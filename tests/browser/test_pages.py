"""How quickly a tick looks at very many landed ranges, and a real Chromium shows them. Takes minutes, with nothing beside."""

from __future__ import annotations

import dataclasses
import os
import re
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pipeline_defs.settings import Settings
from tests.support.browser import open_page
from tests.support.bulk import REPEATS, fill, measure
from tests.support.desk import Desk
from tests.support.world import World

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=[10_000, 100_000])
def many(
    request: pytest.FixtureRequest, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, int]]:
    """Is a topic of that many landed ranges."""
    with World(settings, tmp_path_factory.mktemp("many"), f"many{uuid.uuid4().hex[:6]}") as world:
        world.topic = dataclasses.replace(world.topic, max_keys=100_000)
        fill(world, request.param)
        yield world, request.param


@pytest.mark.timeout(3600)
def test_a_tick_stays_quick(many: tuple[World, int]) -> None:
    """With 10,000 ranges a tick takes less than 2 s, so the sensor keeps its 5 s; nothing of it is due."""
    world, ranges = many
    began = time.perf_counter()
    world.tick()
    first = time.perf_counter() - began
    cpu = time.process_time()
    seconds = measure(world.tick)
    cpu = (time.process_time() - cpu) / (REPEATS + 1)
    load = os.getloadavg()[0]
    print(f"\n{ranges:,} ranges: first tick {first:.2f} s, then {seconds:.2f} s ({cpu:.2f} s of CPU), load {load:.1f}")
    assert world.tick().pending == 0
    assert seconds < 2 or ranges > 10_000


@pytest.mark.timeout(3600)
def test_the_pages_stay_quick(many: tuple[World, int], chromium: Browser) -> None:
    """With 10,000 ranges the partitions page can be used within 2 s, with 100,000 every page within 5 s."""
    world, ranges = many
    first = next(iter(world.coverage.log.ranges)).key
    topics = {world.name: {"records_per_range": 1, "max_keys": 100_000}}
    pages = {
        "partitions": (f"assets/raw/{world.name}?view=partitions", re.compile(rf"Materialized \({ranges // 1000},?000\)")),
        "range": (f"assets/raw/{world.name}?view=partitions&partition={first}", "landed_by_run"),
        "overview": (f"assets/raw/{world.name}", "Every record of Kafka topic"),
        "events": (f"assets/raw/{world.name}?view=events", "materialized"),
        "lineage": (f"assets/raw/{world.name}?view=lineage", "100% filled"),
    }
    with Desk(world.folder / f"project{ranges}", world.settings, topics) as desk:
        page = open_page(chromium)

        def show(path: str, words: str | re.Pattern[str]) -> None:
            page.goto("about:blank")
            page.goto(f"{desk.url}/{path}")
            page.get_by_text(words).filter(visible=True).first.wait_for()

        seconds = {}
        for name, at in pages.items():
            seconds[name] = measure(lambda at=at: show(*at))
            print(f"\n{ranges:,} ranges: {name} {seconds[name]:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)
        page.context.close()
    told = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    assert all(value < (2 if ranges <= 10_000 else 5) for value in seconds.values()), told
