"""Text files that people write and name: read whole, UTF-8.

Invariant: whatever the path, and whatever is there, the outcome is the text or one `UnreadableText`, which says why and shows
none of it.
"""

from pathlib import Path


class UnreadableText(ValueError):
    """Reason why a file cannot be read, in words that follow the file's name."""


class NotText(UnreadableText):
    """Reason why what was read is no text."""


def read_file(path: Path) -> bytes:
    """Return a file's bytes; raise `UnreadableText`."""
    try:
        if path.is_file() or path.is_dir() or not path.exists():  # a pipe would be waited for, a device has no end
            return path.read_bytes()
    except OSError as error:
        raise UnreadableText((error.strerror or type(error).__name__).lower()) from None
    except ValueError:  # what Python says of a path with a NUL
        raise UnreadableText("its path has a NUL character, which no file's has") from None
    raise UnreadableText("it is a device, a pipe or a socket, expected a file")


def read_text_file(path: Path) -> str:
    """Return a file's text without a byte order mark; raise `UnreadableText`."""
    body = read_file(path)
    try:
        return body.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise NotText(f"line {line} has the byte 0x{body[error.start]:02x}, expected UTF-8") from None
