"""What is written before it is named: no two writes share a file, and what a killed process leaves goes with the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline_defs.adapters.store.disk import Disk
from pipeline_defs.adapters.store.store import Answer
from pipeline_defs.adapters.store.stores import open_store
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.settings import PROJECT
from tests.support.intercepting import beside
from tests.support.interleaving import SmallWorld

pytestmark = pytest.mark.usefixtures("watched")


def linking(monkeypatch: pytest.MonkeyPatch, tree: str, meanwhile: Callable[[], None], *, is_linked: bool = False) -> None:
    """Have something happen before the first link into a tree, or once that is made."""
    done: list[str] = []

    def look(_: Disk, source: str, target: str) -> None:
        if target.startswith(f"{tree}/") and not done:
            done.append(target)
            meanwhile()

    beside(monkeypatch, Disk, "link", **{"after" if is_linked else "before": look})


@pytest.mark.parametrize("is_linked", [False, True])
def test_no_write_opens_a_file_that_a_name_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_linked: bool) -> None:
    """[R-47] Two writers with one scratch name, as two runs have it that say the same earlier revision again."""
    store, answers = open_store(str(tmp_path)), []

    def write_too() -> None:
        answers.append(open_store(str(tmp_path)).put_new("manifests/0.json", b"theirs", "staging/same"))

    linking(monkeypatch, "manifests", write_too, is_linked=is_linked)
    answers.append(store.put_new("manifests/0.json", b"ours", "staging/same"))
    assert answers == ([Answer.CONFLICT, Answer.COMMITTED] if is_linked else [Answer.COMMITTED, Answer.CONFLICT])
    assert store.get("manifests/0.json") == (b"ours" if is_linked else b"theirs") and store.list("staging") == {}


@pytest.mark.parametrize("delivery", Delivery)
def test_a_scratch_file_that_is_deleted_under_its_writer_fails_its_range_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivery: Delivery
) -> None:
    """[R-47] Whatever the policy; the run goes on, and the others land, but where their staged files went too."""
    world = SmallWorld(tmp_path, "disk", records=9, grid=3)
    swept: list[str] = []

    def sweep() -> None:
        for path in (tmp_path / "staging").rglob("*.json*"):
            swept.append(path.name)
            path.unlink()

    linking(monkeypatch, "manifests", sweep)
    verdicts = world.land(delivery=delivery)
    assert len(swept) == 1, "the fault"
    (failed,) = [verdict for verdict in verdicts if verdict.outcome is Outcome.FAILED]
    assert "was deleted while it was written" in failed.violations[0]
    assert [verdict.outcome for verdict in verdicts if verdict is not failed] == [Outcome.LANDED] * 2


def test_a_claim_that_fails_fails_its_own_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-50] What was claimed before it is read, and what comes after it too; the next run lands the one that is left."""
    world = SmallWorld(tmp_path, "disk", records=12, grid=3)
    world.delivery = Delivery.AT_MOST_ONCE
    claims: list[str] = []

    def fill(_: Disk, path: str, data: bytes) -> None:
        claims.extend([path] * ("claim-" in path))
        if "claim-" in path and len(claims) == 3:
            raise OSError(28, "No space left on device", path)

    beside(monkeypatch, Disk, "write", fill)
    verdicts = world.land()
    (failed,) = [verdict for verdict in verdicts if verdict.outcome is Outcome.FAILED]
    assert failed.offsets.start == 6 and "No space left" in failed.violations[0]
    assert len(verdicts) == 4 and world.shown() == dict.fromkeys([*range(6), *range(9, 12)], 1)
    world.land()
    assert world.shown() == dict.fromkeys(range(12), 1)


OWNER = """
import sys
from pipeline_defs.adapters.system.locks import scratch
(scratch() / "copy.parquet").write_bytes(b"rows")
print(scratch(), flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Give a process that has a temporary file below a folder, and the folder of its own."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_temporary_files_of_a_process_that_was_killed_go_with_the_next_one(tmp_path: Path) -> None:
    """Those of a lake in a bucket are as large as its files; who works keeps its own, and who ends deletes them."""
    with owner(tmp_path) as (works, kept):
        with owner(tmp_path) as (dies, left):
            dies.send_signal(signal.SIGKILL)
            dies.wait()
            assert (left / "copy.parquet").exists(), "the fault: nobody has deleted it"
        with owner(tmp_path) as (_, own):
            assert sorted(tmp_path.iterdir()) == sorted([kept, own])
            assert (kept / "copy.parquet").exists() and works.poll() is None
        assert [*tmp_path.iterdir()] == [kept]
    assert [*tmp_path.iterdir()] == []
