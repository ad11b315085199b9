"""Dagster's migrations, read once per process: it would read a hundred files again for each run's own database."""

from __future__ import annotations

from functools import cache

from alembic.config import Config
from alembic.script import ScriptDirectory

_read = ScriptDirectory.from_config


def read_migrations_once() -> None:
    """Keep what was read of a folder of migrations for the life of this process."""

    @cache
    def read(location: str | None) -> ScriptDirectory:
        config = Config()
        config.set_main_option("script_location", str(location))
        return _read(config)

    ScriptDirectory.from_config = classmethod(  # type: ignore[method-assign, assignment]
        lambda cls, config: read(config.get_main_option("script_location"))
    )
