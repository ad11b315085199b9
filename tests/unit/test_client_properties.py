"""The properties file of Kafka's clients: what is understood; what is refused, any slip too; and no secret is ever shown."""

import os
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import javaproperties
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline_defs.adapters.kafka.access import OPEN, Access, read_access
from pipeline_defs.adapters.spark.spark import KAFKA_OPTIONS, kafka_options
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.core.errors import BadSetting
from pipeline_defs.core.landing.scans import group_scans
from pipeline_defs.core.login.client_properties import KNOWN, OURS, ClientProperties, check_addresses, parse_client_properties
from pipeline_defs.core.login.credentials import NotJaas, parse_jaas
from pipeline_defs.core.offsets import OffsetRange, TopicRange
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import read_settings
from tests.support import strategies as _profile  # noqa: F401  the profile of examples, and HUNT
from tests.support.secured import KEY_PASSWORD, PLAIN_PASSWORD, Authority, jaas, lock, write_properties

SECRET = "hush-4711"
PLAIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas("PLAIN", SECRET)}


def parse(**changes: str | None) -> Any:
    values = {**PLAIN, **{key.replace("_", "."): value for key, value in changes.items()}}
    return parse_client_properties({key: value for key, value in values.items() if value is not None}, "the file")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('a.B required username="u" password="p";', {"username": "u", "password": "p"}),
        ("  a.B   REQUIRED\n username='u' password='p\"q' ; ", {"username": "u", "password": 'p"q'}),
        (r'a.B required password="q\"\\\t\101\x";', {"password": 'q"\\\tAx'}),
        ("a.B required serviceName=kafka;", {"serviceName": "kafka"}),
        ("a.B required;", {}),
    ],
)
def test_a_login_is_read_as_java_reads_it(text: str, options: dict[str, str]) -> None:
    """Either quote, Java's escapes, words without quotes, blanks anywhere."""
    assert (parse_jaas(text).module, parse_jaas(text).options) == ("a.B", options)


@pytest.mark.parametrize(
    "text",
    [
        *("", f'a.B required username="u" password="{SECRET}"', f'a.B username="u" password="{SECRET}";'),
        *(f'a.B required password="{SECRET};', f"a.B required password={SECRET[5:]};", f'a.B required "{SECRET}";'),
        f'a.B required password="{SECRET}"; a.C required;',
    ],
)
def test_what_java_would_not_read_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(NotJaas) as caught:
        parse_jaas(text)
    assert SECRET not in str(caught.value) and SECRET[5:] not in str(caught.value)


STORE = {"ssl_truststore_location": "/x.jks"}
LOCKED = {"ssl_keystore_location": "/x.p12", "ssl_keystore_password": SECRET}
NOTHING = dict.fromkeys(("security_protocol", "sasl_mechanism", "sasl_jaas_config"))
UNSAID = "security.protocol is PLAINTEXT, as "


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"security_protocol": "TLS"}, "security.protocol is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"sasl_mechanism": None}, "sasl.mechanism is GSSAPI, expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"sasl_mechanism": "SCRAM-SHA-512"}, "the login module of sasl.jaas.config is not that of SCRAM-SHA-512"),
        ({"sasl_jaas_config": None}, "sasl.jaas.config is missing"),
        ({"sasl_jaas_config": jaas("PLAIN", SECRET)[:-1]}, "sasl.jaas.config cannot be read: expected one"),
        ({"sasl_jaas_config": jaas("PLAIN", "")}, "sasl.jaas.config has not a username and a password"),
        ({"sasl_jaas_config": jaas("PLAIN", SECRET)[:-1] + ' token="t";'}, "and nothing else (not shown"),
        (STORE, "ssl.truststore.type is JKS, as Kafka takes it where nothing is said"),
        ({**STORE, "ssl_truststore_password": SECRET}, "expected PEM: convert it by keytool or openssl"),
        ({**LOCKED, "ssl_keystore_type": "PKCS12"}, "ssl.keystore.type is PKCS12, expected PEM: convert it"),
        ({**LOCKED, "ssl_keystore_type": "PEM"}, "ssl.keystore.password is there, which PEM has no use for"),
        ({"ssl_truststore_location": "x.pem", "ssl_truststore_type": "PEM"}, "is x.pem, expected a whole path"),
        ({**STORE, "ssl_truststore_certificates": "x", "ssl_truststore_type": "PEM"}, "are both there, expected one of them"),
        ({"ssl_keystore_key": SECRET, "ssl_keystore_type": "PEM"}, "ssl.keystore.certificate.chain is missing"),
        ({"ssl_endpoint_identification_algorithm": "ldaps"}, "is neither https nor empty"),
        ({"ssl_enabled_protocols": "TLSv1.1,TLSv1.2"}, "ssl.enabled.protocols has others than TLSv1.2 and TLSv1.3"),
        ({"ssl_cipher_suites": SECRET}, "ssl.cipher.suites cannot be told to every client of Offsetlake"),
        ({"sasl_username": "u", "sasl_password": SECRET}, "sasl.password cannot be told to every client"),
        ({"config_providers": "file"}, "config.providers cannot be told"),
        (
            {"Sasl_Mechanism": "PLAIN"},
            "Sasl.Mechanism cannot be told to every client of Offsetlake, did you mean `sasl.mechanism`?",
        ),
        ({"schema_registry_basic_auth_user_info": SECRET}, "has no user before a colon, expected user:password"),
        ({"schema_registry_url": "http://x"}, "schema.registry.url cannot be told"),
        # I8: a login that the protocol would not use, so that nobody is asked for it
        ({**NOTHING, "sasl_mechanism": "PLAIN"}, f"{UNSAID}Kafka takes it where nothing is said, expected SASL_SSL"),
        ({"security_protocol": "SSL", "sasl_mechanism": None}, "sasl.jaas.config would not be used: security.protocol is SSL"),
        ({**NOTHING, "ssl_enabled_protocols": "TLSv1.3"}, f"ssl.enabled.protocols would not be used: {UNSAID}"),
        ({"security_protocol": "SASL_PLAINTEXT", "ssl_truststore_password": SECRET}, "truststore.password would not be used"),
    ],
)
def test_what_cannot_be_told_to_every_client_is_refused(changes: dict[str, str | None], expected: str) -> None:
    """The message names the key, what was expected, and the file; and no value that may be a secret."""
    with pytest.raises(BadSetting) as caught:
        parse(**changes)
    assert expected in str(caught.value)
    assert str(caught.value).startswith("the file cannot be used: ")
    assert SECRET not in str(caught.value) + repr(caught.value.fields)


@pytest.mark.parametrize(
    "piece", ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "S3CRETpw", '"S3CRET/pw+1";', "s3cret", "\ufeffMIIEvQIB"]
)
def test_a_piece_of_a_secret_that_stands_where_a_key_does_is_not_shown(piece: str) -> None:
    """A PEM pasted in many lines, a login wrapped onto a line of its own: each line of it is read as a key."""
    with pytest.raises(BadSetting) as caught:
        parse_client_properties({piece: "", "security.protokol": "SSL"}, "the file", {piece: 7})
    said = str(caught.value) + repr(caught.value.fields)
    assert piece.removeprefix("\ufeff") not in said
    assert "security.protokol cannot be told to every client of Offsetlake, did you mean `security.protocol`?" in said


@pytest.mark.parametrize(
    "text",
    [
        *(f"user:{SECRET}@kafka:9092", f"a:1,{SECRET}", "http://h:1", " ", "", "h", "h:99999", "h:65536", "h:0", "h:"),
        *(":1", "a:1,", "h:9,,k:9", "h:1x", "::1:9", "h:9;k:9"),
    ],
)
def test_what_is_no_address_of_a_broker_is_refused_without_showing_it(text: str) -> None:
    """A login in an address would be printed by every client that cannot connect."""
    with pytest.raises(ValueError, match="is not host:port") as caught:
        check_addresses(text)
    assert SECRET not in str(caught.value)
    for right in ("kafka-1:9092", "a:1,b.c_d:65535", "[::1]:9092", "a:1, b:2"):
        assert check_addresses(right) == right, "the control"


@pytest.mark.parametrize("key", [*sorted(OURS), "Isolation.Level", "GROUP.ID"])
def test_what_offsetlake_sets_itself_is_refused(key: str) -> None:
    """In any case: Spark takes options so, and would have one of them twice. All that is wrong is said at once."""
    with pytest.raises(BadSetting, match=f"ssl\\.engine\\.factory\\.class.*Offsetlake sets {key} itself.*OAUTHBEARER"):
        parse(**{key: "x"}, sasl_mechanism="OAUTHBEARER", ssl_engine_factory_class="y")


def test_no_value_of_ours_shows_a_secret() -> None:
    """In a traceback, a log of settings, or the words of somebody else."""
    properties = parse(ssl_key_password="s3", schema_registry_basic_auth_user_info="u:s4")
    assert properties.login.password == SECRET, "the control: it is there"
    assert not any(secret in repr(properties) + str(properties) for secret in (SECRET, "s3", "s4"))
    assert properties.hide(f"login {SECRET} by s3 of u:s4") == "login *** by *** of u:***"
    assert properties.registry.user == "u:s4", "the control"
    assert str(properties) == "SASL_SSL (PLAIN)"


((READ,),) = (scan.reads for scan in group_scans([TopicRange("orders", OffsetRange(0, 0, 0, 10))]))


def test_spark_is_told_what_the_file_says(tmp_path: Path) -> None:
    """How much is polled at once may be chosen."""
    values = {**PLAIN, "kafka.x": "1", "client.id": "me", "max.poll.records": "7", "schema.registry.ssl.ca.location": "/x"}
    access = read_access(write_properties(tmp_path / "c.properties", values))
    secured = kafka_options("b:1", READ, "read_committed", access, group="g")
    assert secured["kafka.sasl.jaas.config"] == PLAIN["sasl.jaas.config"]
    assert (secured["kafka.client.id"], secured["kafka.max.poll.records"]) == ("me", "7")
    assert not any("schema.registry" in key for key in secured)


def test_what_boundaries_rest_on_is_set_last() -> None:
    """Whatever a file says that was not refused; its word counts where ours says only how much is polled."""
    plain = kafka_options("b:1", READ, "read_committed", group="g")
    forged = Access(ClientProperties(kafka={key.removeprefix("kafka."): "forged" for key in plain}))
    assert "forged" in forged.spark().values(), "the fault"
    options = kafka_options("b:1", READ, "read_committed", forged, group="g")
    assert {key for key in plain if options[key] != plain[key]} == {key for key in KAFKA_OPTIONS if key.startswith("kafka.")}


def test_the_files_that_the_document_shows_are_understood() -> None:
    """docs/security.md: a login by SCRAM, one by PLAIN, a certificate; and a registry's login."""
    text = (PROJECT / "docs" / "security.md").read_text()
    shown = [javaproperties.loads(block) for block in re.findall(r"```properties\n(.*?)```", text, re.DOTALL)]
    found = [str(parse_client_properties(values, "the file")) for values in shown]
    assert found == ["SASL_SSL (SCRAM-SHA-512)", "SASL_SSL (PLAIN)", "SSL", "PLAINTEXT"]


@pytest.mark.parametrize("password", [SECRET, PLAIN_PASSWORD], ids=["plain", "to be escaped"])
def test_kafka_python_is_told_what_the_file_means(tmp_path: Path, password: str) -> None:
    """What a properties file and a JAAS entry must escape comes back as it was."""
    access = read_access(write_properties(tmp_path / "c.properties", PLAIN | {"sasl.jaas.config": jaas("PLAIN", password)}))
    config = access.kafka_python()
    assert isinstance(config.pop("ssl_context"), ssl.SSLContext)
    login = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "lander", "sasl_plain_password": password}
    assert config == {"security_protocol": "SASL_SSL", **login}
    assert OPEN.kafka_python() == {"security_protocol": "PLAINTEXT", "ssl_context": None}, "the control: no file"
    assert password not in repr(access) + repr(OPEN)


def test_tls_is_as_the_file_says(tmp_path: Path) -> None:
    """Certificates in a file or in the file itself, in one line; a locked key; no check of names; versions."""
    authority = Authority("a")
    key, certificate = authority.issue("client", password=KEY_PASSWORD)
    (tmp_path / "client.pem").write_text(f"some words\n{certificate}{key}")
    common = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.keystore.type": "PEM"}
    common |= {"ssl.truststore.certificates": authority.certificate.replace("\n", " "), "ssl.key.password": KEY_PASSWORD}
    common |= {"ssl.endpoint.identification.algorithm": "", "ssl.enabled.protocols": "TLSv1.3"}
    by_file = {"ssl.keystore.location": str(tmp_path / "client.pem")}
    inline = {"ssl.keystore.key": key.replace("\n", " "), "ssl.keystore.certificate.chain": certificate.replace("\n", "")}
    for number, own in enumerate((by_file, inline)):
        values = common | own
        context = read_access(write_properties(tmp_path / f"{number}", values)).tls
        assert context is not None
        assert [found["subject"] for found in context.get_ca_certs()] == [((("commonName", "a"),),)]
        assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)
        assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_3,) * 2
        with pytest.raises(BadSetting, match=r"its key cannot be read, .* or ssl.key.password is wrong") as caught:
            read_access(write_properties(tmp_path / f"wrong-{number}", values | {"ssl.key.password": "other"}))
        assert key[40:80] not in str(caught.value)
    assert read_access(write_properties(tmp_path / "x", {"security.protocol": "SSL"})).tls.check_hostname  # type: ignore[union-attr]


@pytest.mark.parametrize("trusted", ["root", "middle", "broker", "other"])
def test_whatever_a_truststore_has_is_trusted_as_java_does(tmp_path: Path, trusted: str) -> None:
    """The root, who signed the broker's certificate, or that one alone."""
    root, middle, other = Authority("root"), Authority("middle"), Authority("other")
    signed = root.sign("middle", middle.key, is_ca=True)
    key, own = middle.issue("broker", ["127.0.0.1"])
    (tmp_path / "broker.pem").write_text(key + own + signed)
    texts = {"root": root.certificate, "middle": signed, "broker": own, "other": other.certificate}
    values = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.certificates": texts[trusted]}
    client = read_access(write_properties(tmp_path / "client.properties", values)).tls
    assert client is not None
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "broker.pem")
    if trusted == "other":
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get"):
            shake_hands(client, server)
    else:
        shake_hands(client, server)


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Have a client and a server, both in this memory, agree; raises what the client says against it."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there, server_hostname="127.0.0.1")
    for each in (ours, server.wrap_bio(there, back, server_side=True)) * 3:
        with suppress(ssl.SSLWantReadError):
            each.do_handshake()
    assert ours.version() is not None


NOT_PEM = "it is not PEM; where it is a JKS or PKCS12 store, convert it by keytool"
NO_CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("store", "password", "content", "expected"),
    [
        ("key", KEY_PASSWORD, lambda key: lock(key, KEY_PASSWORD, "-v2", "aes256"), "its key is encrypted by PBES2"),
        ("key", KEY_PASSWORD, lambda key: key, "it has no BEGIN ENCRYPTED PRIVATE KEY"),
        ("key", None, lambda key: lock(key, KEY_PASSWORD), "it has no BEGIN PRIVATE KEY"),
        ("key", None, lambda key: key.replace("PRIVATE", "EC PRIVATE"), "it has no BEGIN PRIVATE KEY"),
        ("key", None, lambda _: Authority("b").issue("other")[0], "its key cannot be read, or is not its certificate's"),
        ("trust", None, None, "no such file or directory"),
        ("trust", None, lambda _: "\xfe\xed\xfe\xed\x00\x00", NOT_PEM),
        ("trust", None, lambda _: "nothing", "it has no BEGIN CERTIFICATE"),
        ("key", KEY_PASSWORD, lambda key: lock(key, KEY_PASSWORD)[:200], "its ENCRYPTED PRIVATE KEY is damaged or cut short"),
        ("key", KEY_PASSWORD, lambda key: lock(key, KEY_PASSWORD).replace("MI", "MI=", 1), "its key cannot be read"),
        ("trust", None, lambda _: NO_CERTIFICATE, "a certificate in it cannot be read"),
    ],
)
def test_a_store_that_kafkas_own_client_does_not_read_is_refused(
    tmp_path: Path, store: str, password: str | None, content: Callable[[str], str] | None, expected: str
) -> None:
    """Else planning would go well, by kafka-python, and each read by Spark fail; one that is none is told from one that is."""
    key, certificate = Authority("a").issue("client")
    path, name = tmp_path / "store.pem", f"ssl.{store}store"
    if content is not None:
        path.write_text(content(key) + certificate * (store == "key"), "latin-1")
    values = {"security.protocol": "SSL", f"{name}.type": "PEM", f"{name}.location": str(path)}
    values |= {"ssl.key.password": password} if password else {}
    with pytest.raises(BadSetting) as caught:
        read_access(write_properties(tmp_path / "c.properties", values))
    assert f"{name}.location {path}: {expected}" in str(caught.value) and "None" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"a=\\u00zz hush-4711"])
def test_a_file_that_cannot_be_read_is_named_with_its_variable(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "c.properties"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadSetting, match=f"OFFSETLAKE_KAFKA_PROPERTIES {path} cannot be read") as caught:
        read_access(path)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None and (caught.value.__suppress_context__ or caught.value.__context__ is None)


def test_an_edited_login_is_read_again_by_whoever_enters_next(tmp_path: Path) -> None:
    """A person corrects a password, or renews a certificate in its place, while `offsetlake up` runs; one is as it was."""
    pem = tmp_path / "ca.pem"
    pem.write_text(Authority("a").certificate)
    values = PLAIN | {"security.protocol": "SASL_SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(pem)}
    path = write_properties(tmp_path / "c.properties", values)
    adapters = Adapters(
        read_settings({"OFFSETLAKE_KAFKA_PROPERTIES": str(path), "OFFSETLAKE_BOOTSTRAP_SERVERS": "x:1"}, tmp_path)
    )
    first = adapters.kafka()
    assert adapters.kafka() is first, "the control"
    pem.write_text(Authority("b").certificate)
    second = adapters.kafka()
    assert second.access.tls is not first.access.tls and second.access.path == path
    write_properties(path, {})
    assert adapters.kafka().access.kafka_python()["security_protocol"] == "PLAINTEXT"
    written_at = path.stat().st_mtime_ns
    write_properties(path, values)
    os.utime(path, ns=(written_at, written_at))  # an editor's second write falls into one tick of the clock with its first
    assert adapters.kafka().access.kafka_python()["security_protocol"] == "SASL_SSL"


def test_the_setting_is_a_path_below_the_project(tmp_path: Path) -> None:
    assert read_settings({}, tmp_path).kafka_properties is None
    assert (
        read_settings({"OFFSETLAKE_KAFKA_PROPERTIES": "c.properties"}, tmp_path).kafka_properties == tmp_path / "c.properties"
    )


GOOD = PLAIN | {
    "ssl.endpoint.identification.algorithm": "https",
    "ssl.enabled.protocols": "TLSv1.3",
    "schema.registry.basic.auth.user.info": f"u:{SECRET}",
}
# Kafka's own names that say nothing of who logs in: clients may be told them
OTHERS = """
client.id client.dns.lookup client.rack connections.max.idle.ms default.api.timeout.ms exclude.internal.topics
fetch.max.bytes fetch.max.wait.ms fetch.min.bytes heartbeat.interval.ms linger.ms batch.size buffer.memory compression.type
max.partition.fetch.bytes max.poll.interval.ms max.poll.records max.request.size metadata.max.age.ms
metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
partition.assignment.strategy partitioner.class receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms send.buffer.bytes session.timeout.ms
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms transaction.timeout.ms enable.metrics.push
delivery.timeout.ms max.block.ms max.in.flight.requests.per.connection group.remote.assignor auto.include.jmx.reporter
""".split()  # noqa: SIM905


@st.composite
def slips(draw: st.DrawFn, key: str) -> str:
    """Draw what becomes of a key under somebody's hands, or an editor's."""
    at = draw(st.integers(0, len(key) - 1))
    letter = draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz._-"))
    before, after = key[:at], key[at + 1 :]
    found = [before + after, before + letter + key[at:], before + letter + after, before + after[:1] + key[at] + after[1:]]
    found += [before + key[at].upper() + after, *(key.replace(".", other) for other in ("_", "-", ""))]
    found += [first + key for first in ("kafka.", "consumer.", "\ufeff", "\xef\xbb\xbf", "\xa0", "- ", "export ")]
    return draw(st.sampled_from([*found, f"{key}\u200b", f'"{key}"']))


@given(st.sampled_from(sorted(KNOWN)).flatmap(lambda key: st.tuples(st.just(key), slips(key))))
def test_no_key_with_a_slip_in_it_is_passed_over(case: tuple[str, str]) -> None:
    """I8: whatever the slip, and whether or not anything else in the file would show it."""
    key, slip = case
    assume(slip not in KNOWN and slip.strip())
    for rest in ({}, {name: value for name, value in GOOD.items() if name != key}):
        with pytest.raises(BadSetting) as caught:
            parse_client_properties({**rest, slip: GOOD.get(key, "x")}, "the file")
        assert SECRET not in str(caught.value)


def test_what_kafka_calls_otherwise_is_no_slip() -> None:
    """The control: names that clients have and that say nothing of logins stay allowed."""
    for name in OTHERS:
        assert parse_client_properties({**GOOD, name: "1"}, "the file").protocol == "SASL_SSL", name
        assert parse_client_properties({name: "1"}, "the file").protocol == "PLAINTEXT", name


@given(st.lists(st.sampled_from(["\n", "# why\n", "! why\n", "client.id=a \\\n  b\n", "\r\n", "retries: 3\r\n"]), max_size=6))
def test_a_slip_is_told_with_its_line_its_key_and_what_was_probably_meant(before: list[str]) -> None:
    """I8: in a file with blank lines, comments and values over several lines."""
    text = "".join(before) + "securty.protocol=SASL_SSL\n"
    line = text.replace("\r\n", "\n").count("\n")
    with TemporaryDirectory() as folder:
        path = Path(folder, "client.properties")
        path.write_bytes(text.encode())
        with pytest.raises(BadSetting) as caught:
            read_access(path)
    told = f"line {line}: securty.protocol cannot be told to every client of Offsetlake, did you mean `security.protocol`?"
    assert f"OFFSETLAKE_KAFKA_PROPERTIES {path} cannot be used: {told};" in str(caught.value)
