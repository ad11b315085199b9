"""What the picture is made of, read from lake, broker and Dagster's runs; and the file it is written to.

Invariant: the lake alone is enough for a picture; what the broker would have added is missing, and that is said.
"""

import os
from pathlib import Path

import dagster as dg

from ...core.errors import BrokerUnavailable, Refused, UnknownTopic, Violation
from ...core.landing.picture import Picture, draw_picture
from ...core.log.losses import all_losses
from ...resources import Edges
from ...topics import Topic
from ..runs.tries import read_tries
from .page import page


def read_picture(topic: Topic, edges: Edges, instance: dg.DagsterInstance) -> tuple[Picture, str]:
    """Read the picture of a topic, and what must be said beside it."""
    coverage = edges.lake.coverage(topic.name)
    remark = ""
    try:
        marks = edges.kafka(topic).read_watermarks(topic.name, topic.policy.isolation_level)
    except (BrokerUnavailable, UnknownTopic) as error:
        marks, remark = {}, f"From the lake alone: {error}"
    tried = read_tries(instance, topic.landing).tried
    decodings = None
    if topic.decode is not None:
        try:
            decodings = edges.decodings.read(topic.name)
        except Violation as error:
            remark = f"{remark} What is decoded cannot be read: {error}".strip()
    return draw_picture(coverage, tried, marks, all_losses(coverage, marks), decodings=decodings), remark


def write_page(picture: Picture, remark: str, now_ms: int, file: Path) -> None:
    """Write the page; the file is whole or as it was before. Raise `Refused`, for what is no file, a device say, too."""
    file = file.resolve()  # a link stays one
    if file.exists() and not file.is_file():
        raise Refused(f"cannot write the map to {file}: it is no file; nothing was written; name another --out")
    scratch = file.with_name(f".offsetlake-map-{os.getpid()}")  # beside the longest name that Kafka allows
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(page(picture, now_ms, remark))
        scratch.replace(file)
    except OSError as error:
        raise Refused(f"cannot write the map to {file}: {error.strerror}; nothing was written; name another --out") from error
