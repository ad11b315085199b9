"""Event days: find -> read -> stage -> verify -> swap, from decoded files alone; the landed ranges stay as they are.

A day's file carries what went into it, so one exchange changes both: who dies before it has changed nothing, who is second
begins again. Invariant: a file that takes a day's place has as many rows as the decoded table counts of its ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from .attempt import Attempt
from .core.day_verdicts import DayDecided, DayVerdict, day_failed
from .core.days import Days, DayUpdate, split_jobs
from .core.errors import BrokenManifest, OffsetlakeError, ScanFailed
from .day_situation import Situation, facts_of, read_days, read_facts
from .edges import event_time as times
from .edges import parquet
from .edges.days import DayFiles, day_path
from .edges.decodings import Decodings, path_of
from .edges.footer import add_note, canonicalize
from .edges.lake import Lake
from .edges.spark_days import DAY, SparkDays
from .edges.swapping import Seen
from .staging_places import LocalStaging
from .steps import StepWatcher, no_step

DAYS_PER_JOB = 128  # a job reads the files of its ranges anew, and holds all its days in staging
ROUNDS = 3  # of an update that others overtake


@dataclass(frozen=True, slots=True)
class DayTools:
    """Is everything outside that days are made with, and what defs.yaml says of them."""

    files: DayFiles
    decodings: Decodings
    days: Days
    spark: Callable[[], SparkDays]
    now_ms: Callable[[], int]
    on_step: StepWatcher = no_step


def update_days(topic: str, chosen: Collection[str] | None, attempt: Attempt, tools: DayTools) -> Iterator[DayVerdict]:
    """Brings days up to date, those chosen or all that are due; yields a verdict for each chosen one, or each that was due.

    With `attempt.redo` chosen days are made anew from all their ranges, also where others come between; the same rows are the
    same file. One day failing leaves the others updated, and one whose ranges cannot be read yet waits. Raises `BadSetting`
    before anything is written.
    """
    staging = LocalStaging(attempt.id, tools.files.lake)
    waiting = set(chosen) if chosen is not None else None
    try:
        for number in range(ROUNDS):
            situation = read_days(topic, tools.days, tools.files, tools.decodings)
            anew = waiting if attempt.redo and chosen is not None else None
            situation.refuse_left_behind(topic, tools.days)
            found = situation.updates(tools.days, tools.now_ms(), anew or ())
            due = {each.day: each for each in found if waiting is None or each.day in waiting}
            tools.on_step("find_days", topic=topic, due=len(due), chosen="all" if chosen is None else len(chosen))
            left = situation.broken_days(tools.days, tools.now_ms()) if waiting is None else waiting - due.keys()
            yield from (_left(topic, day, situation, tools) for day in sorted(left))
            overtaken: set[str] = set()
            for at, job in enumerate(split_jobs([*due.values()], DAYS_PER_JOB)):
                for verdict in _run_job(topic, job, situation, tools, attempt, staging.root / f"days_{number}_{at}"):
                    if verdict.outcome is DayDecided.OVERTAKEN and number + 1 < ROUNDS:
                        overtaken.add(verdict.day)
                    else:
                        yield verdict
            waiting = overtaken
            if not waiting:
                break
    finally:
        staging.close()
        tools.files.lake.store.delete_folder(f"staging/{attempt.id}")


def _left(topic: str, day: str, situation: Situation, tools: DayTools) -> DayVerdict:
    """Is the verdict of a chosen day that nothing is done for, or of one that nothing can be done for."""
    if day in situation.broken:
        return day_failed(day, situation.broken[day])
    if situation.waits_for(day, tools.days):  # a range of it was decoded again while it was counted
        return DayVerdict(day, DayDecided.OVERTAKEN)
    if day not in situation.states:
        return DayVerdict(day, DayDecided.EMPTY)
    return DayVerdict(day, DayDecided.UP_TO_DATE, read_facts(topic, day, situation, tools.files))


def _run_job(
    topic: str, job: Sequence[DayUpdate], before: Situation, tools: DayTools, attempt: Attempt, folder: Path
) -> Iterator[DayVerdict]:
    """Makes some days in one Spark job; where that fails, in halves, to leave what cannot be read alone."""
    started = tools.now_ms()
    with ExitStack() as stack:
        seen = {each.day: stack.enter_context(tools.files.see(topic, each.day)) for each in job}
        current = [each for each in job if _is_as_found(topic, each, before, tools)]
        yield from (DayVerdict(each.day, DayDecided.OVERTAKEN) for each in job if each not in current)
        if not current:
            return
        try:
            _stage(topic, current, tools, stack, folder)
        except ScanFailed as error:
            if _have_moved(topic, current, tools) or _are_overtaken(topic, current, before, tools):
                yield from (DayVerdict(each.day, DayDecided.OVERTAKEN) for each in current)
                return
            if len(current) == 1:
                yield day_failed(current[0].day, str(error))
                return
            middle = len(current) // 2
            for at, half in enumerate((current[:middle], current[middle:])):
                yield from _run_job(topic, half, before, tools, attempt, folder.with_name(f"{folder.name}_{at}"))
            return
        seconds = (tools.now_ms() - started) / 1000
        tools.on_step("stage_days", topic=topic, days=len(current), seconds=seconds)
        if _have_moved(topic, current, tools):
            yield from (DayVerdict(each.day, DayDecided.OVERTAKEN) for each in current)
            return
        for update in current:
            yield _decide(topic, update, seen[update.day], before, tools, attempt, folder, seconds / len(current))


def _are_overtaken(topic: str, job: Sequence[DayUpdate], before: Situation, tools: DayTools) -> bool:
    """Says whether somebody has exchanged or taken away a day's file: what was read of it may not be what was found."""
    return not all(_is_as_found(topic, each, before, tools) for each in job)


def _is_as_found(topic: str, update: DayUpdate, before: Situation, tools: DayTools) -> bool:
    """Says whether a day's file is the one that its update was found from: only then may its rows be added to."""
    try:
        return tools.files.read_state(topic, update.day) == before.states.get(update.day)
    except BrokenManifest:
        return False


def _stage(topic: str, job: Sequence[DayUpdate], tools: DayTools, stack: ExitStack, folder: Path) -> None:
    """Has Spark write the days of a job that have rows, unseen."""
    lake = tools.files.lake
    ranges = {offsets: each.ranges[offsets] for each in job for offsets in each.reads}
    standing = [day_path(topic, each.day) for each in job if not each.is_whole]
    days = [each.day for each in job if each.rows]
    tools.on_step("read_decoded", topic=topic, days=len(job), ranges=len(ranges), standing=len(standing))
    if days:
        paths = [path_of(decoding) for _, decoding in sorted(ranges.items())]
        files = [stack.enter_context(lake.local_copy(path)) for path in (*paths, *standing)]
        tools.spark().stage(files[: len(paths)], files[len(paths) :], days, tools.days.event_time, folder)


def _have_moved(topic: str, job: Sequence[DayUpdate], tools: DayTools) -> bool:
    """Says whether a range was decoded anew while it was read: what was read may be of either."""
    now = tools.decodings.read(topic)
    return any(now.get(offsets) != decoding for each in job for offsets, decoding in each.ranges.items())


def _decide(
    topic: str,
    update: DayUpdate,
    seen: Seen | None,
    before: Situation,
    tools: DayTools,
    attempt: Attempt,
    folder: Path,
    seconds: float,
) -> DayVerdict:
    """Is what becomes of one staged day; overtaken rather than failed, where what was read is not what was found."""
    try:
        verdict = _exchange(topic, update, seen, before, tools, attempt, folder, seconds)
        if verdict.outcome is DayDecided.FAILED and _are_overtaken(topic, [update], before, tools):
            return DayVerdict(update.day, DayDecided.OVERTAKEN)
    except FileNotFoundError:
        if _is_as_found(topic, update, before, tools):
            raise
        return DayVerdict(update.day, DayDecided.OVERTAKEN)
    except OffsetlakeError as error:
        return day_failed(update.day, str(error))
    return verdict


def _exchange(
    topic: str,
    update: DayUpdate,
    seen: Seen | None,
    before: Situation,
    tools: DayTools,
    attempt: Attempt,
    folder: Path,
    seconds: float,
) -> DayVerdict:
    """Verifies one staged day and puts it in the place of what stands, or says why not."""
    state, day, lake = update.state(topic, tools.days.event_time), update.day, tools.files.lake
    found = sorted((folder / f"{DAY}={day}").glob("*.parquet"))
    if len(found) > 1:
        return _failed(day, f"Spark wrote {len(found)} files of day {day} of {topic}, expected one")
    if update.rows:
        if not found:
            return _wrong_rows(topic, update, 0)
        file = found[0]
        canonicalize(file)
        add_note(file, times.NOTE, state.to_json())
    else:
        file = folder / f"{day}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        with lake.local_copy(day_path(topic, day)) as standing:
            times.write_empty_day(standing, file, state.to_json())
    _, rows = times.read_note(file)
    if rows != update.rows:
        return _wrong_rows(topic, update, rows)
    tools.on_step("verify_day", day=day, rows=rows)
    facts = facts_of(file, day, sorted(update.ranges), update.ranges)
    standing_state = before.states.get(day)
    if standing_state is not None and _digest(topic, day, lake) == facts.digest:
        return DayVerdict(day, DayDecided.UNCHANGED, facts, seconds=seconds)
    staged = f"staging/{attempt.id}/{day}.parquet"
    if lake.store.local_root is not None:
        staged = str(file.relative_to(lake.store.local_root))
    else:
        lake.store.upload(file, staged)
    if not tools.files.swap(staged, topic, day, seen):
        return DayVerdict(day, DayDecided.OVERTAKEN)
    tools.on_step("swap_day", day=day, digest=facts.digest)
    outcome = DayDecided.CREATED if standing_state is None else DayDecided.UPDATED
    added = (
        sum(before.counts[offsets][day] for offsets in update.added)
        if standing_state is None or not standing_state.rows or not update.is_whole
        else 0
    )
    return DayVerdict(day, outcome, facts, added, seconds)


def _digest(topic: str, day: str, lake: Lake) -> str:
    with lake.local_copy(day_path(topic, day)) as standing:
        return parquet.digest(standing)


def _wrong_rows(topic: str, update: DayUpdate, rows: int) -> DayVerdict:
    return _failed(
        update.day,
        f"day {update.day} of {topic} was written with {rows} rows, expected {update.rows}, as the decoded table counts",
    )


def _failed(day: str, violation: str) -> DayVerdict:
    return day_failed(day, f"{violation}; nothing became visible; the day is tried again")
