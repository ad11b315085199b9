"""One try at landing ranges: who tries, and with what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .edges.lake import Lake
from .steps import StepWatcher, no_step

if TYPE_CHECKING:
    from .edges.kafka import Kafka
    from .edges.spark import Spark


@dataclass(frozen=True, slots=True)
class Attempt:
    """Is one try at landing ranges: its unique id and its lineage. `redo` reads landed ranges again and compares."""

    id: str
    run_id: str
    code_version: str
    redo: bool = False


@dataclass(frozen=True, slots=True)
class Tools:
    """Is everything outside that landing touches, and what the topic's defs.yaml says of reading and losing.

    `on_step` is told each protocol step as it is passed.
    """

    lake: Lake
    kafka: Kafka
    spark: Spark
    now_ms: Callable[[], int]
    isolation_level: str = "read_committed"
    on_loss: str = "fail"
    on_step: StepWatcher = no_step
