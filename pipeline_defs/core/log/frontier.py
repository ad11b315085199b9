"""The frontier document: sums of all plan steps before a given one, so that opening a topic reads only newer steps.

A range that may yet change, or has to be named, is kept with its step: it is read like newer ones and is in no sum.
Invariant: a document may be missing, old or deleted at any time, and decides nothing by itself; where it is no longer true it
is not used.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self
from zlib import crc32

from ..offsets import OffsetRange, Place
from .latency import Histogram
from .plan_step import Growth, Head, LogState, Look, PlanStep, Watermarks, ids_from, whole

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of the landed ranges of one Kafka partition: their number, rows, bytes, and holes by cause in offsets.

    `contents` is the sum of `content_of` over those with rows, `weight` of revision + 1; `last_landed_ms` is when the last one
    was landed (ms since 1970).
    """

    ranges: int = 0
    contents: int = 0
    weight: int = 0
    rows: int = 0
    bytes: int = 0
    last_landed_ms: int = 0
    holes: Mapping[str, int] = field(default_factory=dict)


CONTENTS = 2**64  # modulus of sums of contents


def content_of(offsets: OffsetRange, digest: str) -> int:
    """Return a number for a range and the sha256 of its file: sets of ranges with equal sums are taken to be equal."""
    return (crc32(offsets.key.encode()) << 32) ^ int(digest[:16], 16)


@dataclass(frozen=True, slots=True)
class Frontier:
    """Sums of all steps before step `seq`, except for the steps and ranges that are kept.

    `kept` maps each kept step to the number of ranges before it, and `open` those of which only some ranges are kept to their
    numbers, counted from 0; `ranges` is the number of ranges before `seq`. `ends` are the offsets at which the links of each
    place end, `growths` those of each generation, `opened` when each was opened (ms since 1970). `looks` at the broker are of
    the hour before the document was made, oldest first. `steps_sha256` is of the kept steps; the last one before `seq` is
    always kept.
    """

    topic: str
    seq: int
    steps_sha256: str
    made_at_ms: int
    state: LogState
    ranges: int
    kept: Mapping[int, int]
    ends: Mapping[Place, int]
    growths: Mapping[int, tuple[Growth, ...]]
    opened: Mapping[int, int]
    sums: Mapping[Place, Sums]
    waits: Histogram
    looks: tuple[Look, ...]
    open: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def sums_up(self, seq: int) -> bool:
        """Return whether the document has only sums of a step."""
        return seq < self.seq and seq not in self.kept

    def sums_up_any_of(self, seq: int) -> bool:
        """Return whether the document sums up any range of a step."""
        return self.sums_up(seq) or seq in self.open

    def kept_ranges(self, step: PlanStep) -> tuple[OffsetRange, ...]:
        """Return the ranges of a step that are not summed up."""
        ranges = () if self.sums_up(step.seq) else step.ranges
        return tuple(ranges[number] for number in self.open[step.seq]) if step.seq in self.open else ranges

    def to_json(self) -> bytes:
        """Encode the document; the same one gives the same bytes."""
        log_state = self.state
        document = {
            "format": FORMAT,
            "topic": self.topic,
            "seq": self.seq,
            "steps_sha256": self.steps_sha256,
            "made_at_ms": self.made_at_ms,
            "generation": log_state.generation,
            "cluster_id": log_state.cluster_id,
            "topic_id": log_state.topic_id,
            "former_ids": list(log_state.former_ids),
            "heads": {str(p): head.to_list() for p, head in sorted(log_state.heads.items())},
            "ranges": self.ranges,
            "kept": {str(seq): before for seq, before in sorted(self.kept.items())},
            "open": {str(seq): list(numbers) for seq, numbers in sorted(self.open.items())},
            "ends": {place_text(place): end for place, end in sorted(self.ends.items())},
            "growths": {
                str(generation): [{str(p): end for p, end in sorted(growth.items())} for growth in growths]
                for generation, growths in sorted(self.growths.items())
            },
            "opened_at_ms": {str(generation): at_ms for generation, at_ms in sorted(self.opened.items())},
            "landed": {place_text(place): asdict(sums) for place, sums in sorted(self.sums.items())},
            "latency": self.waits.to_document(),
            "looks": [
                [look.at_ms, look.generation, {str(p): [w.earliest, w.end] for p, w in sorted(look.watermarks.items())}]
                for look in self.looks
            ],
        }
        return (json.dumps({**document, "sha256": _digest(document)}, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self | None:
        """Decode a document; return none where it cannot be read, since everything works without it."""
        try:
            document = json.loads(data)
            if document.pop("sha256") != _digest(document) or document["format"] != FORMAT:
                return None
            growths = {
                int(generation): tuple({int(p): whole(end) for p, end in growth.items()} for growth in each)
                for generation, each in document["growths"].items()
            }
            generation = whole(document["generation"])
            heads = {int(p): Head(*map(whole, head)) for p, head in document["heads"].items()}
            former, seq, cluster_id = ids_from(document["former_ids"]), whole(document["seq"]), document["cluster_id"]
            return cls(
                topic=document["topic"],
                seq=seq,
                steps_sha256=document["steps_sha256"],
                made_at_ms=whole(document["made_at_ms"]),
                state=LogState(seq, generation, document["topic_id"], heads, former, growths[generation], cluster_id),
                ranges=whole(document["ranges"]),
                kept={int(seq): whole(before) for seq, before in document["kept"].items()},
                ends={place_of(text): whole(end) for text, end in document["ends"].items()},
                growths=growths,
                opened={int(generation): whole(at_ms) for generation, at_ms in document["opened_at_ms"].items()},
                sums={place_of(text): _sums(each) for text, each in document["landed"].items()},
                waits=Histogram.from_document(document["latency"]),
                looks=tuple(_look(each) for each in document["looks"]),
                open={int(seq): tuple(map(whole, numbers)) for seq, numbers in document["open"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return None


def digest_of(steps: Iterable[PlanStep]) -> str:
    """Return the digest of the documents of steps, in hex; the same steps give the same digest."""
    digest = hashlib.sha256()
    for step in steps:
        digest.update(step.to_json())
    return digest.hexdigest()


_NUMBERS = ("ranges", "contents", "weight", "rows", "bytes", "last_landed_ms")


def _digest(document: Mapping[str, Any]) -> str:
    """Return the digest of a document that does not have its own digest yet."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def place_text(place: Place) -> str:
    """Return a place as documents write it, e.g. `g0/p3`."""
    return f"g{place[0]}/p{place[1]}"


def place_of(text: str) -> Place:
    """Return the place of a text; raise `ValueError` for any other text."""
    generation, partition = text.removeprefix("g").split("/p")
    return int(generation), int(partition)


def _sums(document: Mapping[str, Any]) -> Sums:
    numbers = {name: whole(document[name]) for name in _NUMBERS}
    return Sums(**numbers, holes={str(cause): whole(count) for cause, count in document["holes"].items()})


def _look(document: Any) -> Look:
    at_ms, generation, marks = document
    return Look(whole(at_ms), whole(generation), {int(p): Watermarks(*map(whole, each)) for p, each in marks.items()})
