"""Updates of a latest table, beside delta-rs' merge of the same rows, in turns; and those of a table of very many keys.

The decoded ranges are written by pyarrow and committed as decoding commits them, so neither Kafka nor landing is needed.
Invariant: both come to the same records, or there is no time.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from ....adapters.tables.columns_of_table import FIELDS, text_of
from ....adapters.tables.latest_table import TREE
from ....core.log.manifest import Provenance
from ....core.offsets import OffsetRange
from ....core.tables.decoded_table import TREE as DECODED
from ....core.tables.decoding import Decoding
from ....core.tables.latest import Latest
from ....landing.staging_places import LocalStaging
from ....resources import Adapters
from ....tables.latest import LatestTools, update
from ...processes import NotMeasured
from ..measurement import SEED, Bench, Tell, repeat
from ..rounds import Taken, order_of, spread
from ..systems import attempt, fresh_adapters
from ..usage import take

TOPIC = "bench-upsert"
RANGES = 5  # of an update, each of a Kafka partition of its own, as are the keys in it
TOMBSTONES = 20  # one of so many rows
OURS, THEIRS = "update", "delta_rs"
WARM_UPS = 6  # the JVM compiles most of an update in the first ones
LARGE_ROUNDS = 3  # each of them warm: all rows went the same way as the table was made
FIRST_MS = 1_700_000_000_000
VALUE = pa.struct([("n", pa.int64()), ("state", pa.string()), ("trace", pa.string())])
NEWEST_FIRST = [(name, "descending") for name in ("generation", "partition", "offset")]


@dataclass(frozen=True, slots=True)
class UpsertState:
    """A latest table: of how many keys, and how many rows an update of it has."""

    keys: int
    rows: int


STATE = UpsertState(1_500_000, 700_000)  # of which delta-rs' merge takes two seconds on two cores
LARGE = UpsertState(10_000_000, 100_000)


class _Decoded:
    """A topic of which nothing exists but what is decoded of it: every key once, then random ones for each update."""

    def __init__(self, adapters: Adapters, state: UpsertState) -> None:
        self._decodings = adapters.decodings
        self._state = state
        self._chance = np.random.default_rng(SEED)
        self._ends = [0] * RANGES

    def put_all(self) -> list[Path]:
        """Decode every key once."""
        return [self._put(partition, np.arange(self._state.keys // RANGES)) for partition in range(RANGES)]

    def put_some(self) -> list[Path]:
        """Decode the rows of an update."""
        each = self._state.rows // RANGES
        return [self._put(partition, self._chance.integers(0, self._state.keys // RANGES, each)) for partition in range(RANGES)]

    def _put(self, partition: int, drawn: np.ndarray[Any, Any]) -> Path:
        """Decode a range of a Kafka partition, and return its file in the table."""
        lake, start = self._decodings.lake, self._ends[partition]
        end = self._ends[partition] = start + len(drawn)
        offsets, tried = OffsetRange(0, partition, start, end), attempt()
        staging = LocalStaging(tried.id, lake)
        path = staging.root / f"{offsets.key}.parquet"
        path.parent.mkdir(parents=True)
        rows = self._rows(offsets, drawn * RANGES + partition)
        pq.write_table(rows, path, compression="zstd", use_dictionary=False)
        part = staging.read_part(path)
        assert part is not None
        staged = staging.settle(part, offsets.key)
        said = Provenance(tried.id, tried.run_id, tried.code_version, "pyarrow", 0, None, FIRST_MS, 0.0)
        columns = self._decodings.keep(TOPIC, text_of(rows.schema))
        placed = self._decodings.place(Decoding(TOPIC, offsets, staged.sha256, "", "", staged, None, said, columns=columns))
        assert placed.decoded is not None
        if not self._decodings.commit([placed], self._decodings.read_ranges(TOPIC), FIRST_MS):
            raise NotMeasured(f"somebody else writes the decoded table of {TOPIC}")
        return Path(lake.store.url(f"{DECODED}/{TOPIC}/{placed.decoded.path}"))

    def _rows(self, offsets: OffsetRange, ids: np.ndarray[Any, Any]) -> pa.Table:
        count, numbers = len(ids), np.arange(offsets.start, offsets.end)
        keys = pc.binary_join_element_wise("customer", pc.utf8_lpad(pc.cast(pa.array(ids), pa.string()), 9, "0"), "-")
        ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * 32)
        traces = pa.StringArray.from_buffers(count, ends, pa.py_buffer(self._chance.bytes(16 * count).hex().encode()))
        states = pa.array(["created", "paid", "shipped"]).take(pa.array(numbers % 3))
        is_tombstone = pa.array((offsets.start > 0) & (numbers % TOMBSTONES == 0))
        values = pa.StructArray.from_arrays([pa.array(numbers), states, traces], fields=[*VALUE], mask=is_tombstone)
        same = {"topic": pa.scalar(TOPIC), "generation": pa.scalar(0, pa.int32())}
        columns = {
            **{name: pa.repeat(value, count) for name, value in same.items()},
            "partition": pa.repeat(pa.scalar(offsets.partition, pa.int32()), count),
            "offset": pa.array(numbers),
            "timestamp": pa.array((FIRST_MS + numbers) * 1000).cast(pa.timestamp("us", "UTC")),
            "key": keys,
            "value": values,
        }
        return pa.table(columns)


class DeltaState:
    """The same state as a Delta table below a folder, as users of delta-rs keep one: the winners of each batch, merged into it.

    It keeps no tombstones, so a record that comes late or again is not told from a new one: right only while ranges come in
    order.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def update(self, files: Sequence[Path]) -> None:
        """Merge Parquet files of decoded records into the table; the first ones become it."""
        winners = find_winners(files)
        if not DeltaTable.is_deltatable(str(self.folder)):
            write_deltalake(str(self.folder), winners.filter(pc.is_valid(winners["value"])))
            return
        merge = DeltaTable(str(self.folder)).merge(
            winners, "present.key = fresh.key", source_alias="fresh", target_alias="present"
        )
        merge = merge.when_matched_delete("fresh.value IS NULL").when_matched_update_all()
        merge.when_not_matched_insert_all("fresh.value IS NOT NULL").execute()

    def places(self) -> set[tuple[int, int]]:
        """Return Kafka partition and offset of each record of the table."""
        return places_of(DeltaTable(str(self.folder)).to_pyarrow_table(columns=["partition", "offset"]))


def find_winners(files: Sequence[Path]) -> pa.Table:
    """Find the latest record of each key: a merge takes one per key, and refuse two."""
    read = pa.concat_tables([pq.ParquetFile(file).read(columns=[*FIELDS]) for file in files])
    ordered = read.sort_by(NEWEST_FIRST)
    numbered = ordered.append_column("number", pa.array(range(len(ordered)), pa.int64()))
    first = numbered.group_by("key").aggregate([("number", "min")])
    return ordered.take(first["number_min"])


def places_of(shown: pa.Table) -> set[tuple[int, int]]:
    """Return Kafka partition and offset of each row."""
    return set(zip(shown["partition"].to_pylist(), shown["offset"].to_pylist(), strict=True))


def measure_upsert(bench: Bench, rounds: int, tell: Tell) -> dict[str, Any]:
    """Measure updates and delta-rs' merges of the same rows; return what ours take of theirs, round by round."""
    with _lake(bench, STATE, tell) as (decoded, tools, out):
        theirs = DeltaState(out / "delta")
        theirs.update(decoded.put_all())
        _update(tools)

        def turn(number: int) -> dict[str, Taken]:
            files = decoded.put_some()
            acts: dict[str, Callable[[], None]] = {OURS: partial(_update, tools), THEIRS: partial(theirs.update, files)}
            return {name: _measure(bench, acts[name]) for name in order_of([*acts], number)}

        turns = repeat(turn, TOPIC, rounds, tell, WARM_UPS)[WARM_UPS:]
        keys = _compare(out, theirs)

    def ratios(of: Callable[[Taken], float]) -> dict[str, Any]:
        return spread([of(taken[OURS]) / of(taken[THEIRS]) for taken in turns])

    return {
        "measured": (
            f"updates of {RANGES} ranges, {STATE.rows:,} rows in all, one of {TOMBSTONES} a tombstone, of a latest table of "
            f"{STATE.keys:,} keys; beside each delta-rs finds the winners of the same files with pyarrow and merges them"
        ),
        "keys": keys,
        "to_delta_rs": ratios(lambda each: each.seconds),
        "to_delta_rs_cpu": ratios(lambda each: each.cpu_seconds),
        **{name: _sum_up([taken[name] for taken in turns]) for name in (OURS, THEIRS)},
    }


def measure_large(bench: Bench, tell: Tell) -> dict[str, Any]:
    """Measure updates of a table of very many keys: their time, and the peak memory of this process and of Spark's."""
    with _lake(bench, LARGE, tell) as (decoded, tools, out):
        decoded.put_all()
        _update(tools)

        def turn(_: int) -> Taken:
            decoded.put_some()
            return _measure(bench, partial(_update, tools))

        taken = repeat(turn, f"{TOPIC}: {LARGE.keys:,} keys", LARGE_ROUNDS, tell, warm_ups=0)
        files = DeltaTable(str(out / TREE / TOPIC)).get_add_actions()["size_bytes"].to_pylist()
    return {
        "measured": f"updates of {RANGES} ranges, {LARGE.rows:,} rows in all, of a latest table of {LARGE.keys:,} keys",
        "table_bytes": sum(files),
        **_sum_up(taken),
    }


@contextmanager
def _lake(bench: Bench, state: UpsertState, tell: Tell) -> Iterator[tuple[_Decoded, LatestTools, Path]]:
    """Have a lake with one decoded topic while the context is open."""
    tell(f"{TOPIC}: making {state.keys:,} keys")
    out = bench.folder / "upsert"
    adapters = fresh_adapters(bench.adapters, out)
    adapters.check_lake()
    try:
        yield _Decoded(adapters, state), adapters.latest_tools(), out
    finally:
        shutil.rmtree(out)


def _measure(bench: Bench, act: Callable[[], None]) -> Taken:
    pa.default_memory_pool().release_unused()  # of whoever was before
    return take(act, bench.jvm_pid)


def _sum_up(taken: Sequence[Taken]) -> dict[str, Any]:
    return {each.name: spread([getattr(one, each.name) for one in taken]) for each in fields(Taken)}


def _update(tools: LatestTools) -> None:
    if not update(TOPIC, Latest(), attempt(), tools).has_committed:
        raise NotMeasured(f"an update of {TOPIC} found nothing to do")


def _compare(out: Path, theirs: DeltaState) -> int:
    """Count the keys of both, which must stand for the same records."""
    table = DeltaTable(str(out / TREE / TOPIC)).to_pyarrow_table(columns=["partition", "offset", "_deleted"])
    ours, found = places_of(table.filter(pc.invert(table["_deleted"]))), theirs.places()
    if ours != found:
        raise NotMeasured(f"updates of {TOPIC} came to {len(ours):,} keys, delta-rs to {len(found):,}, or to other records")
    return len(ours)
