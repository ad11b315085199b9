"""Access to Kafka clusters: the properties file that Kafka's own commands take, for every client we have.

Spark's client gets Kafka's own keys, kafka-python their meaning. Invariant: what was read from the files holds until one
of them is edited; whoever connects next then reads them again.
"""

import ssl
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import javaproperties

from ...core.errors import BadSetting
from ...core.login.client_properties import PEM_ADVICE, ClientProperties, Pem, Tls, parse_client_properties
from ...core.login.credentials import CERTIFICATE, LOCKED_KEY, PRIVATE_KEY, find_blocks, is_locked_by_pbes2
from ..system.text_files import NotText, UnreadableText, read_file, read_text_file

VARIABLE = "OFFSETLAKE_KAFKA_PROPERTIES"
FRESH_NS = 2_000_000_000
_Stamp = tuple[int, int, int]  # when it was written to (ns since 1970), bytes, inode
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class Access:
    """Login and encryption of one machine towards its clusters; without a file there is neither."""

    properties: ClientProperties = field(default_factory=ClientProperties)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    path: Path | None = None

    @property
    def has_secrets(self) -> bool:
        """Whether Spark's options have a password or a private key in them."""
        tls = self.properties.tls
        return self.properties.login is not None or (tls is not None and tls.key is not None)

    def kafka_python(self) -> dict[str, Any]:
        """Derive the configuration that each client of kafka-python is opened with."""
        login = self.properties.login
        config: dict[str, Any] = {"security_protocol": self.properties.protocol, "ssl_context": self.tls}
        if login is not None:
            config |= {
                "sasl_mechanism": login.mechanism,
                "sasl_plain_username": login.username,
                "sasl_plain_password": login.password,
            }
        return config

    def spark(self) -> Mapping[str, str]:
        """Derive the options of Spark's Kafka source: Kafka's own keys, behind `kafka.`."""
        return {f"kafka.{key}": value for key, value in self.properties.kafka.items()}


OPEN = Access()
_known: dict[Path, tuple[Access, Mapping[Path, _Stamp | None]]] = {}  # with the stamps of the files it was read from


def read_access(path: Path) -> Access:
    """Read a properties file, again if it was edited; raise `BadSetting` with all that is wrong, but none of its values."""
    known = _known.get(path)
    if known is not None and all(stamp is not None and _stamp_of(file) == stamp for file, stamp in known[1].items()):
        return known[0]
    access, stamps = _read_access(path)
    if known is not None and known[0].properties == access.properties:
        access = known[0]  # clients that are open stay so
    _known[path] = access, stamps
    return access


def _stamp_of(path: Path) -> _Stamp | None:
    """Return a stamp that changes when a file does; none if it cannot be seen, or may still be being written.

    Two writes may have the same time: an editor empties a file, then fills it.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    is_fresh = abs(time.time_ns() - found.st_mtime_ns) < FRESH_NS
    return None if is_fresh else (found.st_mtime_ns, found.st_size, found.st_ino)


def _read_access(path: Path) -> tuple[Access, Mapping[Path, _Stamp | None]]:
    where, stamp = f"{VARIABLE} {path}", _stamp_of(path)
    try:
        values, lines = _read_values(BytesIO(read_file(path)))
    except (UnreadableText, javaproperties.InvalidUEscapeError) as error:
        reason = str(error) if isinstance(error, UnreadableText) else "a \\u is not followed by four digits"
        raise BadSetting(
            f"{where} cannot be read: {reason}, expected a properties file as Kafka's commands take it by "
            "--command-config; nothing was asked of any broker; correct the variable or the file"
        ) from None
    properties = parse_client_properties(values, where, lines)
    pems = {Path(value): _stamp_of(Path(value)) for key, value in values.items() if key.endswith(".location")}
    stamps = {path: stamp, **pems}
    if properties.tls is None:
        return Access(properties, None, path), stamps
    context = _context(properties.tls, where)  # first: it says best what is wrong with a file
    told = _without_paths(properties.kafka, properties.tls, where)
    return Access(replace(properties, kafka=told), context, path), stamps


def _without_paths(kafka: Mapping[str, str], tls: Tls, where: str) -> dict[str, str]:
    """Return the options of Spark's Kafka client with files' text in place of paths: executors may have other disks."""
    told = {key: value for key, value in kafka.items() if not key.endswith(".location")}
    if tls.trust is not None and tls.trust.location is not None:
        told["ssl.truststore.certificates"] = _read(tls.trust, CERTIFICATE, where)
    if tls.key is not None and tls.key.location is not None:
        told["ssl.keystore.key"] = _read(tls.key, PRIVATE_KEY if tls.key_password is None else LOCKED_KEY, where)
        told["ssl.keystore.certificate.chain"] = _read(tls.key, CERTIFICATE, where)
    return told


def _read_values(file: BinaryIO) -> tuple[dict[str, str], dict[str, int]]:
    """Read keys with their values and their lines; if a key is repeated the last one counts, as in Java."""
    values, lines, line = {}, {}, 1
    for element in javaproperties.parse(file):
        if isinstance(element, javaproperties.KeyValue):
            values[element.key], lines[element.key] = element.value, line
        line += len(element.source.splitlines())
    return values, lines


def _context(tls: Tls, where: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    wanted = sorted(_VERSIONS[each] for each in tls.versions)
    context.minimum_version, context.maximum_version = wanted[0], wanted[-1]
    context.check_hostname = tls.checks_host_name
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as Java: whatever the truststore has is trusted, root or not
    if tls.trust is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=_read(tls.trust, CERTIFICATE, where))
        except ssl.SSLError as error:
            raise _unusable(tls.trust, where, f"a certificate in it cannot be read{_said(error)}") from None
    if tls.key is not None:
        key = _read(tls.key, PRIVATE_KEY if tls.key_password is None else LOCKED_KEY, where)
        if tls.key_password is not None and is_locked_by_pbes2(key):
            reason = "its key is encrypted by PBES2, which Spark's Kafka client cannot undo: encrypt it by PBE-SHA1-3DES"
            raise _unusable(tls.key, where, reason)
        both = key + _read(tls.chain or tls.key, CERTIFICATE, where)
        try:
            # OpenSSL takes keys from files only: nobody else may read this one; given no password it would prompt for one
            with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:
                file.write(both)
                file.flush()
                context.load_cert_chain(file.name, password=tls.key_password or "")
        except ssl.SSLError as error:
            reason = f"its key cannot be read, or is not its certificate's, or ssl.key.password is wrong{_said(error)}"
            raise _unusable(tls.key, where, reason) from None
    return context


def _read(pem: Pem, kind: str, where: str) -> str:
    """Read the blocks of one kind, at least one; raise `BadSetting`."""
    try:
        text = pem.text if pem.location is None else read_text_file(Path(pem.location))
    except NotText:
        raise _unusable(pem, where, f"it is not PEM; where it is a JKS or PKCS12 store, {PEM_ADVICE}") from None
    except UnreadableText as error:
        raise _unusable(pem, where, str(error)) from None
    found = find_blocks(text or "", kind)
    if not found:
        is_torn = f"BEGIN {kind}-" in (text or "")
        raise _unusable(pem, where, f"its {kind} is damaged or cut short" if is_torn else f"it has no BEGIN {kind}")
    return found


def _said(error: ssl.SSLError) -> str:
    """Return OpenSSL's name of the error in brackets, if it has one."""
    return f" ({error.reason})" if error.reason else ""


def _unusable(pem: Pem, where: str, reason: str) -> BadSetting:
    return BadSetting(
        f"{where} cannot be used: {pem.source}: {reason}; nothing was asked of any broker; correct the file, "
        "`offsetlake explain security` has examples"
    )
