"""Where ranges end: the unplanned offsets of a Kafka partition, cut at the multiples of a grid.

`planning.py` gives the input. The end is that of a reader at the topic's isolation level, or the offset that
a person skips to (`_cuts_before`); the grid is `records_per_range`, or for `auto` a power of two (`grid_of`); the tail is cut
too once the first record after the head has waited for `max_age_seconds` (`_waiting_since`), or with `--through-end`.
Invariant: the ranges tile from the head on, and none crosses the offset where Kafka's log ended when partitions were added
to the topic, a growth. A range may end inside a committed transaction, which the planner cannot see.
"""

from collections.abc import Iterator

from ..offsets import OffsetRange
from .plan_step import LogState


def cut_ranges(log_state: LogState, partition: int, end: int, grid: int, *, cut_tail: bool) -> Iterator[OffsetRange]:
    """Yield the ranges of a Kafka partition from its head up to an end.

    | a range ends at | |
    |---|---|
    | the next multiple of `grid` | unless one of these comes first |
    | where the partition's log ended at a growth | |
    | `end` | with `cut_tail`, as the tail has waited long enough or a person asks for it: else it waits to be a whole range |
    """
    head = log_state.heads[partition].offset
    log_ends = [growth[partition] for growth in log_state.growths if partition in growth]
    while head < end:
        cut = min([(head // grid + 1) * grid, *(each for each in log_ends if each > head)])
        if cut > end and not cut_tail:
            return
        cut = min(cut, end)
        yield OffsetRange(log_state.generation, partition, head, cut)
        head = cut
