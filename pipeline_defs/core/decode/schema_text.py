"""Schemas as people write them: how their JSON is read, and how large they may be.

What a few hundred characters of references can expand to would otherwise end a process. Each reader of schemas holds the
bounds, which are far beyond what tables of people have.
"""

import json
from typing import Any

MOST_COLUMNS = 10_000
"""Columns, those within structs, lists and maps included."""
MOST_LEVELS = 100
"""Levels of columns, and of schemas, within each other."""
MOST_CHECKS = 1_000_000
"""Checks of one value by a JSON Schema: about 30 ms."""
MOST_FIXED_BYTES = 64 << 20
"""Bytes of a `fixed` of Avro, which a reader makes room for before it reads."""
MOST_REFERENCES = 1_000
"""Schemas that one schema of a registry refers to, and those that they refer to."""


def parse_json(text: str) -> Any:
    """Return what a text says; raise `ValueError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep to be read") from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        raise ValueError("a number has too many digits to be read") from None
