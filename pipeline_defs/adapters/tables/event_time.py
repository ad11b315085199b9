"""Event times of a decoded file: how many of its rows are of which day.

Invariant: every row is counted, once; one whose event time is null is of no day.
"""

from collections import Counter

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...core.tables.calendar import NO_DAY, SECONDS_A_DAY, day_of
from ...core.tables.decoded_table import EVENT_TIME
from ..store.remote_file import File, source

_MICROS = 1_000_000


def count_days(file: File) -> tuple[dict[str, int], int | None, int | None]:
    """Count the rows of each day in a decoded file, sorted; those without an event time are of no day.

    Return with it a moment that no event is before, and one that none is after (ms since 1970).
    """
    column = pq.ParquetFile(source(file), memory_map=True).read(columns=[EVENT_TIME]).column(EVENT_TIME)
    micros = pc.cast(column.drop_null(), "int64").to_numpy()
    numbers, counts = np.unique(micros // (SECONDS_A_DAY * _MICROS), return_counts=True)
    counted = Counter[str]({NO_DAY: column.null_count} if column.null_count else {})
    for number, rows in zip(numbers, counts, strict=True):
        counted[day_of(int(number))] += int(rows)
    days = dict(sorted(counted.items()))
    return (days, int(micros.min()) // 1_000, -(-int(micros.max()) // 1_000)) if len(micros) else (days, None, None)
