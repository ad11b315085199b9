"""What Kafka's own serializers write, in Spark: numbers, big-endian as Java has them, and UUIDs, which are text.

Every value comes back as it was written, -0.0, NaN, infinities and the least there is included, and no Python is asked.
"""

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as f

from ...core.decode.decoders import SERIALIZED, Format, Side
from .decoded import Decoded, decoded_where_not_null, failed

BYTES: Mapping[str, int] = {Format.SHORT: 2, Format.INTEGER: 4, Format.LONG: 8, Format.FLOAT: 4, Format.DOUBLE: 8}
FRACTION_BITS: Mapping[str, int] = {
    Format.FLOAT: 23,
    Format.DOUBLE: 52,
}  # of IEEE 754; what is left, but for the sign, is the exponent
UUID = r"(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z"


def decode_serialized(raw: Column, side: Side) -> Decoded:
    """Decode what a serializer of Kafka's wrote; anything of another length, or that is no UUID, is an error."""
    if side.format == Format.UUID:
        text = raw.cast("string")
        value, wrong = f.when(text.rlike(UUID), f.lower(text)), f.lit("expected the 36 characters of a UUID")
    else:
        size = f.octet_length(raw)
        value = f.when(size == BYTES[side.format], _number(f.hex(raw), side.format))
        wrong = f.concat(f.lit("found "), size.cast("string"), f.lit(f" bytes, expected {BYTES[side.format]}"))
    return decoded_where_not_null(raw, value.cast(SERIALIZED[side.format]), failed(f"{side.format}_malformed", wrong))


def _number(digits: Column, kind: str) -> Column:
    """Return the number that hexadecimal digits are the bits of."""
    width = 8 * BYTES[kind]
    # never more than 64 bits, also of keys that are too long, of which Spark may work this out and not use it
    bits = f.conv(f.substring(digits, 1, width // 4), 16, -10).cast("bigint")
    if kind not in FRACTION_BITS:
        return bits if width == 64 else f.when(bits < 1 << (width - 1), bits).otherwise(bits - (1 << width))
    fraction_bits = FRACTION_BITS[kind]
    exponent_bits = width - 1 - fraction_bits
    exponent = f.shiftrightunsigned(bits, fraction_bits).bitwiseAND((1 << exponent_bits) - 1)
    fraction = bits.bitwiseAND((1 << fraction_bits) - 1)
    sign = f.when(f.shiftrightunsigned(bits, width - 1).bitwiseAND(1) == 1, f.lit(-1.0)).otherwise(f.lit(1.0))
    whole = f.when(exponent == 0, fraction).otherwise(fraction + (1 << fraction_bits)).cast("double")
    # the least exponent is said twice: as 0, of numbers without the bit that all others have, and as 1
    least = 1 - (1 << (exponent_bits - 1)) + 1 - fraction_bits
    power = f.pow(f.lit(2.0), f.greatest(exponent, f.lit(1)) - 1 + least)
    beyond = f.when(fraction == 0, f.lit(float("inf"))).otherwise(f.lit(float("nan")))
    return sign * f.when(exponent == (1 << exponent_bits) - 1, beyond).otherwise(whole * power)
