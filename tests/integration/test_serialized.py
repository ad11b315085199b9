"""What Kafka's own serializers write, on real Spark: each value as Java wrote it, and bytes that are none of it."""

from __future__ import annotations

import math
import random
import struct
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pipeline_defs.core.decode.decoders import SERIALIZED, Format, Side
from tests.support.outcomes import decode

if TYPE_CHECKING:
    from pipeline_defs.adapters.spark.engine import Engine

# as java.nio.ByteBuffer has them, which the serializers use
WIRE = {Format.SHORT: ">h", Format.INTEGER: ">i", Format.LONG: ">q", Format.FLOAT: ">f", Format.DOUBLE: ">d"}
DICE = random.Random(5)
INFINITY = math.inf


def whole(bits: int) -> list[int]:
    """Return the ends, what is around nothing, and some in between."""
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    return [least, least + 1, -256, -255, -1, 0, 1, 255, 256, most - 1, most, *(DICE.randint(least, most) for _ in range(200))]


def of_any_bits(kind: str) -> list[float]:
    """Return numbers of all exponents, those next to nothing and next to infinity included; no NaN."""
    size = struct.calcsize(kind)
    patterns = [DICE.getrandbits(8 * size) for _ in range(400)]
    patterns += [
        sign << 8 * size - 1 | rest for sign in (0, 1) for rest in (0, 1, 2, (1 << 23) - 1, 1 << 23, (1 << 52) - 1, 1 << 52)
    ]
    found = [struct.unpack(kind, (each % (1 << 8 * size)).to_bytes(size, "big"))[0] for each in patterns]
    return [each for each in found if not math.isnan(each)]


VALUES: dict[Format, list[Any]] = {
    Format.SHORT: whole(16),
    Format.INTEGER: whole(32),
    Format.LONG: whole(64),
    Format.FLOAT: [0.0, -0.0, 1.5, -2.25, INFINITY, -INFINITY, *of_any_bits(">f")],
    Format.DOUBLE: [0.0, -0.0, 0.1, 5e-324, -5e-324, 1.7976931348623157e308, INFINITY, -INFINITY, *of_any_bits(">d")],
}


def bits(value: float) -> bytes:
    """Tell -0.0 from 0.0."""
    return struct.pack(">d", value)


@pytest.mark.parametrize("name", WIRE)
def test_each_number_is_the_one_that_was_written_and_bytes_of_another_length_are_set_aside(
    engine: Engine, name: Format
) -> None:
    """What is no number stays none."""
    written, kind = VALUES[name], WIRE[name]
    size, is_real = struct.calcsize(kind), name in {Format.FLOAT, Format.DOUBLE}
    none = [math.nan, -math.nan] if is_real else []
    wrong = [b"\xff" * length for length in (0, 1, size - 1, size + 1, 3 * size, 5_000)]
    right = [struct.pack(kind, each) for each in (*written, *none)]
    found = decode(engine, [None, *right, *wrong, b"\0" * size], Side(name))
    assert found.type == SERIALIZED[name].lower() and found.values[0] is None
    how: Callable[[Any], Any] = bits if is_real else int
    last = 1 + len(written)
    assert [how(each) for each in found.values[1:last]] == [how(each) for each in written]
    assert all(map(math.isnan, found.values[last : last + len(none)]))
    assert found.values[last + len(none) :] == [None] * len(wrong) + [0]
    assert found.classes == [None] * (1 + len(right)) + [f"{name}_malformed"] * len(wrong) + [None]
    assert found.errors[1 + len(right) : -1] == [f"found {len(each)} bytes, expected {size}" for each in wrong]


def test_a_uuid_is_text_and_anything_else_is_none(engine: Engine) -> None:
    right = [uuid.UUID(int=DICE.getrandbits(128)) for _ in range(20)]
    wrong = [b"", right[0].bytes, str(right[0]).encode() + b"\n", str(right[0])[:-1].encode(), b"\xff" * 36, b"1-1-1-1-1"]
    records = [None, *(str(each).encode() for each in right), str(right[0]).upper().encode(), *wrong]
    found = decode(engine, records, Side(Format.UUID))
    assert found.type == "string"
    assert found.values == [None, *map(str, right), str(right[0]), *[None] * len(wrong)]
    assert found.classes == [None] * 22 + ["uuid_malformed"] * len(wrong)
