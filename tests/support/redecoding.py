"""Landed ranges without Kafka, and a decoder of them without Spark, for what decoding makes of its outcome; tables compacted.

What is landed, committed and published goes through the protocol's own functions; only the rows are made by pyarrow.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pipeline_defs.adapters.formats.spark_decoding import Decision
from pipeline_defs.adapters.lake import parquet
from pipeline_defs.adapters.lake.footer import canonicalize
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.parquet import conform
from pipeline_defs.adapters.tables.decodings import Decodings
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.holes import Cause, Interval
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.core.tables.compaction import CompactionVerdict
from pipeline_defs.core.tables.decoded_table import TREE
from pipeline_defs.core.tables.decoding import Budget, Decided, DecodeVerdict, Decoding
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.staging import stage_empty
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import read_settings
from pipeline_defs.tables import deleting
from pipeline_defs.tables.compaction import compact, compact_table
from pipeline_defs.tables.decoded_compaction import DecodedTable
from pipeline_defs.tables.decoded_staging import DecodeTools
from pipeline_defs.tables.decoding import decode
from pipeline_defs.tables.deleting import DropVerdict, plan_dropping
from pipeline_defs.topics import Topic
from tests.support.decoded import shown_places, table_files
from tests.support.fake_log import fake_tools, raw_table
from tests.support.strategies import EPOCH_MS, TAKEN_OVER, TOPIC, provenance, raw_row

KINDS = {"DOUBLE": pa.float64(), "INT": pa.int32()}  # by name in DDL; else BIGINT
Watch = Callable[..., None]
Pair = tuple[bytes | None, dict[str, Any] | None]  # a key and a value


class Killed(BaseException):
    """Ends an attempt at a step as SIGKILL would: nothing of it goes on."""


@dataclass(frozen=True)
class ArrowDecoder:
    """Reads JSON with whole numbers, or with any, as the column that `schema` says; adds `shift` to each, or a field."""

    schema: str = "id BIGINT"
    shift: int = 0
    writer: str = "pyarrow"

    def decide(self, files: Sequence[Path]) -> Decision:
        return Decision({})

    def stage_decoded(self, files: Sequence[Path], decision: Decision, folder: str, most_rows: int = 0) -> None:
        self._stage(files, Path(folder), is_good=True)

    def stage_dead_letters(self, files: Sequence[Path], decision: Decision, folder: str, most_rows: int = 0) -> None:
        self._stage(files, Path(folder), is_good=False)

    def _stage(self, files: Sequence[Path], folder: Path, *, is_good: bool) -> None:
        folder.mkdir(parents=True)
        for at, path in enumerate(files):
            raw = pq.ParquetFile(path).read(use_threads=False)
            pairs = self.read(raw)
            rows = raw.filter(pa.array([(pair is not None) == is_good for pair in pairs]))
            if not rows.num_rows:
                continue
            nothing = pa.array([None] * rows.num_rows, pa.int32())
            if is_good:
                keys, values = zip(*filter(None, pairs), strict=True)
                rows = rows.select(TAKEN_OVER).append_column("key", pa.array(keys, pa.binary()))
                rows = rows.append_column("value", pa.array(values, pa.struct(self.fields)))
            else:
                rows = rows.select([*TAKEN_OVER, "key", "value"]).rename_columns({"key": "raw_key", "value": "raw_value"})
                for name in ("side", "error_class", "error"):
                    rows = rows.append_column(name, pa.array(["json_mismatch"] * rows.num_rows))
            rows = rows.append_column("key_schema_id", nothing).append_column("value_schema_id", nothing)
            pq.write_table(rows, folder / f"part-{at:05d}.parquet", compression="zstd")

    @property
    def fields(self) -> dict[str, pa.DataType]:
        kind = next((each for name, each in KINDS.items() if f" {name}" in self.schema), pa.int64())
        return {"id": kind} | ({"more": pa.string()} if "more" in self.schema else {})

    def read(self, raw: pa.Table) -> list[Pair | None]:
        """Read key and value of each row; none is a dead letter."""
        more = {"more": "x"} if "more" in self.schema else {}
        pairs = zip(raw["key"].to_pylist(), self.numbers(raw), strict=True)
        return [None if number is None else (key, {"id": number, **more}) for key, number in pairs]

    def numbers(self, raw: pa.Table) -> list[float | None]:
        return [self._read(text) for text in raw["value"].to_pylist()]

    def _read(self, text: bytes) -> float | None:
        number = json.loads(text)["id"]
        return None if isinstance(number, float) and "DOUBLE" not in self.schema else number + self.shift


@dataclass(frozen=True)
class OffsetDecoder(ArrowDecoder):
    """Decodes a row to its offset, whatever its value is; those with an odd one are dead letters, until it is mended."""

    is_mended: bool = False

    def numbers(self, raw: pa.Table) -> list[float | None]:
        return [offset if self.is_mended or not offset % 2 else None for offset in raw["offset"].to_pylist()]


@dataclass
class LandedTopic:
    """A topic whose ranges are landed and decoded in this process, each time by who knows nothing yet."""

    root: Path

    @property
    def lake(self) -> Lake:
        return Lake(str(self.root))

    def land(self, offsets: OffsetRange, values: Sequence[bytes], revision: int = 0) -> Manifest:
        return land_rows(self.lake, offsets, values, revision)

    def decode(
        self, *ranges: OffsetRange, by: ArrowDecoder | None = None, redo: bool = False, watch: Watch | None = None
    ) -> list[DecodeVerdict]:
        """Decode ranges in an attempt of its own, which tells `watch` its steps."""
        return decode_by(by or ArrowDecoder(), self.lake, ranges, redo=redo, watch=watch)

    def outcome(self, offsets: OffsetRange, by: ArrowDecoder | None = None, *, redo: bool = False) -> Decided:
        """Decode a range; return how that ended."""
        (verdict,) = self.decode(offsets, by=by, redo=redo)
        return verdict.outcome

    @property
    def adapters(self) -> Adapters:
        return Adapters(read_settings({"OFFSETLAKE_LAKE": str(self.root)}, self.root))

    @property
    def topic(self) -> Topic:
        return Topic(TOPIC, Policy(), decode=Decode())

    @property
    def due(self) -> list[OffsetRange]:
        lake = self.lake
        return Decodings(lake).read_ranges(TOPIC).find_due(lake.coverage(TOPIC))

    @property
    def known(self) -> Mapping[OffsetRange, Decoding]:
        return Decodings(self.lake).read(TOPIC)

    def shown(self, tree: str) -> list[int]:
        """The offsets of the table's decoded rows, or of its dead letters."""
        return [offset for _, offset in shown_places(self.lake, TOPIC, is_dead=tree == "dead_letters")]

    def table(self) -> DeltaTable:
        """The decoded table as delta-rs reads it."""
        return DeltaTable(f"{self.root}/{TREE}/{TOPIC}")

    def path(self, offsets: OffsetRange) -> Path:
        return self.root / Decodings(self.lake).read_ranges(TOPIC).path_of(offsets)

    def values(self, offsets: OffsetRange) -> list[int]:
        return [value["id"] for value in pq.ParquetFile(self.path(offsets)).read()["value"].to_pylist()]

    def unnamed(self) -> list[str]:
        """The files of the table's folder that no version names."""
        named = {Path(each).name for each in table_files(self.lake, TOPIC)}
        named |= {Path(each).name for each in table_files(self.lake, TOPIC, is_dead=True)}
        return [each.name for each in (self.root / TREE / TOPIC).glob("_dead=*/*.parquet") if each.name not in named]


def land_rows(lake: Lake, offsets: OffsetRange, values: Sequence[bytes], revision: int = 0) -> Manifest:
    """Land the first offsets of a range, with these values, as a revision; without any, as one that has lost all."""
    attempt, at = Attempt(f"land{revision}-{offsets.key}", "run", "test"), datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
    before = Lake(lake.store.root).read_manifests(TOPIC).get(offsets)
    gone = offsets.start + len(values)
    rows = [raw_row((TOPIC, *offsets.place, n), at, value) for n, value in enumerate(values, offsets.start)]
    if rows:
        staged = f"staging/{attempt.id}/part.parquet"
        path = Path(lake.store.root) / staged
        path.parent.mkdir(parents=True)
        pq.write_table(raw_table(rows), path)
        canonicalize(path)
        part = parquet.read_part(path)
        assert part is not None
        file, schema = parquet.staged_file(part, staged), part.schema
    else:
        file, schema = stage_empty(offsets.key, offsets, attempt, lake), before.schema if before else {}
    holes = (Interval(gone, offsets.end, Cause.COMPACTED),) if gone < offsets.end else ()
    who, drop = provenance(offsets, attempt.id), before.drop if before else None
    manifest = Manifest(TOPIC, offsets, file, holes, who, revision, schema=schema, drop=drop)
    assert lake.commit_manifest(manifest) == manifest and lake.publish(manifest) == manifest
    return manifest


def decode_by(
    decoder: ArrowDecoder, lake: Lake, ranges: Iterable[OffsetRange], *, redo: bool = False, watch: Watch | None = None
) -> list[DecodeVerdict]:
    """Decode ranges of a lake in an attempt of its own, which tells `watch` its steps; any record may be set aside."""
    by: Any = decoder
    config = Decode(value=Side(Format.JSON, decoder.schema), budget=Budget(100, 1.0))
    tools = DecodeTools(Decodings(lake), config, lambda: by, lambda: EPOCH_MS, watch or (lambda *_, **__: None))
    attempt = Attempt(f"d-{uuid.uuid4().hex[:6]}", "run", "code", redo=redo)
    return list(decode(TOPIC, [offsets.key for offsets in ranges], attempt, tools))


def decode_due(decoder: ArrowDecoder, lake: Lake) -> None:
    if due := Decodings(lake).read_ranges(TOPIC).find_due(lake.coverage(TOPIC)):
        decode_by(decoder, lake, due)


class Heard(list[dict[str, Any]]):
    """Watches for a step: keeps what each of it says, and does something at the first."""

    def __init__(self, step: str, then: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._step, self._then = step, then

    def __call__(self, step: str, **fields: Any) -> None:
        if step == self._step:
            self.append(fields)
            if len(self) == 1:
                self._then()


def stop_at(step: str, then: Callable[[], object] | None = None) -> Watch:
    """Watch for a step: kill the attempt there, or do something else meanwhile, the first time."""
    done: list[str] = []

    def watch(name: str, **_: object) -> None:
        if name == step and not done:
            if then is None:
                raise Killed
            done.append(name)
            then()

    return watch


class ArrowFiles:
    """Merges as `SparkFiles` does."""

    def merge(self, what: str, sources: Sequence[Path], columns: pa.Schema, order: Sequence[str], folder: str) -> None:
        Path(folder).mkdir(parents=True)
        rows = pa.concat_tables([conform(pq.read_table(source), columns) for source in sources])
        pq.write_table(rows.sort_by([(name, "ascending") for name in order]), Path(folder) / "part.parquet")


def compact_raw(lake: Lake, on_step: StepWatcher = no_step, at_ms: int = EPOCH_MS) -> list[CompactionVerdict]:
    """Compact the raw table as `offsetlake compact --all --apply` does."""
    tools = fake_tools(lake, None, None, files=ArrowFiles(), now_ms=lambda: at_ms, on_step=on_step)
    return list(compact(TOPIC, _new_attempt(), tools, 2**30, every=True))


def drop_range_files(lake: Lake, on_step: StepWatcher = no_step) -> list[DropVerdict]:
    """Drop range files as `offsetlake compact --drop-range-files-after 0d --apply` does."""
    return list(deleting.drop_range_files(TOPIC, lake, plan_dropping(TOPIC, lake, 2**53, 0), EPOCH_MS, on_step))


def compact_decoded(lake: Lake, topic: str) -> list[CompactionVerdict]:
    """Compact a decoded table to one file of rows and one of dead letters."""
    tools = fake_tools(lake, None, None, files=ArrowFiles())
    return list(compact_table(DecodedTable(topic, Decodings(lake)), _new_attempt(), tools, 2**30, every=True))


def _new_attempt() -> Attempt:
    return Attempt(f"compact-{uuid.uuid4().hex[:6]}", "run", "test")
