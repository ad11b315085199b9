"""Retiring: which ranges Dagster need not show any more, so that it stays quick while the lake keeps everything.

Recomputed from the lake each time and remembered nowhere, so a lost Dagster database changes nothing. Invariant: what
is not landed, and not skipped, is never retired, and neither is any of the newest `max_keys` ranges.
"""

from ..log.coverage import Coverage
from ..offsets import OffsetRange

MAX_KEYS = 10_000  # partitions of an asset with which Dagster's pages stay at a second


def retired(coverage: Coverage, max_keys: int) -> frozenset[OffsetRange]:
    """Return the landed ranges that come before the newest `max_keys` of the plan log, and those that were skipped.

    It only ever grows while the log does, but for skipped ranges that are landed all the same: no key comes and goes.
    """
    ranges = coverage.log.count_before()[coverage.log.state.seq]
    return coverage.landed_among_first(max(0, ranges - max_keys)) | coverage.skipped()
