"""Steps: how landing and planning report each protocol step, to a log or to a test that stops them there."""

from collections.abc import Callable

StepWatcher = Callable[..., None]  # called with the step's name and its fields as keywords


def no_step(step: str, **fields: object) -> None:
    """Ignore a step."""
    del step, fields
