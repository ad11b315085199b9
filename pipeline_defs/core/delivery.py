"""Delivery: what a crash may do to the rows of a topic, and the claim that makes it at most once.

Invariant: a claim never changes; the first one of a range stands.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from .errors import BrokenManifest
from .offsets import OffsetRange

FORMAT = 1


class Delivery(StrEnum):
    """Says what crashes and stale attempts may do to a row."""

    EFFECTIVELY_ONCE = "effectively_once"  # the manifest is a fence: every row is visible once
    AT_LEAST_ONCE = "at_least_once"  # no fence: each attempt publishes under its own name, a row may be visible twice
    AT_MOST_ONCE = "at_most_once"  # a range is claimed before it is read, and never read twice; a row may be missing


@dataclass(frozen=True, slots=True)
class Claim:
    """Is the word of the one attempt that may read a range under `at_most_once`."""

    topic: str
    offsets: OffsetRange
    attempt: str
    run_id: str
    claimed_at_ms: int

    def to_json(self) -> bytes:
        """Encodes the claim; the same claim gives the same bytes."""
        document = {"format": FORMAT, "key": self.offsets.key, **asdict(self)}
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Claim:
        """Decodes a claim; `where` names the object in the error."""
        try:
            document = json.loads(data)
            if document.pop("format") != FORMAT:
                raise ValueError(f"expected format {FORMAT}")
            offsets = OffsetRange(**document.pop("offsets"))
            if document.pop("key") != offsets.key:
                raise ValueError(f"key is not {offsets.key}")
            return cls(offsets=offsets, **document)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BrokenManifest(
                f"claim {where} cannot be read: {error!r}; restore it from a backup of the lake, or delete it: its range "
                "is then read once more, and if it was landed before, nothing changes"
            ) from error
