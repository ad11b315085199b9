"""Documents of the lake: each reads back as it was written, a bad one is one error; any frontier leads to the whole history."""

import json
import math
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import data_path
from pipeline_defs.adapters.store import disk
from pipeline_defs.core.errors import BrokenManifest, BrokenPlanLog
from pipeline_defs.core.landing.selection import retired
from pipeline_defs.core.landing.tiling import tiling_violations
from pipeline_defs.core.log import settling
from pipeline_defs.core.log.coverage import Coverage, State
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.delivery import Acceptance, Claim
from pipeline_defs.core.log.frontier import Frontier
from pipeline_defs.core.log.holes import Cause, Interval
from pipeline_defs.core.log.losses import find_losses, find_skips
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.log.plan_step import ALL_HEADS_EVERY
from pipeline_defs.core.log.planning import plan
from pipeline_defs.core.log.settling import is_true_of
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.delta import Snapshot
from pipeline_defs.core.tables.raw_table import find_due, find_due_by_files
from pipeline_defs.landing.planner import reopen
from tests.support import strategies
from tests.support.strategies import EPOCH_MS, TOPIC, Landing, landings, step_of

WHERE = "file:///lake/it.json"
RANGE = OffsetRange(0, 0, 0, 10)
DOCUMENTS: dict[str, Any] = {
    "plan step": step_of(0, (0, 10), head=10),
    "manifest": Landing(RANGE, (0, 1, 4, *range(5, 10)), (Interval(2, 4, Cause.COMPACTED),)).manifest,
    "claim": Claim(TOPIC, RANGE, "attempt-1", "run-1", EPOCH_MS),
    "acceptance": Acceptance(TOPIC, RANGE, (0, 5), "ada", EPOCH_MS),
}
FACTS = {name: json.loads(document.to_json()).keys() for name, document in DOCUMENTS.items()}
KEYS = [(name, key) for name, keys in FACTS.items() for key in sorted(keys)]
names = st.sampled_from(sorted(DOCUMENTS))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def check_broken(name: str, data: bytes) -> None:
    with pytest.raises(BrokenPlanLog if name == "plan step" else BrokenManifest) as caught:
        type(DOCUMENTS[name]).from_json(data, WHERE)
    assert str(caught.value).startswith(f"{name} {WHERE} cannot be read: ")
    assert " from a backup of the lake" in str(caught.value)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_of_another_version_is_not_called_damaged(name: str) -> None:
    """[R-92] Who follows the advice for a damaged one deletes it."""
    with pytest.raises((BrokenPlanLog, BrokenManifest)) as caught:
        type(DOCUMENTS[name]).from_json(json.dumps({**json.loads(DOCUMENTS[name].to_json()), "format": 2}).encode(), WHERE)
    assert "run that one; it is not damaged" in str(caught.value) and "backup" not in str(caught.value)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_reads_back_as_it_was_written(name: str) -> None:
    """The control of the refusals; laws of plan steps and manifests draw others."""
    document = DOCUMENTS[name]
    again = type(document).from_json(document.to_json(), WHERE)
    assert again == document and again.to_json() == document.to_json()


@given(names, st.binary(max_size=30) | json_values.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_one_error_that_names_the_object(name: str, data: bytes) -> None:
    check_broken(name, data)


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"[" * 100_000, b"\xff\xfe", b"null", b'{"format": 1}'])
def test_empty_zeroed_deep_and_newer_objects_are_broken(name: str, data: bytes) -> None:
    check_broken(name, data)


@given(names, st.integers(0, 10**6))
def test_a_document_cut_short_is_broken(name: str, length: int) -> None:
    """As a torn write leaves it; only its last newline may go."""
    data = DOCUMENTS[name].to_json()
    check_broken(name, data[: length % (len(data) - 2)])


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_a_document_without_one_of_its_facts_is_broken(name: str, key: str) -> None:
    document = json.loads(DOCUMENTS[name].to_json())
    document.pop(key)
    check_broken(name, json.dumps(document).encode())


PLACE = {"generation": 0, "partition": 0}
LINEAGE = json.loads(DOCUMENTS["manifest"].to_json())["provenance"]
LINK = {"kind": "range", "offsets": "0-0-1", "cause": ""}
NO_NUMBERS = ["7", 7.0, -7, True, None, [], 1 << 64]
WRONG: list[tuple[str, dict[str, Any]]] = [
    *(("plan step", {key: wrong}) for key in ("seq", "generation", "planned_at_ms") for wrong in NO_NUMBERS),
    *(("plan step", {"heads": {"0": [wrong, 0, None]}}) for wrong in NO_NUMBERS),
    *(("plan step", {"watermarks": {"0": [wrong, 9]}}) for wrong in NO_NUMBERS),
    *(("plan step", {"links": [{**LINK, "offsets": wrong}]}) for wrong in ("0-1-0", "0-0-01", "", *NO_NUMBERS)),
    *(("plan step", {"links": [{**LINK, "kind": kind}]}) for kind in ("gap", "RANGE", "", None)),
    *(("plan step", {"skips": skips}) for skips in ({}, "", None, 3, [{"kind": "skipped", "offsets": "0-0-1"}], [None])),
    ("manifest", {"key": "0-0-11"}),
    ("manifest", {"key": "0-0-10-g1"}),
    ("manifest", {"offsets": {**PLACE, "start": 0, "end": 11}}),
    ("manifest", {"offsets": {**PLACE, "start": 10, "end": 0}}),
    ("manifest", {"holes": []}),
    ("manifest", {"holes": [{"start": 2, "end": 4, "cause": "somehow"}]}),
    ("manifest", {"holes": [{"start": 4, "end": 2, "cause": "compacted"}]}),
    ("manifest", {"file": None}),
    ("manifest", {"file": {"rows": 8}}),
    ("manifest", {"unheard_of": 1}),
    *(("manifest", {"revision": wrong}) for wrong in NO_NUMBERS),
    *(("manifest", {"provenance": {**LINEAGE, "seconds": wrong}}) for wrong in ("7", True, None, math.nan, math.inf)),
]


@pytest.mark.parametrize(("name", "change"), WRONG, ids=repr)
def test_a_document_with_a_fact_that_cannot_be_is_broken(name: str, change: dict[str, Any]) -> None:
    """[R-37] [R-92] An end that does not agree with the key; a head of "20", which arithmetic would fail of elsewhere; skips
    that are passed over, so that what was left out would be landed.
    """
    check_broken(name, json.dumps({**json.loads(DOCUMENTS[name].to_json()), **change}).encode())


@given(landings(), st.integers(0, 3), st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3))
def test_a_manifest_reads_back_as_it_was_written(landing: Landing, revision: int, schema: dict[str, str]) -> None:
    """The same manifest gives the same bytes: a write of unknown outcome is settled by reading back."""
    manifest = replace(landing.manifest, revision=revision, schema=schema)
    data = manifest.to_json()
    again = Manifest.from_json(data, WHERE)
    assert again == manifest
    assert again.to_json() == data
    assert json.loads(data)["key"] == landing.offsets.key


@given(landings())
def test_rows_and_holes_are_all_offsets(landing: Landing) -> None:
    """[R-27] A range without records has no file, 0 rows and the digest `empty`."""
    manifest = landing.manifest
    assert manifest.rows + sum(hole.end - hole.start for hole in manifest.holes) == len(landing.offsets)
    assert manifest.rows == len(landing.present)
    assert (manifest.digest == "empty") == (manifest.file is None) == (not landing.present)


@given(landings(least_rows=1), st.sampled_from([-1, 1]))
def test_a_manifest_that_does_not_add_up_cannot_exist(landing: Landing, by: int) -> None:
    """[R-27] Rows + holes + lost = end - start, exactly; it is refused on construction and on reading."""
    manifest = landing.manifest
    assert manifest.file is not None
    wrong = replace(manifest.file, rows=manifest.rows + by)
    with pytest.raises(BrokenManifest, match=f"expected {len(landing.offsets)} in all"):
        replace(manifest, file=wrong)
    document = json.loads(manifest.to_json())
    document["file"]["rows"] += by
    check_broken("manifest", json.dumps(document).encode())


LONG_MS = 10**12  # so that what was reopened stays open
SEEDS = [random.randrange(10**9) for _ in range(int(os.environ["HUNT"]))] if "HUNT" in os.environ else range(6)
EVENTS = 20


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return an empty lake, whose frontier documents are made of any number of ranges; nothing waits for the disk."""
    monkeypatch.setattr(settling, "FRONTIER_EVERY", 1)
    monkeypatch.setattr(disk, "_fsync", lambda path: None)
    return Lake(str(tmp_path))


class History:
    """A topic that is planned, landed, skipped, replaced and summed up as a generator says."""

    def __init__(self, seed: int, lake: Lake) -> None:
        self.draw, self.lake, self.world = random.Random(seed), lake, strategies.World(has_ids=seed % 4 > 0)
        self.policy = Policy(records_per_range=self.draw.randint(1, 9), max_age_seconds=0, budget=self.draw.randint(1, 9))
        self.documents = 0

    def happen(self) -> None:
        """Have one thing happen to the topic, and then what a tick and a run do about it, as far as they come."""
        self.world.wait(self.draw.choice([1, 60, 1800]))
        partition, percent, count = self.draw.randrange(4), self.draw.randrange(100), self.draw.randrange(30)
        rare = [("add_partition", (count,)), ("recreate", (1 + partition % 3, count)), ("truncate", (partition, percent))]
        events = [*[("grow", (partition, count))] * 12, *[("expire", (partition, percent))] * 2, *rare]
        name, arguments = self.draw.choice(events)
        getattr(self.world, name)(*arguments)
        self.plan()
        if self.draw.random() < 0.1:
            self.skip()
        for offsets in self.lake.recent(TOPIC).pending():
            if self.draw.random() < 0.9:
                self.land(offsets)
        self.sum_up()
        if self.draw.random() < 0.2:
            self.replace()
        self.sum_up()

    def whole(self) -> Coverage:
        """All of the history, as a process reads it that never was here before."""
        return Lake(self.lake.store.root).coverage(TOPIC)

    def plan(self) -> None:
        log_state = self.lake.recent(TOPIC).log.state
        step = plan(log_state, self.world.observe(log_state), self.policy, self.world.now_ms)
        assert step is None or self.lake.commit_step(step)

    def skip(self) -> None:
        """Skip ahead; what was decided may be landed, and summed up, before it is said."""
        coverage = self.lake.recent(TOPIC)
        log_state = coverage.log.state
        state = self.world.observe(log_state)
        skip = strategies.skip_in(state, log_state, self.draw.randrange(101), coverage.pending())
        if state.topic_id != log_state.topic_id:
            return
        step = plan(log_state, state, self.policy, self.world.now_ms, skip=skip)
        for offsets in coverage.pending():
            if self.draw.random() < 0.5:
                self.land(offsets)
        self.sum_up()
        assert step is None or self.lake.commit_step(step)

    def replace(self) -> None:
        """Replace a landed range, old or new; a tick may come between what is said of it and the deed."""
        whole = self.whole()
        landed = [offsets for offsets, state in whole.states().items() if state is State.LANDED]
        if landed:
            offsets = self.draw.choice(landed)
            reopen([offsets], whole, self.lake, self.world.now_ms, planner="replace")
            self.sum_up()
            self.land(offsets, whole.manifests[offsets].revision + 1)

    def sum_up(self) -> None:
        coverage = self.lake.recent(TOPIC)
        if self.draw.random() < 0.5 and coverage.log.steps:
            waiting = [offsets for offsets in coverage.log.ranges if self.draw.random() < 0.05]
            self.documents += self.lake.move_frontier(coverage, self.world.now_ms, LONG_MS, waiting)

    def land(self, offsets: OffsetRange, revision: int = 0) -> None:
        """Leave behind what a landing does: now and then without rows, or with holes and losses."""
        every = range(offsets.start, offsets.end)
        share = self.draw.choice([0.0, 0.7, 1.0, 1.0, 1.0])
        present = [offset for offset in every if self.draw.random() < share] or [*every][: revision and 1]
        causes = self.draw.choice([[Cause.COMPACTED], [Cause.COMPACTED], [Cause.LOST, Cause.ABORTED]])
        missing = strategies.runs_of(sorted({*every} - {*present})) if len(present) < len(every) else []
        holes = tuple(Interval(start, end, self.draw.choice(causes)) for start, end in missing)
        lineage = replace(strategies.provenance(offsets), landed_at_ms=self.world.now_ms)
        manifest = Manifest(TOPIC, offsets, strategies.staged_file(offsets, present), holes, lineage, revision)
        self.lake.commit_manifest(manifest)
        path = Path(self.lake.store.root) / data_path(TOPIC, offsets)
        if manifest.file is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * manifest.file.bytes)


def assert_says_the_same(recent: Coverage, whole: Coverage) -> None:
    """All that is asked of a coverage in a tick, a run and `status` has the same answer."""
    assert recent.log.state == whole.log.state
    assert recent.pending() == whole.pending()
    assert recent.skipped() == whole.skipped()
    assert find_losses(recent) == find_losses(whole) and find_skips(recent) == find_skips(whole)
    for generation in range(whole.log.generation + 1):
        assert recent.frontier(generation) == whole.frontier(generation)
    assert recent.ends() == whole.ends()
    assert recent.log.growths == whole.log.growths
    assert recent.weight() == whole.weight() and recent.last_landed() == whole.last_landed()
    assert recent.sums() == whole.sums()
    assert recent.waits().counts == whole.waits().counts
    assert recent.waits().seconds == pytest.approx(whole.waits().seconds)
    states = whole.states()
    assert all(states[offsets] is state for offsets, state in recent.states().items())
    assert {*recent.log.ranges} >= {offsets for offsets in whole.log.ranges if states[offsets] is not State.LANDED}
    for most in (0, 1, 5, 10**6):
        assert retired(recent, most) == retired(whole, most) & {*recent.log.ranges}
    assert {*tiling_violations(recent)} <= {*tiling_violations(whole)}
    for offsets in recent.log.ranges:
        assert recent.log.epoch_of(offsets) == whole.log.epoch_of(offsets)


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_reads_from_a_frontier_document_finds_what_the_whole_says(lake: Lake, seed: int) -> None:
    """[R-96] With the newest one, with an older one, in a process that has read before and in one that has not."""
    history, tables, shorter = History(seed, lake), [Snapshot()], 0
    for _ in range(EVENTS):
        history.happen()
        whole = history.whole()
        assert_says_the_same(lake.recent(TOPIC), whole)
        recent = Lake(lake.store.root).recent(TOPIC, history.draw.choice([history.world.now_ms - 3_600_000, None]))
        assert_says_the_same(recent, whole)
        shorter += len(recent.log.ranges) < len(whole.log.ranges)
        assert recent.log.base is None or is_true_of(recent.log.base, whole)
        for table in tables:
            due = find_due(recent, table)
            assert due is None or due in (find_due(whole, table), find_due_by_files(whole, table))
        tables = [Snapshot(), Snapshot(version=0, transactions=find_due_by_files(whole, Snapshot()).transactions)]
    assert history.documents > 2 and shorter > 2, "the documents were of use"


@pytest.mark.parametrize("seed", range(4))
def test_a_document_of_which_anything_has_become_untrue_is_told(lake: Lake, seed: int) -> None:
    """[R-96] Whatever it is: a manifest that is gone, or another one, or a sum that never was right."""
    history = History(seed, lake)
    while (base := lake.recent(TOPIC).log.base) is None or not any(sums.rows for sums in base.sums.values()):
        history.happen()
    whole = history.whole()
    settled = [offsets for offsets in whole.manifests if offsets not in lake.recent(TOPIC).log.ranges]
    offsets = history.draw.choice(settled)
    assert is_true_of(base, whole), "the control"
    without = {each: manifest for each, manifest in whole.manifests.items() if each != offsets}
    other = {**whole.manifests, offsets: replace(whole.manifests[offsets], revision=7)}
    assert not is_true_of(base, replace(whole, manifests=without))
    assert not is_true_of(base, replace(whole, manifests=other))
    place, sums = next((place, sums) for place, sums in base.sums.items() if sums.rows)
    assert not is_true_of(replace(base, sums={**base.sums, place: replace(sums, rows=sums.rows + 1)}), whole)
    assert not is_true_of(replace(base, growths={**base.growths, 0: ({0: 1},)}), whole)


@pytest.mark.parametrize("seed", range(4))
def test_a_frontier_document_reads_back_and_nobody_needs_it(lake: Lake, seed: int) -> None:
    """[R-96] The same bytes; where it is damaged, deleted, or of another log, all of the history is read."""
    history = History(seed, lake)
    for _ in range(EVENTS):
        history.happen()
    folder = Path(lake.store.root) / "frontier" / TOPIC
    paths = sorted(folder.glob("*"))
    assert paths
    assert Lake(lake.store.root).recent(TOPIC).log.base is not None, "whole ones are read"
    for number, path in enumerate(paths, seed):
        found = Frontier.from_json(path.read_bytes())
        assert found is not None and found.to_json() == path.read_bytes()
        if number % 3 == 0:
            path.write_bytes(path.read_bytes()[: history.draw.randrange(path.stat().st_size - 1)])
        elif number % 3 == 1:
            path.unlink()
        else:
            path.write_bytes(replace(found, steps_sha256="0" * 64).to_json())
    damaged = Lake(lake.store.root).recent(TOPIC)
    assert damaged.log.base is None
    assert damaged == history.whole()


def test_an_old_offset_is_found_among_steps_that_carry_few_heads(lake: Lake) -> None:
    """[R-96] Of each generation and Kafka partition; what no range has is found in none."""
    history = History(1, lake)
    while (base := lake.recent(TOPIC).log.base) is None or base.seq <= 2 * ALL_HEADS_EVERY:
        history.happen()
    whole, recent = history.whole(), lake.recent(TOPIC)
    old = [offsets for offsets in whole.log.ranges if offsets not in recent.log.ranges]
    for offsets in history.draw.sample(old, min(len(old), 30)):
        at = history.draw.randrange(offsets.start, offsets.end)
        assert offsets in Lake(lake.store.root).around(TOPIC, offsets.partition, at, offsets.generation).log.ranges
    for generation, partition in {o.place for o in whole.log.ranges}:
        end = max(o.end for o in whole.log.ranges if o.place == (generation, partition))
        found = Lake(lake.store.root).around(TOPIC, partition, end, generation).log.ranges
        assert not any(o.place == (generation, partition) and end in o for o in found)
