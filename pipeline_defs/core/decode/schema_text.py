"""Schemas as people write them: how their JSON is read, and how large they may be.

Without bounds a few hundred characters of references can expand until the process dies. Each reader of schemas enforces
them; they are far beyond real tables.
"""

import json
from typing import Any

MOST_COLUMNS = 10_000
"""Columns, including those within structs, lists and maps."""
MOST_LEVELS = 30
"""Nested levels of columns, and of schemas: Spark's client reads 100 levels of messages, three to a struct."""
MOST_CHECKS = 1_000_000
"""Checks of one value by a JSON Schema: about 30 ms."""
MOST_FIXED_BYTES = 64 << 20
"""Bytes of an Avro `fixed`, which a reader allocates before it reads."""
MOST_REFERENCES = 1_000
"""Schemas that one schema of a registry refers to, directly or not."""


def parse_json(text: str) -> Any:
    """Parse JSON; raise `ValueError` also for what is nested too deep or has too long a number."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep to be read") from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        raise ValueError("a number has too many digits to be read") from None
