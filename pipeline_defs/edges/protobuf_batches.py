"""Batches of Protobuf messages to Arrow, in Spark's Python workers.

What a worker imports is here and nothing else. Protobuf's own runtime judges each message, ptars makes columns of those that
are sound: it is quick, and takes some that are not, or panics. Invariant: a bad message is an error of its own row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy
import pandas as pd  # noqa: TID253 (a worker needs it at once, and nobody else imports this file early)
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from ptars import HandlerPool, PtarsConfig


class Ready(pd.arrays.ArrowExtensionArray):  # type: ignore[misc]
    """Is a column that is what Spark wants already: pyspark would make a Python object of each nested value and back.

    Where a newer pyspark does not ask for `map`, nothing is lost but time.
    """

    def map(self, mapper: Any, na_action: Any = None) -> Ready:  # noqa: ARG002
        """Leaves everything as it is."""
        return self

    def __getitem__(self, item: Any) -> Any:
        return None if isinstance(item, int) else super().__getitem__(item)


@dataclass(frozen=True)
class Reader:
    """Reads one kind of message: whether one is sound, and many to columns."""

    message: Any
    handler: Any

    def find_error(self, body: bytes) -> str | None:
        """Says what is wrong with a message; none where nothing is."""
        try:
            self.message.ParseFromString(body)
        except DecodeError as error:
            return str(error)
        return None


@lru_cache(maxsize=100)
def open_reader(descriptors: bytes, message: str) -> Reader:
    """Is the reader of a message, once per process."""
    pool = DescriptorPool()
    files = FileDescriptorSet.FromString(descriptors).file
    for file in files:
        pool.Add(file)
    found = pool.FindMessageTypeByName(message)
    config = PtarsConfig(timestamp_unit="us", time_unit="us", duration_unit="us", enum_repr="string")
    handler = HandlerPool([pool.FindFileByName(file.name) for file in files], config).get_for_message(found)
    return Reader(GetMessageClass(found)(), handler)


def batch_decoder(descriptors: bytes, message: str, kind: bytes) -> Callable[[pd.Series], pd.DataFrame]:
    """Makes the function that a worker calls with each batch of bodies; `kind` is the Arrow schema of what Spark wants."""

    def decode(bodies: pd.Series) -> pd.DataFrame:
        wanted = pa.ipc.read_schema(pa.py_buffer(kind)).field(0).type
        values, errors = decode_bodies(pa.array(bodies, pa.binary()), open_reader(descriptors, message), wanted)
        return pd.DataFrame({"value": pd.Series(Ready(values)), "error": pd.Series(errors, dtype=object)})

    return decode


def decode_bodies(bodies: pa.Array, reader: Reader, wanted: pa.DataType) -> tuple[pa.Array, list[str | None]]:
    """Reads a batch: values of the type wanted, null where the body is null or cannot be read, and then why."""
    texts = bodies.to_pylist()
    errors = [None if text is None else reader.find_error(text) for text in texts]
    sound = numpy.array([at for at, text in enumerate(texts) if text is not None and errors[at] is None], dtype="int64")
    places = numpy.full(len(bodies), -1)
    parts, count = [], 0
    for start, part in _read(bodies.take(pa.array(sound)), 0, reader.handler):
        if isinstance(part, str):
            errors[sound[start]] = part
        else:
            places[sound[start : start + len(part)]] = numpy.arange(count, count + len(part))
            parts.append(part)
            count += len(part)
    if not parts:
        return pa.nulls(len(bodies), wanted), errors
    return pa.concat_arrays(parts).cast(wanted).take(pa.array(places, mask=places < 0)), errors


def _read(bodies: pa.Array, start: int, handler: Any) -> Iterator[tuple[int, pa.Array | str]]:
    """Yields columns, and why there are none, each with where it starts: halves isolate a message that fails all.

    That is one that Protobuf allows and Arrow has no column for: in proto2 a string need not be UTF-8.
    """
    if len(bodies) == 0:
        return
    try:
        yield start, handler.array_to_record_batch(bodies).to_struct_array()
    except ValueError as error:
        if len(bodies) == 1:
            yield start, str(error)
            return
        middle = len(bodies) // 2
        yield from _read(bodies.slice(0, middle), start, handler)
        yield from _read(bodies.slice(middle), start + middle, handler)


def arrow_type(kind: pa.DataType) -> pa.DataType:
    """Is the type that Spark has for one of ptars': it knows no unsigned numbers and no time spans that Parquet has."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(arrow_type(kind.key_type), arrow_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", arrow_type(kind.value_type)))
    if kind == pa.uint32() or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return pa.int64()
    return pa.decimal128(20, 0) if kind == pa.uint64() else kind
