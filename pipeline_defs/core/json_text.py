"""JSON that people wrote: read, or one reason in our words why not; Python's own names its functions, or is no ValueError."""

import json
from typing import Any


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
