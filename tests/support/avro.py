"""Avro as others write it: by fastavro."""

from __future__ import annotations

import io
from typing import Any

import fastavro

from pipeline_defs.adapters.formats.spark_wire import head_of


def avro(schema: Any, datum: Any, schema_id: int | None = None) -> bytes:
    """Return a datum of a schema, with the id in front where there is one."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), datum)
    return (head_of(schema_id) if schema_id is not None else b"") + out.getvalue()
