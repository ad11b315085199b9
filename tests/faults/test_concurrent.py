"""Twenty landings of one topic at once, live and backfill, redo and not: every row once, every file there."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline_defs.core.landing.verdicts import Outcome, Verdict
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.landing import land
from pipeline_defs.resources import Edges
from tests.support.world import World

AT_ONCE = 20
LANDED_BEFORE = 4
WELL = {Outcome.LANDED, Outcome.SUPERSEDED, Outcome.ROLLED_FORWARD, Outcome.UNCHANGED, Outcome.ALREADY_LANDED}


def land_as_another(world: World, number: int, keys: list[str], everybody: threading.Barrier) -> list[Verdict]:
    """Lands with edges of its own, as another process does, once everybody has seen the lake as it is now."""
    edges = Edges(world.settings)

    def meet(step: str, **_: object) -> None:
        if step == "find":
            everybody.wait(120)

    tools = edges.tools(world.topic, edges.pyspark(), meet)
    attempt = Attempt(f"at-once-{number}", "no-run", "test", redo=number % 2 == 0)
    try:
        return list(land(world.name, keys, attempt, tools))
    finally:
        tools.kafka.close()


def files(world: World) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_ino, path.read_bytes()) for path in (world.lake_folder / "data").rglob("*.parquet")}


def test_twenty_landings_at_once_lose_and_double_nothing(world: World) -> None:
    """All see the same ranges as not landed and read them; each range is landed once, and each file stays.

    [R-57] The control is the check at the end: the same selections once more, one landing, change nothing.
    """
    world.create_topic(2)
    world.with_policy(records_per_range=20)
    world.send_numbered(120, 0)
    world.send_numbered(110, 1)
    world.plan()
    keys = [offsets.key for offsets in world.coverage.log.ranges]
    assert len(keys) == 12
    world.land(keys[:LANDED_BEFORE])
    before = files(world)
    assert len(before) == LANDED_BEFORE
    draw = random.Random(11)
    selections = [draw.sample(keys, draw.randint(3, 6)) for _ in range(AT_ONCE - 1)] + [keys]
    everybody = threading.Barrier(AT_ONCE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(land_as_another, world, number, chosen, everybody) for number, chosen in enumerate(selections)]
        verdicts = [future.result() for future in futures]

    assert [sorted(v.offsets.key for v in each) for each in verdicts] == [sorted(each) for each in selections]
    outcomes = Counter(verdict.outcome for each in verdicts for verdict in each)
    assert set(outcomes) <= WELL, outcomes
    fresh = sum(key not in keys[:LANDED_BEFORE] for chosen in selections for key in chosen)
    assert outcomes[Outcome.LANDED] <= len(keys) - LANDED_BEFORE < fresh, "the fault: ranges were read by many at once"
    world.assert_all_landed_once()
    after = files(world)
    assert len(after) == len(keys)
    assert {path: after[path] for path in before} == before, "what was landed before is the very same file"
    world.assert_proven()
    assert not list((world.lake_folder / "staging").rglob("*.parquet"))
    again = world.land(keys, redo=True)
    assert {verdict.outcome for verdict in again} == {Outcome.UNCHANGED}
    assert files(world) == after
