"""The properties file of a Kafka client, checked: how we connect to brokers, and who logs in.

Pure; `adapters/kafka/access.py` reads the file. Invariants: a property that not every client can use alike is refused, so
Spark never reads as another user than the planner; no message and no repr has a value that may be a secret.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from ..advice import meant
from ..errors import BadSetting
from .credentials import NotJaas, parse_jaas

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
MODULES: Mapping[str, str] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
PEM_ADVICE = "convert it by keytool or openssl, as `offsetlake explain bad_setting` shows"

# keys that boundaries, bytes and completeness depend on, and those that a command sets by options of its own
OURS = frozenset(
    (
        *("bootstrap.servers", "group.id", "group.instance.id", "group.protocol", "enable.auto.commit", "auto.offset.reset"),
        *("isolation.level", "check.crcs", "allow.auto.create.topics", "interceptor.classes"),
        *("key.deserializer", "value.deserializer", "key.serializer", "value.serializer"),
        *("acks", "enable.idempotence", "transactional.id"),
    )
)
KNOWN = frozenset(
    (
        *("security.protocol", "sasl.mechanism", "sasl.jaas.config"),
        *(f"ssl.truststore.{what}" for what in ("type", "location", "certificates")),
        *(f"ssl.keystore.{what}" for what in ("type", "location", "key", "certificate.chain")),
        *("ssl.key.password", "ssl.endpoint.identification.algorithm", "ssl.enabled.protocols"),
        *("schema.registry.basic.auth.user.info", "schema.registry.ssl.ca.location"),
    )
)
_OF_STORES = frozenset({"ssl.truststore.password", "ssl.keystore.password"})  # of JKS and PKCS12, which are refused
_CLOSED = ("security.", "sasl.", "ssl.", "schema.registry.", "config.providers")  # unknown keys below these are refused
_REGISTRY = "schema.registry."
_PLAIN_KEY = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)+|retries")
_KAFKAS_SHAPE = re.compile(r"[A-Za-z][a-z]{1,19}([._-][A-Za-z0-9][a-z0-9]{0,19}){1,7}")
_WORDS = frozenset({*MODULES, "GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM", "EXTERNAL", "JKS", "PKCS12", "BCFKS"})
_PLAIN_PATH = re.compile(r"[^\s=\"';:]{1,200}")
_HOST = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.]+(%\w+)?\]")
_LIKE_A_KEY = 0.75  # similarity from which a key may be a mistyped one of ours, such as `consumer.sasl.mechanism`


@dataclass(frozen=True, slots=True)
class Login:
    """A SASL login."""

    mechanism: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pem:
    """A PEM value of a key: as text, or as the path of a file; `source` names the key and the path."""

    source: str
    location: str | None = None
    text: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings; without `trust` this machine's own authorities are trusted. `key` comes with its `chain`."""

    trust: Pem | None = None
    key: Pem | None = None
    chain: Pem | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_host_name: bool = True
    versions: tuple[str, ...] = TLS_VERSIONS


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """The login at a schema registry: `user:password` or none, and the path of the trusted authorities."""

    user: str | None = field(default=None, repr=False)
    authority: str | None = None


ANYBODY = RegistryLogin()


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """The content of the file; `kafka` has what Spark's Kafka client is given, under Kafka's own names."""

    protocol: str = "PLAINTEXT"
    login: Login | None = None
    tls: Tls | None = None
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    registry: RegistryLogin = ANYBODY

    def __str__(self) -> str:
        return f"{self.protocol} ({self.login.mechanism})" if self.login else self.protocol

    def hide(self, text: str) -> str:
        """Return a foreign text, with any secret of ours in it replaced by `***`."""
        secrets = [
            self.login.password if self.login else None,
            self.tls.key_password if self.tls else None,
            self.registry.user.partition(":")[2] if self.registry.user else None,
        ]
        for secret in secrets:
            text = text.replace(secret, "***") if secret else text
        return text


def parse_client_properties(values: Mapping[str, str], where: str, lines: Mapping[str, int] | None = None) -> ClientProperties:
    """Check the content of a file; raise `BadSetting` once, with all errors.

    `where` names the file, `lines` has the line of each key. Keys that are not understood are refused, not ignored: a mistyped
    key would otherwise mean an unencrypted connection without a login.
    """
    lines = lines or {}
    wrong = _refuse_keys(values, lines)
    protocol = values.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        wrong.append(f"security.protocol is none of {', '.join(PROTOCOLS)}")
    else:
        wrong += _refuse_unused(values, protocol, lines)
    login = _read_login(values, wrong) if protocol.startswith("SASL_") else None
    tls = _read_tls(values, wrong) if protocol.endswith("SSL") else None
    user = values.get(f"{_REGISTRY}basic.auth.user.info")
    if user is not None and not re.match(r"\s*[^\s:].*:", user):
        wrong.append(f"{_REGISTRY}basic.auth.user.info has no user before a colon, expected user:password")
    if wrong:
        raise BadSetting(
            f"{where} cannot be used: {'; '.join(wrong)}; nothing was asked of any broker; correct the file, "
            "`offsetlake explain security` has examples",
            keys=sorted(map(_shown, values)),
        )
    kafka = {key: value for key, value in values.items() if not key.startswith(_REGISTRY)}
    registry = RegistryLogin(user, values.get(f"{_REGISTRY}ssl.ca.location"))
    return ClientProperties(protocol, login, tls, kafka, registry)


def _refuse_keys(values: Mapping[str, str], lines: Mapping[str, int]) -> list[str]:
    """Name the keys that Offsetlake sets itself, and those that are not understood and may concern a login.

    Java ends a key at a blank, so `export a.b=c` sets the key `export`. Spark ignores the case of options, and would have a
    key of ours twice.
    """
    ours = sorted(key for key in values if key.lower() in OURS)
    others = sorted((lines.get(key, 0), key) for key in values.keys() - {*ours} if not _is_taken(key))
    wrong = [
        f"{_line_of(key, lines)}{_shown(key)} cannot be told to every client of Offsetlake{meant(key, KNOWN)}"
        for _, key in others
    ]
    if ours:
        wrong.append(f"Offsetlake sets {', '.join(ours)} itself, since what it guarantees rests on that: delete it here")
    return wrong


def _is_taken(key: str) -> bool:
    """Return whether a key is understood, or certainly has nothing to do with logins; a mistyped one may have."""
    if key in KNOWN | _OF_STORES:
        return True
    is_slip = bool(get_close_matches(key, KNOWN, n=1, cutoff=_LIKE_A_KEY))
    return bool(_PLAIN_KEY.fullmatch(key)) and not key.startswith(_CLOSED) and not is_slip


def _shown(key: str) -> str:
    """Return a key as a message may show it; one that is not shaped like Kafka's may be part of a secret."""
    return key if _KAFKAS_SHAPE.fullmatch(key) else f"a key of {len(key)} signs (not shown: it may be part of a secret)"


def _word(value: str) -> str:
    """Return a value if it is a word of Kafka's; any other may be two lines run together, one of them with a secret."""
    return value if value in _WORDS else "another (not shown: it may be part of a secret)"


def _path(value: str) -> str:
    return value if _PLAIN_PATH.fullmatch(value) else "(not shown: it may be part of a secret)"


def check_addresses(text: str) -> str:
    """Return a list of brokers unchanged; raise `ValueError`, without quoting it, where one is not `host:port`."""
    for number, address in enumerate(text.split(","), 1):
        host, _, port = address.strip().rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16
        if not (_HOST.fullmatch(host) and is_port):
            raise ValueError(
                f"broker {number} is not host:port (not shown: it may have a login); expected kafka-1:9092,kafka-2:9092; "
                "a login belongs in the file that OFFSETLAKE_KAFKA_PROPERTIES names"
            )
    return text


def _refuse_unused(values: Mapping[str, str], protocol: str, lines: Mapping[str, int]) -> Iterator[str]:
    """Name keys of a login or of TLS that the protocol does not use: whoever wrote them expects them to be used."""
    said = "" if "security.protocol" in values else ", as Kafka takes it where nothing is said"
    for head, is_used, expected in (
        ("sasl.", protocol.startswith("SASL_"), "SASL_SSL or SASL_PLAINTEXT"),
        ("ssl.", protocol.endswith("SSL"), "SSL or SASL_SSL"),
    ):
        unused = sorted(key for key in values if key.startswith(head) and key in KNOWN | _OF_STORES)
        if unused and not is_used:
            yield (
                f"{_line_of(unused[0], lines)}{', '.join(unused)} would not be used: security.protocol is {protocol}{said}, "
                f"expected {expected}"
            )


def _line_of(key: str, lines: Mapping[str, int]) -> str:
    return f"line {lines[key]}: " if key in lines else ""


def _read_login(values: Mapping[str, str], wrong: list[str]) -> Login | None:
    mechanism = values.get("sasl.mechanism", "GSSAPI").strip()
    if mechanism not in MODULES:
        wrong.append(f"sasl.mechanism is {_word(mechanism)}, expected {', '.join(MODULES)}")
        return None
    if "sasl.jaas.config" not in values:
        wrong.append(f"sasl.jaas.config is missing, and sasl.mechanism is {mechanism}")
        return None
    try:
        jaas = parse_jaas(values["sasl.jaas.config"])
    except NotJaas as error:
        wrong.append(f"sasl.jaas.config cannot be read: {error}")
        return None
    if jaas.module != MODULES[mechanism]:
        wrong.append(f"the login module of sasl.jaas.config is not that of {mechanism}, {MODULES[mechanism]}")
    if jaas.options.keys() != {"username", "password"} or not all(jaas.options.values()):
        wrong.append("sasl.jaas.config has not a username and a password, and nothing else (not shown: it may be a secret)")
        return None
    return Login(mechanism, jaas.options["username"], jaas.options["password"])


def _read_tls(values: Mapping[str, str], wrong: list[str]) -> Tls:
    trust = _read_pem(values, "ssl.truststore", "certificates", wrong)
    key = _read_pem(values, "ssl.keystore", "key", wrong)
    chain = None
    if key is not None and key.location is None:
        chain = Pem("ssl.keystore.certificate.chain", text=values.get("ssl.keystore.certificate.chain"))
        if chain.text is None:
            wrong.append("ssl.keystore.certificate.chain is missing, expected the certificate of ssl.keystore.key")
    checked = values.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if checked not in {"", "https"}:
        wrong.append("ssl.endpoint.identification.algorithm is neither https nor empty")
    versions = tuple(each.strip() for each in values.get("ssl.enabled.protocols", ",".join(TLS_VERSIONS)).split(","))
    if not set(versions) <= set(TLS_VERSIONS):
        wrong.append(f"ssl.enabled.protocols has others than {' and '.join(TLS_VERSIONS)}")
    return Tls(trust, key, chain, values.get("ssl.key.password"), checked == "https", versions)


def _read_pem(values: Mapping[str, str], store: str, inline: str, wrong: list[str]) -> Pem | None:
    """Read a store in PEM; other formats are refused, since only Java reads them."""
    location, text = values.get(f"{store}.location"), values.get(f"{store}.{inline}")
    if location is None and text is None:
        return None
    kind = values.get(f"{store}.type", "JKS").strip().upper()
    if kind != "PEM":
        default = "" if f"{store}.type" in values else ", as Kafka takes it where nothing is said"
        wrong.append(f"{store}.type is {_word(kind)}{default}, expected PEM: {PEM_ADVICE}")
    if kind == "PEM" and f"{store}.password" in values:
        wrong.append(f"{store}.password is there, which PEM has no use for: delete it, a key's is ssl.key.password")
    if location is not None and text is not None:
        wrong.append(f"{store}.location and {store}.{inline} are both there, expected one of them")
    if location is not None and not location.startswith("/"):
        wrong.append(f"{store}.location is {_path(location)}, expected a whole path: each process has a folder of its own")
    if location is not None:
        return Pem(f"{store}.location {_path(location)}", location)
    return Pem(f"{store}.{inline}", text=text)
