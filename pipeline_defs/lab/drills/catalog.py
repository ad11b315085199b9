"""The table of drills: which fault, to whom, under which policies of Offsetlake.

Invariant: every step of `KILLS` has its drill, so that none is left out when a system gets a further step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...core.log.delivery import Delivery
from . import faults, recovery
from .arena import Arena
from .systems import KILLS, LOOP, OURS, STREAMING, TUTORIAL, System

ALL = (OURS, STREAMING, LOOP)
COMMITS = (*ALL, TUTORIAL)  # who is drilled where it matters when offsets are committed


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


_BY_STEP = {step: tuple(name for name in COMMITS if step in KILLS[name]) for steps in KILLS.values() for step in steps}

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
