"""The drills: each brings one fault about, proves that it happened, and lets the system go on.

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


def no_fault(arena: Arena, name: str) -> System:
    """Let the system land what is produced, twice; the control of all the others."""
    system = arena.system(name)
    for _ in range(2):
        arena.produce(EACH)
        run_to_end(system)
    arena.fault_proven = True
    return system


def kill_at(step: str) -> Callable[[Arena, str], System]:
    """Kill the system at one of its steps, in a backlog of several files, and start it again."""

    def act(arena: Arena, name: str) -> System:
        system = arena.system(name)
        arena.produce(EACH)
        run_to_end(system)
        arena.kill(system, step, each=EACH, own_jvm=arena.delivery is Delivery.EFFECTIVELY_ONCE)
        run_to_end(system)
        return system

    return act


def kill_again_and_again(arena: Arena, name: str) -> System:
    """Kill it three times in a row at different steps, while records arrive."""
    system = arena.system(name)
    steps = ("stage", "commit", "publish") if name == OURS else KILLS[name] * 3
    for step in steps[:3]:
        arena.kill(system, step, each=EACH // 2)
    run_to_end(system)
    return system


def stall(arena: Arena, name: str) -> System:
    """Stop the broker (SIGSTOP) while the system reads, for seconds, and let it go on."""
    system = arena.system(name)
    arena.produce(EACH * 20)
    with arena.running(system, own_jvm=name == STREAMING) as child:
        with paused([arena.broker_pid]):
            _, status = os.waitpid(arena.broker_pid, os.WUNTRACED)  # it is our child
            arena.fault_proven = os.WIFSTOPPED(status) and not child.connection.poll(STALL_SECONDS)
        child.hear()
    run_to_end(system)
    return system


def between(fault: Callable[[Arena, System], bool]) -> Callable[[Arena, str], System]:
    """Let the system land, bring a fault about that says whether it happened, and let it land what comes after."""

    def act(arena: Arena, name: str) -> System:
        system = arena.system(name)
        arena.produce(EACH)
        run_to_end(system)
        arena.fault_proven = fault(arena, system)
        arena.produce(EACH)
        run_to_end(system)
        return system

    return act


def expire_unplanned(arena: Arena, system: System) -> bool:  # noqa: ARG001 (as `between` calls it)
    """Have the broker delete records that nobody has looked at yet, after some were landed."""
    arena.produce(EACH)
    arena.expire(0, EACH + EACH // 2 + 7)
    return True


def expire_planned(arena: Arena, name: str) -> System:
    """Have the broker delete records after their boundaries were written and before they were read."""
    system = arena.system(name)
    arena.produce(EACH)
    run_to_end(arena.system(name, lands=False))
    arena.expire(0, EACH // 2 + 7)
    arena.fault_proven = True
    run_to_end(system)
    return system


def compact(arena: Arena, name: str) -> System:
    """Have the broker compact what is not landed yet: most offsets are legally gone."""
    system = arena.system(name)
    now = time.time_ns() // 1_000_000
    for number in range(7):
        arena.produce(EACH // 7, key=b"k%d" % number, timestamp_ms=now - 4 * HOUR_MS)
    arena.produce(1, key=b"closing", timestamp_ms=now + SEGMENT_MS + HOUR_MS // 6)
    before = len(arena.truth)
    wait_until(lambda: len(arena.readable()) == 8 * arena.partitions, "compaction")
    arena.forget_compacted()
    arena.fault_proven = len(arena.truth) < before
    run_to_end(system)
    return system


def abort_transactions(arena: Arena, name: str) -> System:
    """Produce in transactions that are aborted, and the same records again in ones that commit."""
    system = arena.system(name)
    for number in range(2):
        arena.produce_aborted(EACH // 2, f"drill-{number}")
        run_to_end(system)
    ends = sum(arena.watermarks(p).end for p in range(arena.partitions))
    arena.fault_proven = ends >= 2 * len(arena.truth)
    return system


def leave_transaction_open(arena: Arena, name: str) -> System:
    """Land while a transaction is open; then it is aborted, and its records are produced again."""
    system = arena.system(name)
    arena.produce(EACH)
    with arena.open_transaction(EACH // 2):
        arena.produce(EACH)
        arena.fault_proven = all(arena.watermarks(p).end == EACH for p in range(arena.partitions))
        run_to_end(system)
    run_to_end(system)
    return system


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


def delete_group(arena: Arena, system: System) -> bool:  # noqa: ARG001
    """Delete the consumer group that shows how far Offsetlake is."""
    group = arena.topic.group
    had = bool(arena.kafka.read_group(arena.topic.name, group))
    arena.operations.delete_group(group)
    return had and not arena.kafka.read_group(arena.topic.name, group)


def overtake(arena: Arena, name: str) -> System:
    """Pause one attempt before it is done, let another machine's do the work, and let the first go on."""
    system = arena.system(name)
    with arena.stopped(system, "verify" if name == OURS else "written", each=EACH) as stale:
        run_to_end(arena.elsewhere(system))
        try:
            stale.resume()
        except ChildFailed as error:
            arena.note = f"the stale attempt failed: {str(error)[:120]}"
    run_to_end(system)
    return system


def tear_staged_file(arena: Arena, name: str) -> System:
    """Kill it between commit and publish, and have the staged file end in zeros, as a power cut may leave it."""
    system = arena.system(name)
    arena.produce(EACH)
    arena.kill(system, "commit")
    lake = Lake(arena.settings.lake)
    coverage = lake.coverage(arena.topic.name)
    for offsets, manifest in coverage.manifests.items():
        if manifest.file is not None and not coverage.is_landed(offsets):
            with lake.store.local_copy(manifest.file.path) as path, path.open("r+b") as file:
                file.seek(-100, os.SEEK_END)
                file.write(bytes(100))
    run_to_end(system)
    return system


def lose_answers(arena: Arena, name: str) -> System:
    """Have the answers of the first plan step and the first manifests be lost, although they were written."""
    arena.produce(EACH)
    system = arena.system(name)
    with arena.stopped(arena.system(name, answers_lost=3), "answer_lost", 3, own_jvm=False) as child:
        child.resume()
    run_to_end(system)
    return system


def race_planners(arena: Arena, name: str) -> System:
    """Have two planners decide the same step at once; each then commit its own."""
    arena.produce(EACH)
    system, planner = arena.system(name), arena.system(name, lands=False)
    at_once = partial(arena.stopped, planner, "plan_decided", own_jvm=False)
    with at_once() as one, at_once() as other:
        one.resume()
        other.resume()
    run_to_end(system)
    return system


def fill_disk(arena: Arena, name: str) -> System:
    """Have no file grow beyond 16 MiB (`RLIMIT_FSIZE`), less than a range is, as on a full disk; then there is room."""
    arena.produce(EACH // 4, value_bytes=BIG_RECORD_BYTES)
    limited = arena.system(name, disk_bytes=DISK_BYTES)
    arena.fail_in_child(limited)
    run_to_end(replace(limited, disk_bytes=None))
    return limited
