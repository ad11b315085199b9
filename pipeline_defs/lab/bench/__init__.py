"""The benchmark: this project beside what people use instead, on the same topic, in one run.

Imports the package, never the other way round.
"""

from __future__ import annotations

import importlib.util

from ...core.errors import BadSetting

ENGINE, DERIVED, TOPICS, PULSE = "engine", "derived", "topics", "pulse"  # parts that can be measured alone
_ALWAYS = ("confluent_kafka", "psutil")
PACKAGES = {None: _ALWAYS, ENGINE: (*_ALWAYS, "moto"), DERIVED: (*_ALWAYS, "fastavro"), TOPICS: _ALWAYS, PULSE: _ALWAYS}
"""What only the benchmark needs, by part; none is the whole of it."""


def require_packages(part: str | None) -> None:
    """Refuse to start where a package is missing that only the benchmark needs; raises `BadSetting`.

    Its modules import them at once, so this comes before any of them is imported.
    """
    for name in PACKAGES[part]:
        if importlib.util.find_spec(name) is None:
            raise BadSetting(f"{name} is not installed; nothing was started; `make setup`, or pip install .[dev]")
