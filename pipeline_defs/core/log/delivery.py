"""What a crash may do to the rows of a topic; and the claims of attempts and acceptances of people for single ranges.

Invariant: neither ever changes; the first of a range counts.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from ..offsets import OffsetRange
from .document import decode, encode


class Delivery(StrEnum):
    """What crashes and stale attempts may do to a row."""

    EFFECTIVELY_ONCE = "effectively_once"  # the manifest is a fence: every row is visible once
    AT_LEAST_ONCE = "at_least_once"  # no fence: each attempt publishes under its own name, a row may be visible twice
    AT_MOST_ONCE = "at_most_once"  # a range is claimed before it is read, and never read twice; a row may be missing


@dataclass(frozen=True, slots=True)
class Claim:
    """The document that names the one attempt which may read a range under `at_most_once`."""

    topic: str
    offsets: OffsetRange
    attempt: str
    run_id: str
    claimed_at_ms: int

    def to_json(self) -> bytes:
        """Encode the claim; the same claim gives the same bytes."""
        return encode(self)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Decode a claim; `where` names the object in the error."""
        advice = "its range is then read once more, and if it was landed before, nothing changes"
        return decode(cls, data, f"claim {where}", f"delete it: {advice}")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A person's record that the loss in a range or lost link is final.

    `lost` are the half-open offsets that were gone then; by the time the rest is landed more may be.
    """

    topic: str
    offsets: OffsetRange
    lost: tuple[int, int]
    accepted_by: str
    accepted_at_ms: int

    def to_json(self) -> bytes:
        """Encode the acceptance; the same acceptance gives the same bytes."""
        return encode(self)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Decode an acceptance; `where` names the object in the error."""
        return decode(cls, data, f"acceptance {where}", "delete it and accept the loss again")
