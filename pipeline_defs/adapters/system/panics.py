"""Panics of libraries that are written in Rust: pyo3 derives them from BaseException, and lets nobody import them.

Nothing else is here. Invariant: an interrupt or exit is never taken for one.
"""


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of Rust, of which a caller must make an error of one record."""
    return type(error).__name__ == "PanicException"
