"""Which store a lake has: by its root, a folder or a URL."""

from urllib.parse import urlsplit

from .disk_store import DiskStore
from .object_store import RemoteStore
from .store import Store


def open_store(root: str) -> Store:
    """Return the store of a lake's root: a local folder, or a URL that obstore knows (s3, gs, az)."""
    return DiskStore(root) if urlsplit(root).scheme in {"", "file"} else RemoteStore(root)
