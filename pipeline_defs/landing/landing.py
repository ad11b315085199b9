"""THE PROTOCOL: find -> scan -> stage -> verify -> commit -> publish -> report, as `land_topics` below does it.

It calls `_find`, `finish_known`, `split_readable`, `_land_group`, `_land_scan`, `_decide_staged`, `decide` and `_end`. A range
is landed when its manifest exists and its file is published. The manifest decides, by put-if-absent; before it nothing is
visible, after it anyone can finish. docs/protocol.md numbers the requirements.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import PurePath

from ..core.errors import DiskRefuses, EngineLost, EngineUnavailable, LakeUnavailable, OffsetlakeError, ScanFailed, as_ours
from ..core.landing.scans import Scan, group_scans
from ..core.landing.selection import find_ranges
from ..core.landing.verdicts import Verdict, failed
from ..core.log.coverage import Coverage
from ..core.log.delivery import Delivery
from ..core.log.losses import Reading
from ..core.log.plan_step import TopicIds
from ..core.offsets import OffsetRange, TopicRange
from .appending import Doubts, try_append
from .attempt import Attempt, Tools, Work
from .committing import decide, finish_known, without_doubles
from .mirror import mirror_frontier
from .planner import reopen
from .reading import claim, may_be_untellable, split_planned, split_readable, stage_log
from .staging import ENGINE_TRIES, VERIFY_THREADS, Staged, match_parts, owes, stage_anew
from .staging_places import Staging

Waiting = tuple[Work, Reading]  # what is to be read of one range, with the work of its topic
Decided = tuple[Work, Verdict]
Found = tuple[Work, Sequence[OffsetRange]]
Told = tuple[str, Verdict | OffsetlakeError]


def land(topic: str, keys: Sequence[str], attempt: Attempt, tools: Tools) -> Iterator[Verdict]:
    """Land ranges; yield one verdict per range, as each is decided. A failing range leaves the others landed.

    Raises `BadKey` or `EmptySelection` before anything is read or written, and in the end any error that ended the topic.
    """
    for _, told in land_topics({topic: keys}, attempt, {topic: tools}):
        if isinstance(told, OffsetlakeError):
            raise told
        yield told


def land_topics(keys: Mapping[str, Sequence[str]], attempt: Attempt, tools: Mapping[str, Tools]) -> Iterator[Told]:
    """Land ranges of topics of one lake, in Spark jobs that they share; yield each verdict with its topic.

    An error of a topic, its keys, its cluster or its part of the lake, ends that topic alone and is yielded at the end.
    """
    first = next(iter(tools.values()))
    staging = first.open_staging(attempt.id, first.lake)
    found: list[Found] = []
    broken: list[Told] = []
    for topic, of_topic in keys.items():
        try:
            found.append(_find(topic, of_topic, attempt, tools[topic], staging))
        except Exception as error:  # noqa: BLE001 (told by its type: other topics must not fail by it)
            broken.append((topic, as_ours(error, f"topic {topic}")))
    waiting: list[Waiting] = []
    for work, ranges in found:
        with work.ending():
            finished, unfinished = finish_known(work, ranges)
            yield from ((work.topic, verdict) for _, verdict in _appended((work, verdict) for verdict in finished))
            unreadable, readings = split_readable(work, unfinished)
            decided = _appended((work, without_doubles(work, verdict)) for verdict in unreadable)
            yield from ((work.topic, verdict) for _, verdict in decided)
            waiting += ((work, reading) for reading in readings)

    try:
        yield from ((work.topic, verdict) for work, verdict in _land_readings(waiting, staging.root))
    finally:
        staging.close()

    _end(found, is_whole=not broken)
    yield from broken
    yield from ((work.topic, error) for work, _ in found for error in work.errors)


def _find(topic: str, keys: Sequence[str], attempt: Attempt, tools: Tools, staging: Staging) -> Found:
    needs_whole = attempt.redo or tools.delivery is Delivery.AT_LEAST_ONCE
    if tools.delivery is Delivery.AT_LEAST_ONCE:  # it may leave files under names that only a listing finds
        tools.lake.frontiers.forget(topic, for_good=True)
    coverage = tools.lake.coverage(topic) if needs_whole else tools.lake.coverage_of(topic, keys)
    ranges = find_ranges(topic, keys, coverage)
    steps = [*map(coverage.log.ranges.__getitem__, ranges)]
    if attempt.redo and (attempt.on_change == "replace" or not all(map(coverage.is_landed, ranges))):
        steps.append(reopen(ranges, coverage, tools.lake, tools.now_ms(), planner=f"attempt {attempt.id}"))
    tools.lake.begin(coverage.log, steps)
    tools.on_step("find", topic=topic, ranges=len(ranges))
    return Work(topic, coverage, attempt, tools, staging), ranges


def _end(found: Sequence[Found], *, is_whole: bool) -> None:
    ended = []
    for work, ranges in found:
        with work.ending():
            ended.append((work, ranges, _read_again(work)))
    if is_whole and len(ended) == len(found) and not any(owes(*each) for each in ended):
        _sweep(found[0][0])  # not where a manifest needs, or may need, one of the staged files to be published
    for work, _, _ in ended:
        if not work.errors:
            _move_group(work.topic, work.tools)
            work.tools.on_step("report", topic=work.topic)


def _read_again(work: Work) -> Coverage:
    """Read the topic as it is after the run; raise `BrokenPlanLog` where the plan log that the run used is lost."""
    lake = work.tools.lake
    is_there = lake.has_step(work.coverage.log.steps[-1])  # else a frontier document may be of the log that replaced it
    return lake.recent(work.topic) if is_there else lake.coverage(work.topic)


def _appended(decided: Iterable[Decided]) -> list[Decided]:
    """Append what is landed of a batch of ranges to raw tables, before the verdicts are reported.

    Where that fails the ranges are landed all the same, and a tick appends them.
    """
    batch, landed = list(decided), dict[str, tuple[Work, list[OffsetRange]]]()
    for work, verdict in batch:
        if work.tools.has_raw_table and verdict.manifest is not None:
            landed.setdefault(work.topic, (work, []))[1].append(verdict.offsets)
    for work, ranges in landed.values():
        tools = work.tools
        doubted = ranges if work.attempt.redo else [each for each in ranges if _was_torn(work.coverage, each)]
        doubts = Doubts(doubted, replaces=work.attempt.redo and work.attempt.on_change == "replace")
        try_append(work.topic, tools.lake, tools.now_ms, doubts, tools.on_step)
    return batch


def _was_torn(coverage: Coverage, offsets: OffsetRange) -> bool:
    """Return whether a landed file had another size than its manifest says: the raw table may share its bytes."""
    return offsets in coverage.manifests and offsets in coverage.published and not coverage.is_landed(offsets)


def _sweep(work: Work) -> None:
    work.tools.lake.store.discard(f"staging/{work.attempt.id}", work.tools.on_step)


def _move_group(topic: str, tools: Tools) -> None:
    """Move the consumer group to the frontier; where that fails the ranges are landed all the same."""
    try:
        mirror_frontier(topic, tools.group, tools.lake, tools.kafka)
    except OffsetlakeError as error:
        tools.on_step("mirror_failed", topic=topic, reason=str(error))  # a tick moves it later


def _land_readings(waiting: Sequence[Waiting], below: PurePath) -> Iterator[Decided]:
    """Land what is left of ranges, in few scans; where nothing is left of one, only its loss is recorded."""
    groups: dict[Hashable, list[Waiting]] = defaultdict(list)
    for work, readings in _by_topic(waiting):
        left = [(work, reading) for reading in readings if reading.rest is not None]
        if left:
            groups[work.shares_jobs_with] += left
    for number, group in enumerate(groups.values()):
        yield from _land_group(group, below / f"{number}")
    for work, readings in _by_topic(waiting):
        if not work.errors:
            with work.ending():
                yield from _appended((work, verdict) for verdict in _record_lost(work, readings))


def _land_group(waiting: Sequence[Waiting], below: PurePath) -> Iterator[Decided]:
    """Land ranges that jobs may share; under `at_most_once` they are of one topic, and claimed before they are read."""
    by_rest = {TopicRange(work.topic, reading.rest): (work, reading) for work, reading in waiting if reading.rest}
    first = waiting[0][0]
    if first.tools.delivery is not Delivery.AT_MOST_ONCE:
        for number, scan in enumerate(group_scans(by_rest)):
            yield from _land_scan(scan, by_rest, below / f"{number}")
        return
    numbers = count()
    # what fails is abandoned, so a failing scan must have as few ranges as possible
    for scan in group_scans(by_rest, reads_at_once=1):
        if first.errors:  # ranges claimed now would not be read
            return
        readings = [by_rest[rest][1] for rest in scan.ranges]
        try:
            # before the claim: what is claimed and not read is abandoned
            stage_anew(lambda _: first.tools.spark.open(), below, first.tools.on_step)
        except EngineUnavailable as error:
            yield from ((first, failed(reading.offsets, error.reason)) for reading in readings)
            continue
        refused, ours = claim(first, readings)  # only now, not before the earlier scans
        yield from ((first, verdict) for verdict in refused)
        rests = (TopicRange(first.topic, reading.rest) for reading in ours if reading.rest is not None)
        for rest_of_scan in group_scans(rests, reads_at_once=1) if refused else (scan,):
            yield from _land_scan(rest_of_scan, by_rest, below / f"{next(numbers)}")


def _record_lost(work: Work, readings: Sequence[Reading]) -> Iterator[Verdict]:
    """Record the loss of ranges of which Kafka has nothing left."""
    refused, gone = claim(work, [reading for reading in readings if reading.rest is None])
    yield from refused
    refused, gone = split_planned(work, gone)
    yield from refused
    if gone:
        ids = work.tools.kafka.read_ids(work.topic)
        nothing = Staged({}, (ids, ids), is_of_compacted_topic=False, seconds_per_offset=0.0)
        yield from (decide(work, reading, nothing) for reading in gone)


def _land_scan(
    scan: Scan, by_rest: Mapping[TopicRange, Waiting], folder: PurePath, *, from_log: bool = False
) -> Iterator[Decided]:
    """Read one scan and decide each of its ranges; a failing scan is read again in halves, to isolate the cause.

    A range that Spark's Kafka reader cannot read, because of a timestamp that it cannot represent, is read `from_log` instead.
    """
    waiting = [by_rest[rest] for rest in scan.ranges]
    by_topic = _by_topic(waiting)
    tools, staging = waiting[0][0].tools, waiting[0][0].staging
    topics = ",".join(scan.topics)
    partitions = {(rest.topic, rest.offsets.partition) for rest in scan.ranges}
    tools.on_step("scan", topic=topics, ranges=len(scan.ranges), partitions=len(partitions), reads=len(scan.reads))
    started = tools.now_ms()
    before = {}
    for work, _ in by_topic:
        if not work.errors:
            with work.ending():
                before[work.topic] = work.tools.kafka.read_ids(work.topic)
    if any(work.errors for work, _ in by_topic):  # the other topics are read without the failed ones
        others = [each for each in waiting if not each[0].errors]
        yield from _land_readings(others, folder.with_name(f"{folder.name}_without"))
        return

    # under at_most_once a range whose first read fails is abandoned, not read a second time
    is_read_once = tools.delivery is Delivery.AT_MOST_ONCE

    def stage(folder: PurePath) -> None:
        of = len(scan.ranges)
        with staging.watched(folder, lambda files: tools.on_step("read", topic=topics, files=files, of=of)):
            if from_log:
                stage_log(*waiting[0], folder)
            else:
                tools.spark.stage(scan, tools.isolation_level, staging.url(folder))
        staging.finish(folder)

    try:
        tries = 1 if is_read_once else ENGINE_TRIES
        _, staged_in = stage_anew(stage, folder, tools.on_step, tries)
    except (ScanFailed, EngineLost) as error:  # one range may be what makes Spark fail or die
        if isinstance(error, DiskRefuses) or from_log:
            yield from _all_failed(waiting, error.reason)
        elif len(waiting) == 1 and not is_read_once and may_be_untellable(*waiting[0]):
            yield from _land_scan(scan, by_rest, folder.with_name(f"{folder.name}_log"), from_log=True)
        else:
            yield from _land_halves(waiting, folder, error)
        return
    except (EngineUnavailable, LakeUnavailable) as error:
        yield from _all_failed(waiting, error.reason)
        return
    seconds = (tools.now_ms() - started) / 1000
    tools.on_step("stage", topic=topics, seconds=seconds)
    pace = seconds / sum(len(rest.offsets) for rest in scan.ranges)
    yield from _decide_staged({rest: by_rest[rest] for rest in scan.ranges}, staged_in, before, pace)


def _decide_staged(
    by_rest: Mapping[TopicRange, Waiting], folder: PurePath, before: Mapping[str, TopicIds], pace: float
) -> Iterator[Decided]:
    """Decide ranges that Spark has staged; `before` has the topics' ids from before the scan, `pace` is seconds per offset."""
    waiting = list(by_rest.values())
    try:
        matched = match_parts(list(by_rest), folder, waiting[0][0].staging)
    except LakeUnavailable as error:
        yield from _all_failed(waiting, error.reason)
        return
    if matched.strays:
        yield from _all_failed(waiting, *matched.strays)
        return
    # an unreadable file may be of any range that has none: these ranges, even those without records, wait for the next run
    parts = {rest: part for rest, part in matched.parts.items() if part is not None or not matched.damaged}
    yield from _all_failed([by_rest[rest] for rest in matched.parts if rest not in parts], *matched.damaged)
    staged, planned = {}, []
    for work, readings in _by_topic([by_rest[rest] for rest in parts]):
        with work.ending():
            topic, kafka = work.topic, work.tools.kafka
            own = {rest.offsets: part for rest, part in parts.items() if rest.topic == topic}
            staged[topic] = Staged(own, (before[topic], kafka.read_ids(topic)), kafka.is_compacted(topic), pace)
            refused, left = split_planned(work, readings)
            yield from ((work, verdict) for verdict in refused)
            planned += [(work, reading) for reading in left]
    with ThreadPoolExecutor(VERIFY_THREADS) as pool:
        decided = pool.map(lambda each: (each[0], decide(each[0], each[1], staged[each[0].topic])), planned)
        yield from _appended(decided)


def _land_halves(waiting: Sequence[Waiting], folder: PurePath, error: OffsetlakeError) -> Iterator[Decided]:
    # Spark's error is not trusted: the broker is asked what it has, and that is read in halves
    left: list[Waiting] = []
    for work, readings in _by_topic(waiting):
        with work.ending():
            verdicts, readable = split_readable(work, [reading.offsets for reading in readings])
            yield from _appended((work, without_doubles(work, verdict)) for verdict in verdicts)
            left += ((work, reading) for reading in readable)
    is_at_most_once = waiting[0][0].tools.delivery is Delivery.AT_MOST_ONCE
    if is_at_most_once or (len(waiting) == 1 and left == list(waiting)):
        yield from ((work, failed(reading.offsets, error.reason)) for work, reading in left)
        return
    middle = max(1, len(left) // 2)
    for number, half in enumerate((left[:middle], left[middle:])):
        yield from _land_readings(half, folder.with_name(f"{folder.name}_half{number}"))


def _by_topic(waiting: Sequence[Waiting]) -> list[tuple[Work, list[Reading]]]:
    by_topic: dict[str, tuple[Work, list[Reading]]] = {}
    for work, reading in waiting:
        by_topic.setdefault(work.topic, (work, []))[1].append(reading)
    return list(by_topic.values())


def _all_failed(waiting: Sequence[Waiting], *reasons: str) -> Iterator[Decided]:
    return ((work, failed(reading.offsets, *reasons)) for work, reading in waiting)
