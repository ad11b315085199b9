"""What a lake notes of its plan logs beside their steps: what the steps before one come to, and the newest one begun.

    frontier/<topic>/<seq20>.<time13>.json     what the steps before that one come to, made at that time (ms since 1970)
    frontier/<topic>/none                      empty; while it is there, no frontier document is read
    begun/<topic>/<seq20>.<digest16>           empty; put before a run works on that step

Frontier documents are read newest first, and deleted once newer ones serve in their place.
"""

import re
from collections.abc import Iterable, Iterator

from ...core.log.frontier import Frontier, digest_of
from ...core.log.latency import WINDOW_MS
from ...core.log.plan_step import PlanStep
from ...core.log.planlog import PlanLog
from ...core.log.settling import LONGEST_RUN_SECONDS, reopens
from ...core.offsets import OFFSET_DIGITS
from .documents import Documents, Kept

Begun = tuple[int, str]  # a step's number, and its name in `begun/`
_NAME = re.compile(rf"(\d{{{OFFSET_DIGITS}}})\.[0-9a-f]{{16}}", re.ASCII)


class Frontiers:
    """Frontier documents of one lake."""

    def __init__(self, lake: Documents) -> None:
        self._lake = lake
        self._kept = Kept(self._read)

    def has(self, topic: str) -> bool:
        """Return whether a document sums up anything of a topic."""
        return next(self.read(topic), None) is not None

    def read(self, topic: str, before_ms: int | None = None) -> Iterator[Frontier]:
        """Yield the readable documents of a topic, the newest first, or only those that were made by a time."""
        seen = self._lake.store.versions(f"frontier/{topic}")
        if _none_of(topic) in seen:
            return
        self._kept.see(f"frontier/{topic}", seen)
        for path in reversed(seen):
            found = self._kept.get(path)
            if found is not None and found.topic == topic and (before_ms is None or found.made_at_ms <= before_ms):
                yield found

    def goes_on(self, log: PlanLog) -> bool:
        """Return whether another document may be made of a log: if its base is there or, without one, no `none`."""
        if log.base is not None:
            return self._lake.store.exists(_path(log.base))
        return not self._lake.store.exists(_none_of(log.topic))

    def forget(self, topic: str, *, for_good: bool = False) -> None:
        """Delete the documents of a topic: its whole history is read until there is another one, or for good."""
        if for_good:
            self._lake.store.put_new(_none_of(topic), b"", "staging/frontier")
        for path in self._list(topic):
            self._lake.store.delete(path)

    def forget_reopened(self, step: PlanStep) -> None:
        """Delete the documents that a step makes untrue by what it reopens: the step itself may get lost."""
        for each in self.read(step.topic):
            if reopens(step, each):
                self._lake.store.delete(_path(each))

    def put(self, frontier: Frontier) -> None:
        """Write a document, and delete those that nobody needs any more.

        These are older than one that is an hour old, or of a longer log from before a restore.
        """
        own = _path(frontier)
        self._lake.store.put_new(own, frontier.to_json(), "staging/frontier")
        old = (each for each in self.read(frontier.topic, frontier.made_at_ms - WINDOW_MS) if each.seq <= frontier.seq)
        first = next((_path(each) for each in old), "")
        for path in self._list(frontier.topic):
            if path < first or path > own:
                self._lake.store.discard(path)

    def _list(self, topic: str) -> list[str]:
        return [path for path in self._lake.store.list(f"frontier/{topic}") if path != _none_of(topic)]

    def _read(self, path: str) -> Frontier | None:
        data = self._lake.store.get(path)
        return None if data is None else Frontier.from_json(data)


def _none_of(topic: str) -> str:
    return f"frontier/{topic}/none"


def _path(frontier: Frontier) -> str:
    return f"frontier/{frontier.topic}/{frontier.seq:0{OFFSET_DIGITS}d}.{frontier.made_at_ms:013d}.json"


class BegunSteps:
    """Names in `begun/` of one lake."""

    def __init__(self, lake: Documents) -> None:
        self._lake = lake

    def list(self, topic: str) -> list[Begun]:
        """List the steps of which the lake may have something."""
        names = (path.rpartition("/")[2] for path in self._lake.store.list(f"begun/{topic}"))
        return sorted((int(found[1]), name) for name in names if (found := _NAME.fullmatch(name)))

    def put(self, step: PlanStep) -> None:
        """Note that the lake may have something of a step from now on."""
        self._lake.store.put_new(f"begun/{step.topic}/{_name(step)}", b"", "staging/begun")

    def delete_old(self, topic: str, begun: Iterable[Begun]) -> None:
        """Delete names of lost steps that did nothing, once no run can be at work on them any more."""
        store = self._lake.store
        now_ms = store.clock_ms()
        for each in begun:
            put_ms = store.linked_at_ms(f"begun/{topic}/{each[1]}")
            if put_ms is not None and now_ms - put_ms > LONGEST_RUN_SECONDS * 1000:
                self.delete(topic, each)

    def delete(self, topic: str, begun: Begun) -> None:
        """Delete a name that is needed no more."""
        self._lake.store.discard(f"begun/{topic}/{begun[1]}")


def is_of(begun: Begun, step: PlanStep | None) -> bool:
    """Return whether a name is that of a step, by its digest; false without a step."""
    return step is not None and begun[1] == _name(step)


def _name(step: PlanStep) -> str:
    return f"{step.seq:0{OFFSET_DIGITS}d}.{digest_of([step])[:16]}"
