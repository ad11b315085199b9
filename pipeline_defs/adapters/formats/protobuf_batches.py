"""Batches of Protobuf messages to Arrow, in Spark's Python workers.

A worker imports this file and `core.errors`. Protobuf's own runtime parses each message and serializes it anew; ptars makes
columns of that: it is fast, but misreads other spellings, or panics. Invariant: a bad message is an error of its own row only.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, Self

import numpy
import pandas as pd  # noqa: TID253 (a worker needs it at once, and nobody else imports this file early)
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from ptars import HandlerPool, PtarsConfig

from ...core.errors import is_panic

MICROS = 1_000_000
TIMESTAMP = ("Timestamp out of the years 1 to 9999", -62_135_596_800 * MICROS, 253_402_300_800 * MICROS - 1)
DURATION = ("Duration of more than 10,000 years", -315_576_000_001 * MICROS, 315_576_000_001 * MICROS)
DATE = "google.type.Date"


class Undecodable(ValueError):
    """What is wrong with bytes that are no message, or with a message that no column can hold; it quotes nothing of them."""


class ArrowReady(pd.arrays.ArrowExtensionArray):  # type: ignore[misc]
    """A column that is what Spark wants already: pyspark would make a Python object of each nested value and back.

    If a newer pyspark does not call `map`, nothing is lost but time.
    """

    def map(self, mapper: Any, na_action: Any = None) -> Self:  # noqa: ARG002
        """Leave everything as it is."""
        return self

    def __getitem__(self, item: Any) -> Any:
        return None if isinstance(item, int) else super().__getitem__(item)


@dataclass(frozen=True)
class ProtobufReader:
    """A reader of one kind of message: one by Protobuf's runtime, many to columns by ptars."""

    message: Any
    handler: Any
    has_dates: bool

    def normalize(self, body: bytes) -> bytes:
        """Return the one spelling of a message that ptars reads as Protobuf does.

        Protobuf allows a map's entry without its value, a key or a field of a oneof twice, a message in parts. ptars reads
        each of these as something else, or panics. Raises `Undecodable` for what is no message.
        """
        try:
            self.message.ParseFromString(body)
        except DecodeError as error:
            raise Undecodable(f"the bytes are not one message: {error}") from None
        if self.has_dates:
            _refuse_dates(self.message)
        self.message.DiscardUnknownFields()
        spelled: bytes = self.message.SerializePartialToString()
        return spelled


@lru_cache(maxsize=100)
def open_reader(descriptors: bytes, message: str) -> ProtobufReader:
    """Return the reader of a message, the same one for the life of the process."""
    pool, numbers = DescriptorPool(), DescriptorPool()
    files = FileDescriptorSet.FromString(descriptors).file
    for file in files:
        pool.Add(file)
        numbers.Add(_with_numbers(file))
    found = pool.FindMessageTypeByName(message)
    spelled = GetMessageClass(numbers.FindMessageTypeByName(message))
    config = PtarsConfig(timestamp_unit="us", time_unit="us", duration_unit="us", enum_repr="string")
    handler = HandlerPool([pool.FindFileByName(file.name) for file in files], config).get_for_message(found)
    has_dates = any(f"{file.package}.{each.name}" == DATE for file in files for each in file.message_type)
    return ProtobufReader(spelled(), handler, has_dates)


def _with_numbers(file: FileDescriptorProto) -> FileDescriptorProto:
    """Return a file with an integer for each enum: Protobuf's runtime drops values of a proto2 enum that have no name."""
    changed = FileDescriptorProto()
    changed.CopyFrom(file)
    for message in _messages(changed.message_type):
        for field in message.field:
            if field.type == FieldDescriptorProto.TYPE_ENUM:
                field.type = FieldDescriptorProto.TYPE_INT32
                field.ClearField("type_name")
                field.ClearField("default_value")
    return changed


def _messages(outer: Iterable[DescriptorProto]) -> Iterator[DescriptorProto]:
    for message in outer:
        yield message
        yield from _messages(message.nested_type)


def batch_decoder(descriptors: bytes, message: str, kind: bytes) -> Callable[[pd.Series], pd.DataFrame]:
    """Make the function that a worker calls with each batch of bodies; `kind` is the Arrow schema of what Spark wants."""

    def decode(bodies: pd.Series) -> pd.DataFrame:
        wanted = pa.ipc.read_schema(pa.py_buffer(kind)).field(0).type
        values, errors = decode_bodies(pa.array(bodies, pa.binary()), open_reader(descriptors, message), wanted)
        return pd.DataFrame({"value": pd.Series(ArrowReady(values)), "error": pd.Series(errors, dtype=object)})

    return decode


def decode_bodies(bodies: pa.Array, reader: ProtobufReader, wanted: pa.DataType) -> tuple[pa.Array, list[str | None]]:
    """Read a batch: return values of the type wanted, null if the body is null or cannot be read, and why it cannot."""
    texts = bodies.to_pylist()
    errors: list[str | None] = [None] * len(texts)
    sound, spelled = [], []
    for at, text in enumerate(texts):
        if text is not None:
            try:
                spelled.append(reader.normalize(text))
                sound.append(at)
            except Undecodable as error:
                errors[at] = str(error)
    places = numpy.full(len(bodies), -1)
    parts, count = [], 0
    for start, part in _read(pa.array(spelled, pa.binary()), 0, reader.handler):
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
    """Yield columns, or why there are none, each with where it starts: halving isolates a message that fails its batch.

    Protobuf allows such a message, and no column can hold it: in proto2 a string need not be UTF-8, a time may be of any year.
    """
    if len(bodies) == 0:
        return
    try:
        columns = handler.array_to_record_batch(bodies).to_struct_array()
        _refuse_times(columns)
        yield start, columns
    except BaseException as error:
        if not isinstance(error, ValueError) and not is_panic(error):
            raise
        if len(bodies) == 1:
            yield start, _explain(error)
            return
        middle = len(bodies) // 2
        yield from _read(bodies.slice(0, middle), start, handler)
        yield from _read(bodies.slice(middle), start + middle, handler)


def _explain(error: BaseException) -> str:
    """Return what is wrong with a message that has no columns, without any of its content."""
    if isinstance(error, Undecodable):
        return str(error)
    return "a string is not UTF-8" if "utf-8" in str(error).lower() else "ptars, which makes columns of messages, fails at it"


def _refuse_dates(message: Any) -> None:
    """Raise `Undecodable` for a google.type.Date that is no day: it may be a year only, of which ptars makes January 1st."""
    if message.DESCRIPTOR.full_name == DATE:
        try:
            date(message.year, message.month, message.day)
        except (ValueError, OverflowError):
            raise Undecodable(f"a {DATE} is no day of the years 1 to 9999") from None
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            is_map = field.message_type.GetOptions().map_entry
            for each in value.values() if is_map else value if field.is_repeated else (value,):
                if isinstance(each, Message):
                    _refuse_dates(each)


def _refuse_times(columns: pa.Array, path: str = "") -> None:
    """Raise `Undecodable` for a Timestamp or Duration beyond what Protobuf defines; ptars ends at 64 bits of microseconds."""
    kind = columns.type
    if pa.types.is_struct(kind):
        for field in kind:
            _refuse_times(columns.field(field.name), f"{path}.{field.name}".lstrip("."))
    elif pa.types.is_map(kind):
        _refuse_times(columns.items, f"{path}{{}}")
    elif pa.types.is_list(kind):
        _refuse_times(columns.flatten(), f"{path}[]")
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        name, first, last = TIMESTAMP if pa.types.is_timestamp(kind) else DURATION
        found = pc.min_max(columns.cast(pa.int64()))
        if found["min"].is_valid and not first <= found["min"].as_py() <= found["max"].as_py() <= last:
            raise Undecodable(f"{path} is a {name}")


def arrow_type(kind: pa.DataType) -> pa.DataType:
    """Return Spark's type for one of ptars': Spark has no unsigned numbers, and no time spans that Parquet has."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(arrow_type(kind.key_type), arrow_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", arrow_type(kind.value_type)))
    if kind == pa.uint32() or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return pa.int64()
    return pa.decimal128(20, 0) if kind == pa.uint64() else kind
