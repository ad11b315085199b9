"""What the tests of interleavings share."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """Yield folders for lakes, one after the other."""
    return (tmp_path / str(number) for number in count())
