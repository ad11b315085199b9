"""The table of drills: which fault to whom under which policies; and random schedules of faults, each from a seed.

In a schedule records arrive, expire and are aborted, processes die by SIGKILL at random steps. Children attach to one JVM, so
that it takes seconds; what the dead one's scan still writes is a zombie's. Invariants: every step of `KILLS` has its drill, so
that none is left out when a system gets a further step; the same seed and number give the same schedule.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ...core.log.delivery import Delivery
from . import faults, recovery
from .arena import Arena, Row
from .children import ChildFailed
from .systems import KILLS, LOOP, OURS, STREAMING, TUTORIAL, Offsetlake, System, run_to_end

ALL = (OURS, STREAMING, LOOP)
COMMITS = (*ALL, TUTORIAL)  # who is drilled where it matters when offsets are committed
_BY_STEP = {step: tuple(name for name in COMMITS if step in KILLS[name]) for steps in KILLS.values() for step in steps}
STEPS = tuple(step for step in KILLS[OURS] if step != "claim")
MAX_KILLS = 3
MAX_RECORDS = 120


@dataclass(frozen=True, slots=True)
class Drill:
    """One fault: who is drilled with it, and under which policies of Offsetlake."""

    name: str
    act: Callable[[Arena, str], System]
    systems: tuple[str, ...] = ALL
    policies: tuple[Delivery, ...] = (Delivery.EFFECTIVELY_ONCE,)
    configs: Mapping[str, str] = field(default_factory=dict)
    is_of_disk: bool = False
    """Brings about what only a lake on this machine's disk has."""


DRILLS: Mapping[str, Drill] = {
    drill.name: drill
    for drill in (
        Drill("no_fault", faults.no_fault, COMMITS, tuple(Delivery)),
        *(
            Drill(
                f"kill_at_{step}",
                faults.kill_at(step),
                systems,
                (Delivery.AT_MOST_ONCE,) if step == "claim" else tuple(Delivery),
            )
            for step, systems in _BY_STEP.items()
        ),
        Drill("kill_again_and_again", faults.kill_again_and_again),
        Drill("stall", faults.stall),
        Drill("expire_unplanned", faults.between(faults.expire_unplanned)),
        Drill("expire_planned", faults.expire_planned, (OURS,)),
        Drill("compact", faults.compact, configs=faults.COMPACTED),
        Drill("abort_transactions", faults.abort_transactions),
        Drill("leave_transaction_open", faults.leave_transaction_open),
        Drill("recreate", faults.between(faults.recreate)),
        Drill("add_partitions", faults.between(faults.add_partitions)),
        Drill("lose_books", faults.between(faults.lose_books)),
        Drill("delete_group", faults.between(faults.delete_group), (OURS,)),
        Drill("overtake", faults.overtake),
        Drill("tear_staged_file", faults.tear_staged_file, (OURS,), is_of_disk=True),
        Drill("lose_answers", faults.lose_answers, (OURS,), is_of_disk=True),
        Drill("race_planners", faults.race_planners, (OURS,)),
        Drill("fill_disk", faults.fill_disk, COMMITS, is_of_disk=True),
        Drill("recover_from_kill", recovery.recover_from_kill, COMMITS),
        Drill("recover_from_failed_write", recovery.recover_from_failed_write, COMMITS, is_of_disk=True),
    )
}


def run_schedule(arena: Arena, seed: int, number: int) -> Row:
    """Run schedule `number` of a seed, and hold what is landed in the end against what was produced."""
    chance = random.Random(f"{seed}:{number}")  # noqa: S311
    started = time.monotonic()
    arena.topic = replace(arena.topic, policy=replace(arena.topic.policy, records_per_range=chance.choice([7, 20, 50, 100])))
    system = arena.system(OURS)
    assert isinstance(system, Offsetlake)
    told = []
    for _ in range(chance.randint(1, MAX_KILLS)):
        told.append(_happen(arena, chance, number))
        step, nth = chance.choice(STEPS), chance.choice([1, 1, 2, 3])
        try:
            arena.kill(system, step, nth, own_jvm=False)
            told.append(f"kill {step}#{nth}")
        except ChildFailed:  # it ended before: the step is passed less often than that
            told.append(f"no {step}#{nth}")
    run_to_end(system)
    arena.fault_proven = True
    arena.note = ", ".join(told)
    return arena.judge(system, f"schedule {seed}:{number}", time.monotonic() - started)


def _happen(arena: Arena, chance: random.Random, number: int) -> str:
    """Do what the world does between two crashes: always more records, and sometimes something else."""
    for partition in range(arena.partitions):
        arena.produce(chance.randint(1, MAX_RECORDS), partition)
    what = chance.choice(["", "", "expire", "abort", "partitions", "recreate"])
    if what == "expire" and arena.is_begun():
        marks = arena.watermarks(0)
        arena.expire(0, chance.randint(marks.earliest, marks.end))
    elif what == "abort":
        arena.produce_aborted(chance.randint(1, 20), f"schedule-{number}")
    elif what == "partitions":
        arena.add_partitions(1)
    elif what == "recreate" and arena.is_planned():
        arena.recreate()
        arena.produce(chance.randint(1, MAX_RECORDS))
    return what or "produce"
