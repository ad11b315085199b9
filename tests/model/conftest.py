"""What the tests of interleavings share."""

from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pipeline_defs.tables import compaction, decoding
from tests.support.interleaving import SmallWorld, watch_obstore


@cache
def made(kind: type[SmallWorld], base: Path, *how: Any) -> SmallWorld:
    return kind(base / "-".join(map(str, (kind.__name__, *how))), *how)


@pytest.fixture
def begin(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Begin with a world of a kind: each is made once, and each test has copies of its own."""
    numbers = count()
    return lambda kind, *how: made(kind, tmp_path_factory.getbasetemp(), *how).copied(tmp_path / str(next(numbers)))


@pytest.fixture(params=["disk", "bucket"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> SmallWorld:
    """Return a topic of 6 records in 2 planned ranges, of which nothing is landed."""
    return SmallWorld(tmp_path / "lake", request.param)


@pytest.fixture
def watched(one_database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each call of a store pass by the writer whose it is, who has one thread."""
    watch_obstore(monkeypatch)
    monkeypatch.setattr(decoding, "VERIFY_THREADS", 1)
    monkeypatch.setattr(compaction, "COMPACTION_THREADS", 1)
