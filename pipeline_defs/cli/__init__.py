"""The command `offsetlake`; one file per group of commands, each a thin face of functions elsewhere.

Nothing is imported here but the standard library. Invariant: Ctrl-C ends a command without a traceback, also in the seconds
in which it imports the rest.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process: an import half done has nothing to undo
    from .commands import run

    signal.signal(signal.SIGINT, before)
    run()
