"""A manifest reads back as it was written, holds the completeness equation, and is refused where it is broken."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BrokenManifest
from pipeline_defs.core.log.manifest import Manifest
from tests.support.strategies import Landing, landings

WHERE = "file:///lake/manifests/orders/g0/p0000/x.000.json"


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
    with pytest.raises(BrokenManifest, match=f"manifest {re.escape(WHERE)} cannot be read: "):
        Manifest.from_json(json.dumps(document).encode(), WHERE)
