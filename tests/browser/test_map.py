"""The map in a real browser: what a person reads off it, how it is drawn with a million ranges, and that it is one file."""

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from pipeline_defs.core.landing.picture import CAUSES, NOT_LANDED, UNDECODED, Line, LinkLook, Picture
from pipeline_defs.core.log.holes import Cause
from pipeline_defs.orchestration.map.page import page

pytestmark = pytest.mark.scenario

NOON_MS = 1_700_000_000_000
MINUTE_MS = 60_000
RUN = "a472a78a-ef49-4a2e-b2e2-5a080994fac6"
ROW = 40  # of view.js: how high a Kafka partition is
DEAD_AT = 40_000  # which range of a partition of many has a dead letter

COLOR_AT = """([at, y]) => {
  const pen = document.querySelector("#map").getContext("2d");
  return Array.from(pen.getImageData(offsetlake.view.place(at), y, 1, 1).data);
}"""
GREYS_AT = """([at, y]) => {
  const pen = document.querySelector("#map").getContext("2d"), grey = [];
  const pixels = pen.getImageData(offsetlake.view.place(at) + 6, y, 12, 14).data;
  for (let k = 0; k < pixels.length; k += 4) {
    grey.push(pixels[k + 3] < 128 ? 9 : Math.round((pixels[k] + pixels[k + 1] + pixels[k + 2]) / 96));
  }
  return grey.join();
}"""
COUNT_DRAWN = """() => {
  const { view } = offsetlake, pen = view.pen, count = {};
  let drawn = 0;
  for (const name of ["fillRect", "strokeRect", "fillText", "fill"]) {
    const own = pen[name].bind(pen);
    pen[name] = (...all) => { drawn++; return own(...all); };
  }
  const most = (steps, step) => {
    let worst = 0;
    for (let k = 0; k < steps; k++) { step(); drawn = 0; view.draw(); worst = Math.max(worst, drawn); }
    return worst;
  };
  count.zoom = most(60, () => view.zoom(0.8));
  count.whole = most(1, () => view.whole());
  view.axis = "time"; view.whole();
  count.time = most(60, () => view.zoom(0.8));
  view.axis = "offset"; view.whole();
  return count;
}"""
NOT_OURS = "willReadFrequently"  # what the browser advises for reading pixels back, which only these tests do


def add(picture: Picture, size: int, look: LinkLook, note: str = "", holes: tuple[tuple[int, int, int], ...] = ()) -> None:
    at = len(picture.lengths)
    is_landed = look is LinkLook.LANDED
    picture.lengths.append(size)
    picture.looks.append(look)
    picture.runs.append(1 if look in {LinkLook.LANDED, LinkLook.FAILED} else 0)
    picture.oldest_ms.append(NOON_MS + at * MINUTE_MS if is_landed else -1)
    picture.newest_ms.append(NOON_MS + (at + 1) * MINUTE_MS - 1000 if is_landed else -1)
    picture.landed_ms.append(NOON_MS + (at + 9) * MINUTE_MS if is_landed else -1)
    if note:
        picture.notes[at] = note
    picture.intervals += [(at, start, length, cause) for start, length, cause in holes]
    picture.totals += [(at, cause, length) for _, length, cause in holes]


def end_line(picture: Picture, partition: int, generation: int = 0, end: int | None = None) -> None:
    first = sum(line.count for line in picture.lines)
    count = len(picture.lengths) - first
    picture.lines.append(Line(generation, partition, 0, first, count, 0 if end else None, end))


def small() -> Picture:
    """Two generations; in the open one `0-0-400` has holes, `1-400-800` has failed, 300 offsets of 1 are lost."""
    picture = Picture("orders")
    picture.run_ids.append(RUN)
    add(picture, 50, LinkLook.LOST, "50 offsets not landed when its generation was closed; not accepted")
    end_line(picture, 0)
    add(picture, 400, LinkLook.LANDED, holes=((100, 40, 0), (200, 60, 2)))
    add(picture, 400, LinkLook.LANDED)
    add(picture, 200, LinkLook.PLANNED)
    end_line(picture, 0, 1, end=1500)
    add(picture, 400, LinkLook.LANDED)
    add(picture, 400, LinkLook.FAILED, "failed 4 times in a row")
    add(picture, 300, LinkLook.LOST, "300 offsets deleted by the broker before it was planned; not accepted")
    end_line(picture, 1, 1, end=1100)
    return picture


def large(ranges: int, partitions: int) -> Picture:
    """A billion offsets where a million ranges are asked for.

    One range in the middle of partition 3 has failed, one of partition 2 has a dead letter, and all of 4 waits to be decoded.
    """
    picture = Picture("clicks")
    picture.run_ids.append(RUN)
    each = ranges // partitions
    for partition in range(partitions):
        picture.lengths.extend([1000] * each)
        picture.looks.extend([LinkLook.LANDED] * each)
        picture.lines.append(Line(0, partition, 0, partition * each, each, 0, each * 1000))
    total = len(picture.lengths)
    picture.runs.extend([1] * total)
    for column, shift in ((picture.oldest_ms, 0), (picture.newest_ms, 999), (picture.landed_ms, 5000)):
        column.extend(NOON_MS + (at % each) * 1000 + shift for at in range(total))
    bad = 3 * each + each // 2
    picture.looks[bad] = LinkLook.FAILED
    picture.notes[bad] = "failed 3 times in a row"
    picture.dead_letters.extend([0] * total)
    picture.dead_letters[2 * each + DEAD_AT] = 1
    picture.dead_letters[4 * each : 5 * each] = array("d", [UNDECODED] * each)
    return picture


@pytest.fixture
def sheet(chromium: Browser) -> Iterator[Page]:
    """A page that holds against the map whatever goes wrong in it, and whatever it asks the network for."""
    sheet = chromium.new_page(viewport={"width": 1264, "height": 800})
    asked: list[str] = []
    wrong: list[str] = []
    sheet.on("request", lambda request: asked.append(request.url))
    sheet.on("pageerror", lambda error: wrong.append(str(error)))
    sheet.on("console", lambda said: wrong.append(said.text) if said.type in {"error", "warning"} else None)
    yield sheet
    sheet.close()
    assert [said for said in wrong if NOT_OURS not in said] == []
    assert all(url.startswith(("file:", "blob:")) for url in asked), "no network"


def show(sheet: Page, picture: Picture, folder: Path) -> None:
    file = folder / "map.html"
    file.write_text(page(picture, NOON_MS + 60 * MINUTE_MS))
    sheet.goto(file.as_uri())
    sheet.wait_for_selector("body[data-ready]", state="attached")
    frames(sheet)


def frames(sheet: Page) -> None:
    """Wait until the browser has painted."""
    sheet.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def facts(sheet: Page, line: int, offset: float) -> str:
    """Point at an offset of the n-th row and read what appears."""
    box = sheet.locator("#map").bounding_box()
    assert box is not None
    x = sheet.evaluate("(at) => offsetlake.view.place(at)", offset)
    sheet.mouse.move(box["x"] + x, box["y"] + line * ROW + ROW / 2)
    return sheet.locator("#tip").inner_text()


def color(sheet: Page, line: int, offset: float) -> tuple[int, ...]:
    """The colour in the middle of a bar."""
    return tuple(sheet.evaluate(COLOR_AT, [offset, line * ROW + 21])[:3])


def test_pointing_at_a_range_and_the_tables_tell_all_of_it(sheet: Page, tmp_path: Path) -> None:
    show(sheet, small(), tmp_path)
    assert facts(sheet, 0, 110).splitlines() == [
        "0-0-400-g1: landed",
        "offsets [0, 400), 400 of them",
        "rows 300",
        "without a row: 40 transaction_marker",
        "without a row: 60 compacted",
        "here: [100, 140) transaction_marker",
        "records of 2023-11-14 22:14:20 UTC to 2023-11-14 22:15:19 UTC",
        "landed 2023-11-14 22:23:20 UTC",
        f"run {RUN}",
    ]
    assert facts(sheet, 0, 900).splitlines() == ["0-800-1000-g1: planned", "offsets [800, 1,000), 200 of them"]
    assert facts(sheet, 0, 1200) == "partition 0: 500 offsets beyond the head, in no range yet"
    failed = facts(sheet, 1, 600).splitlines()
    assert failed[0] == "1-400-800-g1: failed" and failed[2:] == ["failed 4 times in a row", f"run {RUN}"]
    assert "300 offsets deleted by the broker before it was planned; not accepted" in facts(sheet, 1, 1000)
    starts = ((0, 400), (0, 800), (1, 400), (1, 800))  # landed, planned, failed, lost
    seen = [sheet.evaluate(GREYS_AT, [at, line * ROW + 14]) for line, at in starts]
    assert len(set(seen)) == 4, "in shades of grey too the pattern inside a bar tells any two states apart"

    # the tables say in words what the picture shows
    sums = [row.split("\t") for row in sheet.locator("#sums").inner_text().splitlines()]
    assert dict(zip(sums[0], sums[1], strict=True)) == {
        "partition": "0 of generation 1",
        "landed": "2",
        "planned": "1",
        "failed": "0",
        "lost": "0",
        "skipped": "0",
        "claimed": "0",
        "offsets without a row": "100",
        "head": "1,000",
        "broker's end": "1,500",
    }
    problems = sheet.locator("#problems").inner_text()
    assert [line.split("\t")[:2] for line in problems.splitlines()[1:]] == [
        ["1-400-800-g1", "failed"],
        ["1-800-1100-g1", "lost"],
        ["0-0-50", "lost"],
    ]


def test_what_waits_to_be_decoded_and_has_dead_letters_is_seen_and_told(sheet: Page, tmp_path: Path) -> None:
    """[R-90] Along the foot of the bar, range by range, in the facts and in the table."""
    picture = small()
    picture.dead_letters.extend([NOT_LANDED, 0, UNDECODED, NOT_LANDED, 7, NOT_LANDED, NOT_LANDED])
    show(sheet, picture, tmp_path)
    assert facts(sheet, 0, 350).splitlines()[-2] == "decoded"
    assert facts(sheet, 0, 600).splitlines()[-2] == "waits to be decoded"
    assert facts(sheet, 1, 100).splitlines()[-2] == "decoded, 7 dead letters"
    sums = [row.split("\t") for row in sheet.locator("#sums").inner_text().splitlines()]
    shown = [(row[0], row[7], row[8]) for row in sums]
    assert shown == [
        ("partition", "not decoded yet", "with dead letters"),
        ("0 of generation 1", "1", "0"),
        ("1 of generation 1", "0", "1"),
        ("0", "0", "0"),
    ]
    assert "decoded, with dead letters" in sheet.locator("#legend").inner_text()
    greys = [sheet.evaluate(GREYS_AT, [at, line * ROW + 14]) for line, at in ((0, 20), (0, 500), (1, 20))]
    assert len(set(greys)) == 3, "decoded, not yet, with dead letters: without colours too"


def test_generations_and_time_can_be_chosen_and_a_key_be_gone_to(sheet: Page, tmp_path: Path) -> None:
    show(sheet, small(), tmp_path)
    sheet.select_option("#generation", "0")
    frames(sheet)
    assert facts(sheet, 0, 10).startswith("0-0-50: lost")
    sheet.fill("#goto", "1-400-800-g1")
    sheet.press("#goto", "Enter")
    frames(sheet)
    assert sheet.locator("#said").inner_text() == "1-400-800-g1: failed"
    assert sheet.locator("#generation").input_value() == "1"
    assert facts(sheet, 1, 600).startswith("1-400-800-g1: failed")
    sheet.select_option("#axis", "time")
    frames(sheet)
    assert facts(sheet, 0, NOON_MS + 1.5 * MINUTE_MS).startswith("0-0-400-g1")
    sheet.fill("#goto", "9-0-1")
    sheet.press("#goto", "Enter")
    assert sheet.locator("#said").inner_text() == "no such range here"


def test_what_is_lost_of_a_landed_range_is_told(sheet: Page, tmp_path: Path) -> None:
    """Its colour is that of landed rows; the control is a landed range that Kafka has compacted."""
    picture = Picture("orders")
    picture.run_ids.append(RUN)
    add(picture, 10, LinkLook.LANDED, holes=((0, 4, CAUSES.index(Cause.COMPACTED)),))
    add(picture, 10, LinkLook.LANDED, "5 offsets deleted; accepted by me", ((0, 5, CAUSES.index(Cause.LOST)),))
    end_line(picture, 0)
    show(sheet, picture, tmp_path)
    told = sheet.locator("#problems").inner_text()
    assert "0-10-20" in told and "5 offsets deleted; accepted by me" in told and "0-0-10" not in told
    sheet.get_by_role("button", name="show").click()
    frames(sheet)
    assert sheet.locator("#said").inner_text() == "0-10-20: landed"


def test_one_failed_range_of_a_million_is_seen_told_and_reached(sheet: Page, tmp_path: Path) -> None:
    """A billion offsets on a thousand pixels: what is drawn depends on the pixels, and no range is too small to be seen.

    [R-90] Nor one with a dead letter; and a million that wait to be decoded are few rectangles.
    """
    show(sheet, large(1_000_000, 20), tmp_path)
    middle = 25_000_500
    red = color(sheet, 3, middle)
    assert red == (0xD5, 0x5E, 0x00) and color(sheet, 2, middle) == (0x00, 0x72, 0xB2)
    told = facts(sheet, 3, middle)
    assert "ranges under this pixel" in told and "1 failed" in told and "3-25000000-25001000: failed" in told
    drawn = sheet.evaluate(COUNT_DRAWN)
    visible_rows = 16
    assert max(drawn.values()) < visible_rows * 1200, drawn
    assert drawn["whole"] < visible_rows * 20, "what is all landed, or all waits, is one rectangle"
    dead = DEAD_AT * 1000 + 500
    foot = [tuple(sheet.evaluate(COLOR_AT, [dead, line * ROW + 28])[:3]) for line in (2, 3)]
    assert foot[1] == (0x00, 0x72, 0xB2) and foot[0] in {(0xF0, 0xE4, 0x42), (0, 0, 0)}, "the pattern, and the bar"
    assert "0 wait to be decoded, 1 have dead letters" in facts(sheet, 2, dead)
    sheet.click("#next")
    frames(sheet)
    assert sheet.locator("#said").inner_text() == "3-25000000-25001000: failed"
    assert facts(sheet, 3, middle).startswith("3-25000000-25001000: failed")
    wide = sheet.evaluate("() => offsetlake.view.place(25001000) - offsetlake.view.place(25000000)")
    assert wide > 200, "from a billion offsets to one range in a click"


def test_wheel_drag_and_keys_move_the_view(sheet: Page, tmp_path: Path) -> None:
    show(sheet, small(), tmp_path)
    view = "() => [offsetlake.view.from, offsetlake.view.to]"
    whole = sheet.evaluate(view)
    box = sheet.locator("#map").bounding_box()
    assert box is not None
    at = sheet.evaluate(f"() => offsetlake.view.valueAt({600})")
    sheet.mouse.move(box["x"] + 600, box["y"] + 20)
    sheet.mouse.wheel(0, -240)
    sheet.wait_for_function(f"() => offsetlake.view.to - offsetlake.view.from < {(whole[1] - whole[0]) * 0.6}")
    assert sheet.evaluate(f"() => offsetlake.view.valueAt({600})") == pytest.approx(at, abs=2), "zooms where it points"
    before = sheet.evaluate(view)
    sheet.mouse.down()
    sheet.mouse.move(box["x"] + 500, box["y"] + 20, steps=4)
    sheet.mouse.up()
    after = sheet.evaluate(view)
    assert after[0] > before[0] and after[1] - after[0] == pytest.approx(before[1] - before[0])
    sheet.focus("#map")
    sheet.keyboard.press("Home")
    assert sheet.evaluate(view) == whole
    sheet.keyboard.press("n")
    assert sheet.locator("#said").inner_text() == "1-400-800-g1: failed"
