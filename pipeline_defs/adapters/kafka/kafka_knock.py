"""Knocking at brokers: one connection made by hand, to learn why a broker does not let us in.

kafka-python retries until its time-out and reports only that; it drops an answer that comes as the connection ends, such
as that to a wrong login. Invariant: only what a broker or its certificate says is a refusal; silence never is.
"""

import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any

from kafka.errors import IllegalSaslStateError, KafkaError, NoError, SaslAuthenticationFailedError, for_code
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from ...core.errors import BrokerRefuses
from .access import VARIABLE, Access

SECONDS = 5.0  # for one broker
_TRIES = 3  # a connection may end before the answer on it arrives
_NO_MECHANISM = "none"
_CUT_SHORT = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


def knock(bootstrap_servers: str, access: Access, timeout_seconds: float) -> str:
    """Ask one broker after the other until one lets us in or time is up; return the servers that do not speak Kafka.

    Raises `BrokerRefuses` if one answers and refuses. That none answers is no error here.
    """
    strangers = list[str]()
    deadline = time.monotonic() + timeout_seconds
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        for _ in range(_TRIES):
            left = min(SECONDS, deadline - time.monotonic())
            if left <= 0:
                break
            try:
                if _Door(host.strip("[]"), int(port), access, left).try_to_enter():
                    return ""
            except ConnectionError:
                continue
            except OSError:  # nobody there
                break
            except (KafkaError, ValueError, LookupError):
                strangers.append(server.strip())
                break
    return ", ".join(strangers)


class _Door:
    """One listener of one broker."""

    def __init__(self, host: str, port: int, access: Access, seconds: float) -> None:
        self._place, self._access, self._seconds = (host, port), access, seconds
        self._properties = access.properties
        self._found = f"security.protocol={self._properties.protocol}" + ("" if access.path else f", as {VARIABLE} is not set")
        self._file = access.path or VARIABLE

    def try_to_enter(self) -> bool:
        """Return whether the broker has let us in; raise `BrokerRefuses` if it has said no."""
        with socket.create_connection(self._place, self._seconds) as plain:
            if self._access.tls is None:
                return self._log_in(plain, self._find_tls)
            try:
                wrapped = self._access.tls.wrap_socket(plain, server_hostname=self._place[0])
            except ssl.SSLCertVerificationError as error:
                raise self._distrusted(error) from None
            except (*_CUT_SHORT, ConnectionError):
                self._find_plaintext()
                raise
            except ssl.SSLError as error:
                raise self._no_tls(error) from None
            with wrapped:
                return self._log_in(wrapped, lambda: None)

    def _log_in(self, sock: socket.socket, when_cut_short: Callable[[], None]) -> bool:
        try:
            talk = _Talk(sock, self._seconds)
        except ssl.SSLError as error:  # TLS 1.3: what the broker thinks of our certificate comes after the handshake
            raise self._no_tls(error) from None
        except (ConnectionError, KafkaError):
            when_cut_short()
            raise
        login = self._properties.login
        answer = talk.ask(SaslHandshakeRequest(mechanism=login.mechanism if login else _NO_MECHANISM))
        refused = for_code(answer.error_code)
        if login is None and refused is not IllegalSaslStateError:
            reason = f"it wants a login by {' or '.join(answer.mechanisms)}, found {self._found}"
            raise self._refuses(reason, f"name security.protocol, sasl.mechanism and sasl.jaas.config in {self._file}")
        if login is None:
            return True
        if refused is IllegalSaslStateError:
            raise self._refuses(f"it asks for no login, found {self._found}", f"correct that in {self._file}")
        if refused is not NoError:
            reason = f"it takes logins by {' or '.join(answer.mechanisms)}, found sasl.mechanism={login.mechanism}"
            raise self._refuses(reason, f"correct that in {self._file}")
        mechanism = get_sasl_mechanism(login.mechanism)(host=self._place[0], **self._access.kafka_python())
        while not mechanism.is_done():
            answer = talk.ask(SaslAuthenticateRequest(mechanism.auth_bytes()))
            if for_code(answer.error_code) is SaslAuthenticationFailedError:
                said = self._properties.hide(answer.error_message or "it does not say why")
                reason = f"it refuses the login of {login.username} by {login.mechanism}: {said}"
                raise self._refuses(reason, f"correct username and password of sasl.jaas.config in {self._file}")
            mechanism.receive(answer.auth_bytes)
        return True

    def _distrusted(self, error: ssl.SSLCertVerificationError) -> BrokerRefuses:
        tls = self._properties.tls
        source = tls.trust.source if tls and tls.trust else "this machine's own"
        expected = f"expected one for {self._place[0]} of an authority of {source}"
        do = f"name its authority by ssl.truststore.location in {self._file}, or mend that certificate"
        return self._refuses(f"its certificate is not trusted: {error.verify_message}, {expected}", do)

    def _no_tls(self, error: ssl.SSLError) -> BrokerRefuses | ConnectionError:
        if isinstance(error, _CUT_SHORT):
            return ConnectionResetError("the connection ended")
        tls = self._properties.tls
        ours = "our certificate, found no ssl.keystore" if tls and tls.key is None else "what ssl.keystore has"
        reason = f"TLS ends{f' with {error.reason}' if error.reason else ''}, most likely because of {ours}"
        return self._refuses(reason, f"correct ssl.keystore in {self._file}, so that an authority of the broker's signed it")

    def _find_tls(self) -> None:
        """Raise `BrokerRefuses` if the port speaks TLS; check no certificate and send nothing but the handshake."""
        anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(self._place, self._seconds) as plain:
            try:
                anybody.wrap_socket(plain).close()
            except OSError:
                return
        where = f"in {self._access.path}" if self._access.path else f"in a file that {VARIABLE} names"
        do = f"say security.protocol=SSL or SASL_SSL {where}, as `offsetlake explain security` shows"
        raise self._refuses(f"it speaks TLS, found {self._found}", do)

    def _find_plaintext(self) -> None:
        """Raise `BrokerRefuses` if the port answers without TLS; send no login."""
        with socket.create_connection(self._place, self._seconds) as plain:
            try:
                _Talk(plain, self._seconds)
            except (OSError, KafkaError):
                return
        raise self._refuses(f"it speaks no TLS, found {self._found}", f"correct that in {self._file}")

    def _refuses(self, reason: str, do: str) -> BrokerRefuses:
        host, port = self._place
        return BrokerRefuses(
            f"the Kafka broker at {host}:{port} does not let us in: {reason}; nothing was written and nothing is lost; {do}",
            bootstrap_servers=f"{host}:{port}",
        )


class _Talk:
    """Requests over one connection, with one deadline for all of them; the first asks which API versions are spoken."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds  # a socket's own time-out starts again with each part of an answer
        self._sock, self._protocol = sock, KafkaProtocol(client_id="offsetlake", receive_message_max_bytes=1_000_000)
        known = self.ask(ApiVersionsRequest(version=0)).api_keys
        self._versions = BrokerVersionData(api_versions={each.api_key: (each.min_version, each.max_version) for each in known})

    def ask(self, request: Any) -> Any:
        """Send a request and return its answer; an end of the connection is a `ConnectionError`."""
        if request.API_VERSION is None:
            request.API_VERSION = self._versions.api_version(request)
        self._protocol.send_request(request)
        self._sock.sendall(self._protocol.send_bytes())
        answers: list[tuple[int, Any]] = []
        while not answers:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no whole answer of a Kafka broker in time")
            self._sock.settimeout(left)
            received = self._sock.recv(65536)
            if not received:
                raise ConnectionResetError("the connection ended")
            try:
                answers = self._protocol.receive_bytes(received)
            except struct.error:
                raise ValueError("no answer of a Kafka broker") from None
        return answers[0][1]
