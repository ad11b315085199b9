"""Random schedules: records arrive, expire and are aborted, processes die by SIGKILL at random steps, each from a seed.

Children attach to one JVM, so that a schedule takes seconds; SIGKILL is real, and what the dead one's scan still writes
is a zombie's. Invariant: the same seed and number give the same schedule.
"""

import random
import time
from dataclasses import replace

from .arena import Arena, Row
from .children import ChildFailed
from .supervisor import run_to_end
from .systems import KILLS, OURS, Offsetlake

STEPS = tuple(step for step in KILLS[OURS] if step != "claim")
MAX_KILLS = 3
MAX_RECORDS = 120


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
