"""A manifest reads back as it was written, holds the completeness equation, and is refused where it is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BrokenManifest
from pipeline_defs.core.holes import Cause, Interval
from pipeline_defs.core.manifest import Manifest
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import Landing, landings

WHERE = "file:///lake/manifests/orders/g0/p0000/x.000.json"
ONE = Landing(OffsetRange(1, 0, 10, 15), (10, 11, 14), (Interval(12, 14, Cause.COMPACTED),)).manifest


@given(landings(), st.integers(0, 3), st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3))
def test_a_manifest_reads_back_as_it_was_written(landing: Landing, revision: int, schema: dict[str, str]) -> None:
    """The same manifest gives the same bytes: a write of unknown outcome is settled by reading back."""
    manifest = replace(landing.manifest, revision=revision, schema=schema)
    data = manifest.to_json()
    again = Manifest.from_json(data, WHERE)
    assert again == manifest
    assert again.to_json() == data
    assert json.loads(data)["key"] == landing.offsets.key


@given(landings())
def test_rows_and_holes_are_all_offsets(landing: Landing) -> None:
    """[R-27] AC14: a range without records has no file, 0 rows and the digest `empty`."""
    manifest = landing.manifest
    assert manifest.rows + sum(hole.end - hole.start for hole in manifest.holes) == len(landing.offsets)
    assert manifest.rows == len(landing.present)
    assert (manifest.digest == "empty") == (manifest.file is None) == (not landing.present)


@given(landings(least_rows=1), st.sampled_from([-1, 1]))
def test_a_manifest_that_does_not_add_up_cannot_exist(landing: Landing, by: int) -> None:
    """[R-27] DESIGN 6: rows + holes + lost = end - start, exactly; it is refused on construction and on reading."""
    manifest = landing.manifest
    assert manifest.file is not None
    wrong = replace(manifest.file, rows=manifest.rows + by)
    with pytest.raises(BrokenManifest, match=f"expected {len(landing.offsets)} in all"):
        replace(manifest, file=wrong)
    document = json.loads(manifest.to_json())
    document["file"]["rows"] += by
    check_broken(json.dumps(document).encode())


def check_broken(data: bytes) -> None:
    with pytest.raises(BrokenManifest) as caught:
        Manifest.from_json(data, WHERE)
    message = str(caught.value)
    assert message.startswith(f"manifest {WHERE} cannot be read: ")
    assert message.endswith(
        "restore it from a backup of the lake, or delete it and land the range again while Kafka has it"
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.binary(max_size=30) | json_values.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_a_broken_manifest_that_names_the_object(data: bytes) -> None:
    check_broken(data)


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"[" * 100_000, b"\xff\xfe", b"null", b'{"format": 2}'])
def test_empty_zeroed_deep_and_newer_objects_are_broken(data: bytes) -> None:
    check_broken(data)


@given(st.integers(0, len(ONE.to_json()) - 3))
def test_a_manifest_cut_short_is_broken(length: int) -> None:
    check_broken(ONE.to_json()[:length])


def _edit(change: Callable[[dict[str, object]], object]) -> bytes:
    document = json.loads(ONE.to_json())
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize("key", sorted(set(json.loads(ONE.to_json())) - {"revision", "isolation_level", "schema"}))
def test_a_manifest_without_one_of_its_facts_is_broken(key: str) -> None:
    check_broken(_edit(lambda document: document.pop(key)))


@pytest.mark.parametrize(
    "change",
    [
        {"key": "0-10-16-g1"},
        {"key": "0-10-15"},
        {"offsets": {"generation": 1, "partition": 0, "start": 10, "end": 16}},
        {"offsets": {"generation": 1, "partition": 0, "start": 15, "end": 10}},
        {"holes": []},
        {"holes": [{"start": 12, "end": 14, "cause": "somehow"}]},
        {"holes": [{"start": 14, "end": 12, "cause": "compacted"}]},
        {"file": None},
        {"file": {"rows": 3}},
        {"format": 0},
        {"unheard_of": 1},
    ],
    ids=lambda change: "-".join(map(str, *change.items())),
)
def test_a_manifest_that_contradicts_itself_is_broken(change: dict[str, object]) -> None:
    """AC8: a shifted end does not agree with the key, or the equation does not hold."""
    check_broken(_edit(lambda document: document.update(change)))


def test_the_one_manifest_is_whole() -> None:
    """Control of the refusals above."""
    assert Manifest.from_json(_edit(len), WHERE) == ONE
