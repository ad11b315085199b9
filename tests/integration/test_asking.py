"""What commands say to who asks too early, too much, or for what is nearly there."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from pipeline_defs.core.errors import BadKey, OffsetlakeError
from pipeline_defs.settings import Settings
from tests.support.commands import Run, commands_of
from tests.support.world import World


@pytest.fixture
def quiet(settings: Settings, tmp_path: Path) -> Iterator[World]:
    """A topic on the broker with 40 young records, for which no Spark is needed."""
    with World(settings, tmp_path, f"t{uuid.uuid4().hex[:10]}") as world:
        world.with_policy(records_per_range=1000, max_age_seconds=600)
        world.fill(40)
        yield world


@pytest.fixture
def run(quiet: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    commands = commands_of("work.land", quiet, monkeypatch)
    return lambda verb, *arguments: commands(verb, quiet.name, *arguments)


def test_a_plan_says_that_a_tail_waits_for_its_age_and_how_to_cut_it(quiet: World, run: Run) -> None:
    """Before the log is opened and after; once the tail is cut nothing waits: the control."""
    for arguments in ([], ["--apply"], []):
        said = run("plan", *arguments).stdout
        assert f"40 offsets of {quiet.name} wait, the oldest for " in said
        assert f"10 min old; to cut now: offsetlake plan {quiet.name} --apply --through-end" in said
    waiting = json.loads(run("plan", "--json").stdout)["waiting"]
    assert waiting["offsets"] == 40 and 0 <= waiting["age_seconds"] < 600
    cut = run("plan", "--apply", "--through-end").stdout
    assert "planned 1 range" in cut and "1 ranges" not in cut and "wait" not in cut
    assert json.loads(run("plan", "--json").stdout)["waiting"] is None


def test_a_key_that_is_nearly_there_is_answered_with_the_one_that_is(quiet: World, run: Run) -> None:
    """Also where all is planned, so that `plan` has no key to show."""
    quiet.plan()
    refused = run("land", "--key", "0-0-41")
    assert isinstance(refused.exception, BadKey)
    assert "0-0-41 (the nearest there is: 0-0-40)" in str(refused.exception)
    assert f"`offsetlake backfill {quiet.name} --all` lists those there are" in str(refused.exception)
    nowhere = run("land", "--key", "7-0-41")
    assert isinstance(nowhere.exception, BadKey) and "nearest" not in str(nowhere.exception)


# ---- `backfill`: what is chosen, shown, refused; that it launches is in orchestration/

NOON_MS = 1_763_377_200_000  # 2025-11-17T11:00:00Z
MINUTE_MS = 60_000


@pytest.fixture
def backfill(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command on a world of five ranges of 10 minutes each, of which the last is not landed."""
    world.create_topic(retention_ms="-1")
    world.with_policy(records_per_range=10)
    world.send({"partition": 0, "value": b"%d" % n, "timestamp_ms": NOON_MS + n * MINUTE_MS} for n in range(50))
    world.plan()
    world.land([offsets.key for offsets in world.pending[:4]])
    commands = commands_of("work.backfill", world, monkeypatch)
    return lambda *arguments: commands("backfill", world.name, *arguments)


def chosen(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.exception
    document: dict[str, Any] = json.loads(result.stdout)
    return document


REFUSED: list[tuple[tuple[str, ...], str]] = [
    ((), "by nothing, expected exactly one of --all"),
    (("--all", "--missing"), "by all and missing, expected exactly one"),
    (("--all", "--generation", "0"), "--generation belongs to --offsets"),
    (("--all", "--time-zone", "Nope"), "--time-zone belongs to --from-time"),
    (("--from-time", "2025-11-17T11:00Z"), "expected --from-time and --to-time"),
    (("--from-time", "2025-11-17T11:00", "--to-time", "2025-11-17T12:00"), "does not say in which time zone"),
    (("--from-time", "last Tuesday", "--to-time", "2025-11-17T12:00Z"), "is no time, expected ISO 8601"),
    (("--from-time", "2025-11-17T11:00", "--to-time", "2025-11-17T12:00", "--time-zone", "Mars/X"), "Mars/X is no time zone"),
    (
        ("--from-time", "2025-10-26T02:30", "--to-time", "2025-10-26T04:00", "--time-zone", "Europe/Zurich"),
        "expected 2025-10-26T02:30:00+02:00 or 2025-10-26T02:30:00+01:00",
    ),
    (
        ("--from-time", "2025-03-30T01:00", "--to-time", "2025-03-30T02:30", "--time-zone", "Europe/Zurich"),
        "2025-03-30T02:30 is no one moment in Europe/Zurich",
    ),
    (("--from-time", "2025-11-17T12:00Z", "--to-time", "2025-11-17T11:00Z"), "is not before --to-time"),
    (("--from-time", "1965-01-01T00:00Z", "--to-time", "1950-01-01T00:00Z"), "1965-01-01T00:00:00+00:00 is not before"),
    (("--last-minutes", "5", "--missing"), "by missing and last_minutes, expected exactly one"),
    (("--last-minutes", "5"), "no range with a record of that time"),
    (("--from-time", "2027-11-17T11:00Z", "--to-time", "2027-11-17T12:00Z"), "no range with a record of that time"),
    (("--offsets", "0:45-60"), "[50, 60) of"),
    (("--offsets", "7:0-5"), "it holds nothing of that Kafka partition"),
    (("--offsets", "0-45-60"), "are not P:S-E"),
    (("--key", "0-0-11"), "are not in the plan log"),
    (("--failed",), "has no failed range"),
    (("--all", "--apply"), "no Dagster daemon executes backfills"),
]


def test_each_way_to_choose_shows_what_it_means_and_what_cannot_be_meant_is_one_error(world: World, backfill: Run) -> None:
    """Keys, offsets, rows, bytes and state; a time by the records' own timestamps, in any zone.

    Of what is not landed nobody knows whether it is younger, or from before 1970. Each refusal says what was expected, and
    that nothing was done; and nothing was, by any of them.
    """
    before_1970 = ("--from-time", "1950-01-01T00:00Z", "--to-time", "1965-01-01T00:00Z")
    ten_past = ("--from-time", "2025-11-17T12:10+01:00", "--to-time", "2025-11-17T12:30+01:00")
    in_zurich = ("--from-time", "2025-11-17T12:10", "--to-time", "2025-11-17T12:30", "--time-zone", "Europe/Zurich")
    now_ms = world.edges.now_ms
    world.edges.now_ms = lambda: NOON_MS + 54 * MINUTE_MS
    late = ("--from-time", "2025-11-17T11:39Z", "--to-time", "2025-11-17T11:41Z")
    for arguments, keys in (
        (ten_past, ["0-10-20", "0-20-30", "0-40-50"]),
        (in_zurich, ["0-10-20", "0-20-30", "0-40-50"]),
        (late, ["0-30-40", "0-40-50"]),
        (before_1970, ["0-40-50"]),
        (("--last-minutes", "15"), ["0-30-40", "0-40-50"]),
        (("--offsets", "0:19-21"), ["0-10-20", "0-20-30"]),
        (("--offsets", "0:0-1", "--offsets", "0:49-50"), ["0-0-10", "0-40-50"]),
        (("--missing",), ["0-40-50"]),
        (("--key", "0-30-40"), ["0-30-40"]),
        (("--all",), ["0-0-10", "0-10-20", "0-20-30", "0-30-40", "0-40-50"]),
    ):
        found = chosen(backfill(*arguments, "--json"))
        assert [row["key"] for row in found["ranges"]] == keys, arguments
        assert found["backfill"] is None
    assert (found["offsets"], found["rows"], found["ranges_by_state"]) == (50, 40, {"landed": 4, "pending": 1})
    shown = backfill("--all").stdout
    assert "4 landed, 1 pending; 50 offsets, of which 40 rows" in shown and "nothing was launched; add --apply" in shown
    world.edges.now_ms = now_ms
    for arguments, words in REFUSED:
        result = backfill(*arguments)
        assert isinstance(result.exception, OffsetlakeError), (arguments, result.stdout)
        assert words in str(result.exception) and "nothing was" in str(result.exception), arguments
    assert not world.instance.get_backfills()


def test_a_time_means_the_same_ranges_before_landing_after_it_and_when_kafka_has_nothing(world: World, backfill: Run) -> None:
    """[R-64] But for what is not landed, which is never left out for being too young: it is once it is landed.

    The last record is older than the one before it, as CreateTime may be.
    """
    world.send([{"partition": 0, "value": b"late", "timestamp_ms": NOON_MS + 15 * MINUTE_MS}])
    world.plan()
    time = ("--from-time", "2025-11-17T11:10Z", "--to-time", "2025-11-17T11:30Z")
    keys: Callable[[], list[str]] = lambda: [row["key"] for row in chosen(backfill(*time, "--json"))["ranges"]]  # noqa: E731
    assert keys() == ["0-10-20", "0-20-30", "0-40-50", "0-50-51"]
    assert "2 of them are not landed" in backfill(*time).stdout
    world.land()
    landed = keys()
    assert landed == ["0-10-20", "0-20-30", "0-50-51"]
    assert "not landed" not in backfill(*time).stdout
    world.delete_records(0, 51)
    world.wait_for_earliest(0, 51)
    assert keys() == landed, "the control: Kafka has no record left"
