"""What a user's project imports of Offsetlake, installed as the package `offsetlake`; nothing is defined here."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.errors import OffsetlakeError

if TYPE_CHECKING:
    from pipeline_defs.definitions import build_defs
    from pipeline_defs.operate.reader import read

__all__ = ["KafkaTopic", "OffsetlakeError", "build_defs", "read"]


_OF = {"build_defs": "pipeline_defs.definitions", "read": "pipeline_defs.operate.reader"}


def __dir__() -> list[str]:
    """Name what there is for users."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import what a command that reads a defs.yaml has no use for, once somebody asks for it."""
    if name not in _OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_OF[name]), name)
