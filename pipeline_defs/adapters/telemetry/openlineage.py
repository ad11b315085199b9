"""OpenLineage events of landed ranges and derived tables, through its own client, which reads its own settings.

A thread of their own sends them after a range is landed or a version is there. Invariant: whatever becomes of them, nobody
waits longer than `finish` does, and no landing fails: the lake has the same facts.
"""

from __future__ import annotations

import datetime
import logging
import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.log.manifest import Manifest
from ..system.outage import Outage

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, OutputDataset, RunEvent

NAMESPACE = "offsetlake"  # of jobs
PRODUCER = "https://pypi.org/project/offsetlake"
IMPORT_SECONDS = 60.0
PATIENCE_SECONDS = 2.0  # at the end of a run, when its ranges are landed and reported
for _name in ("openlineage", "urllib3.connectionpool"):  # what was not sent is said once, by the caller
    logging.getLogger(_name).setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Landed:
    """A range that was landed, with what its manifest does not say: where it came from and where it lies.

    `job` is what Dagster calls the landing, `source` one broker, `host:port`; `data_url` is of the topic's folder in the lake.
    """

    manifest: Manifest
    job: str
    source: str
    data_url: str


@dataclass(frozen=True, slots=True)
class Derived:
    """A version of a derived table that a run has made, and what from; the URLs are of folders in the lake.

    `read` and `written` are rows, `columns` types by name. None is what nobody has counted, or a source without versions.
    """

    job: str
    run_id: str
    source_url: str
    source_version: int | None
    read: int | None
    table_url: str
    version: int
    written: int
    columns: Mapping[str, str]
    began_ms: int
    ended_ms: int


class Sender:
    """Sender of the events of a topic's landed ranges and derived tables in one run."""

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self._queue: queue.SimpleQueue[Landed | Derived | None] = queue.SimpleQueue()
        self._asked = self._sent = 0
        self._failure = ""
        self._thread: threading.Thread | None = None
        self._is_ready = threading.Event()  # the client is there: a busy machine takes seconds to import it

    def tell(self, what: Landed | Derived) -> None:
        """Have the events of a range or a table sent; return at once."""
        self._asked += 1
        self._failure = self._failure or self._outage.reason
        if self._failure:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, name="openlineage", daemon=True)
            self._thread.start()
        self._queue.put(what)

    def finish(self) -> tuple[int, str] | None:
        """Wait until all is sent, for a limited time; return how much was not, and why; none if all was.

        Once the receiver has failed, nobody waits for it again, and nothing more is sent.
        """
        out = self._outage.reason
        if self._thread is not None:
            self._queue.put(None)
            if not out:
                self._is_ready.wait(IMPORT_SECONDS)
                self._thread.join(PATIENCE_SECONDS)
                if self._thread.is_alive():
                    self._fail(f"no answer within {PATIENCE_SECONDS:g} s")
        left = self._asked - self._sent
        return (left, self._failure or out) if left or self._failure else None

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._outage.note(reason)

    def _send(self) -> None:
        # the first failure ends it: a receiver that is down for one range is down for the next
        try:
            from openlineage.client import OpenLineageClient

            client = OpenLineageClient()
            self._is_ready.set()
            while (what := self._queue.get()) is not None:
                self._failure = self._failure or self._outage.reason
                if self._failure:
                    return
                for event in range_events(what) if isinstance(what, Landed) else table_events(what):
                    client.emit(event)
                self._sent += 1
            client.close(PATIENCE_SECONDS)
        except (OSError, ValueError, TypeError, KeyError, ImportError, RuntimeError) as error:
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._is_ready.set()


@contextmanager
def telling(sender: Sender | None, things: str, warn: Callable[[str], None]) -> Iterator[Callable[[Landed | Derived], None]]:
    """Yield the sender's `tell`, or a stand-in without one; warn at the end of how many `things` were not sent."""
    if sender is None:
        yield lambda _: None
        return
    try:
        yield sender.tell
    finally:
        if unsent := sender.finish():
            warn(f"step=lineage_unsent {things}={unsent[0]} reason={unsent[1]}")


def range_events(range_: Landed) -> list[RunEvent]:
    """Return the two events of a landed range: when its reading began, and when it was landed, with inputs and outputs."""
    from openlineage.client import event_v2, facet_v2

    manifest, provenance, key = range_.manifest, range_.manifest.provenance, range_.manifest.offsets.key
    dimensions = {name: str(getattr(manifest.offsets, name)) for name in ("generation", "partition", "start", "end")}
    subset = facet_v2.base_subset_dataset
    part = subset.PartitionSubsetCondition(partitions=[subset.Partition(identifier=key, dimensions=dimensions)])
    read = {**_rows_read(manifest.rows), "subset": subset.InputSubsetInputDatasetFacet(inputCondition=part)}
    statistics = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=manifest.rows, size=manifest.file.bytes if manifest.file else 0, fileCount=1 if manifest.file else 0
    )
    written: dict[str, Any] = {
        "outputStatistics": statistics,
        "subset": subset.OutputSubsetOutputDatasetFacet(outputCondition=part),
    }
    facets = _schema(manifest.schema) | _version(manifest.digest)
    return _events(
        f"{range_.data_url}/{key}/{provenance.attempt}",
        (f"{range_.job}.range", range_.job, provenance.run_id),
        (provenance.landed_at_ms - round(1000 * provenance.seconds), provenance.landed_at_ms),
        event_v2.InputDataset(namespace=f"kafka://{range_.source}", name=manifest.topic, inputFacets=read),
        event_v2.OutputDataset(**_place(range_.data_url), facets=facets, outputFacets=written),
    )


def table_events(made: Derived) -> list[RunEvent]:
    """Return the two events of a version of a derived table: when the work on it began, and when it was there."""
    from openlineage.client import event_v2, facet_v2

    statistics = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=made.written)
    of_source = {} if made.source_version is None else _version(str(made.source_version))
    facets = _schema(made.columns) | _version(str(made.version))
    return _events(
        f"{made.table_url}/{made.version}/{made.run_id}",
        (f"{made.job}.table", made.job, made.run_id),
        (made.began_ms, made.ended_ms),
        event_v2.InputDataset(**_place(made.source_url), facets=of_source, inputFacets=_rows_read(made.read)),
        event_v2.OutputDataset(**_place(made.table_url), facets=facets, outputFacets={"outputStatistics": statistics}),
    )


def _events(
    identity: str, jobs: tuple[str, str, str], times_ms: tuple[int, int], source: InputDataset, target: OutputDataset
) -> list[RunEvent]:
    """Return the events of a run whose id is made of `identity`; `jobs` are its own, Dagster's, and the id of Dagster's run."""
    from openlineage.client import event_v2, facet_v2

    job, parent_job, parent_run = jobs
    facets: dict[str, Any] = {}
    with suppress(ValueError):  # a parent must be a UUID
        facets["parent"] = facet_v2.parent_run.ParentRunFacet(
            run=facet_v2.parent_run.Run(runId=str(uuid.UUID(parent_run))),
            job=facet_v2.parent_run.Job(namespace=NAMESPACE, name=parent_job),
        )
    return [
        event_v2.RunEvent(
            eventType=state,
            eventTime=datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).isoformat(),
            run=event_v2.Run(runId=str(uuid.uuid5(uuid.NAMESPACE_URL, identity)), facets=facets),
            job=event_v2.Job(namespace=NAMESPACE, name=job),
            inputs=[source],
            outputs=[target],
            producer=PRODUCER,
        )
        for state, at_ms in zip((event_v2.RunState.START, event_v2.RunState.COMPLETE), times_ms, strict=True)
    ]


def _rows_read(count: int | None) -> dict[str, Any]:
    from openlineage.client.facet_v2 import input_statistics_input_dataset as facet

    return {} if count is None else {"inputStatistics": facet.InputStatisticsInputDatasetFacet(rowCount=count)}


def _schema(columns: Mapping[str, str]) -> dict[str, Any]:
    from openlineage.client.facet_v2 import schema_dataset as facet

    fields = [facet.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns.items()]
    return {"schema": facet.SchemaDatasetFacet(fields=fields)}


def _version(version: str) -> dict[str, Any]:
    from openlineage.client.facet_v2 import dataset_version_dataset as facet

    return {"version": facet.DatasetVersionDatasetFacet(datasetVersion=version)}


def _place(url: str) -> dict[str, str]:
    """Return a dataset's namespace and name, as OpenLineage names files: `file` and the path, `s3://bucket` and the key."""
    scheme, colon, rest = url.partition("://")
    if not colon:
        return {"namespace": "file", "name": url}
    bucket, _, key = rest.partition("/")
    is_file = scheme == "file"
    return {"namespace": "file" if is_file else f"{scheme}://{bucket}", "name": f"/{key}" if is_file else key}
