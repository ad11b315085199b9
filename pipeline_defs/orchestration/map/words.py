"""The picture in characters: a bar per Kafka partition and the counts, for terminals and for Dagster's pages."""

from collections import Counter
from itertools import accumulate

from ...core.landing.picture import CAUSES, UNDECODED, Line, LinkLook, Picture
from ...core.log.holes import Cause

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

    None of a topic that is not decoded.
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


def name(line: Line) -> str:
    """Return what a line is of."""
    return f"p {line.partition}" + (f" g{line.generation}" if line.generation else "")


def legend() -> str:
    """Return what the characters mean."""
    return ", ".join(f"{glyph} {look.name.lower()}" for look, glyph in GLYPHS.items())


def summary(picture: Picture) -> str:
    """Return the picture as markdown: the bars, then a table of how many ranges stand where."""
    if not picture.lines:
        return "nothing is planned yet"
    names = [name(line) for line in picture.lines]
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
