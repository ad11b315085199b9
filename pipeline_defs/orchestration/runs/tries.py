"""What became of the tries of each range, or of an update: which run is at it, and how often in a row it has failed.

A document per asset in Dagster's database, written by whoever works. A try is noted before it begins, so one that is
killed counts as failed. Two that write at once may lose a note: that costs a back-off, and no row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import dagster as dg
from dagster import RunsFilter
from dagster._core.errors import DagsterExecutionInterruptedError

from ...core.errors import OffsetlakeError
from ...core.landing.dispatch import Tried, choose_due
from ...core.offsets import OffsetRange
from ...topics import Duty, Topic
from ..home.daemons import running_since
from .projection import ACTIVE, parsed

UPDATE = "update"  # the one thing that an asset without partitions is tried for
STOPPED_WITHIN_MS = 120_000  # a job takes about ten seconds
MOST_STOPS = 2  # in a row that are no failures; the third is one, as what is tried may be why runs are stopped
ALL = "all"  # of a batch of ranges: fails where none of them was done


@dataclass(frozen=True, slots=True)
class _Entry(Tried):
    """The failures of one thing so far, how often runs were stopped at it since, and the run that is at it now, since when."""

    attempts: int = 0
    last_ended_ms: int = 0
    run_id: str = ""
    began_ms: int = 0
    stops: int = 0

    def failed(self, ended_ms: int, *, is_cut_off: bool = False, is_fatal: bool = False) -> _Entry:
        return _Entry(**asdict(self.then_failed(self.run_id, ended_ms, is_cut_off=is_cut_off, is_fatal=is_fatal)))

    def stopped(self, ended_ms: int) -> _Entry:
        """Return this after the run was stopped at it: not a failure where that was soon, and for the first times."""
        if self.stops >= MOST_STOPS or abs(ended_ms - self.began_ms) >= STOPPED_WITHIN_MS:
            return self.failed(ended_ms, is_fatal=True)
        return replace(self, run_id="", began_ms=0, stops=self.stops + 1)


_Entries = dict[str, _Entry]


@contextmanager
def trying(
    instance: dg.DagsterInstance, duty: Duty, keys: Collection[str], run_id: str, now_ms: Callable[[], int]
) -> Iterator[set[str]]:
    """Note a try of each key; keys that are not added to the yielded set have failed.

    A run that is stopped soon, by a person or with Dagster, has not tried them, but for the third time in a row.
    """
    with trying_all(instance, {duty: keys}, run_id, now_ms) as done:
        yield done[duty]


@contextmanager
def trying_all(
    instance: dg.DagsterInstance, wanted: Mapping[Duty, Collection[str]], run_id: str, now_ms: Callable[[], int]
) -> Iterator[dict[Duty, set[str]]]:
    """Note tries of several duties at once, each as `trying` does."""
    began_ms, done = now_ms(), {duty: set[str]() for duty in wanted}

    def begin(duty: Duty, known: _Entries) -> dict[str, _Entry | None]:
        return {key: replace(known.get(key, _Entry()), run_id=run_id, began_ms=began_ms) for key in wanted[duty]}

    _change(instance, wanted, begin)
    is_fatal = is_stopped = False
    try:
        yield done
    except BaseException as error:
        is_fatal = not isinstance(error, OffsetlakeError)  # that is told, and ends no run
        is_stopped = isinstance(error, KeyboardInterrupt | DagsterExecutionInterruptedError | GeneratorExit)
        raise
    finally:
        ended_ms = now_ms()

        def end(duty: Duty, known: _Entries) -> dict[str, _Entry | None]:
            ours = {key: known[key] for key in wanted[duty] if key in known and known[key].run_id == run_id}
            well = {UPDATE: _Entry(last_ended_ms=ended_ms)}
            ended = {
                key: entry.stopped(ended_ms) if is_stopped else entry.failed(ended_ms, is_fatal=is_fatal)
                for key, entry in ours.items()
            }
            return {key: well.get(key) if key in done[duty] else entry for key, entry in ended.items()}

        _change(instance, wanted, end)


@dataclass(frozen=True, slots=True)
class Tries:
    """What became of the tries of one duty, and which active runs are at one now.

    `tried` says how often in a row a range has failed, and lacks those that have not; `in_progress` names the run that is
    working on a range, however that was launched.
    """

    tried: Mapping[OffsetRange, Tried]
    in_progress: Mapping[OffsetRange, str]
    _entries: _Entries

    def of(self, key: str) -> Tried:
        """Return how often in a row an `UPDATE`, or `ALL` of a batch, has failed."""
        return self._entries.get(key, _Entry())

    def choose_due(self, waiting: Iterable[OffsetRange], now_ms: int) -> list[OffsetRange]:
        """Choose which waiting ranges to try now: none while `ALL` backs off, whatever arrives meanwhile."""
        return choose_due(waiting, self.in_progress, self.tried, now_ms) if self.of(ALL).is_due(now_ms) else []

    def find_fatal(self, planned_ms: Mapping[OffsetRange, int]) -> dict[OffsetRange, Tried]:
        """Find the ranges that have ended their run; where `ALL` has done so, that is all of them.

        `planned_ms` says when each was planned: a range that was never tried waits since then.
        """
        of_all = self.of(ALL)
        return {
            each: self.tried.get(each) or replace(of_all, last_ended_ms=ms)
            for each, ms in planned_ms.items()
            if self.tried.get(each, of_all).fatal or of_all.fatal
        }

    def is_in_progress(self, key: str) -> bool:
        """Return whether an active run is at an `UPDATE`."""
        return bool(self._entries.get(key, _Entry()).run_id)


def read_tries(instance: dg.DagsterInstance, duty: Duty) -> Tries:
    """Read what became of the tries of one duty."""
    return read_all_tries(instance, [duty])[duty]


def failures_of(topic: Topic, tries: Mapping[Duty, Tries]) -> int:
    """Return how often in a row all that was tried of a topic has failed, landing or decoding: what its lane goes by."""
    return max(tries[duty].of(ALL).attempts for duty in (topic.landing, topic.decoding))


def read_all_tries(instance: dg.DagsterInstance, duties: Collection[Duty]) -> dict[Duty, Tries]:
    """Read what became of the tries of each duty, in two queries for all of them."""
    found: dict[Duty, Tries] = {}
    entries_of, names = _settle(instance, duties)
    for duty, entries in entries_of.items():
        ranges = {offsets: entry for key, entry in entries.items() if (offsets := parsed(key))}
        found[duty] = Tries(
            {offsets: entry for offsets, entry in ranges.items() if entry.attempts},
            {offsets: names[entry.run_id] for offsets, entry in ranges.items() if entry.run_id in names},
            entries,
        )
    return found


def _settle(instance: dg.DagsterInstance, duties: Collection[Duty]) -> tuple[dict[Duty, _Entries], dict[str, str]]:
    """Read the documents; a try whose run has ended without a word, or is not known any more, has failed.

    Return also the names of the active runs that are at a try, by their ids.
    """
    known = _read(instance, duties)
    at_it = {entry.run_id for entries in known.values() for entry in entries.values()} - {""}
    records = instance.get_run_records(RunsFilter(run_ids=[*at_it])) if at_it else []
    ended: dict[str, int | None] = dict.fromkeys(at_it)
    names: dict[str, str] = {}
    for record in records:
        run = record.dagster_run
        if run.status in ACTIVE:
            del ended[run.run_id]
            names[run.run_id] = f"run {run.run_id[:8]} ({run.status.value})"
        else:
            ended[run.run_id] = int((record.end_time or record.update_timestamp.timestamp()) * 1000)
    since_ms = running_since(instance.root_directory) * 1000 if ended else 0.0

    def settle(entry: _Entry) -> _Entry:
        if entry.run_id not in ended:
            return entry
        is_cut_off = entry.began_ms < since_ms
        return entry.failed(ended[entry.run_id] or entry.began_ms, is_cut_off=is_cut_off, is_fatal=not is_cut_off)

    return {duty: {key: settle(entry) for key, entry in entries.items()} for duty, entries in known.items()}, names


def _read(instance: dg.DagsterInstance, duties: Collection[Duty]) -> dict[Duty, _Entries]:
    found = instance.daemon_cursor_storage.get_cursor_values({_name(duty) for duty in duties}) if duties else {}
    return {duty: _parsed(found.get(_name(duty)) or "{}") for duty in duties}


def _parsed(text: str) -> _Entries:
    try:
        return {key: _Entry(**fields) for key, fields in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):  # of another version, or damaged: only back-offs are lost
        return {}


def _change(
    instance: dg.DagsterInstance, duties: Collection[Duty], news: Callable[[Duty, _Entries], dict[str, _Entry | None]]
) -> None:
    """Write the news of each duty on top of what is known; a key whose news is none is removed."""
    settled, texts = _settle(instance, duties)[0], {}
    for duty, known in settled.items():
        after = {key: entry for key, entry in {**known, **news(duty, known)}.items() if entry is not None}
        texts[_name(duty)] = json.dumps({key: asdict(entry) for key, entry in after.items()})
    write_values(instance, texts)


def write_values(instance: dg.DagsterInstance, values: Mapping[str, str]) -> None:
    """Write values that Dagster keeps by name, new names in a call of their own: SQLite would drop them beside known ones."""
    storage = instance.daemon_cursor_storage
    known = storage.get_cursor_values({*values}).keys() if values else set[str]()
    for names in (values.keys() - known, values.keys() & known):
        if names:
            storage.set_cursor_values({name: values[name] for name in names})


def _name(duty: Duty) -> str:
    return f"offsetlake/tries/{duty.asset_key.to_user_string()}"
