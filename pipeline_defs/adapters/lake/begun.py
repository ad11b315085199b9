"""Names in `begun/`: the newest step of each plan log of which anything may be in the lake.

begun/<topic>/<seq20>.<digest16>     empty; put before anything of that step is
"""

import re
from collections.abc import Iterable

from ...core.log.frontier import digest_of
from ...core.log.plan_step import PlanStep
from ...core.log.settling import LONGEST_RUN_SECONDS
from ...core.offsets import OFFSET_DIGITS
from .documents import Documents

Begun = tuple[int, str]  # a step's number, and the name that says so

_NAME = re.compile(rf"(\d{{{OFFSET_DIGITS}}})\.[0-9a-f]{{16}}", re.ASCII)


class BegunSteps:
    """Reads and writes these names of one lake."""

    def __init__(self, lake: Documents) -> None:
        self._lake = lake

    def list(self, topic: str) -> list[Begun]:
        """List the steps of which something may be there."""
        names = (path.rpartition("/")[2] for path in self._lake.store.list(f"begun/{topic}"))
        return sorted((int(found[1]), name) for name in names if (found := _NAME.fullmatch(name)))

    def put(self, step: PlanStep) -> None:
        """Say that something of a step may be there from now on."""
        self._lake.store.put_new(f"begun/{step.topic}/{_name(step)}", b"", "staging/begun")

    def delete_old(self, topic: str, begun: Iterable[Begun]) -> None:
        """Delete names of steps that are lost and did nothing, where no run may be at them any more."""
        store = self._lake.store
        now_ms = store.clock_ms()
        for each in begun:
            put_ms = store.linked_at_ms(f"begun/{topic}/{each[1]}")
            if put_ms is not None and now_ms - put_ms > LONGEST_RUN_SECONDS * 1000:
                self.delete(topic, each)

    def delete(self, topic: str, begun: Begun) -> None:
        """Delete a name: another one says more."""
        self._lake.store.delete_folder(f"begun/{topic}/{begun[1]}")


def is_of(begun: Begun, step: PlanStep | None) -> bool:
    """Return whether a name is of a step, by its digest; it is of none where there is none."""
    return step is not None and begun[1] == _name(step)


def _name(step: PlanStep) -> str:
    return f"{step.seq:0{OFFSET_DIGITS}d}.{digest_of([step])[:16]}"
