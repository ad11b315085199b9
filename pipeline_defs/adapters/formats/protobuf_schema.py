"""Protobuf's schemas: .proto text through protoc to descriptors, and what one message can read of another's bytes.

Nothing here decodes. Fields are told apart by their numbers, never by their names.
"""

import base64
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from ...core.advice import meant
from ...core.decode.columns import Column
from ...core.decode.schema_text import MOST_COLUMNS, MOST_LEVELS
from ...core.errors import UnusableSchema, unusable_schema

MAIN = "offsetlake_schema.proto"
_OF_ABSL = re.compile(r"WARNING: All log messages before absl|[WI]\d{4} |\s*$")  # what protoc says of itself, on stderr
PROTOC_SECONDS = 60
LONGEST_NAME = 100  # characters of a name in a message

# by writer's type, the other types that a reader may have without a loss: encoded alike, and no smaller
WIDER: Mapping[str, frozenset[str]] = {
    "int32": frozenset({"int64"}),
    "uint32": frozenset({"uint64", "int64"}),
    "sint32": frozenset({"sint64"}),
    "bool": frozenset({"int32", "int64", "uint32", "uint64"}),
    "enum": frozenset({"int32", "int64"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


@dataclass(frozen=True, slots=True)
class ProtoFile:
    """A compiled schema: a serialized FileDescriptorSet, with what it imports first."""

    descriptors: bytes

    def messages(self, what: str) -> Mapping[str, Descriptor]:
        """Return the messages that the schema itself defines, by their full names, at any depth; raise `UnusableSchema`."""
        pool = DescriptorPool()
        try:
            for file in FileDescriptorSet.FromString(self.descriptors).file:
                pool.Add(file)
        except (TypeError, KeyError) as error:  # as clients registered them; of JSON names twice protoc only warns
            raise unusable_schema(what, f"its descriptors do not fit together: {error}") from error
        top = pool.FindFileByName(MAIN).message_types_by_name.values()
        return {each.full_name: each for _, each in _number(top, set()) if not each.GetOptions().map_entry}

    def editions(self) -> list[str]:
        """Return the files that have an edition instead of a syntax, at which ptars panics."""
        files = FileDescriptorSet.FromString(self.descriptors).file
        return [file.name for file in files if file.syntax == "editions"]


def compile_proto(text: str, references: Mapping[str, str], what: str) -> ProtoFile:
    """Compile a schema with what it imports by name; raise `UnusableSchema` with what protoc says."""
    return _compile(text, tuple(sorted(references.items())), what)


@lru_cache(maxsize=1_000)
def _compile(text: str, references: tuple[tuple[str, str], ...], what: str) -> ProtoFile:
    known = Path(grpc_tools.__file__).parent / "_proto"
    compiled = FileDescriptorSet()
    with tempfile.TemporaryDirectory() as name:
        given, out, folder = Path(name, "given"), Path(name, "descriptors"), Path(name, "sources")
        folder.mkdir()
        for file, _ in references:
            _refuse_name(file, what)
        for file, content in (*references, (MAIN, text)):
            described = _read_described(content)
            if described is not None:
                described.name = file
                compiled.file.append(described)
            else:
                _write(folder / file, content, what)
        given.write_bytes(compiled.SerializeToString())
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{known}", "--include_imports"]
        try:
            done = subprocess.run(
                [*command, f"--descriptor_set_in={given}", f"--descriptor_set_out={out}", MAIN],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PROTOC_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise unusable_schema(what, f"protoc does not end within {PROTOC_SECONDS} seconds") from error
        if done.returncode != 0 or not out.exists():
            lines = [line for line in done.stderr.splitlines() if not _OF_ABSL.match(line)]
            lines = lines or [f"protoc ends with {done.returncode}"]
            said = "; ".join(line.replace(f"{folder}/", "") for line in lines if line.strip())
            raise unusable_schema(what, f"it is no Protobuf schema: {said}")
        return ProtoFile(out.read_bytes())


def _refuse_name(file: str, what: str) -> None:
    """Refuse an import whose name is no plain path: nothing is ever written outside the temporary folder."""
    parts = file.split("/")
    if file == MAIN or not file.isprintable() or "\\" in file or {"", ".", ".."} & {*parts}:
        raise unusable_schema(
            what, f"it imports {file[:LONGEST_NAME]!r}, expected a plain path below its own such as shop/order.proto"
        )


def _write(path: Path, content: str, what: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    except (OSError, ValueError) as error:  # too long, no text, or a file where another import has a folder
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise unusable_schema(what, f"the import {path.name[:LONGEST_NAME]!r} cannot be written: {reason}") from error


def _read_described(text: str) -> FileDescriptorProto | None:
    """Return a schema that is a descriptor in base64, as Confluent's clients for Python register it; none if it is text."""
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None


def find_message(file: ProtoFile, name: str | None, what: str) -> Descriptor:
    """Return the message that records are of: the one that is named, with or without its package, else the only one."""
    if names := file.editions():
        named = "".join(f" in the import {name[:LONGEST_NAME]!r}" for name in names[:1] if name != MAIN)
        raise unusable_schema(what, f"editions are not supported, expected proto2 or proto3{named}")
    messages = file.messages(what)
    outer = [each for each in messages.values() if each.containing_type is None]
    found = [each for each in messages.values() if name in {each.full_name, each.name}] if name else outer
    if len(found) != 1:
        raise UnusableSchema(
            f"{what} has the messages {', '.join(messages) or '(none)'}, expected {f'one {name}' if name else 'one'}"
            f"{meant(name, messages) if name else ''}; nothing was decoded; name it with `message` in defs.yaml"
        )
    problems = _Problems()
    problems.find(found[0], ())
    if problems.found:
        raise unusable_schema(what, f"it has no columns in Spark: {'; '.join(problems.found)}")
    return found[0]


KNOWN: Mapping[str, str] = {
    "google.protobuf.Timestamp": "timestamp",
    "google.type.Date": "date",
    "google.protobuf.Duration": "integer",
    "google.type.TimeOfDay": "integer",
    **{f"google.protobuf.{kind}Value": "integer" for kind in ("Int32", "Int64", "UInt32")},
    "google.protobuf.UInt64Value": "decimal",
    **{f"google.protobuf.{kind}Value": "float" for kind in ("Float", "Double")},
    "google.protobuf.StringValue": "text",
    "google.protobuf.BytesValue": "binary",
    "google.protobuf.BoolValue": "boolean",
}
SCALARS: Mapping[str, str] = {
    **dict.fromkeys(("uint64", "fixed64"), "decimal"),
    **dict.fromkeys(("float", "double"), "float"),
    "enum": "text",
    "string": "text",
    "bytes": "binary",
    "bool": "boolean",
}


def columns_of(message: Descriptor) -> Column:
    """Return the columns of a message that has no problems."""
    return Column("struct", {field.name: _column_of(field) for field in message.fields})


def _column_of(field: FieldDescriptor) -> Column:
    inner = field.message_type
    if inner is None:
        column = Column(SCALARS.get(_type(field), "integer"))
    elif inner.GetOptions().map_entry:
        return Column("map", inner=tuple(_column_of(each) for each in inner.fields))
    else:
        column = Column(KNOWN[inner.full_name]) if inner.full_name in KNOWN else columns_of(inner)
    return Column("list", inner=(column,)) if field.is_repeated else column


class _Problems:
    """The parts of a message that no column can hold; each message is looked at once, however often it is named."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._columns: dict[str, int] = {}

    def find(self, message: Descriptor, outside: tuple[str, ...]) -> int:
        """Find recursive or empty messages, groups, names that differ in case only; return the number of columns."""
        name = message.full_name
        if name in outside:
            self.found.append(f"{name} contains itself")
            return 1
        if name in self._columns:
            return self._columns[name]
        if not message.fields:
            self.found.append(f"{name} has no fields")
        if len(outside) > MOST_LEVELS:
            self.found.append(f"{name} is more than {MOST_LEVELS} levels deep")
            return 1
        names = [field.name.lower() for field in message.fields]
        self._columns[name] = 1
        columns = 1
        for field in message.fields:
            if names.count(field.name.lower()) > 1:
                self.found.append(f"{name}.{field.name} differs from another field in case only")
            if _type(field) == "group":  # ptars passes over it
                self.found.append(f"{name}.{field.name} is a group")
            columns += 1 if field.message_type is None else self.find(field.message_type, (*outside, name))
        self._columns[name] = columns
        if columns > MOST_COLUMNS and not self.found:
            self.found.append(f"{name} has more than {MOST_COLUMNS:,} columns, once each message is put where it is named")
        return columns


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Bytes that say which message of its file follows: unambiguous ones, and others with what else they may mean."""

    sure: tuple[bytes, ...]
    doubtful: Mapping[bytes, str]


def encode_path(message: Descriptor) -> Prefixes:
    """Return the ways in which Confluent's serializers say that this message of its file follows.

    Protoc makes a message of each map's entry and of each group. Serializers count these too, or, where they parsed .proto
    text or normalize, do not: then one number may mean two messages.
    """
    top = message.file.message_types_by_name.values()
    made = dict(_find_made(top, message.file.extensions_by_name.values()))
    maps, groups = ({name for name, of in made.items() if of == kind} for kind in ("map", "group"))
    counts = [dict(_number(top, left_out)) for left_out in (set(), maps, groups, maps | groups)]
    paths = dict.fromkeys(path for count in counts for path, each in count.items() if each.full_name == message.full_name)
    sure: list[bytes] = []
    doubtful: dict[bytes, str] = {}
    for path in paths:
        names = [count[path].full_name for count in counts if path in count]
        others = [name for name in names if name != message.full_name and name not in maps]
        for spelled in [b"\0"] * (path == (0,)) + [b"".join(_zigzag(number) for number in (len(path), *path))]:
            if others:
                doubtful[spelled] = others[0]
            else:
                sure.append(spelled)
    return Prefixes(tuple(sure), doubtful)


def _number(
    siblings: Iterable[Descriptor], left_out: set[str], outside: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], Descriptor]]:
    """Yield messages at any depth with their places, counted without those that are left out."""
    for at, each in enumerate(each for each in siblings if each.full_name not in left_out):
        yield (*outside, at), each
        yield from _number(each.nested_types, left_out, (*outside, at))


def _find_made(outer: Iterable[Descriptor], fields: Iterable[FieldDescriptor]) -> Iterator[tuple[str, str]]:
    """Find what protoc made messages of: maps' entries, and groups, which are named like a field."""
    for each in fields:
        if each.type == FieldDescriptor.TYPE_GROUP and each.name == each.message_type.name.lower():
            yield each.message_type.full_name, "group"
    for message in outer:
        if message.GetOptions().map_entry:
            yield message.full_name, "map"
        yield from _find_made(message.nested_types, (*message.fields, *message.extensions))


def find_mismatches(
    writer: Descriptor, reader: Descriptor, where: str = "", seen: set[tuple[str, str]] | None = None
) -> Iterator[str]:
    """Find the field numbers that two messages use for different things: Protobuf itself would drop or change the values.

    Two messages are compared where they first meet, and never again (`seen`).
    """
    seen = set() if seen is None else seen
    if (writer.full_name, reader.full_name) in seen:
        return
    seen.add((writer.full_name, reader.full_name))
    known = {field.number: field for field in writer.fields}
    for field in reader.fields:
        wrote = known.get(field.number)
        if wrote is None:
            continue
        at = f"{where}{field.name} = {field.number}"
        before, after = _type(wrote), _type(field)
        is_kept = wrote.is_repeated == field.is_repeated and (_is_map(wrote) or not _is_map(field))  # a map drops items
        if not is_kept or (before != after and after not in WIDER.get(before, ())):
            yield f"{at} was written as {_spell(wrote)}, expected {_spell(field)}"
        elif field.message_type is not None:
            yield from find_mismatches(wrote.message_type, field.message_type, f"{at}: ", seen)
    for oneof in reader.oneofs:
        homes: dict[str, FieldDescriptor] = {}  # one field of each oneof of the writer, or that it has outside of any
        for field in oneof.fields:
            if wrote := known.get(field.number):
                homes.setdefault((wrote.containing_oneof or wrote).full_name, field)
        if len(homes) > 1:
            one, other = [f"{field.name} = {field.number}" for field in homes.values()][:2]
            yield f"{where}{one} and {other} could be written together, expected one of them at most, of oneof {oneof.name}"


def _zigzag(number: int) -> bytes:
    """Return a number that is not negative as a zigzag varint."""
    left, out = number << 1, b""
    while left > 0x7F:
        out, left = out + bytes([left & 0x7F | 0x80]), left >> 7
    return out + bytes([left])


def _type(field: FieldDescriptor) -> str:
    name: str = FieldDescriptorProto.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _spell(field: FieldDescriptor) -> str:
    return "map" if _is_map(field) else f"{'repeated ' if field.is_repeated else ''}{_type(field)}"
