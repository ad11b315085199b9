"""What became of the tries of each range, or of an update: which run is at it, and how often in a row it has failed.

A document per asset in Dagster's database, written by whoever works. A try is noted before it begins, so one that is
killed counts as failed. Two that write at once may lose a note: that costs a back-off, and no row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import dagster as dg

from .core.dispatch import Tried
from .core.offsets import OffsetRange
from .projection import ACTIVE, parsed
from .topics import Duty

UPDATE = "update"  # the one thing that an asset without partitions is tried for
ALL = "all"  # of a batch of ranges: fails where none of them was done


@dataclass(frozen=True, slots=True)
class _Entry:
    """The failures of one thing so far, and the run that is at it; times are ms since 1970."""

    attempts: int = 0
    first_failed_ms: int = 0
    last_ended_ms: int = 0
    failed_run: str = ""
    run_id: str = ""
    began_ms: int = 0

    @property
    def tried(self) -> Tried:
        return Tried(self.attempts, self.last_ended_ms, self.first_failed_ms, self.failed_run)

    def failed(self, ended_ms: int) -> _Entry:
        after = self.tried.then_failed(self.run_id, ended_ms)
        return _Entry(after.attempts, after.first_failed_ms, after.last_ended_ms, after.failed_run)


_Entries = dict[str, _Entry]


@contextmanager
def trying(
    instance: dg.DagsterInstance, duty: Duty, keys: Collection[str], run_id: str, now_ms: Callable[[], int]
) -> Iterator[set[str]]:
    """Note a try of what these keys name; those that are not added to the set that is yielded have failed."""
    began_ms, done = now_ms(), set[str]()
    _change(
        instance,
        duty,
        lambda known: {key: replace(known.get(key, _Entry()), run_id=run_id, began_ms=began_ms) for key in keys},
    )
    try:
        yield done
    finally:
        ended_ms = now_ms()

        def end(known: _Entries) -> dict[str, _Entry | None]:
            ours = {key: known[key] for key in keys if key in known and known[key].run_id == run_id}
            well = {UPDATE: _Entry(last_ended_ms=ended_ms)}
            return {key: well.get(key) if key in done else entry.failed(ended_ms) for key, entry in ours.items()}

        _change(instance, duty, end)


def read_tried(instance: dg.DagsterInstance, duty: Duty) -> dict[OffsetRange, Tried]:
    """Read how often in a row each range has failed; one that has not is not in it."""
    settled = _settle(instance, duty)
    return {offsets: entry.tried for key, entry in settled.items() if entry.attempts and (offsets := parsed(key))}


def read_held(instance: dg.DagsterInstance, duty: Duty) -> dict[OffsetRange, str]:
    """Read which ranges active runs are at, however they were launched, and name the run."""
    entries = _settle(instance, duty)
    runs = {run_id: instance.get_run_by_id(run_id) for run_id in {entry.run_id for entry in entries.values()} - {""}}
    names = {run_id: f"run {run_id[:8]} ({run.status.value})" for run_id, run in runs.items() if run is not None}
    held = ((parsed(key), names.get(entry.run_id)) for key, entry in entries.items())
    return {offsets: name for offsets, name in held if offsets is not None and name is not None}


def read_tried_as_one(instance: dg.DagsterInstance, duty: Duty, key: str) -> tuple[Tried, bool]:
    """Read how often in a row an `UPDATE`, or `ALL` of a batch, has failed, and whether a run is at one."""
    entry = _settle(instance, duty).get(key, _Entry())
    return entry.tried, bool(entry.run_id)


def _settle(instance: dg.DagsterInstance, duty: Duty) -> _Entries:
    """Read the document; a try whose run has ended without a word, or is not known any more, has failed."""
    entries = _read(instance, duty)
    ended: dict[str, int | None] = {}
    for run_id in {entry.run_id for entry in entries.values()} - {""}:
        record = instance.get_run_record_by_id(run_id)
        if record is None:
            ended[run_id] = None
        elif record.dagster_run.status not in ACTIVE:
            ended[run_id] = int((record.end_time or record.update_timestamp.timestamp()) * 1000)
    return {
        key: entry.failed(ended[entry.run_id] or entry.began_ms) if entry.run_id in ended else entry
        for key, entry in entries.items()
    }


def _read(instance: dg.DagsterInstance, duty: Duty) -> _Entries:
    name = _name(duty)
    text = instance.daemon_cursor_storage.get_cursor_values({name}).get(name)
    try:
        return {key: _Entry(**fields) for key, fields in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):  # of another version, or damaged: only back-offs are lost
        return {}


def _change(instance: dg.DagsterInstance, duty: Duty, news: Callable[[_Entries], dict[str, _Entry | None]]) -> None:
    """Write what is news on top of what is known; none takes a thing away."""
    known = _settle(instance, duty)
    after = {key: entry for key, entry in {**known, **news(known)}.items() if entry is not None}
    text = json.dumps({key: asdict(entry) for key, entry in after.items()})
    instance.daemon_cursor_storage.set_cursor_values({_name(duty): text})


def _name(duty: Duty) -> str:
    return f"offsetlake/tries/{duty.asset_key.to_user_string()}"
