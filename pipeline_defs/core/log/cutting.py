"""Where ranges end, their boundaries: what is not planned of a Kafka partition, cut at the multiples of a grid.

`planning.py` says the rest. The end is that of what a reader at the topic's isolation level sees, or the offset that
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
    | `end` | with `cut_tail`, as what is left has waited for long or a person says so: else it waits to be a whole range |
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
