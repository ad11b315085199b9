"""The command `offsetlake`; one file per group of commands, each a thin face of functions elsewhere.

Nothing is imported here but the standard library.
"""

import atexit
import gc
import sys


def main() -> None:
    """Run the command."""
    atexit.register(_end)
    gc.set_threshold(100_000)  # imports make hardly any garbage, and looking for it takes a fifth of their time
    from .commands import run

    run()


def _end() -> None:
    """Have Python end without a search for garbage in all that was loaded, which takes half a second or more."""
    if "_duckdb" not in sys.modules:  # that would report what is not collected as leaks
        gc.freeze()
