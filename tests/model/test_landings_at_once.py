"""Twenty landings of one topic at once, live and backfill, redo and not: every row once, every file there."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.core.landing.verdicts import Outcome, Verdict
from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.landing import land
from tests.support.fake_log import TOPIC, FakeKafka, FakeSpark, fake_tools, plan_all
from tests.support.interleaving import assert_all_is_in_order
from tests.support.strategies import EPOCH_MS

AT_ONCE, LANDED_BEFORE = 20, 4
WELL = {Outcome.LANDED, Outcome.SUPERSEDED, Outcome.ROLLED_FORWARD, Outcome.UNCHANGED, Outcome.ALREADY_LANDED}


def test_twenty_landings_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    """All see the same ranges as not landed and read them; each range is landed once, and each file stays.

    [R-57] The control is the check at the end: the same selections once more, one landing, change nothing.
    """
    kafka, lake = FakeKafka(2), Lake(str(tmp_path))
    for log, count in zip(kafka.now.partitions, (120, 110), strict=True):
        log.append([SpanKind.DATA] * count, "v", EPOCH_MS)
    plan_all(lake, kafka, Policy(records_per_range=20, max_age_seconds=0))
    keys = [offsets.key for offsets in lake.coverage(TOPIC).log.ranges]
    assert len(keys) == 12

    def run(name: str, chosen: list[str], *, redo: bool = False, on_step: StepWatcher = no_step) -> list[Verdict]:
        """Land as another process does, which has read nothing yet."""
        tools = fake_tools(Lake(str(tmp_path)), kafka, FakeSpark(kafka, no_step), on_step=on_step)
        return list(land(TOPIC, chosen, Attempt(name, "no-run", "test", redo=redo), tools))

    def files() -> dict[Path, tuple[int, bytes]]:
        return {path: (path.stat().st_ino, path.read_bytes()) for path in (tmp_path / "data").rglob("*.parquet")}

    def meet(step: str, **_: object) -> None:
        if step == "find":  # everybody has seen the lake as it is now
            everybody.wait(120)

    run("before", keys[:LANDED_BEFORE])
    before = files()
    assert len(before) == LANDED_BEFORE
    draw, everybody = random.Random(11), threading.Barrier(AT_ONCE)
    selections = [draw.sample(keys, draw.randint(3, 6)) for _ in range(AT_ONCE - 1)] + [keys]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [
            pool.submit(run, f"at-once-{number}", chosen, redo=number % 2 == 0, on_step=meet)
            for number, chosen in enumerate(selections)
        ]
        verdicts = [future.result() for future in futures]

    assert [sorted(v.offsets.key for v in each) for each in verdicts] == [sorted(each) for each in selections]
    outcomes = Counter(verdict.outcome for each in verdicts for verdict in each)
    assert set(outcomes) <= WELL, outcomes
    fresh = sum(key not in keys[:LANDED_BEFORE] for chosen in selections for key in chosen)
    assert outcomes[Outcome.LANDED] <= len(keys) - LANDED_BEFORE < fresh, "the fault: ranges were read by many at once"
    after = files()
    assert len(after) == len(keys)
    assert {path: after[path] for path in before} == before, "what was landed before is the very same file"
    assert_all_is_in_order(Lake(str(tmp_path)))
    tables = (pq.read_table(path, columns=["partition", "offset"]).to_pylist() for path in after)
    places = sorted((row["partition"], row["offset"]) for table in tables for row in table)
    assert places == [*((0, at) for at in range(120)), *((1, at) for at in range(110))], "every row once"
    assert not list((tmp_path / "staging").rglob("*.parquet"))
    assert {verdict.outcome for verdict in run("again", keys, redo=True)} == {Outcome.UNCHANGED}
    assert files() == after
