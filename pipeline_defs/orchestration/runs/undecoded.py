"""What of a topic is landed and not decoded: how much, since when, and what blocks it.

The sensor's tick, `status` and the progress check say it in the same words. Invariant: nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from ...adapters.lake.lake import Lake
from ...core.landing.active import Turns
from ...core.landing.dispatch import NEVER_TRIED, Tried, choose_due
from ...core.log.coverage import Coverage
from ...core.offsets import OffsetRange
from ...core.tables.decoded_ranges import DecodedRanges
from ...resources import Edges
from ...topics import Topic
from .known import Known, read_known
from .moments import time_text
from .tries import ALL
from .waiting import DECODING, backing_off_text, pending_text


@dataclass(frozen=True, slots=True)
class Undecoded:
    """The landed ranges that are not decoded as they are landed now, by when they were landed, and who is at work on them.

    `held` says which active run is at a range, `tried` how often in a row it has failed, `of_all` the same of all at once.
    """

    due: Mapping[OffsetRange, int]
    decoded: DecodedRanges
    held: Mapping[OffsetRange, str]
    tried: Mapping[OffsetRange, Tried]
    turns: Turns
    of_all: Tried = NEVER_TRIED

    def choose(self, now_ms: int) -> list[OffsetRange]:
        """Choose what is to be decoded now, in log order."""
        return choose_due(self.due, self.held, self.tried, now_ms)

    def text(self, now_ms: int) -> str:
        """Return what waits to be decoded, for what and since when; empty where nothing does."""
        if not self.due:
            return ""
        some = f"{len(self.due):,} range{'s wait' if len(self.due) > 1 else ' waits'}"
        attempts = [tried.attempts for offsets in self.due if (tried := self.tried.get(offsets, NEVER_TRIED)).attempts]
        failed = (
            f" ({len(attempts):,} failed, up to {max(attempts)} times in a row: why is in the failed run)" if attempts else ""
        )
        return pending_text(
            f"{some} to be decoded since {time_text(min(self.due.values()))}{failed}",
            self.turns,
            DECODING,
            held=sum(offsets in self.held for offsets in self.due),
            last_done_ms=self.decoded.sums.last_decoded_ms,
            postponed=backing_off_text(self.due, self.tried, now_ms, self.of_all),
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


def read_undecoded(
    topic: Topic, coverage: Coverage, edges: Edges, instance: dg.DagsterInstance, known: Known | None = None
) -> Undecoded:
    """Read what is landed and not decoded, and who is at work on it; `known` is what Dagster knows, else that is read."""
    known = known or read_known(instance, [topic], edges.now_ms())
    tries = known.tries[topic.decoding]
    decoded = edges.decodings.read_ranges(topic.name)
    coverage = with_undecoded(coverage, decoded, edges.lake)
    due = {offsets: coverage.manifests[offsets].provenance.landed_at_ms for offsets in decoded.find_due(coverage)}
    return Undecoded(due, decoded, tries.held, tries.tried, known.active.turns(topic.decoding), tries.of(ALL))


def undecoded_text(
    topic: Topic, coverage: Coverage, edges: Edges, instance: dg.DagsterInstance, known: Known | None = None
) -> str:
    """Return what of a topic waits to be decoded, for what and since when; empty where nothing does."""
    if topic.decode is None:
        return ""
    return read_undecoded(topic, coverage, edges, instance, known).text(edges.now_ms())
