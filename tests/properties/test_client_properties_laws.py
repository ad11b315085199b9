"""A properties file with a slip in it is refused, never taken for one that asks for less: no login, no TLS."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline_defs.adapters.kafka.access import read_access
from pipeline_defs.core.errors import BadSetting
from pipeline_defs.core.login.client_properties import KNOWN, parse_client_properties
from tests.support import strategies as _profile  # noqa: F401  the profile of examples, and HUNT
from tests.support.secured import jaas

SECRET = "hush-4711"
GOOD = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": jaas("PLAIN", SECRET),
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
    """Draws what becomes of a key under somebody's hands, or an editor's."""
    at = draw(st.integers(0, len(key) - 1))
    letter = draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz._-"))
    return draw(
        st.sampled_from(
            [
                key[:at] + key[at + 1 :],
                key[:at] + letter + key[at:],
                key[:at] + letter + key[at + 1 :],
                key[:at] + key[at + 1 : at + 2] + key[at] + key[at + 2 :],
                key[:at] + key[at].upper() + key[at + 1 :],
                *(key.replace(".", other) for other in ("_", "-", "")),
                *(before + key for before in ("kafka.", "consumer.", "\ufeff", "\xef\xbb\xbf", "\xa0", "- ", "export ")),
                f"{key}\u200b",
                f'"{key}"',
            ]
        )
    )


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
    told = f"line {line}: 'securty.protocol' is no key of Kafka's clients, probably meant: security.protocol"
    assert f"OFFSETLAKE_KAFKA_PROPERTIES {path} cannot be used: {told};" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"sasl.mechanism": "PLAIN"},
            "security.protocol is PLAINTEXT, as Kafka takes it where nothing is said, expected SASL_SSL",
        ),
        (
            {"security.protocol": "SSL", "sasl.jaas.config": "x"},
            "sasl.jaas.config would not be used: security.protocol is SSL, ",
        ),
        ({"ssl.enabled.protocols": "TLSv1.3"}, "ssl.enabled.protocols would not be used: security.protocol is PLAINTEXT, as"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "ssl.truststore.password": SECRET},
            "ssl.truststore.password would not be used",
        ),
    ],
)
def test_a_login_that_the_protocol_would_not_use_is_refused(values: dict[str, str], expected: str) -> None:
    """I8: `sasl.*` without SASL is a login that nobody is asked for."""
    with pytest.raises(BadSetting) as caught:
        parse_client_properties(values, "the file")
    assert expected in str(caught.value) and SECRET not in str(caught.value)


def test_a_byte_order_mark_is_named_as_what_it_is(tmp_path: Path) -> None:
    """I8: Windows' editors write it; the first key is another one then, which nothing shows."""
    path = tmp_path / "client.properties"
    path.write_bytes(b"\xef\xbb\xbfsecurity.protocol=SASL_SSL\n")
    with pytest.raises(BadSetting, match=r"line 1: a byte order mark stands before security.protocol,"):
        read_access(path)
