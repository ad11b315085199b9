"""What waits and for what, in words: which run blocks work and since when, what is not decoded, how old an uncut tail is.

Every sensor's tick, the progress check and `status` say the same. Invariant: as long as something waits, there is a text.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...adapters.lake.lake import Lake
from ...core.landing.dispatch import NEVER_TRIED, Tried
from ...core.landing.progress import ActiveRun, Block, RunState, Turns
from ...core.log.coverage import Coverage
from ...core.offsets import OffsetRange
from ...core.tables.decoded_ranges import DecodedRanges
from ...resources import Edges
from ...topics import Topic
from .known import Known
from .moments import duration_text, time_text
from .tries import ALL, Tries

SHOWN_RUNS = 4
_SINCE = {
    RunState.NOT_STARTED: "created",
    RunState.QUEUED: "queued",
    RunState.STARTING: "starting",
    RunState.STARTED: "started",
    RunState.CANCELING: "being cancelled",
}


@dataclass(frozen=True, slots=True)
class Words:
    """The forms of a duty's verb that a text needs; `done` is none where nobody knows what a run has done before it ends."""

    doing: str
    done: str | None


LANDING = Words("landing", "landed")
DECODING = Words("decoding", "decoded")
UPDATING = Words("updating", None)


def pending_text(
    head: str, turns: Turns, words: Words, *, held: int, last_done_ms: int | None = None, postponed: str | None = None
) -> str:
    """Return what pending work waits for, and since when; `head` says what and how much it is.

    `held` of it active runs have. Without them it is `postponed` for that reason, or the next run takes it.
    """
    block = turns.find_block(last_done_ms)
    if block is not None:
        return f"{head}: {block_text(block, turns.slots, words)}"
    if held:
        return f"{head}, {held:,} in runs that are {words.doing} them"
    return f"{head}: {postponed or 'the next run takes them'}"


def block_text(block: Block, slots: int, words: Words) -> str:
    """Return what blocks pending work, and since when."""
    state = {RunState.STARTED: "at work", RunState.CANCELING: "being cancelled"}.get(block.run.state, _SINCE[block.run.state])
    text = f"run {block.run.run_id[:8]} of {block.run.job} is {state} since {time_text(block.run.since_ms)}"
    others = _runs_text(block.others)
    return (
        text
        + {
            "nothing done": f" and has {words.done} nothing yet" if words.done else "",
            "start": "",
            "daemon": ": Dagster's daemon, which would start it, is silent; start Dagster (`dagster dev`)",
            "slots": f": {len(block.others)} of {slots} run slots are taken by {others}"
            if slots
            else ": dagster.yaml lets no run start, `max_concurrent_runs` is 0",
            "queue": f": its turn comes after {others}" if others else "",
        }[block.why]
    )


def backing_off_text(pending: Iterable[Tried], now_ms: int, of_all: Tried = NEVER_TRIED) -> str | None:
    """Return when the next of what is pending, and has failed, is tried again; none where something may be asked for now.

    `of_all` is how the last tries went of all that was due at once: while it backs off, so does what has arrived since.
    """
    waits = [each.due_in_seconds(now_ms) for each in pending]
    first, whole = min(waits, default=0.0), of_all.due_in_seconds(now_ms)
    if not waits or max(first, whole) <= 0:
        return None
    if whole > first:
        return f"nothing of the topic could be done, and it is tried again in {duration_text(whole)}"
    return f"each has failed, and the first is tried again in {duration_text(first)}"


def tail_text(records: int, oldest_ms: int | None, max_age_seconds: float, now_ms: int) -> str:
    """Return how long records that no range has yet have waited, and at what age their range is cut."""
    age = "" if oldest_ms is None else f"the oldest for {duration_text(max(0.0, (now_ms - oldest_ms) / 1000))}, "
    verb = "records wait" if records != 1 else "record waits"
    return f"{records:,} {verb} for a full range, {age}cut at {duration_text(max_age_seconds)}"


def _runs_text(runs: Iterable[ActiveRun]) -> str:
    listed = list(runs)
    texts = [
        f"run {run.run_id[:8]} of {run.job} ({_SINCE[run.state]} since {time_text(run.since_ms)})"
        for run in listed[:SHOWN_RUNS]
    ]
    more = [f"{len(listed) - SHOWN_RUNS} more"] if len(listed) > SHOWN_RUNS else []
    return ", ".join([*texts, *more])


@dataclass(frozen=True, slots=True)
class Undecoded:
    """The landed ranges that are not decoded as they are landed now, by when they were landed, and who is at work on them.

    `tries` says what became of the tries of each, `turns` when a run that decodes has its turn.
    """

    due: Mapping[OffsetRange, int]
    decoded: DecodedRanges
    tries: Tries
    turns: Turns

    def text(self, now_ms: int) -> str:
        """Return what waits to be decoded, for what and since when; empty where nothing does."""
        if not self.due:
            return ""
        some = f"{len(self.due):,} range{'s wait' if len(self.due) > 1 else ' waits'}"
        attempts = [self.tries.tried[offsets].attempts for offsets in self.due if offsets in self.tries.tried]
        failed = (
            f" ({len(attempts):,} failed, up to {max(attempts)} times in a row: why is in the failed run)" if attempts else ""
        )
        return pending_text(
            f"{some} to be decoded since {time_text(min(self.due.values()))}{failed}",
            self.turns,
            DECODING,
            held=sum(offsets in self.tries.held for offsets in self.due),
            last_done_ms=self.decoded.sums.last_decoded_ms,
            postponed=backing_off_text([self.tries.tried.get(o, NEVER_TRIED) for o in self.due], now_ms, self.tries.of(ALL)),
        )


def read_due(topic: Topic, edges: Edges) -> list[OffsetRange]:
    """Read which landed ranges are to be decoded, in log order; none where the topic is not decoded."""
    if topic.decode is None:
        return []
    decoded = edges.decodings.read_ranges(topic.name)
    return decoded.find_due(with_undecoded(edges.lake.recent(topic.name), decoded, edges.lake))


def with_undecoded(coverage: Coverage, decoded: DecodedRanges, lake: Lake) -> Coverage:
    """Return a coverage that has all landed ranges that are not decoded: the one given, or the whole one."""
    return coverage if decoded.is_all_decoded(coverage) else lake.coverage(coverage.log.topic)


def read_undecoded(topic: Topic, coverage: Coverage, edges: Edges, known: Known) -> Undecoded:
    """Read what is landed and not decoded, and who is at work on it."""
    decoded = edges.decodings.read_ranges(topic.name)
    coverage = with_undecoded(coverage, decoded, edges.lake)
    due = {offsets: coverage.manifests[offsets].provenance.landed_at_ms for offsets in decoded.find_due(coverage)}
    return Undecoded(due, decoded, known.tries[topic.decoding], known.turns(topic.decoding))


def undecoded_text(topic: Topic, coverage: Coverage, edges: Edges, known: Known) -> str:
    """Return what of a topic waits to be decoded, for what and since when; empty where nothing does."""
    if topic.decode is None:
        return ""
    return read_undecoded(topic, coverage, edges, known).text(edges.now_ms())
