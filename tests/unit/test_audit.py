"""An audit has a row for each of its checks: one that could not look says so, and is not left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.cli.progress import progress
from pipeline_defs.cli.work.read import run_audit
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.landing.auditing import Finding, check_published, check_table, check_tiling
from pipeline_defs.topics import Topic
from tests.support.fake_log import TOPIC
from tests.support.interleaving import SmallWorld, Writer

pytestmark = pytest.mark.usefixtures("watched")

CHECKS = ["tiling", "completeness", "published_digest", "raw_table", "broker", "losses"]


def audit(world: SmallWorld, replay: str) -> dict[str, Finding]:
    settings = SimpleNamespace(has_raw_table=True, dagster_home=world.folder / "dagster")
    edges: Any = SimpleNamespace(lake=world.lake, kafka=lambda topic: world.kafka, settings=settings)
    with progress("auditing") as shown:
        findings = run_audit(Topic(TOPIC, Policy()), edges, replay, "0", shown)
    assert len({finding.check for finding in findings}) == len(findings)
    return {finding.check: finding for finding in findings}


@pytest.fixture
def world(tmp_path: Path) -> SmallWorld:
    """A landed topic."""
    world = SmallWorld(tmp_path, "disk")
    world.has_raw_table = True
    world.land()
    return world


def test_a_topic_that_holds_has_a_row_for_each_check(world: SmallWorld) -> None:
    found = audit(world, "none")
    assert list(found) == CHECKS and all(finding.passed for finding in found.values())


def test_losses_and_broker_are_looked_at_where_the_lake_does_not_tile(world: SmallWorld) -> None:
    """The fault is a file that is no range's; what Kafka has deleted is named all the same, and what is not read again too."""
    partition = world.kafka.now.partitions[0]
    world.grow(3)
    partition.earliest = len(partition.appended)
    (world.folder / "data" / TOPIC / "stray.parquet").write_bytes(b"")
    found = audit(world, "1")
    assert list(found) == [*CHECKS, "replay"]
    assert not found["tiling"].passed, "the fault"
    assert found["losses"].facts["not_accepted_offsets"] == 3 and not found["losses"].passed
    assert found["broker"].passed and found["broker"].facts["pending"] == 3
    assert not found["replay"].passed and "nothing was read again" in found["replay"].violations[0]


def test_a_plan_log_that_cannot_be_read_leaves_no_row_out(world: SmallWorld) -> None:
    next((world.folder / "plan" / TOPIC).iterdir()).write_text("{}")
    world.lake = world.open(Writer())
    found = audit(world, "1")
    assert list(found) == [*CHECKS, "replay"]
    assert not any(finding.passed for finding in found.values())


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("mode", ["land", "replace"])
def test_a_run_at_any_of_its_steps_is_no_alarm(tmp_path: Path, mode: str, delivery: Delivery) -> None:
    """[R-37] Another run audits what this one is landing: what is committed and about to be published is no gap."""
    world = SmallWorld(tmp_path / "lake", "disk", records=6, grid=6)
    world.delivery = delivery
    if mode == "replace":
        world.land()
        world.kafka.compact(100)
    unfinished, said = [], []

    def look(step: str, **_: object) -> None:
        lake = world.open(Writer())
        unfinished.extend(lake.coverage(TOPIC).unfinished)
        said.extend((step, each) for check in (check_tiling, check_published) for each in check(TOPIC, lake).violations)

    world.land(mode, world.open(Writer()), on_step=look)
    assert unfinished or delivery is Delivery.AT_LEAST_ONCE, "an audit fell between commit and publish"
    assert said == []


@pytest.mark.parametrize("mode", ["land", "replace"])
def test_what_is_published_while_the_lake_is_listed_is_no_alarm(tmp_path: Path, mode: str) -> None:
    """[R-37] A whole run passes between the listing of `data/`, or of the table's log, and any later call of an audit."""
    for check in (check_tiling, check_published, check_table):
        for at in range(40):
            world = SmallWorld(tmp_path / f"{check.__name__}-{at}", "disk", records=6, grid=3)
            world.has_raw_table = check is check_table
            if mode == "replace":
                world.land()
                world.compact()
                world.kafka.compact(100)

            def run(number: int, world: SmallWorld = world, at: int = at) -> None:
                if number == at:
                    world.land(mode, world.open(Writer()))

            auditor = Writer(before=run)
            assert check(TOPIC, world.open(auditor)).violations == (), at
            if at >= len(auditor.calls):
                break
        assert at > 3, "the run did pass in between"


def test_what_lands_without_end_while_the_table_is_audited_is_no_alarm(tmp_path: Path) -> None:
    """[R-37] A run passes before each call: the version that is read later has ranges of which nothing else was read."""
    passed = []
    for at in range(12):
        world = SmallWorld(tmp_path / str(at), "disk", records=6, grid=3)
        world.has_raw_table = True
        world.land()
        versions = []

        def run(number: int, world: SmallWorld = world, at: int = at, versions: list[int] = versions) -> None:
            if at <= number < at + 12:
                world.grow(3)
                world.land(lake=world.open(Writer()))
                versions.append(raw_table_log(TOPIC, world.lake.store).read().version)

        assert check_table(TOPIC, world.open(Writer(before=run))).violations == (), at
        assert versions == sorted({*versions})
        passed.append(len(versions))
    assert passed[0] > 3, "runs did pass in between"


def test_a_range_that_is_about_to_be_exchanged_is_no_alarm_of_its_compacted_file(world: SmallWorld) -> None:
    """[R-37] The file has the rows of the revision before; it is cut once the new ones are published."""
    (first, _) = world.coverage.log.ranges
    world.compact()
    world.kafka.compact(100)
    said = []

    def look(step: str, **_: object) -> None:
        lake = world.open(Writer())
        if first in lake.coverage(TOPIC).unfinished:
            said.append(check_table(TOPIC, lake).violations)

    world.land("replace", world.open(Writer()), on_step=look, only=first)
    assert said and set(said) == {()}, "an audit fell between commit and publish"


def test_a_file_that_goes_is_an_alarm_though_a_run_passed(world: SmallWorld) -> None:
    """The control; so is a range that is landed and that no run has appended."""
    world.grow(3)
    world.has_raw_table = False
    world.land()
    assert check_table(TOPIC, world.open(Writer())).violations == ("range orders/0 [6, 9): landed, and not in the table",)
    next((world.folder / "data").rglob("*.parquet")).unlink()
    lake = world.open(Writer())
    assert "its file is not published" in check_tiling(TOPIC, lake).violations[0]
    assert "the published file is not there" in check_published(TOPIC, lake).violations[0]
