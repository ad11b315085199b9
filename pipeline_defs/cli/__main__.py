"""Runs the command as `python -m pipeline_defs.cli`."""

from . import main

main()
