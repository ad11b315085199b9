"""What a user's project imports of Offsetlake, installed as the package `offsetlake`; nothing is defined here."""

from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.errors import OffsetlakeError
from pipeline_defs.definitions import build_defs
from pipeline_defs.reader import read

__all__ = ["KafkaTopic", "OffsetlakeError", "build_defs", "read"]
