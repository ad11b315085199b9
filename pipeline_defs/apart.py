"""A Spark that sees no folder of this machine, and a lake that is none: what follows from the two together.

Everything else asks a staging place, which knows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from .core.errors import Refused
from .edges.spark_digests import read_digests
from .staging_places import LocalStaging, RemoteStaging, Staging

if TYPE_CHECKING:
    from .edges.engine import Engine
    from .edges.lake import Lake


def is_apart(engine: Engine, lake: Lake) -> bool:
    """Return whether Spark and this machine have nothing in common but an object store."""
    return engine.is_remote and lake.store.local_root is None


def staging_of(engine: Engine, lake: Lake) -> Callable[[str, Lake], Staging]:
    """Return what opens the staging place of an attempt."""
    return (
        partial(RemoteStaging, read_digests=partial(read_digests, engine)) if is_apart(engine, lake) else LocalStaging
    )


def near(engine: Engine, lake: Lake, what: str) -> Engine:
    """Return an engine that reads folders of this machine; raise `Refused` for `what` where it cannot."""
    if is_apart(engine, lake):
        raise Refused(
            f"{what} reads files through this machine, which the cluster of OFFSETLAKE_SPARK_REMOTE does not see, and the lake "
            f"{lake.store.root} is an object store; nothing was read or written; unset it for that, so that a Spark of this "
            "machine does it"
        )
    return engine
