"""What stands to be lost: of each Kafka partition the oldest record that is not landed, and how long the broker keeps it.

The estimate is `core.log.expiry`'s; this reads what it needs of lake and broker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.advice import command
from ...core.landing.progress import find_lag
from ...core.log.coverage import Coverage
from ...core.log.expiry import FAIL_SHARE, WARN_SHARE, Exposure, kept_seconds, read_rates, read_retention, seconds_to_loss
from ...core.log.plan_step import Watermarks
from ...landing.auditing import Finding
from ...resources import Edges
from ...topics import Topic

UNBOUNDED_KEPT_SECONDS = 4 * 3600.0  # what alarms are a share of, where nothing says how long a record is kept


@dataclass(frozen=True, slots=True)
class Endangered:
    """One Kafka partition that has records which are not landed, and when the broker may delete them.

    `seconds` are left, `share` of the time for which a record is kept, from 0 to 1; both are none where nothing deletes them.
    """

    partition: int
    offset: int
    timestamp_ms: int | None
    seconds: float | None
    share: float | None


def read_endangered(topic: Topic, coverage: Coverage, marks: Mapping[int, Watermarks], edges: Edges) -> list[Endangered]:
    """Read what of a topic is not landed and since when; nothing where all is."""
    kafka = edges.kafka(topic)
    level = topic.policy.isolation_level
    retention = read_retention(kafka.read_config(topic.name))
    landed = {each.partition: each.landed for each in find_lag(coverage, marks)}
    # what the broker has deleted is lost, accepted or not, and can be deleted no more
    oldest = {p: max(landed[p], mark.earliest) for p, mark in marks.items()}
    waiting = {p: at for p, at in oldest.items() if at < marks[p].end}
    sizes = kafka.read_bytes_per_offset(topic.name, marks) if waiting and retention.bytes is not None else {}
    oldest_ms = kafka.read_timestamps(topic.name, waiting, level)
    now = edges.now_ms()
    found = []
    for partition, at in sorted(waiting.items()):
        mark = marks[partition]
        rates = read_rates(coverage.log.looks, partition, mark, landed[partition], now)
        exposed = Exposure(at, oldest_ms[partition], mark, sizes.get(partition, 0.0))
        kept = kept_seconds(retention, rates, exposed.bytes_per_offset) or UNBOUNDED_KEPT_SECONDS
        seconds = seconds_to_loss(retention, rates, exposed, now)
        share = None if seconds is None else min(1.0, seconds / kept)
        found.append(Endangered(partition, at, oldest_ms[partition], seconds, share))
    return found


def check_expiry(topic: Topic, endangered: Sequence[Endangered]) -> Finding:
    """Check that what is not landed will be kept for long enough; it is an error where it is very late."""
    late = [each for each in endangered if each.share is not None and each.share < WARN_SHARE]
    violations = tuple(
        f"{topic.name}/{each.partition}: offset {each.offset} is not landed and may be deleted in "
        f"{(each.seconds or 0.0) / 60:.1f} minutes, {each.share or 0.0:.0%} of the time that a record is kept; land it "
        f"(`{command('land', topic.name, '--pending')}`), or have the broker keep it for longer (retention.ms, retention.bytes)"
        for each in late
    )
    soonest = min((each.seconds for each in endangered if each.seconds is not None), default=None)
    facts = {"waiting_partitions": len(endangered), **({} if soonest is None else {"seconds_to_loss": round(soonest)})}
    is_error = any((each.share or 0.0) < FAIL_SHARE for each in late)
    concerns = tuple(f"{topic.name}/{each.partition}" for each in late)
    looked_at = f"{len(endangered)} Kafka partitions that wait"
    return Finding("time_to_loss", looked_at, violations, facts, concerns, is_warning=not is_error)
