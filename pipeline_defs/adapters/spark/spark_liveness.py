"""Whether a Spark Connect server is there, and whether a job of it is stuck: how long it has finished no task.

A server is asked over a connection of its own and without a session: gRPC shares connections, and one that was opened before a
server froze looks well for ever. A stuck job is stopped, since others wait for its slot.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...core.setting_values import remote_parameters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo

DEFAULT_PORT = 15002
ANSWER_SECONDS = 5.0
NOBODY = "nobody answers there"
QUIET = "it listens, and does not answer"
_NO_METHOD = "/offsetlake/are_you_there"
_ALONE = (("grpc.use_local_subchannel_pool", 1),)
LOOPBACK = "127.0.0.1"
DIRECTLY = (("grpc.enable_http_proxy", 0),)  # a token for this machine is no proxy's to see


def is_listening(url: str) -> bool:
    """Return whether anybody listens there; a frozen process does, as the system accepts for it."""
    with suppress(OSError), closing(socket.create_connection(_address(url), timeout=ANSWER_SECONDS)):
        return True
    return False


def is_tls(url: str) -> bool:
    """Return whether a client speaks TLS to a URL: if it says so, or has a token for another name than `localhost`."""
    parameters = remote_parameters(url)
    is_asked = parameters.get("use_ssl", "").lower() == "true"
    return is_asked or ("token" in parameters and urlsplit(url).hostname != "localhost" and not is_ours(url))


def is_ours(url: str) -> bool:
    """Return whether a URL is of a server of ours: in the clear, to 127.0.0.1 alone.

    `localhost` is ::1 as well, where anybody on this machine may listen and be told the token.
    """
    return urlsplit(url).hostname == LOOPBACK and remote_parameters(url).get("use_ssl", "").lower() == "false"


def find_silence(url: str) -> str | None:
    """Return why a server says nothing within some seconds; none if it answers, even if only with a refusal."""
    import grpc

    target = place_of(url)
    options = (*_ALONE, *DIRECTLY) if is_ours(url) else _ALONE
    with (
        grpc.secure_channel(target, grpc.ssl_channel_credentials(), options)
        if is_tls(url)
        else grpc.insecure_channel(target, options)
    ) as channel:
        try:
            channel.unary_unary(_NO_METHOD)(b"", timeout=ANSWER_SECONDS)
        except grpc.RpcError as refusal:
            if refusal.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return QUIET
            if refusal.code() is grpc.StatusCode.UNAVAILABLE:
                return f"UNAVAILABLE: {refusal.details()}"
    return None


def without_parameters(url: str) -> str:
    """Return a URL that may be shown: it has no token."""
    return url.partition(";")[0].rstrip("/")


def place_of(url: str) -> str:
    """Return host and port of a server's URL, without the token."""
    return "{}:{}".format(*_address(url))


def _address(url: str) -> tuple[str, int]:
    place = urlsplit(url)
    return place.hostname or "localhost", place.port or DEFAULT_PORT


class Stillness:
    """When a job last finished a task, as Spark says every few seconds; `is_over` once that is too long ago.

    Nothing is known if a server reports no progress, as somebody else's may be set. The thread's jobs have a tag by which
    Spark can be asked to stop them.
    """

    def __init__(self, session: SparkSession, seconds: float) -> None:
        self.tag = uuid.uuid4().hex
        self.is_over = False
        self._session, self._seconds = session, seconds
        self._thread = threading.get_ident()
        self._finished, self._is_told = 0, False
        self._until = time.monotonic() + seconds

    def __call__(self, stages: Iterable[StageInfo] | None, **_: object) -> None:
        """Take note of what Spark says of the job's stages."""
        finished = sum(stage.num_completed_tasks for stage in stages or ())
        is_ours = threading.get_ident() == self._thread  # threads share sessions
        self._is_told |= is_ours
        if is_ours and finished != self._finished:
            self._finished, self._until = finished, time.monotonic() + self._seconds

    def look(self) -> bool:
        """Return whether it is over; once it is, it stays so."""
        self.is_over |= self._is_told and time.monotonic() >= self._until
        return self.is_over

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Tag, and take note of, what this thread asks of the session meanwhile."""
        own: Any = self._session
        own.registerProgressHandler(self)
        own.addTag(self.tag)
        try:
            yield
        finally:
            own.removeTag(self.tag)
            own.removeProgressHandler(self)
