"""The environment of commands that are run as processes of their own, as the benchmark runs them."""

from __future__ import annotations

from pipeline_defs.lab.environment import plain_environment, variables_of

__all__ = ["plain_environment", "variables_of"]
