"""How a tick holds up over a topic with very many ranges, all landed. Takes minutes."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator

import pytest

from pipeline_defs.settings import Settings
from tests.support.bulk import REPEATS, fill, measure
from tests.support.world import World

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=[10_000])
def many(
    request: pytest.FixtureRequest, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[World, int]]:
    """Is a topic of that many landed ranges."""
    with World(settings, tmp_path_factory.mktemp("many"), f"many{uuid.uuid4().hex[:6]}") as world:
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
    assert seconds < 2
