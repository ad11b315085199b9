"""Whether anybody is at the URL of a Spark Connect server, asked over a connection of its own and without a session.

gRPC shares connections, and one that was opened before a server froze looks well for ever: so none is shared.
"""

from __future__ import annotations

import socket
from contextlib import closing, suppress
from urllib.parse import parse_qsl, urlsplit

DEFAULT_PORT = 15002
ANSWER_SECONDS = 5.0
_NO_METHOD = "/offsetlake/are_you_there"
_ALONE = (("grpc.use_local_subchannel_pool", 1),)


def is_listening(url: str) -> bool:
    """Return whether anybody listens there; a frozen process does, as the system accepts for it."""
    with suppress(OSError), closing(socket.create_connection(_address(url), timeout=ANSWER_SECONDS)):
        return True
    return False


def is_answering(url: str) -> bool:
    """Return whether a server there says anything within some seconds, if only that it lets nobody in."""
    import grpc

    target = "{}:{}".format(*_address(url))
    with (
        grpc.secure_channel(target, grpc.ssl_channel_credentials(), _ALONE)
        if ("use_ssl", "true") in parse_qsl(urlsplit(url).path.strip("/;"), separator=";")
        else grpc.insecure_channel(target, _ALONE)
    ) as channel:
        try:
            channel.unary_unary(_NO_METHOD)(b"", timeout=ANSWER_SECONDS)
        except grpc.RpcError as refusal:
            return refusal.code() not in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
    return True


def place_of(url: str) -> str:
    """Return host and port of a server's URL, without the token."""
    return "{}:{}".format(*_address(url))


def _address(url: str) -> tuple[str, int]:
    place = urlsplit(url)
    return place.hostname or "localhost", place.port or DEFAULT_PORT
