"""Sealed files: as few as their bytes allow, right at every moment, whoever is killed, replaces or seals meanwhile.

What a view shows is held against what the producer sent; what the plain glob shows never changes.
"""

from __future__ import annotations

import importlib
import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import duckdb
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipeline_defs.attempt import Attempt
from pipeline_defs.auditing import check_completeness, check_published, check_tiling
from pipeline_defs.core.errors import OffsetlakeError, SealFailed
from pipeline_defs.core.sealing import SealOutcome, SealVerdict, choose_seals
from pipeline_defs.core.verdicts import Outcome
from pipeline_defs.definitions import build_defs
from pipeline_defs.edges.duck import Duck
from pipeline_defs.edges.lake import Lake
from pipeline_defs.edges.seals import Seals, sealed_path
from pipeline_defs.reports import trace_row
from pipeline_defs.sealing import check_sealed, seal
from pipeline_defs.sweeping import SWEEP_AFTER_SECONDS, sweep_orphans
from tests.support.killing import stopped_at
from tests.support.reading import LoopingReader
from tests.support.world import World

PER_RANGE = 50
NOISE = random.Random(0).randbytes  # does not compress: what is produced is about what a file weighs


def fill(world: World, ranges: int, *, landed: int | None = None) -> None:
    """Has ranges of 50 records and about 26 KB landed, all or the first few; the target is four times that."""
    world.create_topic(retention_ms="-1")
    world.with_policy(records_per_range=PER_RANGE, target_file_bytes=100_000)
    world.send({"partition": 0, "key": b"k%d" % n, "value": NOISE(500)} for n in range(ranges * PER_RANGE))
    world.plan()
    world.land([offsets.key for offsets in world.pending[:landed]])


def run_seal(world: World, *, every: bool = True, attempt: str = "test-seal") -> list[SealVerdict]:
    target = world.topic.policy.target_file_bytes
    return list(seal(world.name, Attempt(attempt, "no-run", "test"), world.tools(), target, every=every))


def duck(world: World) -> Duck:
    """Opens the views afresh, as another process would."""
    return Duck(Lake(world.settings.lake), [world.name])


def view(world: World) -> list[tuple[int, bytes, bytes]]:
    """Is what the topic's view shows; a doubled row stands twice."""
    return duck(world).query(f'SELECT "offset", "key", "value" FROM "{world.name}" ORDER BY "offset"')[1]  # type: ignore[return-value]


def sent(world: World) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(offset, key, value) for (_, offset), (_, _, key, value, _, _) in sorted(world.sent.items())]


def sealed_files(world: World) -> list[Path]:
    return sorted((world.lake_folder / "sealed").rglob("*.parquet"))


def data_tree(world: World) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (world.lake_folder / "data").rglob("*") if path.is_file()}


def test_small_files_become_few_large_ones_beside_them(world: World) -> None:
    """AC23: at most ceil(bytes / target) + 1 files, of which the median is at least half of the target.

    [R-61] `data/` stays byte for byte what it was; the newest ranges, which weigh too little, wait, unless asked for.
    """
    fill(world, 10)
    before, target = data_tree(world), world.topic.policy.target_file_bytes
    verdicts = run_seal(world, every=False)
    assert [(v.outcome, v.offsets.key) for v in verdicts] == [
        (SealOutcome.SEALED, "0-0-200"),
        (SealOutcome.SEALED, "0-200-400"),
    ]
    assert view(world) == sent(world)
    assert run_seal(world, every=False) == [], "what is sealed is sealed"
    assert [v.offsets.key for v in run_seal(world)] == ["0-400-500"]
    files = sealed_files(world)
    assert len(files) == 3 <= -(-sum(map(len, before.values())) // target) + 1
    assert statistics.median(path.stat().st_size for path in files) >= target / 2
    assert data_tree(world) == before
    assert view(world) == sent(world)
    world.assert_all_landed_once()
    for path in files:
        assert pq.read_schema(path).equals(pq.read_schema(next(iter(before))), check_metadata=True)
    for check in (check_tiling, check_completeness, check_published, check_sealed):
        assert check(world.name, world.edges.lake).passed
    assert not list((world.lake_folder / "staging").iterdir())


def test_where_a_row_is_said_with_its_range_and_its_sealed_file(world: World) -> None:
    """[R-62] `ranges` and trace name both; a query over the view reads the sealed one."""
    fill(world, 5)
    run_seal(world, every=False)
    _, rows = duck(world).query("SELECT key, parse_filename(sealed_file) FROM ranges ORDER BY start")
    name = f"{0:020d}-{200:020d}.000.parquet"
    assert rows == [("0-0-50", name), ("0-50-100", name), ("0-100-150", name), ("0-150-200", name), ("0-200-250", None)]
    found = trace_row(world.topic, 0, 60, world.edges)
    assert found["range"] == "0-50-100" and found["sealed_file"].endswith(name) and found["row"]["offset"] == 60
    (world.lake_folder / "data" / world.name / "g0/p0000" / f"{50:020d}-{100:020d}.parquet").unlink()
    left = [row for row in sent(world) if not 50 <= row[0] < 100]
    assert view(world) == left, "a file that somebody took away makes the seal stale: nothing hides that it is gone"


STEPS = {  # where the process dies -> (seals, sealed files) at that moment
    "seal_staged": (0, 0),
    "seal_committed": (1, 0),
    "seal_published": (1, 1),
}


@pytest.mark.parametrize(
    "step",
    ["seal_committed", *(pytest.param(step, marks=pytest.mark.long) for step in ("seal_staged", "seal_published"))],
)
def test_sealing_killed_at_any_step_shows_each_row_once_and_is_finished_by_the_next(world: World, step: str) -> None:
    """[R-63] SIGKILL: before it, at it and after it a view shows each row once; the next one rolls forward or redoes."""
    fill(world, 6)
    with stopped_at(world, "seal", step):
        seals = Seals(Lake(world.settings.lake))
        least = STEPS[step]
        at = (len(seals.read(world.name)), len(sealed_files(world)))
        assert all(found >= expected for found, expected in zip(at, least, strict=True)), at
        assert at[0] < 2 or at[1] < 2 or step == "seal_published", "the fault: it is in the middle"
        assert view(world) == sent(world)
    later = world.edges.now_ms() + int((SWEEP_AFTER_SECONDS + 60) * 1000)
    owed = [each for each in seals.read(world.name) if not seals.is_published(each)]
    assert len(owed) == (step == "seal_committed") or step == "seal_published"
    sweep_orphans(world.edges.lake, later)
    assert all(seals.is_staged(each) for each in owed), "what a seal needs is not swept"
    outcomes = {v.outcome for v in run_seal(world)}
    assert (SealOutcome.ROLLED_FORWARD in outcomes) == bool(owed)
    assert outcomes <= {SealOutcome.ROLLED_FORWARD, SealOutcome.SEALED}
    assert [path.name.split(".")[0][-3:] for path in sealed_files(world)] == ["200", "300"]
    assert view(world) == sent(world)
    assert run_seal(world) == []
    sweep_orphans(world.edges.lake, later)
    assert not list((world.lake_folder / "staging").iterdir())


def test_a_seal_whose_staged_file_is_gone_is_made_again_under_the_next_name(world: World) -> None:
    """[R-63] Committed, not published, and the disk of the attempt is lost: the next revision takes its place."""
    fill(world, 4)
    with stopped_at(world, "seal", "seal_committed"):
        pass
    for path in (world.lake_folder / "staging").rglob("*.parquet"):
        path.unlink()
    (verdict,) = run_seal(world)
    assert verdict.seal is not None and (verdict.outcome, verdict.seal.revision) == (SealOutcome.SEALED, 1)
    assert [path.name.split(".")[1] for path in sealed_files(world)] == ["001"]
    assert view(world) == sent(world)


def test_a_published_file_that_was_changed_is_not_sealed(world: World) -> None:
    """[R-61] Nor anything with it; the other runs are."""
    fill(world, 8)
    damaged = world.lake_folder / "data" / world.name / "g0/p0000" / f"{50:020d}-{100:020d}.parquet"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-20] + b"x" + content[-19:])
    outcomes = {v.offsets.key: (v.outcome, v.violations) for v in run_seal(world)}
    assert outcomes["0-200-400"][0] is SealOutcome.SEALED
    assert outcomes["0-0-200"][0] is SealOutcome.FAILED and "sha256" in str(outcomes["0-0-200"][1])
    assert len(sealed_files(world)) == 1
    damaged.write_bytes(content)
    assert [v.outcome for v in run_seal(world)] == [SealOutcome.SEALED], "the control"
    assert view(world) == sent(world)


def with_an_aborted_record(world: World) -> None:
    """Has the first range hold a record that a reader of committed records will not see, so that a replace changes it."""
    world.create_topic(retention_ms="-1")
    world.with_policy(records_per_range=PER_RANGE, target_file_bytes=100_000, isolation_level="read_uncommitted")
    producer = world.producer(transactional_id=f"{world.name}-tx")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(world.name, partition=0, key=b"never", value=b"aborted")
    producer.flush()
    producer.abort_transaction()
    producer.close()
    world.send({"partition": 0, "key": b"k%d" % n, "value": NOISE(500)} for n in range(12 * PER_RANGE))
    world.plan()
    world.land()
    world.with_policy(isolation_level="read_committed")


class Reader(LoopingReader):
    """Opens the views, and keeps what each showed: rows, distinct offsets, the aborted one."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.seen: list[tuple[int, int, int]] = []
        self.sources: set[int] = set()

    def wait_for_another(self) -> None:
        count = len(self.seen)
        self._world.wait_until(lambda: len(self.seen) > count + 1 or bool(self.errors))

    def read(self) -> None:
        sql = f"""SELECT count(*), count(DISTINCT "offset"), count(*) FILTER ("value" = 'aborted'),
            (SELECT count(DISTINCT sealed_file) FROM ranges) FROM "{self._world.name}" """
        try:
            ((rows, distinct, aborted, sources),) = duck(self._world).query(sql)[1]
        except (duckdb.Error, OffsetlakeError) as error:
            self.errors.append(str(error))
            self._stop.set()
            return
        self.seen.append((rows, distinct, aborted))
        self.sources.add(sources)


def test_a_view_is_right_at_every_moment(world: World) -> None:
    """AC12: while files are sealed, sealers die, ranges are replaced and what was sealed is sealed anew.

    [R-62] [R-65] The glob over `data/` shows the same rows all the while.
    """
    with_an_aborted_record(world)
    total = len(world.sent)
    reader = Reader(world)
    with reader.reading():
        reader.wait_for_another()
        with stopped_at(world, "seal", "seal_published"):
            reader.wait_for_another()
        run_seal(world, every=False)
        reader.wait_for_another()
        assert len(view(world)) == total + 1, "the aborted one is landed, and sealed"
        (verdict, *_) = world.land(["0-0-50"], redo=True, on_change="replace")
        assert verdict.outcome is Outcome.REPLACED
        reader.wait_for_another()
        assert view(world) == sent(world), "the stale sealed file still has the aborted one, and is not read"
        assert check_sealed(world.name, world.edges.lake).passed
        again = run_seal(world)
        assert [(v.offsets.start, v.seal.revision) for v in again if v.seal is not None and v.seal.revision] == [(0, 1)]
        reader.wait_for_another()
        world.send({"partition": 0, "key": b"k", "value": NOISE(500)} for _ in range(5 * PER_RANGE))
        world.plan()
        world.land()
        run_seal(world)
        reader.wait_for_another()
    assert not reader.errors, reader.errors
    assert all(rows == distinct for rows, distinct, _ in reader.seen)
    assert {rows for rows, *_ in reader.seen} >= {total + 1, total}
    order = [aborted for *_, aborted in reader.seen]
    assert order == sorted(order, reverse=True), "what was replaced never comes back"
    assert len(reader.sources) > 3, "the control: it read different sealed files as time went by"
    assert view(world) == sent(world)
    assert len(world.rows()) == len(world.sent)
    what_nobody_reads_is_swept(world)


def what_nobody_reads_is_swept(world: World) -> None:
    """[R-65] Not while somebody who opened the views before may be reading it; and what is read never."""
    used = {
        sealed_path(seal) for seal in choose_seals(world.coverage, Seals(world.edges.lake).read_published(world.name))
    }
    files = {path.relative_to(world.lake_folder).as_posix() for path in sealed_files(world)}
    assert used < files, "the control: a stale one and one that was taken up by a wider one are there"
    moment = world.edges.now_ms() + int((SWEEP_AFTER_SECONDS + 60) * 1000)
    world.edges.now_ms = lambda: moment
    assert run_seal(world) == []
    assert {path.relative_to(world.lake_folder).as_posix() for path in sealed_files(world)} == used
    assert view(world) == sent(world)


def test_two_who_seal_at_once_come_to_one_file(world: World) -> None:
    """[R-63] One seal decides; the other attempt says so."""
    fill(world, 4)
    inner: list[SealVerdict] = []

    def overtake(step: str, **fields: object) -> None:
        if step == "seal_verified" and not inner:
            inner.extend(run_seal(world, attempt="other"))

    target = world.topic.policy.target_file_bytes
    (outer,) = seal(world.name, Attempt("slow", "no-run", "test"), world.tools(overtake), target)
    assert ([v.outcome for v in inner], outer.outcome) == ([SealOutcome.SEALED], SealOutcome.SUPERSEDED)
    assert outer.seal == inner[0].seal
    assert len(sealed_files(world)) == 1 and view(world) == sent(world)


def test_the_command_and_the_job_seal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-61] `offsetlake seal` shows first, then does; `seal_<topic>` is a Dagster job, scheduled only if turned on."""
    fill(world, 8, landed=5)
    command = importlib.import_module("pipeline_defs.cli.seal")  # the package has the command itself by this name
    monkeypatch.setattr(command, "open_edges", lambda: world.edges)
    monkeypatch.setattr(command, "find_topic", lambda name: world.topic)
    run: Callable[..., str] = lambda *arguments: CliRunner().invoke(command.seal, [world.name, *arguments]).stdout  # noqa: E731
    assert "would seal 4 ranges" in run("--dry-run") and not sealed_files(world)
    (file,) = json.loads(run("--json"))["files"]
    assert (file["key"], file["outcome"], file["ranges"], file["rows"]) == ("0-0-200", "sealed", 4, 200)
    assert file["sealed_bytes"] < file["landed_bytes"]
    assert "sealed 0 ranges" in run()

    world.land()
    definitions = build_defs(world.edges, topics=world.definitions)
    schedule = definitions.resolve_schedule_def(f"{world.topic.seal_job}_daily")
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    with dg.build_schedule_context(instance=world.instance, resources={"edges": world.edges}) as context:
        assert len(schedule.evaluate_tick(context).run_requests or []) == 1
        result = definitions.resolve_job_def(world.topic.seal_job).execute_in_process(instance=world.instance)
        assert result.success and len(sealed_files(world)) == 2
        assert schedule.evaluate_tick(context).run_requests == []
    (damaged, *_) = (world.lake_folder / "data").rglob("*.parquet")
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"x" + damaged.read_bytes()[-8:])
    for path in sealed_files(world):
        path.unlink()
    done = CliRunner().invoke(command.seal, [world.name])
    assert isinstance(done.exception, SealFailed), done.stdout
    assert "sha256" in str(done.exception)


def test_a_sealed_file_that_was_changed_is_found(world: World) -> None:
    """[R-62] By its digest; taken away, readers read the landed files again."""
    fill(world, 4)
    run_seal(world)
    (path,) = sealed_files(world)
    assert check_sealed(world.name, world.edges.lake).passed, "the control"
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    assert "has sha256" in check_sealed(world.name, world.edges.lake).violations[0]
    path.unlink()
    assert check_sealed(world.name, world.edges.lake).passed
    assert view(world) == sent(world)
    assert sealed_path(Seals(world.edges.lake).read(world.name)[0]).startswith("sealed/")
