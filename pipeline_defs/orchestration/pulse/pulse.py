"""The pulse of a code location: one sensor plans all topics, one run lands what is pending of them and derives from it.

Invariant: of each lane at most one of these runs waits or is at work; what arrives meanwhile goes into the next one. A broken
topic, file or broker stops no other.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from threading import Lock

import dagster as dg
from dagster import RunsFilter
from dagster._core.storage.tags import MAX_RETRIES_TAG, PRIORITY_TAG, RUN_FAILURE_REASON_TAG
from dagster_pyspark import LazyPySparkResource

from ...core.advice import counted
from ...core.errors import OffsetlakeError, TopicsFailed, as_ours
from ...core.landing.dispatch import Tried, lane_of
from ...resources import Adapters
from ...topics import DID, DID_TAG, LAND_PENDING, LANE_TAG, Duty, Topic
from ..home.daemons import running_since
from ..home.dead_runs import end_dead_runs
from ..runs.known import Known, is_slow, read_known, read_slow
from ..runs.moments import duration_text
from ..runs.projection import ACTIVE, FAILED, open_pools
from ..runs.tries import failures_of
from ..runs.visiting import visit_topics
from ..topic_set import TopicFiles
from .pulse_run import LAND_AND_DERIVE, land_and_derive
from .rebuilding import COMPARE, build_comparison, is_comparison_due
from .ticking import DerivedTick, Tick, run_derive_tick, run_latest_tick, run_tick
from .topic_discovery import Discovery

TICK_SECONDS = 4  # the daemon looks every 5 s: with 5, one that comes a moment early is left out
PLAN_SECONDS, LOOK_SECONDS = 25.0, 40.0  # of a tick: Dagster gives it up after 60, and what it would ask for is lost
HUNG_SECONDS = 300.0  # after which a tick that is still at work is waited for no more
SHOWN = 5  # in a tick's one line; the checks name more
LOCATION_TAG = "offsetlake/location"
MOST_IN_A_ROW = 8  # runs that failed early, after which the back-off grows no more
MOST_AT_WORK = 3  # the same where one had begun a job: the ranges of that job back off by themselves


@dataclass(frozen=True, slots=True)
class TopicTick:
    """Findings of a tick on one topic and its derived tables; what could not be read is missing, and `error` says why."""

    topic: Topic
    landing: Tick | None
    derived: Sequence[DerivedTick]
    error: OffsetlakeError | None
    failures: int  # how often in a row all that was tried of it at once has failed
    is_late: bool = False  # there was no time for all of it; the next tick begins with it

    @property
    def is_due(self) -> bool:
        """Whether a run has anything to do for the topic now."""
        return (self.landing is not None and bool(self.landing.due)) or any(each.is_due for each in self.derived)

    @property
    def texts(self) -> Iterator[str]:
        """Texts on what waits, and on what is stalled."""
        if self.landing is not None:
            stalled, held_back = self.landing.stalled, self.landing.held_back
            yield from filter(None, [self.landing.waiting])
            for what, said in (("stalled", stalled), ("held back", [each for each in held_back if each not in stalled])):
                yield from [f"{what}: {'; '.join(said[:SHOWN])}"] if said else []
        yield from (each.waiting for each in self.derived if each.waiting)


def build_pulse(topics: Sequence[Topic], files: TopicFiles | None = None) -> dg.Definitions:
    """Build the sensor that plans the topics of a code location, and the job that lands them; none without topics.

    `files` are those that the topics were read from; some may have patterns, or be broken.
    """
    discovery = Discovery(files)
    if not topics and (files is None or not (files.patterns or files.broken)):
        return dg.Definitions()

    @dg.op(name=LAND_AND_DERIVE)
    def land_op(context: dg.OpExecutionContext, adapters: dg.ResourceParam[Adapters], pyspark: LazyPySparkResource) -> None:
        land_and_derive(topics, context, adapters, pyspark)

    @dg.job(
        name=LAND_PENDING,
        description=(
            "Lands what is pending of all topics, then decodes it and updates their latest tables. The sensor of the same "
            "name asks for it; launched by hand it does the same."
        ),
    )
    def land_pending() -> None:
        land_op()

    comparison = build_comparison(topics)

    @dg.sensor(
        name=LAND_PENDING,
        jobs=[land_pending, comparison],
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Plans new offset ranges of all topics, and asks for the run that lands what is pending of them.",
    )
    def pulse(context: dg.SensorEvaluationContext, adapters: dg.ResourceParam[Adapters]) -> dg.SensorResult:
        turn, now = adapters.tick_turn, time.monotonic()
        if not turn.acquire(blocking=False):  # a tick that Dagster has given up still has it
            if now - adapters.tick_began < HUNG_SECONDS:
                reason = f"the tick before is at work for {duration_text(now - adapters.tick_began)}: this machine is busy"
                return dg.SensorResult(skip_reason=reason)
            adapters.tick_turn = turn = Lock()
            turn.acquire()
        adapters.tick_began = now
        try:
            return _tick(topics, discovery, context, adapters)
        finally:
            turn.release()

    return dg.Definitions(jobs=[land_pending, comparison], sensors=[pulse])


def _tick(
    topics: Sequence[Topic], discovery: Discovery, context: dg.SensorEvaluationContext, adapters: Adapters
) -> dg.SensorResult:
    """Plan all topics, and ask for the runs that are due; raise `TopicsFailed` where none is, and some could not be planned."""
    origin = context.code_location_origin
    location = origin.location_name if origin is not None else ""
    end_dead_runs(context.instance, adapters.now_ms())
    with ThreadPoolExecutor(1) as beside:  # either may wait for a cluster that hangs
        looking = beside.submit(discovery.look, origin, context.instance, adapters)
        ticks = tick_topics([*topics, *discovery.topics], context.instance, adapters)
    looking.result()
    failures = [f"{each.topic.name}: {each.error}" for each in ticks if each.error is not None]
    failures += discovery.failures
    planned = f"of {len(ticks)} topics {len(failures)} cannot be planned; the others were" if failures else "all are planned"
    failures = [" ".join(each.split()) for each in (*failures, *discovery.refusals)]  # some list reasons of their own
    requests, postponed = find_runs(ticks, location, context.instance, adapters)
    adapters.watch_step("tick_requested", runs=len(requests))
    own = {LOCATION_TAG: location}
    if is_comparison_due(topics, own, context.instance, adapters):
        requests.append(dg.RunRequest(job_name=COMPARE, tags={**own, MAX_RETRIES_TAG: "0"}))
    if requests:
        for failure in failures:  # of what is planned nothing is logged: Dagster keeps a file for each tick that logs
            context.log.error(failure)
        return dg.SensorResult(run_requests=requests)
    if failures:
        more = f"; {discovery.text}" if discovery.text else ""
        raise TopicsFailed(f"{planned}{more}", failures)
    put_off = sum(each.is_late for each in ticks)
    late = f"{counted(put_off, 'topic')} left to the next tick: this one took too long" if put_off else ""
    return dg.SensorResult(skip_reason="; ".join(filter(None, [*postponed, late, discovery.text, waiting_text(ticks)])))


def find_runs(
    ticks: Sequence[TopicTick], location: str, instance: dg.DagsterInstance, adapters: Adapters
) -> tuple[list[dg.RunRequest], list[str]]:
    """Find the runs to ask for now, at most one per lane; return also why others are postponed, and what is slow, in words."""
    lanes, requests, postponed = adapters.settings.lanes, list[dg.RunRequest](), list[str]()
    slow = read_slow(instance, (each.topic for each in ticks), adapters.now_ms()) if lanes > 1 else set[Duty]()
    if slow:
        names = ", ".join(sorted(duty.asset_key.to_user_string() for duty in slow))
        postponed.append(f"slow, so apart for ten minutes, or until a job of its own is quick: {names}")
    due = (lane_of(each.topic.name, lanes, each.failures, is_slow=is_slow(each.topic, slow)) for each in ticks if each.is_due)
    for lane in sorted(set(due)):
        tags = {LOCATION_TAG: location, **({LANE_TAG: lane} if lanes > 1 else {})}
        why = find_postponed(instance, tags, adapters.now_ms())
        if why:
            postponed.append(f"lane {lane}: {why}" if lanes > 1 else why)
        elif not is_active(instance, tags):
            tags |= {MAX_RETRIES_TAG: "0", PRIORITY_TAG: "1"}
            requests.append(dg.RunRequest(job_name=LAND_PENDING, tags=tags))
    return requests, postponed


def waiting_text(ticks: Sequence[TopicTick]) -> str:
    """Return a text on what waits of each topic; without the name where there is one topic only."""
    said = {each.topic.name: "; ".join(each.texts) for each in ticks}
    texts = [f"{name}: {text}" if len(ticks) > 1 else text for name, text in said.items() if text]
    more = [f"{len(texts) - SHOWN} more topics wait"] if len(texts) > SHOWN else []
    return "; ".join([*texts[:SHOWN], *more]) or "nothing waits"


def is_active(instance: dg.DagsterInstance, tags: Mapping[str, str]) -> bool:
    """Return whether a run of this location and lane waits or is at work; one that a person launched counts for every lane."""
    active = instance.get_runs(RunsFilter(job_name=LAND_PENDING, statuses=ACTIVE))
    return any(all(run.tags.get(name, value) == value for name, value in tags.items()) for run in active)


def find_postponed(instance: dg.DagsterInstance, tags: Mapping[str, str], now_ms: int) -> str:
    """Return why no run is asked for now: the last ones with these tags ended before they did anything; else nothing."""
    ended = RunsFilter(job_name=LAND_PENDING, statuses=[*FAILED, dg.DagsterRunStatus.SUCCESS], tags={**tags})
    records = instance.get_run_records(ended, limit=MOST_IN_A_ROW)
    early = list(takewhile(lambda record: record.dagster_run.tags.get(DID_TAG) != DID, records))
    if not early:
        return ""
    attempts = min(len(early), MOST_AT_WORK) if any(DID_TAG in each.dagster_run.tags for each in early) else len(early)
    last = early[0]
    since = datetime.fromtimestamp(running_since(instance.root_directory), UTC)
    wordless = [each for each in early if RUN_FAILURE_REASON_TAG not in each.dagster_run.tags]
    cut_off = [each.create_timestamp.replace(tzinfo=UTC) < since for each in wordless]
    tried = Tried(attempts, int((last.end_time or last.update_timestamp.timestamp()) * 1000), cut_off=sum(cut_off))
    if tried.is_due(now_ms):
        return ""
    return (
        f"run {last.dagster_run.run_id[:8]}, the last of {len(early)} in a row, ended before it had done anything: "
        f"the next is asked for in {duration_text(tried.due_in_seconds(now_ms))}"
    )


def tick_topics(topics: Sequence[Topic], instance: dg.DagsterInstance, adapters: Adapters) -> list[TopicTick]:
    """Tick each topic; a broker that does not answer for one keeps no derived table and no other topic waiting.

    Both in planning and in derived tables, the topics come first whose last turn was longest ago.
    """
    known = read_known(instance, topics, adapters.now_ms())
    open_pools(instance, [duty.pool for topic in topics for duty in topic.duties])

    def takes_turn(last: dict[str, float], topic: Topic, first: Topic, seconds: float) -> bool:
        now = time.monotonic()
        if now - known.began > seconds and topic is not first:
            return False
        last[topic.name] = now
        return True

    def tick(topic: Topic) -> Tick | OffsetlakeError | None:
        has_turn = takes_turn(adapters.planned_at, topic, to_plan[0], PLAN_SECONDS)
        return run_tick(topic, instance, adapters, known) if has_turn else None

    to_plan, to_derive = (
        sorted(topics, key=lambda each: last.get(each.name, 0.0)) for last in (adapters.planned_at, adapters.derived_at)
    )
    names = [each.name for each in to_plan]
    landings = dict(zip(names, visit_topics(to_plan, adapters, tick, lambda _, error: error), strict=True))
    ticks = {}
    for topic in to_derive:
        has_turn = takes_turn(adapters.derived_at, topic, to_derive[0], LOOK_SECONDS)
        ticks[topic.name] = _tick_derived(topic, landings[topic.name], instance, adapters, known, is_late=not has_turn)
    return [ticks[topic.name] for topic in topics]


def _tick_derived(
    topic: Topic,
    landed: Tick | OffsetlakeError | None,
    instance: dg.DagsterInstance,
    adapters: Adapters,
    known: Known,
    *,
    is_late: bool,
) -> TopicTick:
    """Find what is due of a topic's derived tables, for which no broker is needed; nothing where the tick is late."""
    landing, error = (None, landed) if isinstance(landed, OffsetlakeError) else (landed, None)
    derived = list[DerivedTick]()
    try:
        if topic.decode is not None and not is_late:
            derived.append(run_derive_tick(topic, instance, adapters, known))
        if topic.latest is not None and not is_late:
            derived.append(run_latest_tick(topic, topic.latest, instance, adapters, known))
    except Exception as broken:  # noqa: BLE001 (told by its type: another topic is not to pay for it)
        error = error or as_ours(broken, f"topic {topic.name}")
    return TopicTick(topic, landing, derived, error, failures_of(topic, known.tries), is_late or landed is None)
