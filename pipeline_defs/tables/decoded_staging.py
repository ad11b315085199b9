"""What decoding staged of a range: its decoding, and whether that may be committed.

Invariant: nothing here is visible to a reader, and nothing becomes so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..adapters.lake import parquet
from ..adapters.lake.lake import Lake
from ..adapters.store.remote_file import File
from ..adapters.tables.columns_of_table import text_of
from ..adapters.tables.decodings import Decodings, count_days
from ..core.advice import command
from ..core.decode.decoders import Decode
from ..core.log.coverage import Coverage
from ..core.log.manifest import Manifest, StagedFile
from ..core.offsets import OffsetRange
from ..core.steps import StepWatcher, no_step
from ..core.tables.days import EventTime
from ..core.tables.decoded_ranges import DecodedRanges
from ..core.tables.decoding import Decoding, verify_decoding
from ..landing.attempt import Attempt
from ..landing.staging_places import Landed, LocalStaging, Staging

if TYPE_CHECKING:
    from ..adapters.formats.spark_decoding import SparkDecoder

SHOWN = 3  # dead letters quoted in a message


@dataclass(frozen=True, slots=True)
class DecodeTools:
    """External systems of decoding, and its settings from defs.yaml."""

    decodings: Decodings
    decode: Decode
    decoder: Callable[[], SparkDecoder]
    now_ms: Callable[[], int]
    on_step: StepWatcher = no_step
    open_staging: Callable[[str, Lake], Staging] = LocalStaging

    @property
    def lake(self) -> Lake:
        """The lake that holds what is landed and what is decoded."""
        return self.decodings.lake


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """Input of every step of one attempt at decoding."""

    topic: str
    coverage: Coverage
    known: DecodedRanges
    attempt: Attempt
    tools: DecodeTools
    staging: Staging


@dataclass(frozen=True, slots=True)
class Batch:
    """One Spark job's outcome: the staged files of its ranges, the schemas used, the writer, and how long it took.

    `landed` are the files that it read, available while the batch is processed; `unfinished` are the ranges at which the job
    was stopped, with the reason.
    """

    landed: Landed
    decoded: Mapping[OffsetRange, parquet.PartFile | None]
    dead: Mapping[OffsetRange, parquet.PartFile | None]
    schemas: Mapping[str, str]
    writer: str
    seconds_per_row: float
    unfinished: Mapping[OffsetRange, str]


def describe(
    work: DecodeWork, manifest: Manifest, decoded: parquet.PartFile | None, dead: parquet.PartFile | None, batch: Batch
) -> Decoding:
    """Return the decoding of what was staged of a range, as its first revision."""
    tools, landed = work.tools, manifest.provenance
    sides = [name for name, side in tools.decode.sides.items() if side.registry]
    ids = _schema_ids((part.path for part in (decoded, dead) if part), sides)
    schemas = {name: text for name, text in batch.schemas.items() if name in ids or not name.rpartition(":")[2].isdigit()}
    keep = partial(tools.decodings.keep, work.topic)
    return Decoding(
        work.topic,
        manifest.offsets,
        manifest.digest,
        tools.decode.fingerprint_with(schemas),
        tools.decode.fingerprint,
        _staged(work, manifest, decoded, "decoded"),
        _staged(work, manifest, dead, "dead_letters"),
        work.attempt.provenance(
            batch.writer, landed.plan_seq, landed.topic_id, tools.now_ms(), batch.seconds_per_row * manifest.rows
        ),
        schema_ids=ids,
        error_classes=parquet.count_values(dead.path, "error_class") if dead else {},
        schemas={name: keep(text) for name, text in schemas.items()},
        columns=keep(text_of(parquet.read_schema(decoded.path))) if decoded else "",
        **_event_days(tools.decode.event_time, decoded),
    )


def _schema_ids(paths: Iterable[File], sides: Sequence[str]) -> dict[str, int]:
    """Count the rows of a range, dead letters included, by side and by the registry id that they were written with."""
    ids: Counter[str] = Counter()
    for path in paths:
        for side in sides:
            counts = parquet.count_values(path, f"{side}_schema_id")
            ids.update({f"{side}:{number}": rows for number, rows in counts.items()})
    return dict(sorted(ids.items()))


def _event_days(event_time: EventTime | None, decoded: parquet.PartFile | None) -> dict[str, Any]:
    if event_time is None:
        return {}
    if decoded is None:
        return {"event_time": event_time.text}
    days, first, last = count_days(decoded.path, event_time)
    return {"event_time": event_time.text, "event_days": days, "first_event_ms": first, "last_event_ms": last}


def find_violations(work: DecodeWork, ours: Decoding, manifest: Manifest, batch: Batch) -> list[str]:
    """Return why a staged range may not be committed: its source is not what was landed, a violation, or the budget."""
    landed = batch.landed.get(manifest.offsets)
    if landed is None:  # it has no rows
        return []
    where, dead = manifest.offsets.text(work.topic), batch.dead.get(manifest.offsets)
    if not landed.is_of(manifest):
        torn = f"range {where}: the landed file does not have the digest {manifest.digest[:12]} of its manifest"
        return [f"{torn}; nothing was decoded; `{command('audit', work.topic)}` says more"]
    parts = landed, batch.decoded.get(manifest.offsets), dead
    stretches = (parquet.read_stretches(part.path) if part else () for part in parts)
    violations = verify_decoding(work.topic, manifest.offsets, *stretches)
    budget = work.tools.decode.budget
    if dead is not None and not budget.allows(ours.dead, manifest.rows):
        classes = ", ".join(f"{count} {name}" for name, count in ours.error_classes.items())
        first = "; ".join(f"offset {offset}: {error}" for offset, error in parquet.read_errors(dead.path, SHOWN))
        violations.append(
            f"range {where}: {ours.dead} of {manifest.rows} records cannot be decoded ({classes}), the budget is "
            f"{budget.records} and {budget.share:.2%}; nothing became visible; first {first}; mend the decoder or raise "
            "`dead_letters` in defs.yaml, then decode again"
        )
    return violations


def _staged(work: DecodeWork, manifest: Manifest, part: parquet.PartFile | None, name: str) -> StagedFile | None:
    return None if part is None else work.staging.settle(part, f"{manifest.offsets.key}.{name}")
