"""Seeds of the decoders' fuzzers: the same few by default, `HUNT=3000` takes 3,000 others."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator


def draws(count: int) -> Iterator[tuple[int, random.Random]]:
    """Yield seeds with their dice: always the same `count`, or as many as HUNT says."""
    hunt = int(os.environ.get("HUNT", "0"))
    yield from ((seed, random.Random(seed)) for seed in range(hunt or count))


def mutate(dice: random.Random, body: bytes) -> bytes:
    """Change, cut, insert or repeat bytes; what comes out need not be legal."""
    changed = bytearray(body)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(changed) + 1)
        match dice.randrange(4):
            case 0 if changed:
                changed[at - 1] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
            case 1:
                changed[at:] = b""
            case 2:
                changed[at:at] = dice.randbytes(dice.randrange(4))
            case _:
                changed[at:at] = changed[: dice.randrange(len(changed) + 1)]
    return bytes(changed)
