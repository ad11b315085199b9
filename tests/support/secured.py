"""A real broker that speaks TLS and asks who is there, with certificates made for it, and what its clients are told."""

import datetime
import ipaddress
import itertools
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import javaproperties
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kafka import KafkaAdminClient, admin

from pipeline_defs.adapters.system.processes import free_ports
from pipeline_defs.adapters.testbed.broker import Node, start_broker, stop_broker
from pipeline_defs.core.login.client_properties import MODULES

PLAIN_PASSWORD = 'plain-K7 "quoted" \\ ä-secret'  # as hard as properties files and JAAS have it
SCRAM_PASSWORD = "scram-Q3-secret"
KEY_PASSWORD = "key-Z9-secret"
STRANGER, STRANGERS_PASSWORD = "stranger", "stranger-X5-secret"  # who may log in, and nothing else
SECRETS = (PLAIN_PASSWORD, SCRAM_PASSWORD, KEY_PASSWORD, STRANGERS_PASSWORD)


def jaas(mechanism: str, password: str, user: str = "lander") -> str:
    """A login as a person writes it."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return f'{MODULES[mechanism]} required username="{user}" password="{quoted}";'


def write_properties(path: Path, values: Mapping[str, str]) -> Path:
    path.write_text(javaproperties.dumps(values, timestamp=False), "latin-1")
    return path


def _allow_landing() -> Iterator[admin.ACL]:
    """The rights of who lands, and no others: what docs/security.md says that are needed."""
    for where, operations in (
        (admin.ResourcePattern(admin.ResourceType.TOPIC, "*"), ["READ", "DESCRIBE_CONFIGS"]),
        (admin.ResourcePattern(admin.ResourceType.GROUP, "offsetlake.", admin.ACLResourcePatternType.PREFIXED), ["READ"]),
        (admin.ResourcePattern(admin.ResourceType.CLUSTER, "kafka-cluster"), ["DESCRIBE"]),
        (admin.ResourcePattern(admin.ResourceType.TRANSACTIONAL_ID, "*"), ["DESCRIBE"]),
    ):
        for operation in operations:
            yield admin.ACL("User:lander", "*", admin.ACLOperation[operation], admin.ACLPermissionType.ALLOW, where)


@dataclass(frozen=True)
class Authority:
    """A certificate authority that lives as long as a test."""

    name: str
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def sign(self, name: str, key: ec.EllipticCurvePrivateKey, hosts: Sequence[str] = (), *, is_ca: bool = False) -> str:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if hosts:
            names = [x509.IPAddress(ipaddress.ip_address(host)) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    @property
    def certificate(self) -> str:
        return self.sign(self.name, self.key, is_ca=True)

    def issue(self, name: str, hosts: Sequence[str] = (), password: str | None = None) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        pem = key.private_bytes(*form).decode()
        return lock(pem, password) if password else pem, self.sign(name, key, hosts)


def lock(key: str, password: str, *how: str) -> str:
    """A private key encrypted as Kafka's client on Java 17 can undo it, unless another way is named."""
    command = ["openssl", "pkcs8", "-topk8", *(how or ("-v1", "PBE-SHA1-3DES")), "-passout", f"pass:{password}"]
    return subprocess.run(command, input=key, capture_output=True, text=True, check=True).stdout


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Secured:
    """Runs a broker with a port per protocol while the context is open, and writes what its clients are told.

    The listener SASL_SSL takes logins by PLAIN and SCRAM-SHA-512, SSL wants a certificate of the broker's authority.
    """

    def __init__(self, folder: Path, jars: Sequence[Path]) -> None:
        self.folder = folder
        self._jars = jars
        self._authorities = {name: Authority(f"offsetlake-{name}") for name in ("own", "other")}
        plain, self._controller, login, certificate = free_ports(4)
        self._ports = {"PLAINTEXT": plain, "SASL_SSL": login, "SSL": certificate}
        self._written = itertools.count()

    def __enter__(self) -> Self:
        for name, authority in self._authorities.items():
            (self.folder / f"ca-{name}.pem").write_text(authority.certificate)
            (self.folder / f"client-{name}.pem").write_text("".join(authority.issue("client", password=KEY_PASSWORD)))
        server = self.folder / "server.pem"
        server.write_text("".join(self._authorities["own"].issue("broker", ["127.0.0.1"])))
        properties = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca-own.pem"),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas("PLAIN", PLAIN_PASSWORD).replace(
                'username="lander" password=', f'user_{STRANGER}="{STRANGERS_PASSWORD}" user_lander='
            ),
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{MODULES['SCRAM-SHA-512']} required;",
            "listener.name.ssl.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:CN=client",
        }
        secured = {protocol: port for protocol, port in self._ports.items() if protocol != "PLAINTEXT"}
        node = Node(1, self._ports["PLAINTEXT"], self._controller, secured=secured)
        start_broker(self.folder / "broker", jars=self._jars, properties=properties, java_options=["-Xmx384m"], node=node)
        login = admin.UserScramCredentialUpsertion("lander", admin.ScramMechanism.SCRAM_SHA_512, SCRAM_PASSWORD)
        with KafkaAdminClient(bootstrap_servers=self.at("PLAINTEXT")) as client:
            assert client.alter_user_scram_credentials([login]) == {"lander": None}
            assert client.create_acls([*_allow_landing()])["failed"] == []
        return self

    def __exit__(self, *_: object) -> None:
        stop_broker(self.folder / "broker")

    def at(self, protocol: str) -> str:
        return f"127.0.0.1:{self._ports[protocol]}"

    def properties(self, way: str, password: str | None = None, user: str = "lander", **changes: str | None) -> Path:
        """Write what a client is told that enters by a mechanism, by `certificate`, by `none`, or in the `clear`.

        A change to `other` names the file of another authority, one to none takes the key out.
        """
        values: dict[str, str | None] = {}
        if way != "clear":
            values = {"security.protocol": "SSL", "ssl.truststore.location": "own"}
        if way in MODULES:
            secret = password or (PLAIN_PASSWORD if way == "PLAIN" else SCRAM_PASSWORD)
            login = {"sasl.mechanism": way, "sasl.jaas.config": jaas(way, secret, user)}
            values |= {"security.protocol": "SASL_SSL", **login}
        if way == "certificate":
            values |= {"ssl.keystore.location": "own", "ssl.key.password": KEY_PASSWORD}
        values |= changes
        for store, file in (("ssl.truststore", "ca"), ("ssl.keystore", "client")):
            if whose := values.get(f"{store}.location"):
                values |= {f"{store}.type": "PEM", f"{store}.location": str(self.folder / f"{file}-{whose}.pem")}
        given = {key: value for key, value in values.items() if value is not None}
        return write_properties(self.folder / f"{next(self._written)}.properties", given)
