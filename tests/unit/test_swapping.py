"""Compare-and-swap on a disk: one of those who saw a version swaps; the lock ends with its process."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import pytest

from pipeline_defs.edges import swapping
from pipeline_defs.edges.store import Store
from pipeline_defs.edges.swapping import see, swap

ROUNDS = 60
FORKS = multiprocessing.get_context("forkserver")


def stage(store: Store, name: str, data: bytes) -> str:
    store.put_new(f"staging/{name}", data, f"staging/{name}.scratch")
    return f"staging/{name}"


def test_of_two_who_saw_one_version_the_first_swaps_and_the_other_is_told(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    one, two, three = (stage(store, name, name.encode()) for name in ("one", "two", "three"))
    with see(store, "latest/orders/x") as nothing:
        assert nothing is None
        assert swap(store, one, "latest/orders/x", nothing)
        assert not swap(store, two, "latest/orders/x", nothing), "there was none, and now there is"
    with see(store, "latest/orders/x") as first:
        assert swap(store, two, "latest/orders/x", first)
        assert not swap(store, three, "latest/orders/x", first)
    assert store.get("latest/orders/x") == b"two"
    assert [*store.list("staging")] == [three]
    with pytest.raises(FileNotFoundError):
        swap(store, one, "latest/orders/x", None)


def held_open() -> set[int]:
    """Returns the inodes of the files that this process holds open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(descriptor.stat().st_ino)
    return found


def test_a_version_that_was_seen_is_never_taken_for_a_later_one(tmp_path: Path) -> None:
    """ext4 gives the inode of a file that is gone to the next one: it must not, while somebody has seen it."""
    store = Store(str(tmp_path))
    assert swap(store, stage(store, "first", b"0"), "x", None)
    inode = (tmp_path / "x").stat().st_ino
    with see(store, "x") as seen:
        assert inode in held_open()
        for number in range(20):
            with see(store, "x") as now:
                assert swap(store, stage(store, f"a{number}", b"0"), "x", now)
            assert not swap(store, stage(store, f"b{number}", b"1"), "x", seen)
            store.delete_folder(f"staging/b{number}")
    assert inode not in held_open()
    assert store.get("x") == b"0"


def test_between_the_look_and_the_swap_nobody_comes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one that swaps while one has looked and not swapped yet waits, and is told."""
    store = Store(str(tmp_path))
    ours, theirs = stage(store, "ours", b"ours"), stage(store, "theirs", b"theirs")
    assert swap(store, stage(store, "first", b"0"), "x", None)
    look, answers = swapping._stat, []
    with see(store, "x") as seen:
        another = Thread(target=lambda: answers.append(swap(store, theirs, "x", seen)))

        def look_and_let_another_in(path: Path) -> swapping.Seen | None:
            found = look(path)
            monkeypatch.setattr(swapping, "_stat", look)
            another.start()
            another.join(0.3)  # without the lock it has swapped by then
            assert not answers
            return found

        monkeypatch.setattr(swapping, "_stat", look_and_let_another_in)
        assert swap(store, ours, "x", seen)
        another.join(60)
    assert (answers, store.get("x")) == ([False], b"ours")


def count_up(root: str, name: str, ready: Connection) -> None:
    """Adds one to a counter so often, each time beginning again where another was faster; says how often that was."""
    store, lost = Store(root), 0
    ready.send("ready")
    ready.recv()
    for number in range(ROUNDS):
        while True:
            with see(store, "count") as seen:
                found = int(store.get("count") or b"0")
                staged = stage(store, f"{name}-{number}-{lost}", b"%d" % (found + 1))
                if swap(store, staged, "count", seen):
                    break
                lost += 1
    ready.send(lost)


def test_of_two_processes_that_race_nothing_is_lost(tmp_path: Path) -> None:
    """Each counts up by what it has read: were one version swapped twice, a count would be missing."""
    pipes = [FORKS.Pipe() for _ in range(2)]
    children = [
        FORKS.Process(target=count_up, args=(str(tmp_path), f"child{number}", theirs), daemon=True)
        for number, (_, theirs) in enumerate(pipes)
    ]
    for child in children:
        child.start()
    for ours, _ in pipes:
        assert ours.recv() == "ready"
    for ours, _ in pipes:
        ours.send("go")
    lost = [ours.recv() for ours, _ in pipes]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert (tmp_path / "count").read_bytes() == b"%d" % (2 * ROUNDS)
    assert sum(lost), "the fault: they did get in each other's way"


def hold(folder: str, ready: Connection) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    ready.send("held")
    ready.recv()


def test_the_lock_of_a_process_that_dies_ends_with_it(tmp_path: Path) -> None:
    """AC18: there is nothing to clean by hand."""
    store = Store(str(tmp_path))
    assert swap(store, stage(store, "first", b"1"), "latest/x", None)
    ours, theirs = FORKS.Pipe()
    child = FORKS.Process(target=hold, args=(str(tmp_path / "latest"), theirs), daemon=True)
    child.start()
    assert ours.recv() == "held"
    probe = os.open(tmp_path / "latest", os.O_RDONLY)
    with pytest.raises(BlockingIOError):  # the fault: it is held
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(probe)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    with see(store, "latest/x") as seen:
        assert swap(store, stage(store, "second", b"2"), "latest/x", seen)
    child.join(60)
    assert sorted(path.name for path in (tmp_path / "latest").iterdir()) == ["x"]
