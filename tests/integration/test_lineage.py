"""OpenLineage: a receiver hears of each landed range; one that is dead or hangs takes nothing and no time from landing."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline_defs.adapters.telemetry.openlineage import PATIENCE_SECONDS
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.tables.decoding import Budget
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.resources import Edges
from tests.support.world import World


class Receiver(ThreadingHTTPServer):
    """Is a real HTTP server on loopback that keeps the events that it is sent."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.path == "/api/v1/lineage"
        self.server.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(201)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def clean_environment() -> Iterator[None]:
    """Puts OpenLineage's variables back: its client adds some of its own."""
    before = {name: value for name, value in os.environ.items() if name.startswith("OPENLINEAGE")}
    yield
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        del os.environ[name]
    os.environ.update(before)


def configure(world: World, url: str) -> None:
    """Configures the client as a user would, by its own variable."""
    os.environ["OPENLINEAGE_URL"] = url
    world.settings = dataclasses.replace(world.settings, lineage=True)
    world.edges = Edges(world.settings)


def unsent(world: World, run_id: str) -> list[str]:
    return [event.user_message for event in world.instance.all_logs(run_id) if "step=lineage_unsent" in event.user_message]


def test_a_receiver_hears_of_each_landed_range(world: World, receiver: Receiver, clean_environment: None) -> None:
    """Two events per range, with where the rows came from, where they went, how many, and of which run."""
    assert world.edges.lineage() is None, "off unless configured: the client would print events then"
    configure(world, receiver.url)
    world.fill(150)
    world.plan()
    (landed,) = world.launch()
    assert unsent(world, landed.run_id) == []
    ended = {each["run"]["runId"]: each for each in receiver.events if each["eventType"] == "COMPLETE"}
    began = {each["run"]["runId"]: each for each in receiver.events if each["eventType"] == "START"}
    assert len(ended) == 2 and began.keys() == ended.keys()
    assert all(began[run]["eventTime"] <= ended[run]["eventTime"] for run in ended)
    by_key = {}
    for event in ended.values():
        (source,), (target,) = event["inputs"], event["outputs"]
        (part,) = target["outputFacets"]["subset"]["outputCondition"]["partitions"]
        assert (source["namespace"], source["name"]) == (f"kafka://{world.settings.bootstrap_servers}", world.name)
        assert (target["namespace"], target["name"]) == ("file", f"{world.lake_folder}/data/{world.name}")
        assert event["job"] == {"namespace": "offsetlake", "name": f"{world.topic.land_job}.range", "facets": {}}
        assert event["run"]["facets"]["parent"]["run"]["runId"] == landed.run_id
        assert source["inputFacets"]["subset"]["inputCondition"]["partitions"] == [part]
        by_key[part["identifier"]] = target
    manifests = {offsets.key: manifest for offsets, manifest in world.coverage.manifests.items()}
    assert by_key.keys() == manifests.keys() == {"0-0-100", "0-100-150"}
    for key, target in by_key.items():
        manifest = manifests[key]
        assert manifest.file is not None
        statistics = target["outputFacets"]["outputStatistics"]
        assert (statistics["rowCount"], statistics["size"]) == (manifest.rows, manifest.file.bytes)
        assert target["facets"]["version"]["datasetVersion"] == manifest.file.sha256
        assert "offset" in {field["name"] for field in target["facets"]["schema"]["fields"]}

    heard = len(receiver.events)
    world.launch(sorted(world.coverage.manifests), redo=True)
    assert len(receiver.events) == heard, "what was landed before is not told again"


def test_a_receiver_hears_of_each_version_of_derived_tables(world: World, receiver: Receiver, clean_environment: None) -> None:
    """[R-90] From the landed rows to the decoded table, and from that, at the version that went in, to the latest."""
    value = Side(Format.JSON, "n BIGINT")
    world.topic = dataclasses.replace(world.topic, decode=Decode(Side(Format.STRING), value, Budget(10, 1.0)), latest=Latest())
    world.create_topic()
    world.send([{"partition": 0, "key": b"k%d" % (n % 5), "value": b'{"n": 1}'} for n in range(150)])
    world.send([{"partition": 0, "key": b"k", "value": b"{cut off"}])
    world.plan_and_land()
    configure(world, receiver.url)
    due = world.edges.decodings.read_ranges(world.name).find_due(world.coverage)
    (decoded,) = world.in_process.decode(due, redo=False)
    updated = world.in_process.update_latest(full=False)
    assert decoded.succeeded and updated.succeeded, (decoded.reason, updated.reason)
    began = [each for each in receiver.events if each["eventType"] == "START"]
    of_decoded, of_latest = (each for each in receiver.events if each["eventType"] == "COMPLETE")
    assert [each["run"]["runId"] for each in began] == [each["run"]["runId"] for each in (of_decoded, of_latest)]
    tables, shown = f"{world.lake_folder}/tables", []
    for event, run in ((of_decoded, decoded), (of_latest, updated)):
        (source,), (target,) = event["inputs"], event["outputs"]
        assert event["run"]["facets"]["parent"]["run"]["runId"] == run.run_id and unsent(world, run.run_id) == []
        shown.append(
            (
                event["job"]["name"],
                (source["namespace"], source["name"], source["facets"].get("version", {}).get("datasetVersion")),
                source["inputFacets"].get("inputStatistics", {}).get("rowCount"),
                (target["namespace"], target["name"], target["facets"]["version"]["datasetVersion"]),
                target["outputFacets"]["outputStatistics"]["rowCount"],
            )
        )
        columns = {each["name"]: each["type"] for each in target["facets"]["schema"]["fields"]}
        assert columns["value"] == "struct<n: int64>" and columns["offset"] == "int64"
    landed = ("file", f"{world.lake_folder}/data/{world.name}", None)
    at_decoded, at_latest = (
        ("file", f"{tables}/{kind}/{world.name}", str(DeltaTable(f"{tables}/{kind}/{world.name}").version()))
        for kind in ("decoded", "latest")
    )
    assert shown == [
        (f"{world.topic.decode_job}.table", landed, 151, at_decoded, 150),
        (f"{world.topic.latest_job}.table", at_decoded, None, at_latest, 5),
    ]
    heard = len(receiver.events)
    decode_again = world.in_process.decode(due, redo=False)
    assert all(each.succeeded for each in decode_again)
    assert world.in_process.update_latest(full=False).succeeded
    assert len(receiver.events) == heard, "a run that has made no version tells of none"


@pytest.mark.parametrize("fault", ["refuses", "hangs"])
def test_a_dead_receiver_costs_nothing_but_its_events(world: World, clean_environment: None, fault: str) -> None:
    """The run is green, the range landed and reported; what was not told is said, and waited for two seconds at most."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if fault == "refuses":
            listener.close()
        configure(world, f"http://127.0.0.1:{port}")
        world.fill(100)
        world.plan()
        (landed,) = world.launch()
        (said,) = unsent(world, landed.run_id)
        assert said.startswith("step=lineage_unsent ranges=1 reason=")
        waited = time_of(world, landed.run_id, "step=lineage_unsent") - time_of(world, landed.run_id, "step=publish")
        assert waited < PATIENCE_SECONDS + 120  # without a time-out it would wait for ever
    world.assert_all_landed_once()
    assert world.materialized() == {"0-0-100"}


def time_of(world: World, run_id: str, words: str) -> float:
    """Is when the run's log first said the words."""
    return next(event.timestamp for event in world.instance.all_logs(run_id) if words in event.user_message)
