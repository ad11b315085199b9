"""Sums of decoded ranges, which can be added up; a compacted file has those of its ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..log.frontier import CONTENTS, content_of
from ..log.latency import Histogram, count_waits, waits_of
from ..log.manifest import StagedFile
from .days import DayFacts, add_days, days_of
from .decoding import Decoding


@dataclass(frozen=True, slots=True)
class DecodedSums:
    """Sums of decoded ranges: their number, rows, dead letters and more.

    `contents` is the sum of `content_of` over the landed files that they were decoded from, `configured` counts them by the
    settings that decoded them, `columns` are the digests of their columns, `days` the facts of each day by the event time
    that counted it. `waits` are of those never decoded again. Times are ms since 1970, none without any.
    """

    ranges: int = 0
    rows: int = 0
    dead: int = 0
    contents: int = 0
    configured: Mapping[str, int] = field(default_factory=dict)
    columns: frozenset[str] = frozenset()
    days: Mapping[str, Mapping[str, DayFacts]] = field(default_factory=dict)
    first_event_ms: int | None = None
    first_decoded_ms: int | None = None
    last_decoded_ms: int | None = None
    waits: Histogram = field(default_factory=lambda: count_waits(()))

    def outdated(self, fingerprint: str) -> int:
        """Return how many ranges were decoded by other settings than these."""
        return self.ranges - self.configured.get(fingerprint, 0)

    def __add__(self, other: DecodedSums) -> DecodedSums:
        """Return the sums of the ranges of both, which share none."""
        return DecodedSums(
            self.ranges + other.ranges,
            self.rows + other.rows,
            self.dead + other.dead,
            (self.contents + other.contents) % CONTENTS,
            Counter(self.configured) + Counter(other.configured),
            self.columns | other.columns,
            {
                text: add_days(self.days.get(text, {}), other.days.get(text, {}))
                for text in self.days.keys() | other.days.keys()
            },
            _least(self.first_event_ms, other.first_event_ms),
            _least(self.first_decoded_ms, other.first_decoded_ms),
            max((ms for ms in (self.last_decoded_ms, other.last_decoded_ms) if ms is not None), default=None),
            self.waits + other.waits,
        )


def sum_up(decodings: Iterable[Decoding]) -> DecodedSums:
    """Return the sums of decoded ranges."""
    found = list(decodings)
    events = (each.first_event_ms for each in found if each.first_event_ms is not None)
    decoded_ms = [each.provenance.landed_at_ms for each in found]
    return DecodedSums(
        len(found),
        sum(each.rows for each in found),
        sum(each.dead for each in found),
        sum(content_of(each.offsets, each.source) for each in found if each.rows + each.dead) % CONTENTS,
        Counter(each.configured for each in found),
        frozenset(each.columns for each in found if each.columns),
        days_of(found),
        min(events, default=None),
        min(decoded_ms, default=None),
        max(decoded_ms, default=None),
        count_waits(waits_of(first_decoded(found))),
    )


def first_decoded(decodings: Iterable[Decoding]) -> Iterator[tuple[StagedFile | None, int]]:
    """Yield the decoded file of each range that was never decoded again, and when it was decoded (ms since 1970)."""
    return ((each.decoded, each.provenance.landed_at_ms) for each in decodings if not each.revision)


def _least(*times: int | None) -> int | None:
    return min((ms for ms in times if ms is not None), default=None)
