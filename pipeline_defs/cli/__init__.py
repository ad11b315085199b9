"""The command `offsetlake`; one file per group of commands, each a thin face of functions elsewhere.

Nothing is imported here but the standard library.
"""

import gc


def main() -> None:
    """Run the command."""
    gc.set_threshold(100_000)  # imports make hardly any garbage, and looking for it takes a fifth of their time
    from .commands import run

    run()
