"""One try at landing ranges: who tries, and with what."""

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
from .staging_places import LocalStaging, Staging

if TYPE_CHECKING:
    from ..adapters.kafka.kafka import Kafka
    from ..adapters.spark.spark import Spark
    from ..adapters.spark.spark_files import SparkFiles


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at landing ranges: its unique id and its lineage.

    `redo` reads landed ranges again and compares; `on_change` says what becomes of one that reads otherwise by now.
    """

    id: str
    run_id: str
    code_version: str
    redo: bool = False
    on_change: Literal["keep", "replace"] = "keep"

    def provenance(self, writer: str, plan_seq: int, topic_id: str | None, at_ms: int, seconds: float) -> Provenance:
        """Return the lineage of what it has landed, or decoded, by `writer` in so many seconds."""
        return Provenance(self.id, self.run_id, self.code_version, writer, plan_seq, topic_id, at_ms, round(seconds, 3))


@dataclass(frozen=True, slots=True)
class Tools:
    """Everything outside that landing touches, and what the topic's defs.yaml says of losing and delivering.

    `on_step` is told each protocol step as it is passed; `has_raw_table` says whether a raw table names what is landed.
    `group` is the consumer group that mirrors what is landed.
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
    """What every step of one attempt is given: the topic, the lake as it was at the beginning, who tries, with what, where."""

    topic: str
    coverage: Coverage
    attempt: Attempt
    tools: Tools
    staging: Staging
    errors: list[OffsetlakeError] = field(default_factory=list)  # the first ends the topic, and no other one
    _table: list[RangeFiles] = field(default_factory=list, init=False)  # a cached property of Python 3.11 locks all topics

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Have an error of what is done in here end this topic alone, one that nobody foresaw included."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (told by its type: another topic's ranges are not to pay for it)
            self.errors.append(as_ours(error, f"topic {self.topic}"))

    @property
    def table_files(self) -> RangeFiles:
        """The files of the raw table as they were when first asked for; none where there is none that can be read."""
        if not self._table:
            files = RangeFiles(Snapshot())
            with suppress(BrokenTable):  # landing does not rest on it
                if self.tools.has_raw_table:
                    files = RangeFiles(raw_table_log(self.topic, self.tools.lake.store).read())
            self._table.append(files)
        return self._table[0]

    @property
    def shares_jobs_with(self) -> Hashable:
        """What is equal of topics whose ranges one Spark job may read; a topic read at most once shares no job.

        Under `at_most_once` what fails is abandoned: nobody else's failure may be the cause.
        """
        tools = self.tools
        is_alone = tools.delivery is Delivery.AT_MOST_ONCE
        return tools.spark.source, tools.isolation_level, self.topic if is_alone else None

    def revision_before(self, offsets: OffsetRange) -> int | None:
        """Return the revision of a range that stood when the run began, before it read anything; none where none did."""
        known = self.coverage.manifests.get(offsets)
        return known.revision if known else None
