"""The command `offsetlake`; one file per group of commands, each a thin face of functions elsewhere.

Nothing is imported here but the standard library. Invariant: Ctrl-C ends a command with one line and no traceback, also in the
seconds in which it imports the rest.
"""

import gc
import os
import signal


def main() -> None:
    """Run the command."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    gc.set_threshold(100_000)  # of what modules make hardly anything is garbage: to look for it takes a fifth of all imports
    from .commands import run

    signal.signal(signal.SIGINT, before)
    run()


def _end(number: int, frame: object) -> None:  # noqa: ARG001 (a handler of signals)
    """End the process by the signal: an import half done has nothing to undo, and might take an exception for its own."""
    signal.signal(number, signal.SIG_DFL)
    os.write(2, b"interrupted before anything was begun: nothing was done\n")
    os.kill(os.getpid(), number)
