"""OpenLineage events of landed ranges, through its own client, which reads its own `OPENLINEAGE_*` and `openlineage.yml`.

Sent by a thread of their own, after a range is landed. Invariant: whatever becomes of them, nobody waits for longer than
`finish` is told to, and nothing of landing fails: the lake has the same facts.
"""

from __future__ import annotations

import datetime
import logging
import queue
import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.manifest import Manifest

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent

NAMESPACE = "offsetlake"  # of jobs
PRODUCER = "https://pypi.org/project/offsetlake"
PATIENCE_SECONDS = 2.0  # at the end of a run, when its ranges are landed and reported
for _name in ("openlineage", "urllib3.connectionpool"):  # what was not sent is said once, by who asked for it
    logging.getLogger(_name).setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Landed:
    """Is a range that was landed, with what its manifest does not say: where it came from and where it lies.

    `job` is what Dagster calls the landing, `source` one broker, `host:port`; `data_url` is of the topic's folder in the lake.
    """

    manifest: Manifest
    job: str
    source: str
    data_url: str


@dataclass(frozen=True, slots=True)
class Unsent:
    """Is how many ranges were not told, and why."""

    ranges: int
    reason: str


class Sender:
    """Tells of landed ranges for the length of one run."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Landed | None] = queue.SimpleQueue()
        self._asked = self._sent = 0
        self._failure = ""
        self._thread: threading.Thread | None = None

    def landed(self, range_: Landed) -> None:
        """Has a range told; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, name="openlineage", daemon=True)
            self._thread.start()
        self._asked += 1
        self._queue.put(range_)

    def finish(self, patience_seconds: float = PATIENCE_SECONDS) -> Unsent | None:
        """Waits until all is told, for so long at most; none where all is, else what is not."""
        if self._thread is None:
            return None
        self._queue.put(None)
        self._thread.join(patience_seconds)
        left = self._asked - self._sent
        reason = self._failure or f"no answer within {patience_seconds:g} s"
        return Unsent(left, reason) if left or self._failure else None

    def _send(self) -> None:
        # the first failure ends it: a receiver that is down for one range is down for the next
        try:
            from openlineage.client import OpenLineageClient

            client = OpenLineageClient()
            while (range_ := self._queue.get()) is not None:
                _emit(client, range_)
                self._sent += 1
            client.close(PATIENCE_SECONDS)
        except (OSError, ValueError, TypeError, KeyError, ImportError, RuntimeError) as error:
            self._failure = f"{type(error).__name__}: {error}"


def _emit(client: OpenLineageClient, range_: Landed) -> None:
    for event in run_events(range_):
        client.emit(event)


def run_events(range_: Landed) -> list[RunEvent]:
    """Are the two events of a landed range: when its reading began, and when it was landed, with inputs and outputs."""
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.generated import (
        base_subset_dataset,
        dataset_version_dataset,
        input_statistics_input_dataset,
        output_statistics_output_dataset,
        parent_run,
        schema_dataset,
    )

    manifest, provenance = range_.manifest, range_.manifest.provenance
    part = base_subset_dataset.Partition(identifier=manifest.offsets.key, dimensions=_dimensions(manifest))
    condition = base_subset_dataset.PartitionSubsetCondition(partitions=[part])
    output_facets: dict[str, Any] = {
        "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=manifest.rows,
            size=manifest.file.bytes if manifest.file else 0,
            fileCount=1 if manifest.file else 0,
        ),
        "subset": base_subset_dataset.OutputSubsetOutputDatasetFacet(outputCondition=condition),
    }
    input_facets: dict[str, Any] = {
        "inputStatistics": input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=manifest.rows),
        "subset": base_subset_dataset.InputSubsetInputDatasetFacet(inputCondition=condition),
    }
    fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in manifest.schema.items()]
    facets: dict[str, Any] = {
        "schema": schema_dataset.SchemaDatasetFacet(fields=fields),
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=manifest.digest),
    }
    namespace, name = _place(range_.data_url)
    run_facets: dict[str, Any] = {}
    if _is_uuid(provenance.run_id):
        parent = parent_run.ParentRunFacet(
            run=parent_run.Run(runId=provenance.run_id), job=parent_run.Job(namespace=NAMESPACE, name=range_.job)
        )
        run_facets["parent"] = parent
    run_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{range_.data_url}/{manifest.offsets.key}/{provenance.attempt}")
    began_ms = provenance.landed_at_ms - round(1000 * provenance.seconds)
    return [
        RunEvent(
            eventType=state,
            eventTime=datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).isoformat(),
            run=Run(runId=str(run_id), facets=run_facets),
            job=Job(namespace=NAMESPACE, name=f"{range_.job}.range"),
            inputs=[InputDataset(namespace=f"kafka://{range_.source}", name=manifest.topic, inputFacets=input_facets)],
            outputs=[OutputDataset(namespace=namespace, name=name, facets=facets, outputFacets=output_facets)],
            producer=PRODUCER,
        )
        for state, at_ms in ((RunState.START, began_ms), (RunState.COMPLETE, provenance.landed_at_ms))
    ]


def _dimensions(manifest: Manifest) -> dict[str, str]:
    offsets = manifest.offsets
    named = {
        "generation": offsets.generation,
        "partition": offsets.partition,
        "start": offsets.start,
        "end": offsets.end,
    }
    return {name: str(value) for name, value in named.items()}


def _place(url: str) -> tuple[str, str]:
    """Is a dataset's namespace and name, as OpenLineage names files: `file` and the path, `s3://bucket` and the key."""
    scheme, colon, rest = url.partition("://")
    if not colon:
        return "file", url
    bucket, _, key = rest.partition("/")
    return ("file", f"/{key}") if scheme == "file" else (f"{scheme}://{bucket}", key)


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
