"""Choice of a backfill's ranges by a person, in one way, given as options of a command or as a run's config.

The command and the job share it. Invariant: exactly one way is given; half a way, or two, is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import dagster as dg

from ..core.errors import Refused
from ..core.landing.selection import (
    NOTHING_DONE,
    Selection,
    choose_all,
    choose_failed,
    choose_keys,
    choose_missing,
    choose_offsets,
    choose_times,
    find_ranges,
    parse_offsets,
)
from ..core.log.coverage import Coverage
from ..core.offsets import OffsetRange
from ..core.tables.decoding import choose_dead, choose_outdated, choose_schema
from ..resources import Adapters
from ..topics import Topic
from .runs.moments import parse_time, time_text
from .runs.tries import read_tries
from .runs.waiting import read_due

MINUTE_MS = 60_000
_DECODED_WAYS = {"schema", "dead", "outdated"}
_OF_DECODED = {
    "schema": "decoded with that schema id",
    "dead": "with dead letters",
    "outdated": "that an older decoder has decoded",
    "missing": "that waits to be decoded",
}
_EXPECTED = {
    "options": "--all, --failed, --missing, --key, --offsets, --last-minutes, --schema, --dead, --outdated, "
    "or --from-time with --to-time",
    "config": "last_minutes, between, missing, failed or offsets",
    "decode": "--due, --key, --dead, --outdated or --schema",
}
_CALLED = {"decode": {"missing": "due", "key": "partition"}}  # ways that have other names there


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person asked for; `said_in` is where, so that an error names what they wrote.

    `decoded` says that the ranges are to be decoded, not landed; ranges chosen by schema id, dead letters or an older decoder
    are so in any case.
    """

    every: bool = False
    missing: bool = False
    failed: bool = False
    keys: tuple[str, ...] = ()
    offsets: tuple[str, ...] = ()
    generation: int | None = None
    last_minutes: int | None = None
    from_time: str | None = None
    to_time: str | None = None
    time_zone: str | None = None
    schema_id: str | None = None
    dead: bool = False
    outdated: bool = False
    decoded: bool = False
    said_in: Literal["options", "config", "decode"] = "options"

    @property
    def way(self) -> str:
        """Way by which ranges are chosen; raises `Refused` for none, for more than one, and for half a time span."""
        times = [self.from_time is not None, self.to_time is not None]
        given = {
            "all": self.every,
            "missing": self.missing,
            "failed": self.failed,
            "key": bool(self.keys),
            "offsets": bool(self.offsets),
            "last_minutes": self.last_minutes is not None,
            "time": any(times),
            "schema": self.schema_id is not None,
            "dead": self.dead,
            "outdated": self.outdated,
        }
        ways = [way for way, is_given in given.items() if is_given]
        if len(ways) != 1:
            called = _CALLED.get(self.said_in, {})
            found = f"by {' and '.join(called.get(way, way) for way in ways)}" if ways else "by nothing"
            raise Refused(f"ranges are chosen {found}, expected exactly one of {_EXPECTED[self.said_in]}; {NOTHING_DONE}")
        if ways == ["time"] and not all(times):
            both = f"{self.spelled('from_time')} and {self.spelled('to_time')}"
            raise Refused(f"only one end of a time is given, expected {both}; {NOTHING_DONE}")
        owners = {"generation": "offsets", "time_zone": "from_time"}
        for name, owner in owners.items():
            if getattr(self, name) is not None and not getattr(self, owner):
                found = self.spelled("from_time" if ways == ["time"] else ways[0])
                raise Refused(f"{self.spelled(name)} belongs to {self.spelled(owner)}, found with {found}; {NOTHING_DONE}")
        return ways[0]

    @property
    def is_of_decoded(self) -> bool:
        """Whether the ranges are to be decoded (again), from what is landed."""
        return self.decoded or self.way in _DECODED_WAYS

    @property
    def is_redo(self) -> bool:
        """Whether landed ranges are meant too, to be read again and compared."""
        return self.way not in {"missing", "failed"}

    def spelled(self, name: str) -> str:
        """Return a name as the person has written it: an option, or a key of the config."""
        return f"--{name.replace('_', '-')}" if self.said_in != "config" else name

    def times(self, now_ms: int) -> tuple[int, int]:
        """Return the time that is meant, `[start, end)` in ms since 1970."""
        if self.last_minutes is not None:
            if self.last_minutes < 1:
                raise Refused(
                    f"{self.spelled('last_minutes')} {self.last_minutes} is no time, expected 1 or more; {NOTHING_DONE}"
                )
            return max(0, now_ms - self.last_minutes * MINUTE_MS), now_ms
        start, end = (self._time(text, name) for text, name in ((self.from_time, "from_time"), (self.to_time, "to_time")))
        if start >= end:
            raise Refused(
                f"{self.spelled('from_time')} {time_text(start)} is not before {self.spelled('to_time')} "
                f"{time_text(end)}: no record can be in between; {NOTHING_DONE}"
            )
        return start, end

    def _time(self, text: str | None, name: str) -> int:
        try:
            return parse_time(text or "", self.time_zone, zone_name=self.spelled("time_zone"))
        except ValueError as error:
            raise Refused(f"{self.spelled(name)} {error}; {NOTHING_DONE}") from None


def select_times(topic: Topic, coverage: Coverage, start_ms: int, end_ms: int, adapters: Adapters) -> Selection:
    """Select ranges that may have records of a time span; the broker is asked only where something is not landed."""
    unlanded: dict[int, int] = {}
    if coverage.pending():
        kafka = adapters.kafka(topic)
        waiting = {each.partition for each in coverage.pending()}
        marks = kafka.read_watermarks(topic.name, topic.policy.isolation_level, waiting)
        # negative times mean something else to Kafka, and no time finds records that old
        is_old = start_ms < 0
        unlanded = (
            {p: mark.earliest for p, mark in marks.items()} if is_old else kafka.read_offsets_at(topic.name, marks, start_ms)
        )
    return choose_times(coverage, start_ms, end_ms, unlanded)


def select_ranges(
    choice: Choice, topic: Topic, coverage: Coverage, adapters: Adapters, instance: dg.DagsterInstance
) -> Selection:
    """Select the ranges that a person means; never none: raises `Refused` or `EmptySelection`."""
    generation = coverage.log.generation if choice.generation is None else choice.generation
    in_time = lambda: select_times(topic, coverage, *choice.times(adapters.now_ms()), adapters)  # noqa: E731
    if choice.is_of_decoded and choice.way in {*_DECODED_WAYS, "missing", "failed"}:
        return _select_decoded(choice, topic, coverage, adapters, instance)
    select: dict[str, Callable[[], Selection]] = {
        "all": lambda: choose_all(coverage),
        "missing": lambda: choose_missing(coverage),
        "failed": lambda: choose_failed(coverage, set(read_tries(instance, topic.landing).tried)),
        "key": lambda: Selection(tuple(find_ranges(topic.name, choice.keys, coverage))),
        "offsets": lambda: choose_offsets(coverage, [parse_offsets(text, generation) for text in choice.offsets]),
        "last_minutes": in_time,
        "time": in_time,
    }
    return select[choice.way]()


def _select_decoded(
    choice: Choice, topic: Topic, coverage: Coverage, adapters: Adapters, instance: dg.DagsterInstance
) -> Selection:
    """Select by the state of decoding; raise `EmptySelection` where no range matches."""
    if choice.way == "failed":
        tried = read_tries(instance, topic.decoding).tried
        failed = [offsets for offsets in read_due(topic, adapters) if offsets in tried]
        return choose_keys(coverage, failed, "whose decoding has failed")
    return choose_keys(coverage, find_decoded(choice, topic, adapters), _OF_DECODED[choice.way])


def find_decoded(choice: Choice, topic: Topic, adapters: Adapters) -> list[OffsetRange]:
    """Find the chosen ranges by the state of decoding: those that wait, or those that are decoded in some way; may be none."""
    if choice.way == "missing":
        return read_due(topic, adapters)
    known = adapters.decodings.read(topic.name)
    if choice.way == "schema":
        return choose_schema(known, choice.schema_id or "")
    if choice.way == "dead":
        return choose_dead(known)
    return choose_outdated(known, topic.decode.fingerprint if topic.decode else "")
