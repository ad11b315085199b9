"""The run of the pulse: lands what is pending of all topics in jobs that they share, then decodes it and updates latest tables.

What is pending is read when the run gets to it, not when it was asked for. Invariant: the run is red unless all that it took
is done; what is done is reported even so, and what is not is tried again later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import dagster as dg
from dagster._core.events import AssetMaterializationPlannedData

from .attempt import Attempt
from .checks import QUICK, as_result, check_key, lake_result
from .core.decoding import Decided, Decoding
from .core.dispatch import choose_due, take_turns
from .core.errors import OffsetlakeError, RangesFailed, unforeseen
from .core.offsets import OffsetRange
from .core.verdicts import Outcome, violations_by_range
from .days import report_days
from .decoded_asset import NEWLY_DECODED, decoded_event, tell_decoded
from .decoded_checks import decoded_results
from .decoding import decode
from .landing import land_topics
from .latest_asset import update_and_tell
from .latest_check import RECOMPUTED, check_share, share_of
from .moments import Pace
from .projection import as_evaluation
from .raw_asset import landed_lineage, materialization
from .resources import Edges
from .runs import at_work, attempt_id, step_logger
from .settings import code_version
from .ticking import run_latest_tick
from .topics import LAND_PENDING, TOOK_TAG, Duty, Topic
from .tries import UPDATE, read_held, read_tried, trying
from .undecoded import read_undecoded

if TYPE_CHECKING:
    from dagster_pyspark import LazyPySparkResource

LAND_AND_DERIVE = "land_and_derive"  # the op
RANGES_PER_RUN = 1000  # landed: an event of Dagster costs 10 ms
RANGES_AT_ONCE = 200  # landed or decoded before it is looked again what is pending
LAND_SECONDS = 60  # after which no more ranges are taken, and what is landed is decoded
DERIVE_SECONDS = 60  # after which no more is decoded


def land_and_derive(
    topics: Sequence[Topic], context: dg.OpExecutionContext, edges: Edges, pyspark: LazyPySparkResource
) -> None:
    """Land what is pending of these topics, then decode what is landed and update latest tables; bounded in ranges and seconds.

    Raises `RangesFailed` in the end, with what failed.
    """
    with at_work(context, edges):
        run = _PulseRun({topic.name: topic for topic in topics}, context, edges, pyspark)
        run.land()
        run.decode()
        run.update()
        if run.failures:
            landed = sum(run.landed.values())
            raise RangesFailed(
                f"{landed} ranges landed, and there were {len(run.failures)} failures; what failed is tried again",
                run.failures,
            )


@dataclass
class _PulseRun:
    """One run: its topics by name, how many ranges of each it has landed, and what failed, in words."""

    topics: dict[str, Topic]
    context: dg.OpExecutionContext
    edges: Edges
    pyspark: LazyPySparkResource
    landed: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    # ---- land

    def land(self) -> None:
        """Land batches, fairly over topics, until nothing is due, or the run has had its share."""
        is_in_time = self._timer(LAND_SECONDS)
        left = RANGES_PER_RUN
        while left > 0 and is_in_time() and (batch := take_turns(self._find_due(), min(left, RANGES_AT_ONCE))):
            self._land_batch(batch)
            left -= sum(map(len, batch.values()))
        for topic in (self.topics[name] for name, count in self.landed.items() if count):
            with self._isolated(topic, self._fail):
                for check in QUICK:
                    self._report_check(check_key(topic, check), lake_result(topic, check, self.edges))

    def _find_due(self) -> dict[str, list[OffsetRange]]:
        """Find the ranges to land now: of each topic the oldest first, and first the topic that waits longest."""
        found: dict[str, tuple[int, list[OffsetRange]]] = {}
        for name, topic in self.topics.items():
            with self._isolated(topic, self._pass_over):
                coverage = self.edges.lake.coverage(name)
                instance = self.context.instance
                held, tried = read_held(instance, topic.landing), read_tried(instance, topic.landing)
                due = choose_due(coverage.pending(), held, tried, self.edges.now_ms())
                planned_ms = {offsets: coverage.log.ranges[offsets].planned_at_ms for offsets in due}
                due.sort(key=lambda offsets: planned_ms[offsets])
                if due:
                    found[name] = planned_ms[due[0]], due
        return {name: due for name, (_, due) in sorted(found.items(), key=lambda each: each[1][0])}

    def _land_batch(self, batch: dict[str, list[OffsetRange]]) -> None:
        context, edges = self.context, self.edges
        log_step = step_logger(context)
        with ExitStack() as opened:
            done, tell, tools = {}, {}, {}
            for name, ranges in batch.items():
                topic, keys = self.topics[name], [offsets.key for offsets in ranges]
                done[name] = opened.enter_context(self._taking(topic.landing, keys))
                with self._isolated(topic, self._fail):
                    tools[name] = edges.tools(topic, self.pyspark, log_step)
                    tell[name] = opened.enter_context(landed_lineage(topic, edges, context.log.warning))
            keys_of = {name: [offsets.key for offsets in batch[name]] for name in tell}
            pace = Pace(sum(map(len, keys_of.values())), edges.now_ms)
            for name, told in land_topics(keys_of, self._attempt(), tools) if tell else ():
                if isinstance(told, OffsetlakeError):
                    self._fail(self.topics[name], told)
                    continue
                if progress := pace.after_one():
                    context.log.info("step=progress %s", progress)
                if told.outcome is Outcome.FAILED:
                    self.failures += violations_by_range(name, told.offsets, told.violations)
                    edges.watch_step("failed", key=told.offsets.key)
                    continue
                edges.watch_step("landed", key=told.offsets.key)
                context.log_event(materialization(self.topics[name], told, edges))
                edges.watch_step("reported", key=told.offsets.key)
                done[name].add(told.offsets.key)
                tell[name](told)
        self.landed.update({name: len(done[name]) for name in batch})

    # ---- decode

    def decode(self) -> None:
        """Decode what is landed of each topic, and tell of its days, while there is time."""
        is_in_time = self._timer(DERIVE_SECONDS)
        for topic in self.topics.values():
            while topic.decode is not None and is_in_time():
                due: list[OffsetRange] = []
                with self._isolated(topic, self._pass_over):
                    coverage = self.edges.lake.coverage(topic.name)
                    found = read_undecoded(topic, coverage, self.edges, self.context.instance)
                    due = found.choose(self.edges.now_ms())[:RANGES_AT_ONCE]
                if not due:
                    break
                with self._isolated(topic, self._fail):
                    self._decode_batch(topic, [offsets.key for offsets in due])

    def _decode_batch(self, topic: Topic, keys: Sequence[str]) -> None:
        context, edges = self.context, self.edges
        assert topic.decode is not None
        tools = edges.decode_tools(topic.decode, self.pyspark, step_logger(context))
        made: list[Decoding] = []
        began_ms = edges.now_ms()
        with self._taking(topic.decoding, keys) as done:
            for verdict in decode(topic.name, keys, self._attempt(), tools):
                if verdict.outcome is Decided.FAILED or verdict.decoding is None:
                    self.failures += violations_by_range(topic.name, verdict.offsets, verdict.violations)
                    continue
                context.log_event(decoded_event(topic, verdict.decoding, verdict.outcome, edges))
                edges.watch_step("reported_decoded", key=verdict.offsets.key)
                done.add(verdict.offsets.key)
                made += [verdict.decoding] if verdict.outcome in NEWLY_DECODED else []
        report_days(topic, context.instance, edges)
        tell_decoded(topic, made, context, began_ms, edges)
        for name, result in decoded_results(topic, edges).items():
            self._report_check(dg.AssetCheckKey(topic.decoded_key, name), result)

    # ---- latest

    def update(self) -> None:
        """Update the latest table of each topic where that is due."""
        context, edges = self.context, self.edges
        for topic in self.topics.values():
            if topic.latest is None:
                continue
            is_due = False
            with self._isolated(topic, self._pass_over):
                is_due = run_latest_tick(topic, topic.latest, context.instance, edges).is_due
            if not is_due:
                continue
            with self._isolated(topic, self._fail):
                with self._taking(topic.upserting, [UPDATE]) as done:
                    facts = update_and_tell(topic, topic.latest, self._attempt(), context, edges, self.pyspark)
                    context.log_event(dg.AssetMaterialization(topic.latest_key, metadata=facts))
                    done.add(UPDATE)
                tools = edges.latest_tools(self.pyspark)
                finding = check_share(topic.name, topic.latest, share_of(context.run.run_id), tools)
                self._report_check(dg.AssetCheckKey(topic.latest_key, RECOMPUTED), as_result(finding))

    # ---- tell

    @contextmanager
    def _isolated(self, topic: Topic, note: Callable[[Topic, OffsetlakeError], None]) -> Iterator[None]:
        """Have an error of one topic be noted, and the others go on."""
        try:
            yield
        except OffsetlakeError as error:
            note(topic, error)
        except Exception as error:  # noqa: BLE001 (told by its type: another topic is not to pay for it)
            note(topic, unforeseen(error, f"topic {topic.name}"))

    def _attempt(self) -> Attempt:
        run_id = self.context.run.run_id
        return Attempt(attempt_id(run_id), run_id, code_version())

    def _pass_over(self, topic: Topic, error: OffsetlakeError) -> None:
        """Note that nothing is taken of a topic; the sensor, which finds the same, says so to people."""
        self.context.log.error("topic=%s %s: %s", topic.name, error.kind, error)

    def _fail(self, topic: Topic, error: OffsetlakeError) -> None:
        """Note that something that was taken is not done."""
        self._pass_over(topic, error)
        self.failures.append(f"topic {topic.name}: {error}")

    @contextmanager
    def _taking(self, duty: Duty, keys: Sequence[str]) -> Iterator[set[str]]:
        """Note a try of these keys; have Dagster show them as in progress, and as failed where they are not done in the end."""
        instance, run_id = self.context.instance, self.context.run.run_id
        with trying(instance, duty, keys, run_id, self.edges.now_ms) as done:
            instance.add_run_tags(run_id, {TOOK_TAG: "yes"})
            for key in keys:
                planned = AssetMaterializationPlannedData(duty.asset_key, partition=None if key == UPDATE else key)
                event = dg.DagsterEvent.build_asset_materialization_planned_event(
                    LAND_PENDING, LAND_AND_DERIVE, planned
                )
                instance.report_dagster_event(event, run_id)
            yield done

    def _report_check(self, key: dg.AssetCheckKey, result: dg.AssetCheckResult) -> None:
        self.context.log_event(cast("Any", as_evaluation(key, result)))

    def _timer(self, seconds: float) -> Callable[[], bool]:
        until_ms = self.edges.now_ms() + seconds * 1000
        return lambda: self.edges.now_ms() < until_ms
