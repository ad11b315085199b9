"""A module that is run as `python -m` runs it; in the end its process writes its peak of resident bytes to a file.

A parent cannot ask for that: Linux counts to a child what the parent itself had when it started it.
"""

import atexit
import os
import runpy
import sys
from pathlib import Path


def main(path: Path, module: str) -> None:
    """Run a module with what is left of the command line."""
    atexit.register(_write_peak, path)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _write_peak(path: Path) -> None:
    from .usage import read_peak_bytes  # late: what it imports is not of what is measured

    path.write_text(str(read_peak_bytes(os.getpid())))


if __name__ == "__main__":
    _, file, name, *sys.argv[1:] = sys.argv
    main(Path(file), name)
