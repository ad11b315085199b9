"""A cluster with TLS, logins and client certificates: everything that is done in the clear is done there, alike."""

import dataclasses
import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline_defs.adapters.kafka.access import OPEN, read_access
from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.adapters.kafka.operations import Operations
from pipeline_defs.adapters.kafka.producer import Guarantees, Record, produce
from pipeline_defs.adapters.spark.spark_server import LOG
from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.core.errors import BrokerRefuses, ScanFailed
from pipeline_defs.core.landing.scans import Read, Scan
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.offsets import OffsetRange, TopicRange
from pipeline_defs.lab.processes import plain_environment, variables_of
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import Settings
from pipeline_defs.topics import Topic
from tests.support.killing import run_module
from tests.support.secured import SECRETS, STRANGER, STRANGERS_PASSWORD, Secured
from tests.support.world import World


@pytest.fixture(scope="module")
def secured(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with a listener in the clear, one with logins over TLS, and one with client certificates."""
    with Secured(tmp_path_factory.mktemp("secured"), resolve_jars("broker", settings.jars)) as broker:
        yield broker


@pytest.fixture(scope="module")
def landed(secured: Secured, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A topic with records, aborted and committed ones too, landed in the clear."""
    own = dataclasses.replace(settings, bootstrap_servers=secured.at("PLAINTEXT"))
    with World(own, tmp_path_factory.mktemp("clear"), f"t{uuid.uuid4().hex[:10]}") as world:
        world.fill(150, 0)
        world.send_aborted(30, partition=1, value=b"aborted")
        with world.begin_transaction() as producer:
            world.send(({"partition": 1, "value": b"t%d" % number} for number in range(30)), producer)
            producer.commit_transaction()
        assert {verdict.outcome for verdict in world.plan_and_land()} == {Outcome.LANDED}
        assert len(world.rows()) == 180
        yield world


def beside(landed: World, folder: Path, servers: str, properties: Path | None) -> World:
    """The same topic, reached by another listener, with a lake of its own."""
    own = dataclasses.replace(landed.settings, bootstrap_servers=servers, kafka_properties=properties)
    return World(own, folder, landed.name)


def knows(secured: Secured, way: str) -> tuple[str, Path]:
    """Where a listener is, and the properties file that it lets in with."""
    return secured.at("SSL" if way == "certificate" else "SASL_SSL"), secured.properties(way)


@pytest.mark.parametrize("way", ["SCRAM-SHA-512", "certificate"])
def test_what_is_landed_over_tls_is_what_lands_in_the_clear(landed: World, secured: Secured, way: str, tmp_path: Path) -> None:
    """Planned, landed by Spark, holes explained, the group moved: the same bytes, without the listener in the clear."""
    Operations(secured.at("PLAINTEXT")).delete_group(landed.topic.group)
    with beside(landed, tmp_path, *knows(secured, way)) as world:
        assert {verdict.outcome for verdict in world.plan_and_land()} == {Outcome.LANDED}
        assert world.digests == landed.digests
        assert "empty" not in world.digests.values() and len(world.digests) == 3
        kafka = world.adapters.kafka()
        ends = {p: marks.end for p, marks in kafka.read_watermarks(world.name, "read_committed").items()}
        assert kafka.read_group(world.name, world.topic.group) == ends == {0: 150, 1: 62}
        assert kafka.read_open_transactions(world.name, world.adapters.now_ms()) == []


def test_no_secret_is_in_anything_that_dagster_keeps_of_a_run(
    landed: World, secured: Secured, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its event log, run records and compute logs, what is printed and logged at any level, the lake, and the Spark server."""
    with caplog.at_level("DEBUG"), beside(landed, tmp_path, *knows(secured, "PLAIN")) as world:
        world.tick()
        world.launch()
        assert not world.pending
        scan = Scan((Read((TopicRange(world.name, OffsetRange(0, 0, 0, 1)),), 1),))
        with pytest.raises(ScanFailed) as failed:
            world.tools().spark.stage(scan, "read_committed", "/dev/null/nowhere")
        shown = str(failed.value) + "".join(capfd.readouterr()) + caplog.text + repr(world.adapters) + repr(world.settings)
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    server = landed.settings.engine_folder.resolve()
    assert b"Setting Spark log level" in (server / LOG).read_bytes(), "the control: it is there that Spark speaks"
    kept += b"".join(path.read_bytes() for path in server.rglob("*") if path.is_file() and path.suffix != ".jar")
    assert landed.name.encode() in kept and b"PIPELINE_SUCCESS" in kept, "the control: it is there that Dagster keeps runs"
    for secret in SECRETS:
        assert secret not in shown
        assert not any(form in kept for form in (secret.encode(), json.dumps(secret)[1:-1].encode()))


def test_records_are_produced_over_tls(landed: World, secured: Secured) -> None:
    """Acknowledged, and in transactions; what is committed is there for a reader in the clear."""
    servers, path = knows(secured, "certificate")
    access = read_access(path)
    with Kafka(servers, access=access) as kafka:
        kafka.create_topic(topic := f"t{uuid.uuid4().hex[:10]}", 1)
    records = [Record(b"k", b"v%d" % number) for number in range(10)]
    assert produce(servers, topic, records, access=access) == 10
    assert produce(servers, topic, records, guarantees=Guarantees(transactional_id="tls"), access=access) == 10
    assert len(Operations(secured.at("PLAINTEXT")).read_records(topic, 0)) == 20
    with pytest.raises(BrokerRefuses, match="refuses the login of lander"):
        produce(secured.at("SASL_SSL"), topic, records, access=read_access(secured.properties("PLAIN", password="wrong-PW")))


WRONG: list[tuple[str, str, dict[str, str | None], str]] = [
    ("SASL_SSL", "PLAIN", {"password": "wrong-PW"}, "it refuses the login of lander by PLAIN: "),
    ("SASL_SSL", "SCRAM-SHA-512", {"password": "wrong-PW"}, "it refuses the login of lander by SCRAM-SHA-512: "),
    ("SASL_SSL", "SCRAM-SHA-256", {}, "it takes logins by PLAIN or SCRAM-SHA-512, found sasl.mechanism=SCRAM-SHA-256; "),
    ("SASL_SSL", "PLAIN", {"ssl.truststore.location": "other"}, "its certificate is not trusted: "),
    ("SASL_SSL", "PLAIN", {"ssl.truststore.location": None}, " of an authority of this machine's own; "),
    ("SASL_SSL", "none", {}, "it wants a login by PLAIN or SCRAM-SHA-512, found security.protocol=SSL; "),
    ("SSL", "none", {}, "TLS ends with SSLV3_ALERT_BAD_CERTIFICATE, most likely because of our certificate, found no "),
    ("SSL", "none", {"ssl.enabled.protocols": "TLSv1.2"}, "most likely because of our certificate, found no ssl.keystore; "),
    ("SSL", "certificate", {"ssl.keystore.location": "other"}, "most likely because of what ssl.keystore has; "),
    ("SSL", "clear", {}, "it speaks TLS, found security.protocol=PLAINTEXT; "),
    ("SASL_SSL", "nothing", {}, "it speaks TLS, found security.protocol=PLAINTEXT, as OFFSETLAKE_KAFKA_PROPERTIES is not "),
    ("PLAINTEXT", "none", {}, "it speaks no TLS, found security.protocol=SSL; "),
    (
        "PLAINTEXT",
        "PLAIN",
        {"security.protocol": "SASL_PLAINTEXT", "ssl.truststore.location": None},
        "it asks for no login, found security.protocol=SASL_",
    ),
]


@pytest.mark.parametrize(("listener", "way", "changes", "expected"), WRONG)
def test_the_refused_hear_why(secured: Secured, listener: str, way: str, changes: dict[str, str | None], expected: str) -> None:
    """One message that names the broker, what it found and the file, before the time-out, and no secret."""
    access = OPEN if way == "nothing" else read_access(secured.properties(way, **changes))
    is_told = access is not OPEN and way != "clear"  # else the broker only hangs up, and the time-out is waited for
    timeout_seconds = 300 if is_told else 4
    started = time.monotonic()
    client = Kafka(secured.at(listener), access=access, timeout_seconds=timeout_seconds)
    with client as kafka, pytest.raises(BrokerRefuses) as caught:
        kafka.list_topics()
    took = time.monotonic() - started
    message = str(caught.value)
    assert message.startswith(f"the Kafka broker at {secured.at(listener)} does not let us in: ")
    assert expected in message and "; nothing was written and nothing is lost; " in message
    assert str(access.path or "OFFSETLAKE_KAFKA_PROPERTIES") in message
    assert "wrong-PW" not in message and not any(secret in message for secret in SECRETS)
    assert took < timeout_seconds or not is_told


def test_a_name_that_the_certificate_does_not_have_is_refused_unless_the_file_says_so(secured: Secured) -> None:
    """The control is the same name with `ssl.endpoint.identification.algorithm` empty."""
    where = secured.at("SASL_SSL").replace("127.0.0.1", "localhost")
    strict = Kafka(where, access=read_access(secured.properties("PLAIN")))
    with strict as kafka, pytest.raises(BrokerRefuses, match="expected one for localhost of "):
        kafka.list_topics()
    lenient = secured.properties("PLAIN", **{"ssl.endpoint.identification.algorithm": ""})
    with Kafka(where, access=read_access(lenient)) as kafka:
        assert isinstance(kafka.list_topics(), list)


def test_the_embedded_broker_is_spoken_to_without_the_file(secured: Secured, settings: Settings) -> None:
    """It listens on loopback only, in the clear. The control is the same machine with an address set."""
    path = secured.properties("PLAIN")
    own = dataclasses.replace(settings, home=secured.folder, bootstrap_servers=None, kafka_properties=path)
    adapters = Adapters(own)
    assert (adapters.bootstrap_servers(), adapters.access()) == (secured.at("PLAINTEXT"), OPEN)
    with adapters.kafka() as kafka:
        assert isinstance(kafka.list_topics(), list)
    named = dataclasses.replace(own, bootstrap_servers=secured.at("SASL_SSL"))
    assert Adapters(named).access() == Adapters(own).access(Topic("t", Policy(), bootstrap_servers="x:1")) == read_access(path)


def test_who_may_not_see_a_topic_is_told_so(landed: World, secured: Secured) -> None:
    """The login is right and the broker's authorizer says no. The control is who lands, with the rights that we document."""
    servers = secured.at("SASL_SSL")
    path = secured.properties("PLAIN", user=STRANGER, password=STRANGERS_PASSWORD)
    with Kafka(servers, access=read_access(path)) as kafka, pytest.raises(BrokerRefuses) as caught:
        kafka.read_ids(landed.name)
    assert f"does not allow us what was asked of topic {landed.name} over SASL_SSL (PLAIN): Topic" in str(caught.value)
    with Kafka(servers, access=read_access(secured.properties("PLAIN"))) as kafka:
        assert kafka.read_ids(landed.name).topic_id
        assert kafka.read_bytes_per_record(landed.name)


def test_a_run_that_is_not_let_in_lands_nothing_and_says_why(landed: World, secured: Secured, tmp_path: Path) -> None:
    """The control of all above: the same topic and listener without the file; planned in the clear, landed nowhere."""
    with beside(landed, tmp_path, secured.at("PLAINTEXT"), None) as world:
        world.plan()
    with beside(landed, tmp_path, secured.at("SASL_SSL"), None) as world:
        world.adapters.kafka_timeout_seconds = 1
        (reason,) = [each.reason for each in world.try_launch()]
        assert "it speaks TLS, found security.protocol=PLAINTEXT" in str(reason), "the fault"
        assert world.rows() == [] and len(world.pending) == 3


@pytest.mark.long
def test_commands_work_over_tls_and_print_no_secret(secured: Secured, settings: Settings, tmp_path: Path) -> None:
    """Each in a process of its own, from producing to SQL; `doctor` says how the broker answers."""
    servers, path = knows(secured, "PLAIN")
    own = dataclasses.replace(
        settings, lake=str(tmp_path / "lake"), dagster_home=tmp_path / "dagster", bootstrap_servers=servers
    )
    environment = plain_environment() | variables_of(own) | {"OFFSETLAKE_KAFKA_PROPERTIES": str(path)}
    printed: list[str] = []

    def offsetlake(*arguments: str, **changed: str) -> subprocess.CompletedProcess[str]:
        done = run_module("pipeline_defs.cli", *arguments, env=environment | changed)
        printed.append(done.stdout + done.stderr)
        return done

    file = tmp_path / "flights.jsonl"
    file.write_text("".join(json.dumps({"tailnum": f"N{n % 7}", "n": n}) + "\n" for n in range(500)))
    by_certificate = {
        "OFFSETLAKE_BOOTSTRAP_SERVERS": secured.at("SSL"),
        "OFFSETLAKE_KAFKA_PROPERTIES": str(secured.properties("certificate")),
    }
    load = ("produce", "flights", "--file", str(file), "--key-field", "tailnum", "--partitions", "2")
    produced = offsetlake(*load, **by_certificate)
    assert "500 records acknowledged by flights" in produced.stdout, produced.stderr
    for arguments in (("plan", "flights", "--apply", "--through-end"), ("land", "flights", "--pending"), ("status",)):
        assert offsetlake(*arguments).returncode == 0, printed[-1]
    counted = offsetlake("sql", "SELECT sum(rows) AS n FROM ranges", "--json")
    assert json.loads(counted.stdout) == [{"n": 500}]
    answers = {each["what"]: each for each in json.loads(offsetlake("doctor", "--json").stdout)}
    assert answers["broker"]["found"].startswith(f"{servers} answers over SASL_SSL (PLAIN), ")
    for harm in (
        {"OFFSETLAKE_KAFKA_PROPERTIES": str(secured.properties("PLAIN", password="wrong-PW"))},
        {"OFFSETLAKE_KAFKA_PROPERTIES": ""},
    ):
        for arguments in (("doctor",), ("plan", "flights", "--apply")):
            failed = offsetlake(*arguments, **harm)
            assert failed.returncode == 1 and "does not let us in" in " ".join(printed[-1].split())
            assert "Traceback" not in printed[-1]
    kept = b"".join(found.read_bytes() for found in tmp_path.rglob("*") if found.is_file())
    everything = "".join(printed)
    assert not any(secret in everything or secret.encode() in kept for secret in (*SECRETS, "wrong-PW"))
