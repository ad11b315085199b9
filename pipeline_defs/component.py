"""The KafkaTopic component: one defs.yaml is one topic, or all that match a pattern, with assets, checks and jobs.

A wrong key or value is refused when definitions load, with file, line and what was expected.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Self, cast

import dagster as dg
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from .adapters.system.project_folder import find_project
from .adapters.system.yaml_text import shown
from .core.landing.selection import MAX_KEYS
from .core.log.cutting import Policy
from .core.log.delivery import Delivery
from .core.login.client_properties import check_addresses
from .core.offsets import check_topic
from .orchestration.assets.catalog import TAG_VALUE
from .orchestration.assets.derived_config import DaysConfig, DecodeConfig, LatestConfig
from .orchestration.assets.yaml_model import LITERAL, WRITTEN, YamlModel, number, word
from .orchestration.topic_set import TopicPattern, check_pattern
from .settings import read_settings
from .topics import GROUP, TOPIC, Topic

OWNER = re.compile(r"team:.+|[^@\s]+@[^@\s]+\.[^@\s]+")
TAG_KEY = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")


def _check_start(start: object) -> object:
    if isinstance(start, str | int | float) and start not in {"earliest", "latest", "none"}:
        try:
            datetime.fromisoformat(start if isinstance(start, str) else "")
        except ValueError:
            raise ValueError(
                f"start {start!r} is not one of earliest, latest, none, or an ISO 8601 timestamp such as 2026-01-31T10:00:00Z"
            ) from None
    return start


def _optional(check: Callable[[str], str]) -> AfterValidator:
    return AfterValidator(lambda value: None if value is None else check(value))


def _check_servers(addresses: str) -> str:
    return addresses if "{{" in addresses else check_addresses(addresses)  # a template is rendered, and checked again then


def _check_owners(owners: list[str] | str) -> list[str]:
    """Refuse an owner that Dagster would refuse later, with a vaguer error."""
    if isinstance(owners, str):  # Dagster lets it through, as it could be a template
        raise ValueError(f"expected a list, `owners: [{shown(owners)}]`, found a text")
    for owner in owners:
        if not OWNER.fullmatch(owner):
            raise ValueError(f"owner {owner!r} is neither an email address nor team:<name>, such as team:data-platform")
    return owners


def _check_tags(tags: dict[str, str] | str) -> Mapping[str, str]:
    """Refuse a tag whose key or value Dagster would refuse later, or that is Offsetlake's own."""
    if isinstance(tags, str):
        raise ValueError("expected keys with their values, `tags: {team: data}`, found a text")
    for key, value in tags.items():
        if key.startswith(("dagster/", "offsetlake/")):
            raise ValueError(f"tag {key!r} begins as the tags of Dagster and Offsetlake themselves do; take another name")
        if not TAG_KEY.fullmatch(key) or not TAG_VALUE.fullmatch(value):
            raise ValueError(
                f"tag {key!r}: {value!r} is not one: key and value are letters, digits, `_`, `.` and `-`, at most 63, and "
                "the key may have one such prefix with a slash, as in example.org/domain"
            )
    return tags


def _check_group(group: str) -> str:
    plain = group.replace(TOPIC, "topic")
    if not re.fullmatch(r"[\w.:/-]{1,200}", plain, re.ASCII):
        raise ValueError(
            "expected a consumer group's name of letters, digits and `._:/-`, at most 200 of them, "
            f"with `{TOPIC}` where the topic's name is to stand"
        )
    return group


def _check_cluster(cluster_id: str) -> str:
    if not re.fullmatch(r"[\w.-]{1,200}", cluster_id, re.ASCII):
        raise ValueError(f"expected the id of a Kafka cluster, of letters, digits and `._-`, found {shown(cluster_id)}")
    return cluster_id


class KafkaTopic(dg.Component, YamlModel):
    """Lands one Kafka topic, or each that matches a pattern, as a Dagster asset with one partition per offset range."""

    topic: Annotated[str | None, WRITTEN, _optional(check_topic)] = Field(
        default=None, description="Kafka topic name; quoted, where YAML reads something else: '123'"
    )
    topics: Annotated[str | None, LITERAL, _optional(check_pattern)] = Field(
        default=None,
        min_length=1,
        description=r"in place of `topic`: a regular expression, such as 'orders\..*'; each topic of the cluster whose whole "
        "name it matches is landed, new ones too, with the settings of this file; one that has a defs.yaml of its own is not "
        "among them",
    )
    exclude: Annotated[str | None, LITERAL, _optional(check_pattern)] = Field(
        default=None, min_length=1, description="a regular expression: which of `topics` are left out"
    )
    bootstrap_servers: Annotated[str | None, WRITTEN, _optional(_check_servers)] = Field(
        default=None, min_length=1, description="brokers of this topic; by default OFFSETLAKE_BOOTSTRAP_SERVERS"
    )
    cluster_id: Annotated[str | None, LITERAL, _optional(_check_cluster)] = Field(
        default=None, description="the Kafka cluster's id, to be set where the topic has moved: another cluster is refused"
    )
    records_per_range: Annotated[int | str, number(1, 2**31 - 1, "auto")] = Field(
        default="auto", description="offsets per range; auto sizes it toward target_file_bytes in powers of two"
    )
    target_file_bytes: Annotated[int, number(1, 2**40)] = Field(
        default=128 * 1024 * 1024, description="bytes on the broker that an `auto` range aims at, and bytes of a compacted file"
    )
    max_age_seconds: Annotated[float, number(0, 10**9)] = Field(
        default=60, description="a tail shorter than records_per_range is planned once an unplanned record has waited so long"
    )
    start: Annotated[str, WRITTEN, BeforeValidator(_check_start)] = Field(
        default="earliest",
        description="where a topic without a plan log begins: earliest, latest, an ISO 8601 timestamp, or none (refuse)",
    )
    isolation_level: Annotated[str, WRITTEN, word("read_committed", "read_uncommitted")] = Field(
        default="read_committed", description="whether records of open and aborted transactions are left out"
    )
    order: Annotated[str, WRITTEN, word("oldest_first", "newest_first")] = Field(
        default="oldest_first", description="which of the ranges that wait are landed first"
    )
    on_loss: Annotated[str, WRITTEN, word("fail", "record")] = Field(
        default="fail",
        description="a planned range whose beginning the broker deleted: fail until a person accepts the loss, or record it",
    )
    delivery: Annotated[str, WRITTEN, word(*Delivery)] = Field(
        default=Delivery.EFFECTIVELY_ONCE.value,
        description="what crashes may do to rows: effectively_once, at_least_once (doubles) or at_most_once (abandons)",
    )
    budget: Annotated[int, number(1, 10_000)] = Field(default=200, description="ranges that one planning step may add")

    max_keys: Annotated[int, number(1, 100_000)] = Field(
        default=MAX_KEYS,
        description="partitions that Dagster shows, the newest; older ones, once landed, are retired to the lake alone",
    )
    group: Annotated[str, WRITTEN, AfterValidator(_check_group)] = Field(
        default=GROUP,
        description="the consumer group that shows how far landing is; `{topic}` stands for the topic's name, and two lakes "
        "over one cluster need two names",
    )
    owners: Annotated[list[str], WRITTEN, AfterValidator(_check_owners)] = Field(
        default=[], description="whose the topic is: email addresses, or team:<name>; shown on its assets"
    )
    tags: Annotated[dict[str, str], WRITTEN, AfterValidator(_check_tags)] = Field(
        default={}, description="tags of its assets, to search and select by"
    )
    description: Annotated[str | None, LITERAL] = Field(
        default=None, min_length=1, description="what is in the topic, in Markdown; shown before what Offsetlake says of it"
    )

    decode: DecodeConfig | None = Field(
        default=None, description="how landed ranges are decoded into an asset of their own; not at all by default"
    )

    days: DaysConfig | None = Field(
        default=None, description="how decoded rows are counted by the day of their event; not at all by default"
    )

    latest: LatestConfig | None = Field(
        default=None, description="how the latest decoded record of each key is kept; not at all by default"
    )

    @model_validator(mode="after")
    def _names_topics(self) -> Self:
        if (self.topic is None) == (self.topics is None):
            found = "neither" if self.topic is None else "both"
            raise ValueError(f"expected `topic`, or `topics` with a pattern, found {found}")
        if self.topic is not None and self.exclude is not None:
            raise ValueError("expected `exclude` only beside `topics`, found it beside `topic`")
        return self

    @property
    def pattern(self) -> TopicPattern | None:
        """Pattern of the topics that the file stands for; none where it names one topic."""
        return TopicPattern(self.topics, self.exclude) if self.topics is not None else None

    def as_topic(self, project: Path | None = None, name: str | None = None) -> Topic:
        """Return the topic as the pipeline sees it; where the file has a pattern, the topic of this name.

        Paths that the file names are relative to the project's folder.
        """
        name = name or self.topic or str(self.pattern)
        start: str | int = self.start
        if self.start not in {"earliest", "latest", "none"}:
            moment = datetime.fromisoformat(self.start)
            start = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        policy = Policy(
            records_per_range=cast("int | Literal['auto']", self.records_per_range),
            target_file_bytes=self.target_file_bytes,
            max_age_seconds=self.max_age_seconds,
            start=start,
            isolation_level=cast("Literal['read_committed', 'read_uncommitted']", self.isolation_level),
            budget=self.budget,
            order=cast("Literal['oldest_first', 'newest_first']", self.order),
            cluster_id=self.cluster_id,
        )
        decode = self.decode.as_decode(project or find_project()) if self.decode else None
        days = self.days.as_days(name, decode) if self.days else None
        on_loss = cast("Literal['fail', 'record']", self.on_loss)
        return Topic(
            name,
            policy,
            self.bootstrap_servers,
            on_loss,
            Delivery(self.delivery),
            self.max_keys,
            owners=tuple(self.owners),
            tags=self.tags,
            description=self.description,
            decode=replace(decode, event_time=days.event_time) if decode and days else decode,
            days=days,
            latest=self.latest.as_latest(name, decode) if self.latest else None,
            group_name=self.group,
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the topic's definitions; the adapters come as a resource, so tests swap them.

        A pattern has none here: the file does not say which topics match, so the project's `build_defs` builds those.
        """
        root = context.project_root
        if self.pattern is not None:
            return dg.Definitions()
        from .orchestration.topic_defs import build_topic_defs  # late: commands read topics and build no definitions

        return build_topic_defs(self.as_topic(root), read_settings(project=root).lake)
