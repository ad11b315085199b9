"""Documents of the lake: each reads back as it was written; what is cut short, empty, newer, untrue or none is one error."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BrokenManifest, BrokenPlanLog
from pipeline_defs.core.log.delivery import Acceptance, Claim
from pipeline_defs.core.log.holes import Cause, Interval
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import EPOCH_MS, TOPIC, Landing, landings, step_of

WHERE = "file:///lake/it.json"
RANGE = OffsetRange(0, 0, 0, 10)
DOCUMENTS: dict[str, Any] = {
    "plan step": step_of(0, (0, 10), head=10),
    "manifest": Landing(RANGE, (0, 1, 4, *range(5, 10)), (Interval(2, 4, Cause.COMPACTED),)).manifest,
    "claim": Claim(TOPIC, RANGE, "attempt-1", "run-1", EPOCH_MS),
    "acceptance": Acceptance(TOPIC, RANGE, (0, 5), "ada", EPOCH_MS),
}
NOT_NEEDED = {"manifest": {"revision", "isolation_level", "schema"}, "acceptance": {"key"}}
KEYS = [
    (name, key)
    for name, document in DOCUMENTS.items()
    for key in sorted(json.loads(document.to_json()).keys() - NOT_NEEDED.get(name, set()))
]
names = st.sampled_from(sorted(DOCUMENTS))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def check_broken(name: str, data: bytes) -> None:
    with pytest.raises(BrokenPlanLog if name == "plan step" else BrokenManifest) as caught:
        type(DOCUMENTS[name]).from_json(data, WHERE)
    assert str(caught.value).startswith(f"{name} {WHERE} cannot be read: ")
    assert " from a backup of the lake" in str(caught.value)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_reads_back_as_it_was_written(name: str) -> None:
    """The control of the refusals; laws of plan steps and manifests draw others."""
    document = DOCUMENTS[name]
    again = type(document).from_json(document.to_json(), WHERE)
    assert again == document and again.to_json() == document.to_json()


@given(names, st.binary(max_size=30) | json_values.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_one_error_that_names_the_object(name: str, data: bytes) -> None:
    check_broken(name, data)


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"[" * 100_000, b"\xff\xfe", b"null", b'{"format": 2}'])
def test_empty_zeroed_deep_and_newer_objects_are_broken(name: str, data: bytes) -> None:
    check_broken(name, data)


@given(names, st.integers(0, 10**6))
def test_a_document_cut_short_is_broken(name: str, length: int) -> None:
    """As a torn write leaves it; only its last newline may go."""
    data = DOCUMENTS[name].to_json()
    check_broken(name, data[: length % (len(data) - 2)])


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_a_document_without_one_of_its_facts_is_broken(name: str, key: str) -> None:
    document = json.loads(DOCUMENTS[name].to_json())
    document.pop(key)
    check_broken(name, json.dumps(document).encode())


PLACE = {"generation": 0, "partition": 0}
NO_NUMBERS = ["7", 7.0, -7, True, None, []]
WRONG: list[tuple[str, dict[str, Any]]] = [
    *(("plan step", {key: wrong}) for key in ("seq", "generation", "planned_at_ms") for wrong in NO_NUMBERS),
    *(("plan step", {"heads": {"0": [wrong, 0]}}) for wrong in NO_NUMBERS),
    *(("plan step", {"watermarks": {"0": [wrong, 9]}}) for wrong in NO_NUMBERS),
    *(("plan step", {"links": [{"kind": "range", **PLACE, "start": 0, "end": wrong}]}) for wrong in NO_NUMBERS),
    *(("plan step", {"links": [{"kind": kind, **PLACE, "start": 0, "end": 1}]}) for kind in ("gap", "RANGE", "", None)),
    *(("plan step", {"skips": skips}) for skips in ({}, "", None, 3, [{"kind": "skipped", **PLACE}], [None])),
    ("manifest", {"key": "0-0-11"}),
    ("manifest", {"key": "0-0-10-g1"}),
    ("manifest", {"offsets": {**PLACE, "start": 0, "end": 11}}),
    ("manifest", {"offsets": {**PLACE, "start": 10, "end": 0}}),
    ("manifest", {"holes": []}),
    ("manifest", {"holes": [{"start": 2, "end": 4, "cause": "somehow"}]}),
    ("manifest", {"holes": [{"start": 4, "end": 2, "cause": "compacted"}]}),
    ("manifest", {"file": None}),
    ("manifest", {"file": {"rows": 8}}),
    ("manifest", {"format": 0}),
    ("manifest", {"unheard_of": 1}),
]


@pytest.mark.parametrize(("name", "change"), WRONG, ids=repr)
def test_a_document_with_a_fact_that_cannot_be_is_broken(name: str, change: dict[str, Any]) -> None:
    """[R-37] [R-92] An end that does not agree with the key; a head of "20", which arithmetic would fail of elsewhere; skips
    that are passed over, so that what was left out would be landed.
    """
    check_broken(name, json.dumps({**json.loads(DOCUMENTS[name].to_json()), **change}).encode())


# ---- manifests


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
    """[R-27] A range without records has no file, 0 rows and the digest `empty`."""
    manifest = landing.manifest
    assert manifest.rows + sum(hole.end - hole.start for hole in manifest.holes) == len(landing.offsets)
    assert manifest.rows == len(landing.present)
    assert (manifest.digest == "empty") == (manifest.file is None) == (not landing.present)


@given(landings(least_rows=1), st.sampled_from([-1, 1]))
def test_a_manifest_that_does_not_add_up_cannot_exist(landing: Landing, by: int) -> None:
    """[R-27] Rows + holes + lost = end - start, exactly; it is refused on construction and on reading."""
    manifest = landing.manifest
    assert manifest.file is not None
    wrong = replace(manifest.file, rows=manifest.rows + by)
    with pytest.raises(BrokenManifest, match=f"expected {len(landing.offsets)} in all"):
        replace(manifest, file=wrong)
    document = json.loads(manifest.to_json())
    document["file"]["rows"] += by
    check_broken("manifest", json.dumps(document).encode())
