"""Protobuf's schemas: .proto text through protoc to descriptors, and what one message can read of another's bytes.

Nothing here decodes. Fields are told apart by their numbers, never by their names.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UnusableSchema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

MAIN = "offsetlake_schema.proto"
PROTOC_SECONDS = 60

# what a reader's type makes of a writer's other one without a loss: numbers that are encoded alike, and are no smaller
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
    """Is a compiled schema: a serialized FileDescriptorSet, what it imports before it."""

    descriptors: bytes

    def messages(self) -> Mapping[str, Descriptor]:
        """Are the messages that the schema itself defines, by their full names, at any depth."""
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool

        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(self.descriptors).file:
            pool.Add(file)
        top = pool.FindFileByName(MAIN).message_types_by_name.values()
        return {message.full_name: message for outer in top for message in _within(outer)}


def compile_proto(text: str, references: Mapping[str, str], what: str) -> ProtoFile:
    """Compiles a schema with what it imports by name; raises `UnusableSchema` with what protoc says."""
    return _compile(text, tuple(sorted(references.items())), what)


@lru_cache(maxsize=1_000)
def _compile(text: str, references: tuple[tuple[str, str], ...], what: str) -> ProtoFile:
    import grpc_tools
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    known = Path(grpc_tools.__file__).parent / "_proto"
    compiled = FileDescriptorSet()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in (*references, (MAIN, text)):
            path = (folder / file).resolve()
            if not path.is_relative_to(folder.resolve()):
                raise UnusableSchema(f"{what} imports {file}, which is no path below its own; nothing was decoded")
            described = _read_described(content)
            if described is not None:
                described.name = file
                compiled.file.append(described)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
        given, out = folder / "given", folder / "descriptors"
        given.write_bytes(compiled.SerializeToString())
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{known}", "--include_imports"]
        done = subprocess.run(
            [*command, f"--descriptor_set_in={given}", f"--descriptor_set_out={out}", MAIN],
            capture_output=True,
            text=True,
            timeout=PROTOC_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            said = "; ".join(line.replace(f"{folder}/", "") for line in done.stderr.splitlines() if line.strip())
            raise UnusableSchema(
                f"{what} is no Protobuf schema: {said}; nothing was decoded; correct it, or give records a reader's schema of "
                "their own with `inline_schema` in defs.yaml"
            )
        return ProtoFile(out.read_bytes())


def _read_described(text: str) -> FileDescriptorProto | None:
    """Is a schema that is a descriptor in base64, as Confluent's clients for Python register it; none where it is text."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None


def find_message(file: ProtoFile, name: str | None, what: str) -> Descriptor:
    """Is the message that records are of: the one that is named, with or without its package, else the only one."""
    messages = file.messages()
    outer = [each for each in messages.values() if each.containing_type is None]
    found = [each for each in messages.values() if name in {each.full_name, each.name}] if name else outer
    if len(found) != 1:
        raise UnusableSchema(
            f"{what} has the messages {', '.join(messages) or '(none)'}, expected {f'one {name}' if name else 'one'}; nothing "
            "was decoded; name it with `message` in defs.yaml"
        )
    problems = [*find_problems(found[0], ())]
    if problems:
        raise UnusableSchema(
            f"{what} has no columns in Spark: {'; '.join(problems)}; nothing was decoded; give records a reader's schema "
            "without them with `inline_schema` in defs.yaml"
        )
    return found[0]


def find_problems(message: Descriptor, outside: tuple[str, ...]) -> Iterator[str]:
    """Find what of a message has no column: a message within itself, without fields, groups, fields that differ in case only."""
    if message.full_name in outside:
        yield f"{message.full_name} contains itself"
        return
    if not message.fields:
        yield f"{message.full_name} has no fields"
    names = [field.name.lower() for field in message.fields]
    for field in message.fields:
        if names.count(field.name.lower()) > 1:
            yield f"{message.full_name}.{field.name} differs from another field in case only"
        if _type(field) == "group":  # ptars passes over it
            yield f"{message.full_name}.{field.name} is a group"
        if field.message_type is not None:
            yield from find_problems(field.message_type, (*outside, message.full_name))


def encode_path(message: Descriptor) -> list[bytes]:
    """Are the ways in which Confluent's serializers say which message of its file follows; the first is the usual one."""
    path: list[int] = []
    inner: Descriptor | None = message
    while inner is not None:
        outer = inner.containing_type
        siblings = outer.nested_types if outer else inner.file.message_types_by_name.values()
        path.insert(0, [each.full_name for each in siblings].index(inner.full_name))
        inner = outer
    spelled = b"".join(_zigzag(number) for number in (len(path), *path))
    return [b"\0", spelled] if path == [0] else [spelled]


def find_mismatches(writer: Descriptor, reader: Descriptor, where: str = "") -> Iterator[str]:
    """Finds the numbers that two messages use for what is not the same: Protobuf itself would pass over it, or change it."""
    known = {field.number: field for field in writer.fields}
    for field in reader.fields:
        wrote = known.get(field.number)
        if wrote is None:
            continue
        at = f"{where}{field.name} = {field.number}"
        before, after = _type(wrote), _type(field)
        if _is_repeated(wrote) != _is_repeated(field) or (before != after and after not in WIDER.get(before, ())):
            yield f"{at} was written as {_spell(wrote)}, expected {_spell(field)}"
        elif field.message_type is not None:
            yield from find_mismatches(wrote.message_type, field.message_type, f"{at}: ")


def _within(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for inner in message.nested_types:
        if not inner.GetOptions().map_entry:
            yield from _within(inner)


def _zigzag(number: int) -> bytes:
    """Is a number as a varint of zigzag; of no negative ones."""
    left, out = number << 1, b""
    while left > 0x7F:
        out, left = out + bytes([left & 0x7F | 0x80]), left >> 7
    return out + bytes([left])


def _type(field: FieldDescriptor) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    name: str = FieldDescriptorProto.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _spell(field: FieldDescriptor) -> str:
    return f"{'repeated ' if _is_repeated(field) else ''}{_type(field)}"
