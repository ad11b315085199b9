"""The picture of coverage for people, read from lake, broker and runs: as a page, and in characters.

The page is one HTML file that opens without network, for ever. Columns travel as one gzip stream in base64; the browser
unpacks them into typed arrays. docs/design/0008 says why. Invariant: the lake alone is enough for a picture; what the broker
would have added is missing, and that is said.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import dagster as dg

from ...core.errors import BrokerUnavailable, NoLeader, Refused, UnknownTopic, Violation
from ...core.landing.picture import CAUSES, UNDECODED, Line, LinkLook, Picture, draw_picture
from ...core.log.holes import Cause
from ...core.log.losses import all_losses
from ...resources import Adapters
from ...topics import Topic
from ..runs.moments import time_text
from ..runs.tries import read_tries

GLYPHS = {
    LinkLook.LANDED: "█",
    LinkLook.PLANNED: "░",
    LinkLook.FAILED: "✕",
    LinkLook.LOST: "▪",
    LinkLook.SKIPPED: "·",
    LinkLook.CLAIMED: "▫",
}
URGENCY = (
    LinkLook.LANDED,
    LinkLook.SKIPPED,
    LinkLook.PLANNED,
    LinkLook.CLAIMED,
    LinkLook.LOST,
    LinkLook.FAILED,
)  # the last one is shown
BAR_WIDTH = 50
DECODED_COLUMNS = ("decoded", "not decoded yet", "dead letters")
HERE = Path(__file__).parent
KINDS = {"d": "f64", "I": "u32", "B": "u8"}  # of columns, whose bytes a browser takes as they lie: little-endian
PARTS = {"CSS": "map.css", "MODEL": "model.js", "VIEW": "view.js", "CONTROLS": "controls.js"}


def bar(picture: Picture, line: Line) -> str:
    """Return a line as `BAR_WIDTH` characters, from its first offset to its head; the most urgent within each is shown."""
    span = slice(line.first, line.first + line.count)
    ends = [int(end) for end in accumulate(picture.lengths[span])]
    cells = [LinkLook.LANDED] * BAR_WIDTH
    start = 0
    for end, number in zip(ends, picture.looks[span], strict=True):
        look = LinkLook(number)
        if look is not LinkLook.LANDED:
            for cell in range(start * BAR_WIDTH // ends[-1], (end * BAR_WIDTH - 1) // ends[-1] + 1):
                cells[cell] = max(cells[cell], look, key=URGENCY.index)
        start = end
    return "".join(GLYPHS[cell] for cell in cells)


def counts(picture: Picture, line: Line) -> Counter[LinkLook]:
    """Return how many links of a line have each look."""
    return Counter(LinkLook(number) for number in picture.looks[line.first : line.first + line.count])


def decoded(picture: Picture, line: Line) -> tuple[int, int, int] | None:
    """Return how many ranges of a line are decoded, how many wait to be, and how many records were set aside.

    None for a topic that is not decoded.
    """
    if not picture.dead_letters:
        return None
    found = picture.dead_letters[line.first : line.first + line.count]
    aside = [int(each) for each in found if each >= 0]
    return len(aside), found.count(UNDECODED), sum(aside)


def lost_offsets(picture: Picture) -> int:
    """Return how many offsets are lost, in ranges that are landed too."""
    whole = (length for length, look in zip(picture.lengths, picture.looks, strict=True) if look == LinkLook.LOST)
    return int(sum(whole)) + sum(count for _, cause, count in picture.totals if CAUSES[cause] is Cause.LOST)


def name_of(line: Line) -> str:
    """Return the label of a line: its Kafka partition, and its generation if that is not the first."""
    return f"p {line.partition}" + (f" g{line.generation}" if line.generation else "")


def legend() -> str:
    """Return what the characters mean."""
    return ", ".join(f"{glyph} {look.name.lower()}" for look, glyph in GLYPHS.items())


def summary(picture: Picture) -> str:
    """Return the picture as markdown: the bars, then a table of how many ranges stand where."""
    if not picture.lines:
        return "nothing is planned yet"
    names = [name_of(line) for line in picture.lines]
    wide = max(map(len, names))
    drawn = "\n".join(f"{each:<{wide}} {bar(picture, line)}" for each, line in zip(names, picture.lines, strict=True))
    rows = [
        f"| {each} | "
        + " | ".join(
            f"{count:,}" for count in (*(counts(picture, line)[look] for look in LinkLook), *(decoded(picture, line) or ()))
        )
        + " |"
        for each, line in zip(names, picture.lines, strict=True)
    ]
    heads = [*(look.name.lower() for look in LinkLook), *(DECODED_COLUMNS if picture.dead_letters else ())]
    table = "\n".join([f"| ranges of | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads), *rows])
    return f"```text\n{drawn}\n```\n\n{legend()}\n\n{table}"


def read_picture(topic: Topic, adapters: Adapters, instance: dg.DagsterInstance) -> tuple[Picture, str]:
    """Read the picture of a topic, and a remark on what could not be read; empty where all could."""
    coverage = adapters.lake.coverage(topic.name)
    remark = ""
    try:
        marks = adapters.kafka(topic).read_watermarks(topic.name, topic.policy.isolation_level)
    except (BrokerUnavailable, NoLeader, UnknownTopic) as error:
        marks, remark = {}, f"From the lake alone: {error}"
    tried = read_tries(instance, topic.landing).tried
    decodings = None
    if topic.decode is not None:
        try:
            decodings = adapters.decodings.read(topic.name)
        except Violation as error:
            remark = f"{remark} What is decoded cannot be read: {error}".strip()
    return draw_picture(coverage, tried, marks, all_losses(coverage, marks), decodings=decodings), remark


def write_page(picture: Picture, remark: str, now_ms: int, file: Path) -> None:
    """Write the page in one step, so that the file is whole or as before; raise `Refused`."""
    scratch = file.with_name(f".offsetlake-map-{os.getpid()}")  # the file's own name may be as long as is allowed
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(page(picture, now_ms, remark))
        scratch.replace(file)
    except OSError as error:
        raise Refused(f"cannot write the map to {file}: {error.strerror}; nothing was written; name another --out") from error


def page(picture: Picture, now_ms: int, remark: str = "") -> str:
    """Return the HTML file; `remark` is said beside the title."""
    columns = {name: (KINDS[column.typecode], column.tobytes()) for name, column in _columns(picture).items()}
    at, layout = 0, {}
    for name, (kind, data) in columns.items():
        layout[name] = [kind, at, len(data)]
        at += len(data) + -len(data) % 8
    blob = b"".join(data + bytes(-len(data) % 8) for _, data in columns.values())
    document = {
        "topic": picture.topic,
        "made": time_text(now_ms),
        "remark": remark,
        "looks": [look.name.lower() for look in LinkLook],
        "causes": [cause.value for cause in CAUSES],
        "lines": [asdict(line) for line in picture.lines],
        "runs": picture.run_ids,
        "notes": picture.notes,
        "layout": layout,
        "bytes": len(blob),
    }
    parts = {
        "TITLE": f"coverage of {picture.topic}",
        "DOCUMENT": json.dumps(document).replace("<", "\\u003c"),
        "COLUMNS": base64.b64encode(gzip.compress(blob, 6, mtime=0)).decode(),
        **{name: (HERE / file).read_text() for name, file in PARTS.items()},
    }
    return re.sub(r"{{([A-Z]+)}}", lambda match: parts[match[1]], (HERE / "map.html").read_text())


def _columns(picture: Picture) -> dict[str, array[Any]]:
    """Return the columns as they travel: times as differences, which compress."""
    return {
        "lengths": picture.lengths,
        "oldest": _differences(picture.oldest_ms),
        "newest": _differences(picture.newest_ms),
        "landed": _differences(picture.landed_ms),
        "deadLetters": picture.dead_letters,
        "holeStart": array("d", (each[1] for each in picture.intervals)),
        "holeLength": array("d", (each[2] for each in picture.intervals)),
        "totalCount": array("d", (each[2] for each in picture.totals)),
        "runs": picture.runs,
        "holeOf": array("I", (each[0] for each in picture.intervals)),
        "totalOf": array("I", (each[0] for each in picture.totals)),
        "looks": picture.looks,
        "holeCause": array("B", (each[3] for each in picture.intervals)),
        "totalCause": array("B", (each[1] for each in picture.totals)),
    }


def _differences(column: Iterable[float]) -> array[float]:
    return array("d", (value - last for last, value in pairwise(chain([0.0], column))))
