"""`offsetlake map`: the picture of a topic's coverage."""

from pathlib import Path

import click

from ...core.advice import command, counted
from ...core.errors import Refused
from ...core.landing.picture import LinkLook
from ...operate.status import find_instance
from ...orchestration.map import page
from ..show import find_topic, open_adapters, print_table, size_text, topic_argument
from ..terminal import ERRORS, OUT, progress

LOOKS = (LinkLook.LANDED, LinkLook.PLANNED, LinkLook.FAILED, LinkLook.LOST)


@click.command("map")
@topic_argument
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML file to look at in a browser.")
def coverage_map(topic: str, out: Path | None) -> None:
    """Draw what of TOPIC is landed and decoded, planned, failed or lost: in the terminal, or as an HTML file without network.

    \b
    Examples:
      offsetlake map flights
      offsetlake map flights --out flights.html
    """
    if out is not None and not out.name:
        raise Refused("--out is empty, expected the name of a file; nothing was written; say --out map.html")
    if out is not None and not out.absolute().parent.is_dir():
        raise Refused(
            f"cannot write the map to {out}: there is no folder {out.absolute().parent}; nothing was written; name another "
            "--out, or make that folder"
        )
    configured, adapters = find_topic(topic), open_adapters()
    with find_instance(adapters.settings.dagster_home) as instance, progress(f"reading {topic}"):
        picture, remark = page.read_picture(configured, adapters, instance)
    if out is not None:
        with progress(f"drawing {counted(len(picture.lengths), 'range')}"):
            page.write_page(picture, remark, adapters.now_ms(), out)
        OUT.print(
            f"{counted(len(picture.lengths), 'range')} of {topic} drawn in {out} ({size_text(out.stat().st_size)})",
            soft_wrap=True,
        )
    else:
        rows = [
            (
                page.name_of(line),
                page.bar(picture, line),
                *map(page.counts(picture, line).__getitem__, LOOKS),
                *(page.decoded(picture, line) or ()),
            )
            for line in picture.lines
        ]
        columns = ["", "from the first offset to the head", *(look.name.lower() for look in LOOKS)]
        print_table(f"coverage of {topic}", [*columns, *(page.DECODED_COLUMNS if picture.dead_letters else ())], rows)
        OUT.print(page.legend())
        if lost := page.lost_offsets(picture):
            OUT.print(f"{counted(lost, 'offset')} lost, also of landed ranges: {command('losses', topic)}", soft_wrap=True)
    if remark:
        ERRORS.print(remark, soft_wrap=True)
