"""Steps: how landing and planning tell what they have just passed, to a log or to a test that stops them there."""

from collections.abc import Callable

StepWatcher = Callable[..., None]  # called with the step's name and its fields as keywords


def no_step(step: str, **fields: object) -> None:
    """Watch nothing."""
    del step, fields
