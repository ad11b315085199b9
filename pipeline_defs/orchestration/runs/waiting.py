"""What waits and for what, in words: which run blocks work and since when, what is not decoded, how old an uncut tail is.

Every sensor's tick, the progress check and `status` say the same. Invariant: as long as something waits, there is a text.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dagster import DagsterRunStatus, RunRecord

from ...adapters.lake.lake import Lake
from ...core.landing.dispatch import NEVER_TRIED, Tried
from ...core.log.coverage import Coverage
from ...core.offsets import OffsetRange
from ...core.tables.decoded_ranges import DecodedRanges
from ...resources import Adapters
from ...topics import LAND_PENDING, Duty, Topic
from .known import Known
from .moments import duration_text, time_text
from .projection import is_run_of
from .tries import ALL, Tries

SHOWN_RUNS = 4
_AT_WORK = {DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING}
_STATES = {
    DagsterRunStatus.NOT_STARTED: "created",
    DagsterRunStatus.QUEUED: "queued",
    DagsterRunStatus.STARTING: "starting",
    DagsterRunStatus.STARTED: "started",
    DagsterRunStatus.CANCELING: "being cancelled",
}


def why_blocked(known: Known, duty: Duty, *, last_done_ms: int | None = None, done: str = "") -> str:
    """Return what keeps the pending work of a duty from being done: the run that should do it, what that waits for, since when.

    Empty where there is no such run, or one of them makes progress: work was done at `last_done_ms`, after it began. `done` is
    the word for that; empty where nobody knows what a run has done before it ends.
    """
    own = [each for each in known.active if each.dagster_run.job_name == LAND_PENDING or is_run_of(each.dagster_run, duty)]
    at_work = [each for each in own if each.dagster_run.status in _AT_WORK]
    starting = [each for each in own if each.dagster_run.status is DagsterRunStatus.STARTING]
    if not own or (at_work and last_done_ms is not None and last_done_ms >= min(map(_since_ms, at_work))):
        return ""
    first = [*at_work, *starting, *own][0]
    run = first.dagster_run
    state = "at work" if run.status is DagsterRunStatus.STARTED else _STATES[run.status]
    text = f"run {run.run_id[:8]} of {run.job_name} is {state} since {time_text(_since_ms(first))}"
    if at_work:
        return f"{text} and has {done} nothing yet" if done else text
    return text if starting else f"{text}{_why_queued(known)}"


def _why_queued(known: Known) -> str:
    if known.is_daemon_silent:
        return ": Dagster's daemon, which would start it, is silent; start Dagster (`dagster dev`)"
    taken = [each for each in known.active if each.dagster_run.status in {DagsterRunStatus.STARTING, *_AT_WORK}]
    if known.slots == 0:
        return ": dagster.yaml lets no run start, `max_concurrent_runs` is 0"
    others = ", ".join(map(_run_text, taken[:SHOWN_RUNS]))
    others += f", {len(taken) - SHOWN_RUNS} more" if len(taken) > SHOWN_RUNS else ""
    if 0 < known.slots <= len(taken):
        return f": {len(taken)} of {known.slots} run slots are taken by {others}"
    return f": its turn comes after {others}" if others else ""


def _run_text(record: RunRecord) -> str:
    run = record.dagster_run
    return f"run {run.run_id[:8]} of {run.job_name} ({_STATES[run.status]} since {time_text(_since_ms(record))})"


def _since_ms(record: RunRecord) -> int:
    """Return since when a run is in its state."""
    return int((record.start_time or record.update_timestamp.timestamp()) * 1000)


def pending_text(head: str, blocked: str, doing: str, *, in_progress: int, postponed: str | None = None) -> str:
    """Return what pending work waits for, and since when; `head` says what and how much it is, `blocked` what keeps it.

    `in_progress` counts what active runs are `doing` of it. Else it is `postponed` for that reason, or the next run takes it.
    """
    if blocked:
        return f"{head}: {blocked}"
    if in_progress:
        return f"{head}, {in_progress:,} in runs that are {doing} them"
    return f"{head}: {postponed or 'the next run takes them'}"


def backing_off_text(pending: Iterable[Tried], now_ms: int, of_all: Tried = NEVER_TRIED) -> str | None:
    """Return when the next of what is pending, and has failed, is tried again; none where something may be asked for now.

    `of_all` are the last tries of all that was due at once: while these back off, so does what has arrived since.
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


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Landed ranges that are not decoded as they are landed now, with when they were landed, and who is at work on them.

    `tries` says what became of the tries of each, `blocked` what keeps runs from decoding them.
    """

    due: Mapping[OffsetRange, int]
    decoded: DecodedRanges
    tries: Tries
    blocked: str

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
            self.blocked,
            "decoding",
            in_progress=sum(offsets in self.tries.in_progress for offsets in self.due),
            postponed=backing_off_text([self.tries.tried.get(o, NEVER_TRIED) for o in self.due], now_ms, self.tries.of(ALL)),
        )


def read_due(topic: Topic, adapters: Adapters) -> list[OffsetRange]:
    """Read which landed ranges are to be decoded, in log order; none where the topic is not decoded."""
    if topic.decode is None:
        return []
    decoded = adapters.decodings.read_ranges(topic.name)
    return decoded.find_due(with_undecoded(adapters.lake.recent(topic.name), decoded, adapters.lake))


def with_undecoded(coverage: Coverage, decoded: DecodedRanges, lake: Lake) -> Coverage:
    """Return a coverage with all landed ranges that are not decoded: the given one if it has them, else the whole one."""
    return coverage if decoded.is_all_decoded(coverage) else lake.coverage(coverage.log.topic)


def read_undecoded(topic: Topic, coverage: Coverage, adapters: Adapters, known: Known) -> Undecoded:
    """Read what is landed and not decoded, and who is at work on it."""
    decoded = adapters.decodings.read_ranges(topic.name)
    coverage = with_undecoded(coverage, decoded, adapters.lake)
    due = {offsets: coverage.manifests[offsets].provenance.landed_at_ms for offsets in decoded.find_due(coverage)}
    blocked = why_blocked(known, topic.decoding, last_done_ms=decoded.sums.last_decoded_ms, done="decoded")
    return Undecoded(due, decoded, known.tries[topic.decoding], blocked)


def undecoded_text(topic: Topic, coverage: Coverage, adapters: Adapters, known: Known) -> str:
    """Return what of a topic waits to be decoded, for what and since when; empty where nothing does."""
    if topic.decode is None:
        return ""
    return read_undecoded(topic, coverage, adapters, known).text(adapters.now_ms())
