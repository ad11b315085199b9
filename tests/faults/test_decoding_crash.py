"""SIGKILL at every step of decoding: the half-done state is proven, and a restart decodes every landed row once.

The control is the last step: the same child, killed when it has told all.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline_defs.core.decoders import Decode, Format, Side
from pipeline_defs.core.decoding import Budget, Decided
from pipeline_defs.deriving import run_derive_tick
from pipeline_defs.launching import decode_through_dagster
from tests.support.killing import stopped_at
from tests.support.world import World

STEPS: dict[str, tuple[int, int, bool]] = {
    # step -> (documents, files to be seen, at least; whether anything is staged) when the process dies there
    "find_landed": (0, 0, False),
    "read_landed": (0, 0, False),
    "stage_decoded": (0, 0, True),
    "verify_decoded": (0, 0, True),
    "commit_decoded": (1, 0, True),
    "file_published": (1, 1, True),
    "publish_decoded": (1, 1, True),
    "reported_decoded": (1, 1, True),
}
POISONED = [(0, 7), (0, 120), (1, 30)]


@pytest.fixture
def poisoned(world: World) -> World:
    """Is a topic with three landed ranges, a poison record in each."""
    configure(world, "id INT")
    world.create_topic(2)
    for partition, count in ((0, 150), (1, 60)):
        world.send(
            {"partition": partition, "value": b'{"id": 0.5}' if (partition, n) in POISONED else b'{"id": %d}' % n}
            for n in range(count)
        )
    world.plan_and_land()
    return world


def configure(world: World, schema: str) -> None:
    decode = Decode(value=Side(Format.JSON, schema), budget=Budget(5, 1.0))
    world.topic = dataclasses.replace(world.topic, decode=decode)


def seen(world: World, tree: str) -> list[tuple[Any, ...]]:
    """Are the rows that are shown to who opens each file once: DuckDB does not, and may see a part (docs/decoding.md)."""
    rows = list[tuple[Any, ...]]()
    for path in (world.lake_folder / tree / world.name).rglob("*.parquet"):
        with path.open("rb") as file:
            table = pq.ParquetFile(file).read(columns=["partition", "offset"])
        rows += zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
    return sorted(rows)


def restart(world: World) -> None:
    """Ticks, and runs what the tick asks for: the dead run is failed first, and its back-off waited for."""
    late = dataclasses.replace(world.edges)
    late.now_ms = lambda: world.edges.now_ms() + 60_000
    tick = run_derive_tick(world.topic, world.instance, late)
    ranges = [offsets for request in tick.requests for offsets in request.ranges]
    for launched in decode_through_dagster(
        world.topic, ranges, world.edges, world.instance, redo=False, topics=world.definitions
    ):
        assert launched.succeeded, launched.reason


QUICK = ("commit_decoded",)  # in make test; the others in make test-long


@pytest.mark.parametrize(
    "step", [step if step in QUICK else pytest.param(step, marks=pytest.mark.long) for step in STEPS]
)
def test_decoding_killed_at_any_step_ends_with_every_row_in_one_place(poisoned: World, step: str) -> None:
    """[R-68] After SIGKILL each landed row is decoded or a dead letter, once; redone it is the same; no lock to clean."""
    documents, files, is_staged = STEPS[step]
    with stopped_at(poisoned, "decode", step):
        assert len(poisoned.decodings) >= documents
        assert len(seen(poisoned, "decoded")) >= (20 if files else 0)
        assert any(poisoned.lake_folder.glob("staging/**/*.parquet")) == is_staged
        rows, letters = seen(poisoned, "decoded"), seen(poisoned, "dead_letters")
        assert len({*rows, *letters}) == len(rows) + len(letters), "a row was seen twice, in the middle of it"
    digests = {offsets: each.digest for offsets, each in poisoned.decodings.items()}
    restart(poisoned)
    assert seen(poisoned, "dead_letters") == POISONED
    assert seen(poisoned, "decoded") == sorted({*poisoned.sent} - {*POISONED})
    assert digests.items() <= {offsets: each.digest for offsets, each in poisoned.decodings.items()}.items()
    again = poisoned.decode([offsets.key for offsets in poisoned.decodings], redo=True)
    assert {verdict.outcome for verdict in again} == {Decided.UNCHANGED}


@pytest.mark.parametrize("step", ["commit_decoded", "file_published"])
def test_a_mended_decoding_killed_between_its_files_is_finished_by_the_next_run(poisoned: World, step: str) -> None:
    """[R-68] [R-69] In the middle of an exchange a row is seen decoded, or as a dead letter, or both: never nowhere, and
    the next run finishes what was decided."""
    poisoned.decode()
    configure(poisoned, "id DOUBLE")
    with stopped_at(poisoned, "decode_again", step):
        # first: the other ranges go on, and a row is shown decoded before it goes here
        letters = seen(poisoned, "dead_letters")
        rows = seen(poisoned, "decoded")
        assert {*rows, *letters} == {*poisoned.sent}
        assert len(rows) == len({*rows})
        assert letters, "the fault: what is decided is not seen yet"
    assert max(decoding.revision for decoding in poisoned.decodings.values()) == 1
    restart(poisoned)  # finishes what was decided of the first range; the others are of the old decoder, and stay
    mended = {offsets for offsets, each in poisoned.decodings.items() if each.revision}
    left = [place for place in POISONED if not any(place[0] == o.partition and place[1] in o for o in mended)]
    assert seen(poisoned, "dead_letters") == left
    assert seen(poisoned, "decoded") == sorted({*poisoned.sent} - {*left})
