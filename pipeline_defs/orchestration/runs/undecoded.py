"""What of a topic is landed and not decoded: how much, since when, and what blocks it.

The sensor's tick, `status` and the progress check say it in the same words. Invariant: nothing is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...adapters.lake.lake import Lake
from ...core.landing.dispatch import NEVER_TRIED
from ...core.landing.progress import Turns
from ...core.log.coverage import Coverage
from ...core.offsets import OffsetRange
from ...core.tables.decoded_ranges import DecodedRanges
from ...resources import Edges
from ...topics import Topic
from .known import Known
from .moments import time_text
from .tries import ALL, Tries
from .waiting import DECODING, backing_off_text, pending_text


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
