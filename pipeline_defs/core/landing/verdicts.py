"""Verdicts: what became of one range in one attempt, and the pure verification that decides it.

Invariant: nothing becomes visible for a range that `verify_staged` has a violation for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ..log.holes import Missing
from ..log.manifest import Manifest, StagedFile
from ..log.plan_step import TopicIds, are_two
from ..offsets import OffsetRange, Stretches, find_misplaced, subtract_intervals


class Outcome(StrEnum):
    """How a range ended in an attempt."""

    LANDED = "landed"  # this attempt's manifest decided
    SUPERSEDED = "superseded"  # another attempt's manifest was there first
    ROLLED_FORWARD = "rolled_forward"  # a manifest was there, unpublished; this attempt published its file
    ALREADY_LANDED = "already_landed"  # nothing to do
    UNCHANGED = "unchanged"  # read again and compared: the same rows
    CHANGED = "changed"  # read again: other rows; the landed file stays
    REPLACED = "replaced"  # read again: other rows, which replaced the landed ones, as a person asked
    EXPIRED = "expired"  # could not be read again, Kafka no longer has it; the landed file matches its digest
    FAILED = "failed"  # not landed, or not compared with what is landed; nothing was changed

    @property
    def is_landed(self) -> bool:
        """Whether the range is landed and its file whole after this outcome."""
        return self is not Outcome.FAILED


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one range with its manifest, or with what was violated.

    Of a landed range `violations` are notes: what was found and mended. `is_unread` means that the broker itself said why the
    range cannot be read, which says nothing of other ranges. `is_compacted` means that a changed range differs only in rows
    that compaction has removed.
    """

    offsets: OffsetRange
    outcome: Outcome
    manifest: Manifest | None = None
    violations: tuple[str, ...] = ()
    is_unread: bool = False
    is_compacted: bool = False

    def __post_init__(self) -> None:
        if self.outcome.is_landed != (self.manifest is not None):
            raise ValueError(f"{self.outcome} of {self.offsets.key} with manifest {self.manifest}")


def failed(offsets: OffsetRange, *violations: str) -> Verdict:
    """Return the verdict of a range that failed."""
    return Verdict(offsets, Outcome.FAILED, violations=violations)


def violations_by_range(topic: str, offsets: OffsetRange, violations: Iterable[str]) -> list[str]:
    """Return the violations of a range, each naming it: those of a whole job name no range."""
    where = offsets.text(topic)
    return [each if where in each else f"range {where}: {each}" for each in violations]


def verify_staged(
    topic: str,
    offsets: OffsetRange,
    file: StagedFile | None,
    stretches: Stretches,
    missing: Missing,
    ids: tuple[TopicIds, TopicIds, TopicIds],
) -> list[str]:
    """Return every violation of a staged range; where there is none, it may be committed.

    `stretches` are the file's offsets: a row that repeats or goes backward begins a new stretch. `missing` is what
    `explain_holes` decided of offsets without a row.
    `ids` are the planned ones and those read before and after the scan.
    """
    where = offsets.text(topic)
    violations = []
    planned, before, after = ids
    if are_two(planned.cluster_id, before.cluster_id) or are_two(before.cluster_id, after.cluster_id):
        violations.append(
            f"range {where} was planned of cluster {planned.cluster_id}, read of {before.cluster_id} before the scan and "
            f"{after.cluster_id} after it: `bootstrap_servers` leads elsewhere"
        )
    elif before.topic_id != after.topic_id or planned.topic_id not in {None, before.topic_id}:
        violations.append(
            f"range {where} was planned from topic id {planned.topic_id}, read from {before.topic_id} before the scan and "
            f"{after.topic_id} after it: the topic was recreated"
        )
    rows = file.rows if file else 0
    found = sum(end - start for start, end in stretches)
    if rows != found:
        violations.append(f"range {where}: the footer says {rows} rows, the offset column has {found}")
    violations += find_misplaced(f"range {where}", offsets, stretches)
    violations += _unexplained(where, missing)
    gone = sum(hole.end - hole.start for hole in missing.holes)
    gone += sum(end - start for start, end in missing.unexplained)
    if rows + gone != len(offsets):
        violations.append(f"range {where}: {rows} rows + {gone} holes, expected {len(offsets)} offsets in all")
    return violations


def _unexplained(where: str, missing: Missing) -> list[str]:
    """Return a violation for each unexplained interval; of those that Kafka has no records for, the last says what to do."""

    def told(intervals: Iterable[tuple[int, int]]) -> list[str]:
        return [f"range {where}: no row for [{a}, {b}) and the broker's log does not explain it" for a, b in intervals]

    left_out = [f"{text}: it has records there, which the read left out" for text in told(missing.left_out)]
    gone = told(subtract_intervals(missing.unexplained, missing.left_out))
    if gone and missing.compacted_from is not None:
        gone[-1] += f"; Kafka's log begins at {missing.compacted_from} now: the next try says what of the range is gone"
    elif gone:
        gone[-1] += (
            "; likely the topic was compacted under an earlier `cleanup.policy`: `offsetlake explain ranges_failed` says how "
            "to land it then, or to leave it out"
        )
    return [*left_out, *gone]
