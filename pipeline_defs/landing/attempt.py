"""An attempt at landing ranges: its lineage and its tools."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..adapters.lake.lake import Lake
from ..adapters.tables.delta_log import raw_table_log
from ..core.errors import BrokenTable, OffsetlakeError, as_ours
from ..core.log.coverage import Coverage
from ..core.log.delivery import Delivery
from ..core.log.manifest import Provenance
from ..core.offsets import OffsetRange
from ..core.steps import StepWatcher, no_step
from ..core.tables.delta import Snapshot
from ..core.tables.raw_table import RangeFiles
from .landed_files import Digests
from .staging_places import LocalStaging, Staging

if TYPE_CHECKING:
    from ..adapters.kafka.kafka import Kafka
    from ..adapters.spark.spark import Spark
    from ..adapters.spark.spark_files import SparkFiles


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at landing ranges: its unique id and its lineage.

    `redo` reads landed ranges again and compares; `on_change` says what becomes of a range that has other rows now.
    """

    id: str
    run_id: str
    code_version: str
    redo: bool = False
    on_change: Literal["keep", "replace"] = "keep"

    def provenance(self, writer: str, plan_seq: int, topic_id: str | None, at_ms: int, seconds: float) -> Provenance:
        """Return the lineage of a range that it has landed, or decoded, by `writer` in so many seconds."""
        return Provenance(self.id, self.run_id, self.code_version, writer, plan_seq, topic_id, at_ms, round(seconds, 3))


@dataclass(frozen=True, slots=True)
class Tools:
    """External systems of a landing run, and the topic's settings for loss and delivery.

    `on_step` is called at each protocol step; `has_raw_table` says whether the topic has a raw table.
    `group` is the consumer group that mirrors the frontier.
    """

    lake: Lake
    kafka: Kafka
    spark: Spark
    files: SparkFiles
    group: str
    now_ms: Callable[[], int]
    isolation_level: str = "read_committed"
    on_loss: str = "fail"
    delivery: Delivery = Delivery.EFFECTIVELY_ONCE
    on_step: StepWatcher = no_step
    open_staging: Callable[[str, Lake], Staging] = LocalStaging
    has_raw_table: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Input of each step of one attempt: the topic, the lake as it was at the beginning, the attempt, its tools and staging."""

    topic: str
    coverage: Coverage
    attempt: Attempt
    tools: Tools
    staging: Staging
    errors: list[OffsetlakeError] = field(default_factory=list)  # the first ends this topic alone
    digests: Digests = field(init=False)  # one reader for all ranges: of a compacted file each would read all
    _table: list[RangeFiles] = field(default_factory=list, init=False)  # Python 3.11's cached_property would lock all topics

    def __post_init__(self) -> None:
        object.__setattr__(self, "digests", Digests(self.tools.lake))

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Let any error inside the context, even an unforeseen one, end this topic alone."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (told by its type: other topics must not fail by it)
            self.errors.append(as_ours(error, f"topic {self.topic}"))

    @property
    def table_files(self) -> RangeFiles:
        """The files of the raw table when first asked for; empty where there is no readable table."""
        if not self._table:
            files = RangeFiles(Snapshot())
            with suppress(BrokenTable):  # landing does not depend on it
                if self.tools.has_raw_table:
                    files = RangeFiles(raw_table_log(self.topic, self.tools.lake.store).read())
            self._table.append(files)
        return self._table[0]

    @property
    def shares_jobs_with(self) -> Hashable:
        """A key that is equal for topics whose ranges one Spark job may read.

        Under `at_most_once` a topic shares no job: what fails is abandoned, so no other topic may be the cause.
        """
        tools = self.tools
        is_alone = tools.delivery is Delivery.AT_MOST_ONCE
        return tools.spark.source, tools.isolation_level, self.topic if is_alone else None

    def revision_before(self, offsets: OffsetRange) -> int | None:
        """Return the newest revision of a range when the run began, before it read anything; none where there was none."""
        known = self.coverage.manifests.get(offsets)
        return known.revision if known else None
