"""Latest by key: read the table -> find what has changed since -> find the winners -> merge, in one commit.

The table names the version of the decoded table that it is made of: offset and result change together, and an overtaken
update starts again. Invariant: it has of each key the latest record of all ranges of that version; a broken one is made anew.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..adapters.lake.lake import Lake
from ..adapters.tables.columns_of_table import arrow_schema, holds, table_schema
from ..adapters.tables.decodings import Decodings
from ..adapters.tables.latest_table import MOST_FILES, Applied, LatestSnapshot, LatestTable
from ..adapters.tables.latest_winners import Inputs, Winners, find_damage
from ..core.advice import command
from ..core.errors import BrokenTable, DamagedFile, LakeUnavailable
from ..core.log.latency import waits_of
from ..core.offsets import OffsetRange
from ..core.steps import StepWatcher, no_step
from ..core.tables.decoded_ranges import DecodedRanges
from ..core.tables.decoded_sums import first_decoded
from ..core.tables.decoded_table import TREE
from ..core.tables.latest import Change, Latest, Ranges, Stretch, compare, find_fresh, join_stretches, place_ranges
from ..landing.attempt import Attempt
from ..landing.landed_files import why_changed
from ..landing.staging_places import staging_here

TRIES = 20  # each lost commit is another updater's success, and Dagster's pool allows one updater


@dataclass(frozen=True, slots=True)
class LatestTools:
    """External systems of updating the latest table."""

    decodings: Decodings
    now_ms: Callable[[], int]
    on_step: StepWatcher = no_step

    @property
    def lake(self) -> Lake:
        """The lake that holds what is decoded and its latest table."""
        return self.decodings.lake


@dataclass(frozen=True, slots=True)
class Updated:
    """The result of an update: how many ranges it read, and why the table was made anew, where it was."""

    ranges: int = 0
    rebuilt: str = ""
    has_committed: bool = False


@dataclass(frozen=True, slots=True)
class DueUpdate:
    """What an update would do: which ranges it has to read, and why all of them, where it makes the table anew.

    `snapshot` is the table as read before `decoded`, so that nothing it has can seem to be gone. `placed` has the ranges that
    may be read.
    """

    snapshot: LatestSnapshot | None
    decoded: DecodedRanges
    placed: Ranges = field(default_factory=dict)
    change: Change = field(default_factory=lambda: Change((), ()))
    why_anew: str = ""

    @property
    def has_work(self) -> bool:
        """Whether there is anything to do, even if only to record that a version changes no row."""
        return bool(self.why_anew) or self._has_news

    @property
    def is_comparable(self) -> bool:
        """Whether the table should have the rows of the decoded one."""
        return not (self.why_anew or self.waiting)

    @property
    def _has_news(self) -> bool:
        table = self.decoded.table
        return (
            table.metadata is not None
            and self.snapshot is not None
            and (self.snapshot.applied(table.metadata.id) != table.version)
        )

    @property
    def waiting(self) -> int:
        """How many ranges wait to be read."""
        return len(self.change.fresh) or len(self.change.changed)


def find_due(topic: str, config: Latest, decodings: Decodings, *, full: bool = False) -> DueUpdate:
    """Find what an update would do now."""
    snapshot = LatestTable(decodings.lake, topic).read()
    decoded = decodings.read_ranges(topic)
    if decoded.table.metadata is None:
        return DueUpdate(snapshot, decoded)
    if not decoded.has_rows and (snapshot is None or snapshot.damage):  # the columns of a table are not known
        return DueUpdate(None, decoded)
    why = "it was asked for" if full else _why_anew(config, snapshot, decoded)
    if snapshot is not None and not why:
        applied = snapshot.applied(decoded.table.metadata.id)
        assert applied is not None
        before = decoded if applied == decoded.table.version else decodings.read_version(topic, applied)
        if before is not None and snapshot.is_of(before.table):
            if before is decoded:
                return DueUpdate(snapshot, decoded)
            with suppress(BrokenTable):  # earlier documents may be vacuumed; a broken present one is raised below
                return _compare(snapshot, before, decoded, decodings.lake.recent(topic).log.epoch_of)
        why = f"the decoded table has no version {applied} any more, or another one"
    placed = place(decoded, decodings.lake.recent(topic).log.epoch_of)
    return DueUpdate(snapshot, decoded, placed, Change(tuple(placed), ()), why)


def _compare(
    snapshot: LatestSnapshot, before: DecodedRanges, decoded: DecodedRanges, epoch_of: Callable[[OffsetRange], int]
) -> DueUpdate:
    """Find what has changed between two versions of the decoded table."""
    fresh = find_fresh(before, decoded, epoch_of)
    if fresh is not None:
        return DueUpdate(snapshot, decoded, fresh, Change(tuple(fresh), ()))
    placed = place(decoded, epoch_of)
    return DueUpdate(snapshot, decoded, placed, compare(place(before, epoch_of), placed))


def _why_anew(config: Latest, snapshot: LatestSnapshot | None, decoded: DecodedRanges) -> str:
    """Return why the table cannot be updated and must be made anew; empty where it can."""
    assert decoded.table.metadata is not None
    if snapshot is None:
        return "there is none"
    if snapshot.fault:
        return snapshot.fault
    if snapshot.applied(decoded.table.metadata.id) is None:
        return "it is of another decoded table"
    return "" if snapshot.order == config.order else "defs.yaml names another order"


def place(decoded: DecodedRanges, epoch_of: Callable[[OffsetRange], int]) -> Ranges:
    """Return the places in the order of all decoded ranges."""
    return place_ranges(decoded.known.values(), epoch_of, decoded.path_of)


def update(topic: str, config: Latest, attempt: Attempt, tools: LatestTools, *, full: bool = False) -> Updated:
    """Update the latest table of a topic from its decoded table; with `full` make it anew from all ranges.

    Any number may run at once: an overtaken update starts again. Raise `BadSetting` before anything is written where keys or
    the sequence have no order.
    """
    with staging_here(attempt.id, tools.lake) as staging:
        for _ in range(TRIES):
            due = find_due(topic, config, tools.decodings, full=full)
            if not due.has_work:
                return Updated()
            try:
                done = _try_update(topic, config, tools, due, staging.root)
            except DamagedFile as error:
                done = _try_update(topic, config, tools, replace(due, why_anew=str(error)), staging.root)
            if done is not None:
                return done
    raise LakeUnavailable(
        f"cannot update latest/{topic}: others were faster {TRIES} times; nothing is lost, what they wrote is right; the next "
        "update goes on from there"
    )


def _try_update(topic: str, config: Latest, tools: LatestTools, due: DueUpdate, folder: Path) -> Updated | None:
    """Do what is due; return none where another one was faster."""
    lake, metadata = tools.lake, due.decoded.table.metadata
    assert metadata is not None
    if due.decoded.has_rows:
        schema = table_schema(topic, arrow_schema(metadata.schema), config)
    else:  # all rows go, and the table keeps its columns: dead letters have none of them
        assert due.snapshot is not None
        schema = due.snapshot.schema
    brought = first_decoded(each for each in map(due.decoded.get, due.change.fresh) if each is not None)
    now_ms = tools.now_ms()
    waits = [] if due.why_anew else waits_of((file, now_ms) for file, _ in brought)
    applied = Applied(due.decoded.table, config.order, waits)
    table, snapshot, why = LatestTable(lake, topic), due.snapshot, due.why_anew
    if not why and snapshot is not None and not holds(schema, snapshot.schema):
        why = "its columns do not hold what is decoded now"
    if snapshot is not None and snapshot.damage:
        refuse_changed((each.path for each in due.placed.values()), due, lake)  # before the table is made anew
    if snapshot is None or snapshot.damage:
        snapshot = table.start(schema, anew=snapshot is not None)
    if why:
        placed = place(due.decoded, lake.recent(topic).log.epoch_of)
        due = replace(due, snapshot=snapshot, placed=placed, change=Change(tuple(placed), ()), why_anew=why)
        tools.on_step("rebuild_latest", topic=topic, reason=why)
    is_whole = bool(why) or not schema.equals(snapshot.schema) or len(snapshot.files) >= MOST_FILES
    if not (is_whole or due.waiting):
        return _told(topic, tools, 0, "", has_committed=table.note(snapshot, applied))
    goes_on = not why
    tools.on_step("read_decoded", topic=topic, ranges=len(due.change.fresh))
    inputs = Inputs(
        fresh=find_stretches(due.placed, due.change.fresh, lake),
        everything=find_stretches(due.placed, due.placed, lake) if goes_on and due.change.changed else (),
        present=[*snapshot.files] if goes_on and (is_whole or due.change.changed) else (),
        changed=due.change.changed,
        with_present=is_whole,
    )
    commit = table.overwrite if is_whole else table.merge
    winners = Winners(lake, inputs, schema, config, folder)
    with told_if_unreadable(inputs, due, lake), winners.rows() as source:
        has_committed = commit(snapshot, source, applied)
    return _told(topic, tools, len(due.change.fresh), why, has_committed=has_committed)


def _told(topic: str, tools: LatestTools, ranges: int, why: str, *, has_committed: bool) -> Updated | None:
    tools.on_step("commit_latest", topic=topic, ranges=ranges, committed=has_committed)
    return Updated(ranges, why, has_committed=True) if has_committed else None


@contextmanager
def told_if_unreadable(inputs: Inputs, due: DueUpdate, lake: Lake) -> Iterator[None]:
    """Turn a failure while files are read into an error that names the unreadable file, where there is one.

    Raise `BrokenTable` for a decoded file, `DamagedFile` for one of the table itself, which can be made anew.
    """
    try:
        yield
    except LakeUnavailable as error:  # only after a failure is each file read just to check it
        refuse_changed(inputs.decoded_paths, due, lake)
        if due.snapshot is not None and not due.why_anew and (said := _find_damage(due.snapshot, due.decoded.topic, lake)):
            raise DamagedFile(said) from error
        raise


def refuse_changed(paths: Iterable[str], due: DueUpdate, lake: Lake) -> None:
    """Compare decoded files with what their table's log says; raise `BrokenTable` for the first that is gone or changed."""
    folder = f"{TREE}/{due.decoded.topic}"
    for path in sorted(set(paths)):
        if why_changed(due.decoded.table.files[path.removeprefix(f"{folder}/")], folder, lake):
            raise _gone(path, due.placed, lake, "is gone or was changed")


def _find_damage(snapshot: LatestSnapshot, topic: str, lake: Lake) -> str:
    """Return which file of the table itself DuckDB or delta-rs cannot read; an update needs both. Empty where both can."""
    for path in snapshot.files:
        if said := find_damage(path, lake):
            return f"its file {path} cannot be read: {said}"
    return LatestTable(lake, topic).find_damage(snapshot)


def find_stretches(placed: Ranges, chosen: Collection[OffsetRange], lake: Lake) -> list[Stretch]:
    """Return the stretches to read for some decoded ranges; raise `BrokenTable` where a file is gone."""
    stretches = join_stretches(placed, chosen)
    if gone := [path for path in sorted({each.placed.path for each in stretches}) if not lake.store.exists(path)]:
        raise _gone(gone[0], placed, lake, "is gone")
    return stretches


def _gone(path: str, placed: Ranges, lake: Lake, said: str) -> BrokenTable:
    topic = path.removeprefix(f"{TREE}/").partition("/")[0]
    key = next(offsets.key for offsets, each in placed.items() if each.path == path)
    return BrokenTable(
        f"{lake.store.url(path)}, a file of the decoded table, {said}; the latest table of topic {topic} stays as it is; "
        f"`{command('decode', topic, '--key', key)}` makes the file again, and the next update goes on"
    )
