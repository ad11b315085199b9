"""A topic as the pipeline sees it: its policy from defs.yaml and the names that Dagster knows it by."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import dagster as dg

from .core.decode.decoders import Decode
from .core.landing.selection import MAX_KEYS
from .core.log.cutting import Policy
from .core.log.delivery import Delivery
from .core.tables.days import Days
from .core.tables.latest import Latest

TOPIC_TAG = "offsetlake/topic"
REDO_TAG = "offsetlake/redo"
LANDED_TAG = "offsetlake/landed_only"  # of a decoding run that passes over ranges which are not landed
DECODE_TAG = "offsetlake/decodes"
LATEST_TAG = "offsetlake/latest"

LANE_TAG = "offsetlake/lane"  # of a pulse's run, which takes the topics of that lane alone
DID_TAG, BEGAN, DID = "offsetlake/did", "began a job", "a job"  # of a pulse's run: how far it came
BROKEN_TOPICS = "broken_topics"  # the sensor that tells which defs.yaml cannot be used
LAND_PENDING = "land_pending"  # the sensor that plans all topics, and the job that lands what is pending of them

TOPIC = "{topic}"
GROUP = f"offsetlake.{TOPIC}"
NOTHING_LOST = "nothing_lost"
TIME_TO_LOSS = "time_to_loss"
PROGRESS = "progress"
TICK_CHECKS = (NOTHING_LOST, TIME_TO_LOSS, PROGRESS)  # of what is not landed, which ticks report


def raw_key(topic: str) -> dg.AssetKey:
    """Return the key of a topic's raw asset."""
    return dg.AssetKey(["raw", topic])


_FORBIDDEN = re.compile(r"[.-]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_WORDS = {".": "__dot_", "-": "__dash_", "_": "__line_"}
_LONGEST = 150


def slug_of(name: str) -> str:
    """Return a name for Dagster that no other topic has: `a_b` stays, `a-b` is `a__dash_b`, `a.b` is `a__dot_b`.

    A single `_` between letters stays, so `__` always begins one of these words and nothing is ambiguous. A name that gets
    too long is cut and ends in a digest.
    """
    slug = _FORBIDDEN.sub(lambda found: _WORDS[found[0]], name)
    if len(slug) <= _LONGEST:
        return slug
    return f"{slug[:_LONGEST].rstrip('_')}__cut_{hashlib.sha256(name.encode()).hexdigest()[:24]}"


def op_name(key: dg.AssetKey) -> str:
    """Return the name of the op that materialises one of a topic's assets, and of the pool in which its runs take turns.

    `raw__a_b`, `raw__a__dash_b`; no two assets share one, nor does a topic `x__decoded` clash with the decoded asset of `x`.
    """
    tree, topic = key.path
    return f"{tree}__{slug_of(topic)}"


@dataclass(frozen=True, slots=True)
class Duty:
    """One kind of work on a topic's ranges as Dagster knows it: what its runs materialise, by which job, under which tag."""

    tag: str
    topic: str
    asset_key: dg.AssetKey
    job: str

    @property
    def pool(self) -> str:
        """The pool in which its runs take turns."""
        return op_name(self.asset_key)

    @property
    def tags(self) -> dict[str, str]:
        """The tags by which its runs are found."""
        return {self.tag: self.topic}


@dataclass(frozen=True, slots=True)
class Topic:
    """Configuration of one topic; `component.py` describes the field that each part comes from.

    `bootstrap_servers` is none where the machine's setting holds; `decode`, `days` and `latest` are none where that is not
    derived. `group_name` names the consumer group; `{topic}` in it stands for the topic's name.
    """

    name: str
    policy: Policy
    bootstrap_servers: str | None = None
    on_loss: Literal["fail", "record"] = "fail"
    delivery: Delivery = Delivery.EFFECTIVELY_ONCE
    max_keys: int = MAX_KEYS
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)
    description: str | None = None
    decode: Decode | None = None
    days: Days | None = None
    latest: Latest | None = None
    group_name: str = GROUP

    @property
    def group(self) -> str:
        """The consumer group that mirrors what is landed."""
        return self.group_name.replace(TOPIC, self.name)

    @property
    def asset_key(self) -> dg.AssetKey:
        """The raw asset: the records as they were, one partition per range."""
        return raw_key(self.name)

    @property
    def decoded_key(self) -> dg.AssetKey:
        """The decoded asset: what the records say, with the raw asset's partitions."""
        return dg.AssetKey(["decoded", self.name])

    @property
    def days_key(self) -> dg.AssetKey:
        """The asset of event days, with a partition per day: the decoded rows by their event time."""
        return dg.AssetKey(["days", self.name])

    @property
    def latest_key(self) -> dg.AssetKey:
        """The asset of the latest record of each key."""
        return dg.AssetKey(["latest", self.name])

    @property
    def source_key(self) -> dg.AssetKey:
        """The external asset that stands for the Kafka topic itself."""
        return dg.AssetKey(["kafka", self.name])

    @property
    def losses_key(self) -> dg.AssetKey:
        """The external asset that stands for the topic's loss ledger."""
        return dg.AssetKey(["losses", self.name])

    @property
    def asset_keys(self) -> list[dg.AssetKey]:
        """Keys of all assets that the topic may have."""
        return [self.source_key, self.asset_key, self.losses_key, self.decoded_key, self.days_key, self.latest_key]

    def check_key(self, name: str) -> dg.AssetCheckKey:
        """Return the key of one of the topic's checks, which is of the raw asset or of the loss ledger."""
        return dg.AssetCheckKey(self.losses_key if name in {NOTHING_LOST, TIME_TO_LOSS} else self.asset_key, name)

    @property
    def ranges_name(self) -> str:
        """The name under which Dagster keeps the keys of its ranges."""
        return f"{self.name}__ranges"

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """The projection of the topic's plan log: one dynamic key per range."""
        return dg.DynamicPartitionsDefinition(name=self.ranges_name)

    @property
    def slug(self) -> str:
        """The topic's name in the characters that Dagster allows in names of ops, jobs and sensors; no two share one."""
        return slug_of(self.name)

    @property
    def backfill_job(self) -> str:
        """The job that launches backfills of ranges as people describe them."""
        return f"backfill_{self.slug}"

    @property
    def duties(self) -> list[Duty]:
        """Duties that the topic has: landing, and what its defs.yaml derives."""
        asked = ((True, self.landing), (self.decode is not None, self.decoding), (self.latest is not None, self.upserting))
        return [duty for is_asked, duty in asked if is_asked]

    @property
    def upserting(self) -> Duty:
        """The work of keeping the latest records."""
        return Duty(LATEST_TAG, self.name, self.latest_key, f"latest_{self.slug}")

    @property
    def landing(self) -> Duty:
        """The work of landing ranges."""
        return Duty(TOPIC_TAG, self.name, self.asset_key, f"land_{self.slug}")

    @property
    def decoding(self) -> Duty:
        """The work of decoding landed ranges."""
        return Duty(DECODE_TAG, self.name, self.decoded_key, f"decode_{self.slug}")
