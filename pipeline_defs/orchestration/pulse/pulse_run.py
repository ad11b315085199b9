"""The run of the pulse: lands what is pending of all topics in jobs that they share, then decodes it and updates latest tables.

What is pending is read when the run gets to it, not when it was asked for. Invariant: the run is red unless all that it took
is done; what is done is reported all the same, and what is not is tried again later.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any, cast

import dagster as dg
from dagster._core.events import AssetMaterializationPlannedData
from dagster_pyspark import LazyPySparkResource

from ...adapters.kafka.kafka import Kafka
from ...core.errors import BrokerRefuses, BrokerUnavailable, OffsetlakeError, RangesFailed, as_ours
from ...core.landing.dispatch import APART, Tried, alternate, choose_alike, lane_of, next_most, take_turns
from ...core.landing.verdicts import Outcome, violations_by_range
from ...core.offsets import OffsetRange, TopicRange
from ...core.tables.decoding import Decided, Decoding
from ...landing.attempt import Tools
from ...landing.landing import land_topics
from ...resources import Adapters
from ...tables.decoding import decode
from ...topics import BEGAN, DID, DID_TAG, LAND_PENDING, LANE_TAG, Duty, Topic
from ..assets.checks import check_quickly, evaluation_of
from ..assets.decoded_asset import NEWLY_DECODED, check_decodings, decoded_event, tell_decoded
from ..assets.latest_asset import check_share, is_check_due, share_of, update_and_tell
from ..assets.raw_asset import landed_lineage, materialization
from ..runs.known import SLOW_SECONDS, is_slow, note_speed, read_known, read_slow
from ..runs.moments import telling_pace
from ..runs.tries import ALL, UPDATE, Tries, failures_of, read_all_tries, trying_all
from ..runs.waiting import read_undecoded
from ..runs.work import StepSummary, at_work, attempt_of
from .ticking import run_latest_tick

LAND_AND_DERIVE = "land_and_derive"  # the op
RANGES_PER_RUN = 1000  # landed: an event of Dagster costs 10 ms
RANGES_APART = 50  # of a topic that may be slow: its next job shows whether it is
RANGES_AT_ONCE = 200  # landed or decoded before what is pending is read again
JOB_SECONDS = 10.0  # that a job takes, about: what becomes pending meanwhile waits for its end
FIRST_OFFSETS, FIRST_RANGES = 1_000_000.0, 50.0  # of a run's first job, whose pace nobody knows
LAND_SECONDS = 60  # after which no more ranges are taken, and what is landed is decoded
DERIVE_SECONDS = 60  # after which no more is decoded


def land_and_derive(
    topics: Sequence[Topic], context: dg.OpExecutionContext, adapters: Adapters, pyspark: LazyPySparkResource
) -> None:
    """Land what is pending of these topics, then decode what is landed and update latest tables; bounded in ranges and seconds.

    Raises `RangesFailed` in the end, with what failed.
    """
    with at_work(context, adapters):
        run = _PulseRun({topic.name: topic for topic in topics}, context, adapters, pyspark, context.run.tags.get(LANE_TAG))
        run.land()
        run.check()
        run.decode()
        run.update()
        if run.land_fatal():
            run.decode()
            run.update()
        run.check()
        failures = [*chain(*run.failures.values())] or ([] if run.came_to else [*run.passed_over.values()])
        if failures:
            counts = f"ranges landed: {sum(run.landed.values())}, failures: {len(failures)}"
            raise RangesFailed(f"{counts}; what failed is tried again, but for what at_most_once has claimed", failures)


@dataclass
class _PulseRun:
    """One run: its topics by name, how many ranges of each it has landed, and texts on what failed and was not done since.

    `passed_over` says of which topics nothing could be taken, and why; `slow` are duties whose topics have the lane apart. With
    `takes_fatal` it lands ranges that have ended a run; `survived` counts those that have not ended this one.
    """

    topics: dict[str, Topic]
    context: dg.OpExecutionContext
    adapters: Adapters
    pyspark: LazyPySparkResource
    lane: str | None = None  # none has all topics
    landed: Counter[str] = field(default_factory=Counter)
    failures: dict[Hashable, Sequence[str]] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)
    came_to: str = ""
    unchecked: set[str] = field(default_factory=set)  # topics with ranges landed since the last look
    jobs: int = 0
    served: dict[str, int] = field(default_factory=dict)  # by topic the number of the last job that had ranges of it
    left: int = field(default_factory=lambda: RANGES_PER_RUN)
    most_offsets: float = field(default_factory=lambda: FIRST_OFFSETS)  # of the next job
    most_ranges: float = field(default_factory=lambda: FIRST_RANGES)
    slow: set[Duty] = field(default_factory=set)
    takes_fatal: bool = False
    survived: int = 0
    retries: dict[str, int] = field(default_factory=dict)  # by topic, how many ranges that have failed are decoded at once

    def __post_init__(self) -> None:
        if self.lane is not None:
            self.slow = read_slow(self.context.instance, self.topics.values(), self.adapters.now_ms())

    def land(self) -> None:
        """Land batches, fairly over topics, until nothing is due, or the run has had its share."""
        is_in_time = self._timer(LAND_SECONDS)
        while is_in_time() and self._land_next():
            pass

    def land_fatal(self) -> bool:
        """Land ranges that have ended a run, last of all, as they may end this one: one first, then more the more survive.

        Return whether there was any.
        """
        self.takes_fatal, self.left = True, RANGES_APART
        self.land()
        self.takes_fatal, self.left = False, 0
        return self.survived > 0

    def _land_next(self) -> bool:
        """Land one batch of pending ranges, sized for a job of about `JOB_SECONDS`; return whether there was any."""
        due = self._find_due() if self.left > 0 else {}
        most = min(RANGES_AT_ONCE, max(1, int(self.most_ranges)))
        if self.lane == APART:  # of a job that topics share, nobody could say which is slow
            due, most = dict(islice(due.items(), 1)), min(most, RANGES_APART)
        batch = take_turns(due, min(self.left, most), self.most_offsets, self.adapters.settings.tasks_at_once)
        if not batch:
            return False
        began_ms, taken = self.adapters.now_ms(), [TopicRange(name, each) for name, ranges in batch.items() for each in ranges]
        self._land_batch(batch)
        seconds = (self.adapters.now_ms() - began_ms) / 1000
        self.most_offsets = next_most(sum(len(each.offsets) for each in taken), seconds, JOB_SECONDS, self.most_offsets)
        self.most_ranges = next_most(len(taken), seconds, JOB_SECONDS, self.most_ranges)
        self.left -= len(taken)
        self.survived += len(taken) if self.takes_fatal else 0
        self.jobs += 1
        self.served |= dict.fromkeys(batch, self.jobs)
        return True

    def check(self) -> None:
        """Run the quick checks of each topic of which ranges were landed since the last call."""
        landed, self.unchecked = self.unchecked, set()
        tries = read_all_tries(self.context.instance, [self.topics[name].landing for name in landed])
        for topic in (self.topics[name] for name in sorted(landed)):
            with self._isolated(topic, self._fail):  # told each time: Dagster shows a check of the last landing only
                self._report_checks(check_quickly(topic, self.adapters, tries[topic.landing].in_progress))

    def _find_due(self) -> dict[str, list[OffsetRange]]:
        """Find what to land now: each topic's ranges as policy and tries order them, topics longest without a job first.

        Ranges that may have ended a run are left out; with `takes_fatal` they are the only ones.
        """
        found: dict[str, tuple[int, int, list[OffsetRange]]] = {}
        fatal = dict[TopicRange, Tried]()
        duties = [duty for topic in self.topics.values() for duty in (topic.landing, topic.decoding)]
        tries = read_all_tries(self.context.instance, duties)
        for name, topic in self.topics.items():
            if not self._is_mine(topic, tries):
                continue
            with self._isolated(topic, self._pass_over):
                coverage = self.adapters.lake.recent(name)
                due = tries[topic.landing].choose_due(coverage.pending(), self.adapters.now_ms())
                planned_ms = {offsets: coverage.log.ranges[offsets].planned_at_ms for offsets in due}
                due.sort(key=lambda offsets: (planned_ms[offsets], offsets.start))
                last = tries[topic.landing].find_fatal(planned_ms)
                fatal |= {TopicRange(name, each): tried for each, tried in last.items()}
                ordered = alternate(due[::-1] if topic.policy.is_newest_first else due, tries[topic.landing].tried)
                if rest := [each for each in ordered if each not in last]:
                    found[name] = self.served.get(name, 0), planned_ms[due[0]], rest
        if self.takes_fatal:
            alike = choose_alike([*fatal], {}, fatal, len(fatal), 1 + self.survived)
            return {each.topic: [other.offsets for other in alike if other.topic == each.topic] for each in alike}
        return {name: due for name, (*_, due) in sorted(found.items(), key=lambda each: each[1][:2])}

    def _land_batch(self, batch: dict[str, list[OffsetRange]]) -> None:
        context, adapters = self.context, self.adapters
        log_step = StepSummary(context)
        with ExitStack() as opened:
            opened.callback(log_step.tell)
            taken = {self.topics[name].landing: [*(o.key for o in ranges), ALL] for name, ranges in batch.items()}
            done, shown = opened.enter_context(self._taking(taken))
            tell, tools = {}, {}
            for topic in (self.topics[name] for name in batch):
                name = topic.name
                with self._isolated(topic, self._fail):
                    tools[name] = adapters.tools(topic, self.pyspark, partial(self._log_read, log_step))
                    tell[name] = opened.enter_context(landed_lineage(topic, adapters, context.log.warning))
            self._leave_silent(tools)
            keys_of = {name: [offsets.key for offsets in batch[name]] for name in tools}
            landed = land_topics(keys_of, attempt_of(context.run.run_id), tools) if tools else ()
            total, tell_pace = sum(map(len, keys_of.values())), partial(context.log.info, "step=progress %s")
            for name, told in telling_pace(landed, total, adapters.now_ms, tell_pace):
                shown.result()  # a range that is told first would stay shown as in progress
                duty = self.topics[name].landing
                if isinstance(told, OffsetlakeError):
                    self._fail(self.topics[name], told)
                    continue
                if told.outcome is Outcome.FAILED:
                    self.failures[duty, told.offsets] = violations_by_range(name, told.offsets, told.violations)
                    adapters.watch_step("failed", key=told.offsets.key)
                    if told.is_unread:  # says nothing of other ranges: the next batch need not wait
                        done[duty].add(ALL)
                    continue
                adapters.watch_step("landed", key=told.offsets.key)
                context.log_event(materialization(self.topics[name], told, adapters))
                adapters.watch_step("reported", key=told.offsets.key)
                done[duty].update((told.offsets.key, ALL))
                self.failures.pop((duty, told.offsets), None)
                self.landed[name] += 1
                self.unchecked.add(name)
                tell[name](told)

    def _leave_silent(self, tools: dict[str, Tools]) -> None:
        """Drop from `tools` the topics of a cluster that does not answer: landing would wait for each of them in turn."""
        silent: dict[Kafka, BrokerUnavailable | None] = {}
        for name, each in [*tools.items()]:
            if each.kafka not in silent:
                silent[each.kafka] = None
                try:
                    each.kafka.read_ids(name)
                except BrokerUnavailable as error:
                    silent[each.kafka] = None if isinstance(error, BrokerRefuses) else error
                except OffsetlakeError:  # of this topic alone: landing finds it too, and tells it
                    continue
            if (why := silent[each.kafka]) is not None:
                self._fail(self.topics[name], why)
                del tools[name]

    def decode(self) -> None:
        """Decode what is landed while there is time, a batch of each topic in turn, those that have waited longest first.

        What has become pending meanwhile is landed in between, so decoding a backlog keeps no topic waiting.
        """
        is_in_time = self._timer(DERIVE_SECONDS)
        waiting = [topic for topic in self.topics.values() if topic.decode is not None]
        while waiting and is_in_time():
            batches, waiting = self._find_undecoded(waiting), []
            for topic, keys in batches:
                if not is_in_time():
                    return
                self._land_next()
                with self._isolated(topic, self._fail):
                    if self._decode_batch(topic, keys):
                        waiting.append(topic)

    def _is_mine(self, topic: Topic, tries: Mapping[Duty, Tries]) -> bool:
        """Return whether a topic belongs to the run's lane now: one that fails leaves it, and the others go on."""
        lane = lane_of(topic.name, self.adapters.settings.lanes, failures_of(topic, tries), is_slow=is_slow(topic, self.slow))
        return self.lane in {None, lane}

    def _log_read(self, log_step: StepSummary, step: str, **fields: Any) -> None:
        """Log a step of landing, and judge the topics of a job by how long its read took."""
        log_step(step, **fields)
        if step == "stage":
            self._judge([self.topics[name].landing for name in fields["topic"].split(",")], fields["seconds"])

    def _judge(self, duties: Sequence[Duty], seconds: float) -> None:
        """Note duties as slow whose job took longer than `SLOW_SECONDS`: their topics leave the run's lane, and go on apart.

        Nobody knows which of several in one job was slow, so each goes back as soon as a job of its own was quick.
        """
        if self.lane is None:
            return
        instance, now_ms = self.context.instance, self.adapters.now_ms()
        if seconds > SLOW_SECONDS:
            names = ",".join(sorted(duty.asset_key.to_user_string() for duty in duties))
            self.context.log.warning("step=slow asset=%s seconds=%s", names, round(seconds))
            self.slow.update(duties)
            note_speed(instance, duties, now_ms, is_slow=True)
        elif len(duties) == 1 and duties[0] in self.slow:
            self.slow -= {*duties}
            note_speed(instance, duties, now_ms, is_slow=False)

    def _find_undecoded(self, topics: Sequence[Topic]) -> list[tuple[Topic, list[str]]]:
        """Find what to decode now of each topic; the topic comes first whose last decoding, failed or not, was longest ago."""
        found: list[tuple[int, Topic, list[str]]] = []
        now_ms = self.adapters.now_ms()
        known = read_known(self.context.instance, topics, now_ms)
        for topic in topics:
            if not self._is_mine(topic, known.tries):
                continue
            with self._isolated(topic, self._pass_over):
                undecoded = read_undecoded(topic, self.adapters.lake.recent(topic.name), self.adapters, known)
                tries, retries = undecoded.tries, self.retries.get(topic.name, 1)
                due = tries.choose_due(undecoded.due, now_ms)
                if batch := choose_alike(due, undecoded.due, tries.tried, RANGES_AT_ONCE, retries):
                    turns = (undecoded.decoded.sums.last_decoded_ms or 0, tries.of(ALL).last_ended_ms)
                    last_ms = max((ms for ms in turns if ms <= now_ms), default=0)  # a clock may have been ahead
                    found.append((last_ms, topic, [offsets.key for offsets in batch]))
        return [(topic, keys) for _, topic, keys in sorted(found, key=lambda each: each[0])]

    def _decode_batch(self, topic: Topic, keys: Sequence[str]) -> bool:
        """Decode ranges of a topic; return whether any of them was."""
        context, adapters = self.context, self.adapters
        assert topic.decode is not None
        made: list[Decoding] = []
        began_ms = adapters.now_ms()
        log_step = StepSummary(context)
        with self._taking({topic.decoding: [*keys, ALL]}) as (taken, shown):
            done = taken[topic.decoding]
            tools = adapters.decode_tools(topic.decode, self.pyspark, log_step)
            for verdict in decode(topic.name, keys, attempt_of(context.run.run_id), tools):
                shown.result()
                if verdict.outcome is Decided.FAILED or verdict.decoding is None:
                    texts = violations_by_range(topic.name, verdict.offsets, verdict.violations)
                    self.failures[topic.decoding, verdict.offsets] = texts
                    continue
                context.log_event(decoded_event(topic, verdict.decoding, verdict.outcome, adapters))
                adapters.watch_step("reported_decoded", key=verdict.offsets.key)
                done.update((verdict.offsets.key, ALL))
                self.failures.pop((topic.decoding, verdict.offsets), None)
                made += [verdict.decoding] if verdict.outcome in NEWLY_DECODED else []
            seconds = (adapters.now_ms() - began_ms) / 1000
            tell_decoded(topic, made, context, began_ms, adapters)  # before a tick would
        log_step.tell()
        self.retries[topic.name] = 2 * len(keys) if done >= {*keys} else 1
        self._judge([topic.decoding], seconds)
        self._report_checks(check_decodings(topic, adapters))
        return bool(done)

    def update(self) -> None:
        """Update the latest table of each topic where that is due."""
        context, adapters = self.context, self.adapters
        known, having = None, [topic for topic in self.topics.values() if topic.latest is not None]
        for at, topic in enumerate(having):
            is_due, known = False, known or read_known(context.instance, having[at:], adapters.now_ms())
            if topic.latest is None or not self._is_mine(topic, known.tries):
                continue
            with self._isolated(topic, self._pass_over):
                is_due = run_latest_tick(topic, topic.latest, context.instance, adapters, known).is_due
            if not is_due:
                continue
            known = None  # the update takes its time
            self._land_next()
            with self._isolated(topic, self._fail):
                with self._taking({topic.upserting: [UPDATE]}) as (taken, shown):
                    facts = update_and_tell(topic, attempt_of(context.run.run_id), context, adapters)
                    shown.result()
                    context.log_event(dg.AssetMaterialization(topic.latest_key, metadata=facts))
                    taken[topic.upserting].add(UPDATE)
                if is_check_due(topic, context.instance, adapters.now_ms()):
                    finding = check_share(topic.name, topic.latest, share_of(context.run.run_id), adapters.latest_tools())
                    self._report_checks([evaluation_of(topic.latest_key, finding)])

    @contextmanager
    def _isolated(self, topic: Topic, note: Callable[[Topic, OffsetlakeError], None]) -> Iterator[None]:
        """Note an error of one topic, so that the others go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (told by its type: another topic is not to pay for it)
            note(topic, as_ours(error, f"topic {topic.name}"))

    def _pass_over(self, topic: Topic, error: OffsetlakeError) -> None:
        """Note that nothing is taken of a topic; its tick says so too, so only a run that takes nothing is red for it."""
        if topic.name not in self.passed_over:
            self.context.log.error("topic=%s %s: %s", topic.name, error.kind, error)
        self.passed_over[topic.name] = f"topic {topic.name}: {error.reason}"

    def _fail(self, topic: Topic, error: OffsetlakeError) -> None:
        """Note that something which was taken has failed."""
        self.context.log.error("topic=%s %s: %s", topic.name, error.kind, error)
        said = f"topic {topic.name}: {error.reason}"
        self.failures[said] = [said]

    @contextmanager
    def _taking(self, wanted: Mapping[Duty, Sequence[str]]) -> Iterator[tuple[dict[Duty, set[str]], Future[None]]]:
        """Note tries of these keys; Dagster shows them as in progress, and as failed where they are not done in the end.

        A thread beside the work shows them; wait for the future before you tell of one.
        """
        instance, run_id = self.context.instance, self.context.run.run_id
        self._come_to(BEGAN)
        try:
            with trying_all(instance, wanted, run_id, self.adapters.now_ms) as done, ThreadPoolExecutor(1) as pool:
                shown = pool.submit(self._show_in_progress, wanted)
                yield done, shown
                shown.result()  # that it could not be shown is an error even where nothing was told
        except OffsetlakeError:
            self._come_to(DID)
            raise
        self._come_to(DID)

    def _come_to(self, what: str) -> None:
        """Tag the run with how far it has come: `BEGAN` or `DID`."""
        if self.came_to not in {what, DID}:
            self.context.instance.add_run_tags(self.context.run.run_id, {DID_TAG: what})
            self.came_to = what

    def _show_in_progress(self, wanted: Mapping[Duty, Sequence[str]]) -> None:
        for duty, key in ((duty, key) for duty, keys in wanted.items() for key in keys):
            if key == ALL:
                continue
            planned = AssetMaterializationPlannedData(duty.asset_key, partition=None if key == UPDATE else key)
            event = dg.DagsterEvent.build_asset_materialization_planned_event(LAND_PENDING, LAND_AND_DERIVE, planned)
            self.context.instance.report_dagster_event(event, self.context.run.run_id)

    def _report_checks(self, evaluations: Iterable[dg.AssetCheckEvaluation]) -> None:
        for each in evaluations:
            self.context.log_event(cast("Any", each))

    def _timer(self, seconds: float) -> Callable[[], bool]:
        began_ms = self.adapters.now_ms()
        return lambda: abs(self.adapters.now_ms() - began_ms) < seconds * 1000  # a clock may be set back
