"""The faults: each is brought about, and proven to have happened; then `report.py` lets the system go on to its end.

What is missing or doubled afterwards is counted by `arena.judge`. Invariant: a drill never repairs anything itself.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...adapters.lake.lake import Lake
from ...adapters.system.processes import paused
from ...core.log.delivery import Delivery
from ..processes import wait_until
from .arena import Arena
from .children import ChildFailed
from .systems import KILLS, OURS, STREAMING, System, run_to_end

Fault = Callable[[Arena, System], None]
"""What a drill does to a system before that is run to its end."""
EACH = 200
HOUR_MS = 3600 * 1000
SEGMENT_MS = HOUR_MS * 2 // 3
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": str(SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
}
DISK_BYTES = 16 * 1024 * 1024  # more than any jar that Spark copies at its start
BIG_RECORD_BYTES = 400_000
STALL_SECONDS = 5.0


def no_fault(arena: Arena, system: System) -> None:
    """Let the system land what is produced, twice; the control of all the others."""
    _land(arena, system)
    arena.produce(EACH)
    arena.fault_proven = True


def kill_at(step: str) -> Fault:
    """Kill the system at one of its steps, in a backlog of several files."""

    def act(arena: Arena, system: System) -> None:
        _land(arena, system)
        arena.kill(system, step, each=EACH, own_jvm=arena.delivery is Delivery.EFFECTIVELY_ONCE)

    return act


def kill_again_and_again(arena: Arena, system: System) -> None:
    """Kill it three times in a row at different steps, while records arrive."""
    steps = ("stage", "commit", "publish") if system.name == OURS else KILLS[system.name] * 3
    for step in steps[:3]:
        arena.kill(system, step, each=EACH // 2)


def stall(arena: Arena, system: System) -> None:
    """Stop the broker (SIGSTOP) while the system reads, for seconds, and let it go on."""
    arena.produce(EACH * 20)
    with arena.running(system, own_jvm=system.name == STREAMING) as child:
        with paused([arena.broker_pid]):
            _, status = os.waitpid(arena.broker_pid, os.WUNTRACED)  # it is our child
            arena.fault_proven = os.WIFSTOPPED(status) and not child.connection.poll(STALL_SECONDS)
        child.hear()


def between(fault: Callable[[Arena, System], bool]) -> Fault:
    """Bring a fault about that says whether it happened, between what was landed before and what comes after."""

    def act(arena: Arena, system: System) -> None:
        _land(arena, system)
        arena.fault_proven = fault(arena, system)
        arena.produce(EACH)

    return act


def _land(arena: Arena, system: System) -> None:
    arena.produce(EACH)
    run_to_end(system)


def expire_unplanned(arena: Arena, system: System) -> bool:  # noqa: ARG001 (as `between` calls it)
    """Have the broker delete records that nobody has looked at yet, after some were landed."""
    arena.produce(EACH)
    arena.expire(0, EACH + EACH // 2 + 7)
    return True


def expire_planned(arena: Arena, system: System) -> None:
    """Have the broker delete records after their boundaries were written and before they were read."""
    _land(arena, arena.system(system.name, lands=False))
    arena.expire(0, EACH // 2 + 7)
    arena.fault_proven = True


def compact(arena: Arena, system: System) -> None:  # noqa: ARG001
    """Have the broker compact what is not landed yet: most offsets are legally gone."""
    now = time.time_ns() // 1_000_000
    for number in range(7):
        arena.produce(EACH // 7, key=b"k%d" % number, timestamp_ms=now - 4 * HOUR_MS)
    arena.produce(1, key=b"closing", timestamp_ms=now + SEGMENT_MS + HOUR_MS // 6)
    before = len(arena.truth)
    wait_until(lambda: len(arena.readable()) == 8 * arena.partitions, "compaction")
    arena.forget_compacted()
    arena.fault_proven = len(arena.truth) < before


def abort_transactions(arena: Arena, system: System) -> None:
    """Produce in transactions that are aborted, and the same records again in ones that commit."""
    for number in range(2):
        arena.produce_aborted(EACH // 2, f"drill-{number}")
        run_to_end(system)
    ends = sum(arena.watermarks(p).end for p in range(arena.partitions))
    arena.fault_proven = ends >= 2 * len(arena.truth)


def leave_transaction_open(arena: Arena, system: System) -> None:
    """Land while a transaction is open; then it is aborted, and its records are produced again."""
    arena.produce(EACH)
    with arena.open_transaction(EACH // 2):
        arena.produce(EACH)
        arena.fault_proven = all(arena.watermarks(p).end == EACH for p in range(arena.partitions))
        run_to_end(system)


def recreate(arena: Arena, system: System) -> bool:  # noqa: ARG001
    """Have the topic be deleted and created again; then it gets as many records as the old one had."""
    before = arena.kafka.read_ids(arena.topic.name)
    arena.recreate()
    return arena.kafka.read_ids(arena.topic.name) != before


def add_partitions(arena: Arena, system: System) -> bool:  # noqa: ARG001
    """Have the topic have more Kafka partitions, filled before anybody notices."""
    before = arena.partitions
    arena.add_partitions(2)
    return arena.watermarks(before + 1).end == 0


def lose_books(arena: Arena, system: System) -> bool:  # noqa: ARG001
    """Delete what the system keeps beside its files: Dagster's database and the group, the checkpoint, the group."""
    system.forget()
    return True


def delete_group(arena: Arena, system: System) -> bool:
    """Delete the consumer group that shows how far Offsetlake is."""
    had = bool(arena.kafka.read_group(arena.topic.name, system.group))
    arena.operations.delete_group(system.group)
    return had and not arena.kafka.read_group(arena.topic.name, system.group)


def overtake(arena: Arena, system: System) -> None:
    """Pause one attempt before it is done, let another machine's do the work, and let the first go on."""
    with arena.stopped(system, "verify" if system.name == OURS else "written", each=EACH) as stale:
        run_to_end(arena.elsewhere(system))
        try:
            stale.resume()
        except ChildFailed as error:
            arena.note = f"the stale attempt failed: {str(error)[:120]}"


def tear_staged_file(arena: Arena, system: System) -> None:
    """Kill it between commit and publish, and have the staged file end in zeros, as a power cut may leave it."""
    arena.produce(EACH)
    arena.kill(system, "commit")
    lake = Lake(arena.settings.lake)
    coverage = lake.coverage(arena.topic.name)
    for offsets, manifest in coverage.manifests.items():
        if manifest.file is not None and not coverage.is_landed(offsets):
            with lake.store.local_copy(manifest.file.path) as path, path.open("r+b") as file:
                file.seek(-100, os.SEEK_END)
                file.write(bytes(100))


def lose_answers(arena: Arena, system: System) -> None:
    """Have the answers of the first plan step and the first manifests be lost, although they were written."""
    arena.produce(EACH)
    with arena.stopped(arena.system(system.name, answers_lost=3), "answer_lost", 3, own_jvm=False) as child:
        child.resume()


def race_planners(arena: Arena, system: System) -> None:
    """Have two planners decide the same step at once; each then commit its own."""
    arena.produce(EACH)
    at_once = partial(arena.stopped, arena.system(system.name, lands=False), "plan_decided", own_jvm=False)
    with at_once() as one, at_once() as other:
        one.resume()
        other.resume()


def fill_disk(arena: Arena, system: System) -> None:
    """Have no file grow beyond 16 MiB (`RLIMIT_FSIZE`), less than a range is, as on a full disk; then there is room."""
    arena.produce(EACH // 4, value_bytes=BIG_RECORD_BYTES)
    arena.fail_in_child(replace(system, disk_bytes=DISK_BYTES))
