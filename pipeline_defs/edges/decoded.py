"""What each decoder in Spark gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True, slots=True)
class Decoded:
    """Is a key or value as it decodes: struct<value, error_class: string, error: string, schema_id: int>.

    `value` is null for a null and for what cannot be decoded, which `error_class` then says. `schemas` are what decided the
    outcome beside the configuration: a reader's schema, writers' by their ids. The column is of no one data frame: it can be
    asked of any rows with columns of those names.
    """

    column: Column
    schemas: Mapping[str, str] = field(default_factory=dict)
