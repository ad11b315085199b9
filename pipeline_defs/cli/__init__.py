"""The command `offsetlake`; one file per group of commands, each a thin face of functions elsewhere.

Nothing is imported here but the standard library.
"""

import gc


def main() -> None:
    """Run the command."""
    gc.set_threshold(100_000)  # of what modules make hardly anything is garbage: to look for it takes a fifth of all imports
    from .commands import run

    run()
