"""Clients over brokers that lag, hang, lose answers, or are none; what a producer may ask; record batches of every format."""

import asyncio
import gzip
import random
import socketserver
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from unittest.mock import Mock
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st
from kafka import TopicPartition, errors
from kafka.errors import (
    CorruptRecordError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)
from kafka.future import Future
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.record.util import encode_varint
from kafka.structs import OffsetAndTimestamp

from pipeline_defs.adapters.kafka import kafka_connection, producer
from pipeline_defs.adapters.kafka.access import OPEN, Access
from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.adapters.kafka.kafka_connection import Connection, SilentBrokers
from pipeline_defs.adapters.kafka.kafka_glance import ISOLATION, Description, Glance, Observation, TopicGlance, look_at
from pipeline_defs.adapters.kafka.kafka_knock import knock
from pipeline_defs.adapters.kafka.kafka_log import LOOKS, RecordBatch, has_untellable, read_batches, read_records
from pipeline_defs.adapters.kafka.kafka_transactions import find_open
from pipeline_defs.adapters.kafka.producer import Guarantees
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.core.errors import BadSetting, BrokerRefuses, BrokerUnavailable, NoLeader, Refused, StaleAnswer, Unavailable
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.core.log.plan_step import Head, LogState, Watermarks
from pipeline_defs.core.log.topic_state import PartitionState, TopicState
from pipeline_defs.core.login.client_properties import parse_client_properties
from pipeline_defs.landing import planner
from pipeline_defs.landing.planner import Planner
from tests.support import strategies  # noqa: F401  -- its profile: a fixed seed, more with HUNT
from tests.support.secured import jaas


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Mock]:
    """Return the clients that were opened, in order; one that is closed answers as kafka-python's does."""
    found: list[Mock] = []

    def open_client(**_: object) -> Mock:
        answer = Mock(return_value="yes")
        close = Mock(side_effect=lambda: setattr(answer, "side_effect", RuntimeError("NetworkSelector closed!")))
        found.append(Mock(answer=answer, close=close))
        return found[-1]

    monkeypatch.setattr(kafka_connection, "KafkaAdminClient", open_client)
    monkeypatch.setattr(kafka_connection, "knock", lambda *_: None)
    return found


def test_a_thread_whose_connection_another_one_closes_asks_again(opened: list[Mock]) -> None:
    """[R-20] The other one had no answer from the broker, which says nothing of this one's."""
    connection = Connection("127.0.0.1:1", timeout_seconds=30)

    def ask(admin: Mock) -> Any:
        if len(opened) == 1:
            connection.close()  # the other thread
        return admin.answer()

    assert connection._ask("orders", ask) == "yes"
    assert [each.close.called for each in opened] == [True, False], "the fault, and the new one"
    with pytest.raises(RuntimeError, match="another one"):
        connection._ask("orders", Mock(side_effect=RuntimeError("another one")))
    assert len(opened) == 2, "the control: after another error nobody asks again"


def test_who_gets_no_answer_closes_no_connection_but_its_own(opened: list[Mock]) -> None:
    """[R-20] Of two threads without an answer the later one finds that the first has opened another connection."""
    connection = Connection("127.0.0.1:1", timeout_seconds=30)

    def ask(admin: Mock) -> str:
        if len(opened) == 1:
            connection.close()
            assert connection._ask("orders", lambda other: other.answer()) == "yes"
        raise errors.UnsupportedVersionError

    with pytest.raises(BrokerUnavailable):
        connection._ask("orders", ask)
    assert [each.close.called for each in opened] == [True, False]


def test_a_leader_that_moves_between_two_looks_costs_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-9] The look that all topics share is of before: this one is observed again, and its new leader asked."""
    kafka, asked = Kafka("nowhere:1"), list[int]()
    ends = [{0: OffsetAndTimestamp(100, -1, epoch)} for epoch in (5, 6)]
    kafka._glance = Glance({"t": TopicGlance(Description("id", {0: 1}, 1), {0: 0}, dict.fromkeys(ISOLATION, ends[0]), {})})

    def observe(topic: str, isolation_level: str) -> Observation:
        seen = kafka._glance.seen.get(topic)
        return seen.observation(isolation_level) if seen else Observation("id", {0: Watermarks(0, 100)}, {0: 6})

    def read_ends(*given: Any) -> dict[int, int]:
        ((_, now),) = given[-1].values()
        asked.append(now)
        if now != 6:
            raise errors.StaleMetadata("fenced")
        return {0: 100}

    described = Mock(return_value=Description("id", {0: 2}, 3))
    answers = {"observe": observe, "_connected": object, "_describe": described, "read_config": Mock(return_value={})}
    for name, answer in answers.items():
        monkeypatch.setattr(kafka, name, answer)
    monkeypatch.setattr("pipeline_defs.adapters.kafka.kafka.read_epoch_ends", read_ends)
    state = kafka.read_topic_state("t", LogState(3, 0, "id", {0: Head(100, 0, 4)}), Policy(records_per_range=1), 0)
    assert (asked, state.partitions[0].epoch_end) == ([5, 6], 100)


OLD, NEW = UUID(int=1), UUID(int=2)


@dataclass
class LaggingAdmin:
    """Admin client of a cluster whose brokers tell ids of their own; what any of them is asked is answered by the first."""

    ids: Mapping[int, UUID]
    leaders: Mapping[int, int]
    asked: list[int] = field(default_factory=list)
    heal_after: int = 10**6
    silent: set[int] = field(default_factory=set)
    asked_in_vain: int = 0

    @property
    def _manager(self) -> Any:
        cluster = SimpleNamespace(broker_metadata=lambda broker: SimpleNamespace(host="far", port=9000 + broker))
        return SimpleNamespace(run=lambda ask: asyncio.run(ask()), send=self._send, cluster=cluster)

    def _told(self, broker: int) -> UUID:
        self.asked.append(broker)
        return NEW if len(self.asked) > self.heal_after else self.ids[broker]

    async def _send(self, request: Any, node_id: int) -> Any:
        if node_id in self.silent:
            self.asked_in_vain += 1
            raise errors.KafkaConnectionError("refused")
        (asked,) = request.topics
        told = SimpleNamespace(error_code=0, name=asked.name, topic_id=self._told(node_id))
        return SimpleNamespace(topics=[told], cluster_id="cluster")

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        parts = [{"partition_index": p, "leader_id": leader} for p, leader in self.leaders.items()]
        told = {"error_code": 0, "topic_id": self._told(min(self.ids)), "partitions": parts}
        return [{**told, "name": topic} for topic in topics]

    def list_partition_offsets(self, specs: Iterable[TopicPartition], **_: Any) -> dict[TopicPartition, Any]:
        return {tp: OffsetAndTimestamp(0, -1, 0) for tp in specs}

    def describe_configs(self, resources: Iterable[Any], **_: Any) -> dict[str, Any]:
        return {"topic": {each.name: {} for each in resources}}

    def close(self) -> None:
        pass


def kafka_of(admin: object, seconds: float = 0.2) -> Kafka:
    kafka = Kafka("broker:9092", timeout_seconds=seconds)
    kafka._admin = cast("Any", admin)
    return kafka


def test_an_id_that_the_leaders_do_not_have_is_never_believed() -> None:
    """[R-9] The broker that happened to be asked lags, and is waited for; who leads the partitions knows the topic of now."""
    with pytest.raises(StaleAnswer, match="go on to tell different things of topic orders") as caught:
        kafka_of(LaggingAdmin({0: OLD, 1: NEW}, {0: 1})).read_ids("orders")
    assert caught.value.retriable
    agreeing = LaggingAdmin({0: NEW, 1: NEW, 2: OLD}, {0: 0, 1: 1})
    seen = kafka_of(agreeing).observe("orders", "read_committed")
    assert (seen.topic_id, seen.cluster_id) == (str(NEW), "cluster"), "the control: who leads nothing is not asked"
    assert 2 not in agreeing.asked
    lagging = LaggingAdmin({0: OLD, 1: NEW}, {0: 1}, heal_after=3)
    seen = kafka_of(lagging, seconds=20).observe("orders", "read_committed")
    assert (seen.topic_id, seen.watermarks) == (str(NEW), {0: Watermarks(0, 0)})
    assert len(lagging.asked) > 3, "the fault: it was asked again"


@pytest.mark.parametrize(
    ("admin", "is_seen"),
    [
        (LaggingAdmin({0: OLD}, {0: 0}, heal_after=2), False),
        (LaggingAdmin({0: OLD, 1: NEW}, {0: 1}), False),
        (LaggingAdmin({0: UUID(int=0)}, {}), False),
        (LaggingAdmin({0: OLD}, {0: 0}), True),
    ],
    ids=["created anew meanwhile", "leaders know another", "of no partition yet", "the control"],
)
def test_a_topic_of_which_a_glance_tells_nothing_certain_is_left_out(admin: LaggingAdmin, is_seen: bool) -> None:
    """[R-30] It is asked alone, which waits until brokers agree, or says what is wrong."""
    assert look_at(cast("Any", admin), ["orders"], SilentBrokers()).keys() == ({"orders"} if is_seen else set())


def test_a_topic_of_which_no_partition_is_told_yet_is_not_taken_for_one_without_any() -> None:
    """[R-8] Its log would begin where its first records are behind it."""
    with pytest.raises(StaleAnswer, match="no Kafka partition of it is told"):
        kafka_of(LaggingAdmin({0: OLD}, {})).observe("orders", "read_committed")


@pytest.mark.parametrize(("ends", "generation"), [([10, 4, 12], 0), ([10, 4], 1)], ids=["lags", "was cut off"])
def test_without_ids_and_epochs_a_shorter_log_is_believed_when_it_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[int], generation: int
) -> None:
    """[R-9] An old broker's answer, without ids and epochs, cannot be told from one of a moment ago: it is asked again."""
    monkeypatch.setattr(planner, "SETTLE_SECONDS", 1.0)
    lake, policy = Lake(str(tmp_path)), Policy(records_per_range=100, max_age_seconds=0)
    states = [TopicState("orders", None, {0: PartitionState(Watermarks(0, end))}) for end in ends]
    answers = Mock(side_effect=chain(states, repeat(states[-1])))
    kafka: Any = SimpleNamespace(read_topic_state=answers, look_again=lambda topic: None)
    times = iter((1, 2))
    for _ in range(2):
        Planner("orders", policy, lake, kafka, lambda: next(times, 2), "test").commit(through_end=True)
    assert lake.read_plan_log("orders").state.generation == generation


def test_settings_that_we_may_not_read_are_said_and_the_topic_counts_as_compacted() -> None:
    """[R-43] Else the holes that compaction made would fail its ranges for ever; kafka-python answers as if it had none."""
    kafka = kafka_of(LaggingAdmin({0: OLD}, {0: 0}))
    assert kafka.is_compacted("orders")
    with pytest.raises(BrokerRefuses, match="does not let us read the settings of topic orders"):
        kafka.read_durability("orders")


READS: dict[str, Callable[[Kafka], object]] = {
    "id": lambda kafka: kafka.read_ids("orders"),
    "watermarks": lambda kafka: kafka.read_watermarks("orders", "read_committed"),
    "config": lambda kafka: kafka.read_config("orders"),
    "sizes": lambda kafka: kafka.read_sizes("orders", [0]),
    "ends": lambda kafka: kafka.read_open_transactions("orders", 0),
}


@pytest.mark.parametrize("is_glanced", [True, False])
def test_a_kafka_partition_that_nobody_leads_hides_no_other(is_glanced: bool) -> None:
    """[R-4] A topic of which nobody leads any is refused at once, where a tick looks at all topics."""
    for leaders, seen in (({0: 0, 1: -1}, {0: Watermarks(0, 0)}), ({0: -1, 1: -1}, None)):
        kafka = kafka_of(LaggingAdmin({0: OLD}, leaders))
        with kafka.glancing(["orders"]) if is_glanced else nullcontext():
            if seen is None:
                for ask in (kafka.read_ids, partial(kafka.observe, isolation_level="read_committed")):
                    with pytest.raises(NoLeader, match="no broker of broker:9092 leads orders/0, orders/1; nothing"):
                        ask("orders")
            else:
                found = kafka.observe("orders", "read_committed")
                assert (found.watermarks, found.leaderless, found.topic_id) == (seen, (1,), str(OLD))


def test_a_broker_that_does_not_answer_us_hides_only_what_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] The others know it and are reached: each look would wait for it, and all topics with it."""
    kafka = kafka_of(admin := LaggingAdmin({0: OLD, 1: OLD}, {0: 0, 1: 1}, silent={1}))
    with kafka.glancing(["orders"]):
        assert not kafka._glance.seen, "what it leads may have moved: the topic is asked alone, for a while"
        assert (found := kafka.observe("orders", "read_committed")).leaderless == (1,) and found.watermarks == {
            0: Watermarks(0, 0)
        }
    in_vain = admin.asked_in_vain
    with kafka.glancing(["orders"]):
        assert kafka.observe("orders", "read_committed").leaderless == (1,) and {*kafka._glance.seen} == {"orders"}
    assert admin.asked_in_vain == in_vain > 1, "known to be silent, it is not asked for a minute"
    monkeypatch.setattr(kafka_connection, "SILENT_SECONDS", 0.0)
    with kafka.glancing(["orders"]):
        assert kafka.observe("orders", "read_committed").leaderless == (1,)
    assert admin.asked_in_vain > in_vain, "then it is, and nobody waits for it alone"
    admin.silent.clear()
    with kafka.glancing(["orders"]):
        assert kafka.observe("orders", "read_committed").leaderless == ()
    monkeypatch.undo()
    alone = kafka_of(LaggingAdmin({0: OLD, 1: OLD}, {0: 1}, silent={1}))
    with pytest.raises(NoLeader, match=r"leads orders/0 \(broker 1 at far:9001 does not answer us: .*refused\); nothing"):
        alone.read_ids("orders")


def test_a_broker_that_leads_nothing_and_does_not_answer_holds_up_no_topic() -> None:
    """[R-30] A topic with an open transaction asks each broker for it: while one is silent, nobody says that it hangs."""

    def list_transactions(brokers: list[int], **_: Any) -> dict[int, list[Any]]:
        if brokers == [1] and is_silent:
            raise errors.KafkaTimeoutError("swallowed")
        return {brokers[0]: []}

    producer = SimpleNamespace(current_transaction_start_offset=3, producer_id=7)
    opened = {TopicPartition("orders", 0): SimpleNamespace(active_producers=[producer])}
    admin = Mock(describe_producers=Mock(return_value=opened), list_transactions=list_transactions)
    admin._manager.cluster.brokers.return_value = [SimpleNamespace(node_id=0), SimpleNamespace(node_id=1)]
    for is_silent, silent in ((True, SilentBrokers()), (False, SilentBrokers())):
        if is_silent:
            with pytest.raises(errors.KafkaTimeoutError):  # at first it is asked again
                find_open(admin, "orders", {0: 5}, 0, silent, time.monotonic() + 60)
        (found,) = find_open(admin, "orders", {0: 5}, 0, silent, time.monotonic())
        assert found.held_offsets == 2 and (found.hanging is None) == is_silent, "the control is a hanging one"
        assert silent.now == ({1} if is_silent else set())


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_glance_that_another_ends_is_no_error(read: Callable[[Kafka], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-30] Sensors of a code location share the connection: what one looks up, another has just closed."""
    kafka = kafka_of(LaggingAdmin({0: OLD}, {0: 0}))
    monkeypatch.setattr(Kafka, "_read_sizes", lambda *_: {"orders": {0: 1}})

    class Vanishing(dict[str, Any]):
        """What was seen, which is gone once it was looked up."""

        looks = 0

        def __contains__(self, topic: object) -> bool:
            return self._look(super().__contains__(topic))

        def get(self, topic: str, default: Any = None) -> Any:
            return self._look(super().get(topic, default))

        def _look(self, found: Any) -> Any:
            type(self).looks += 1
            kafka._glance = Glance()
            return found

    single = read(kafka)
    before, ours = kafka.glancing(["orders"]), kafka.glancing(["orders"])
    before.__enter__()
    with ours:
        seen = kafka._glance
        before.__exit__(None, None, None)
        assert kafka._glance is seen, "a tick that ends late takes nothing from the next one"
    with kafka.glancing(["orders"]):
        assert {*kafka._glance.seen} == {"orders"}
        kafka._glance = Glance(Vanishing(kafka._glance.seen))
        assert read(kafka) == single
    assert Vanishing.looks > 0, "the fault"


def test_a_time_before_1970_is_no_question_of_another_kind() -> None:
    """[R-8] Kafka takes -1 for the end of the log: a topic would be left out from its beginning."""
    place = TopicPartition("orders", 0)
    admin = SimpleNamespace(list_partition_offsets=Mock(return_value={place: OffsetAndTimestamp(7, 0, 0)}))
    for moment_ms, asked in ((-1, 0), (-2_208_988_800_000, 0), (5, 5)):
        assert kafka_of(admin).read_offsets_at("orders", {0: Watermarks(0, 9)}, moment_ms) == {0: 7}
        assert admin.list_partition_offsets.call_args.args == ({place: asked},)


def creating(*, created: object = None, waited: object = None) -> Mock:
    """Admin client of a broker that creates a topic once, with what becomes of the first request and of the first look."""
    exists = repeat(errors.TopicAlreadyExistsError("orders"))
    looks = chain([waited], repeat(None)) if waited else repeat(None)
    return Mock(create_topics=Mock(side_effect=chain([created], exists)), wait_for_topics=Mock(side_effect=looks))


@pytest.mark.parametrize(
    "fault",
    [{"created": errors.KafkaConnectionError("the answer was lost")}, {"waited": errors.KafkaTimeoutError("no leader yet")}],
    ids=["lost answer", "slow look"],
)
def test_a_request_that_is_repeated_finds_its_own_topic(fault: dict[str, Exception]) -> None:
    admin = creating(**fault)
    kafka_of(admin, seconds=2).create_topic("orders", 2)
    assert admin.create_topics.call_count + admin.wait_for_topics.call_count == 3, "the fault: one of them was asked again"


def test_a_topic_that_was_there_before_is_refused_and_leaders_that_never_answer_are_said() -> None:
    with pytest.raises(Refused, match=r"topic orders exists already .*; nothing was created"):
        kafka_of(creating(created=errors.TopicAlreadyExistsError("orders"))).create_topic("orders", 2)
    silent = Mock(wait_for_topics=Mock(side_effect=errors.KafkaTimeoutError("no leader yet")))
    with pytest.raises(BrokerUnavailable, match="no leader yet"):
        kafka_of(silent, seconds=0.3).create_topic("orders", 2)


SECRET = "hush-4711"
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas("PLAIN", SECRET)}


TRICKLE = struct.pack(">i", 900_000) + bytes(2_000)  # byte by byte: a frame that never is whole


@contextmanager
def answering(answer: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """Listen while the context is open, answer all that comes alike, or never, and keep what came."""
    heard: list[bytes] = []
    given_up = threading.Event()

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                heard.append(self.request.recv(65536))
                if answer is None:
                    self.request.recv(65536)  # until the other one gives up
                elif answer == TRICKLE:
                    for byte in answer:
                        self.request.sendall(bytes([byte]))
                        given_up.wait(0.1)
                else:
                    self.request.sendall(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", heard
        given_up.set()
        server.shutdown()


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00", b"\x00\x00\x00\x00"),
        *(b"\x00\x00\x00\x06\x00\x00\x00\x09\x00\x00", b"\xff\xff\xff\xff"),
    ],
    ids=["nothing", "http", "short frame", "empty frame", "not ours", "negative"],
)
@pytest.mark.parametrize("login", [True, False])
def test_what_does_not_speak_like_kafka_refuses_nobody_and_is_named(answer: bytes, login: bool) -> None:
    """No login is sent before the other side has said what it speaks."""
    access = Access(parse_client_properties(LOGIN, "the file")) if login else OPEN
    with answering(answer) as (server, heard):
        assert knock(f"127.0.0.1:1,{server}", access, 2) == (server if answer else "")
    assert heard and not any(SECRET.encode() in each for each in heard)


@pytest.mark.parametrize("answer", [None, TRICKLE], ids=["silent", "trickles"])
def test_time_is_kept_where_nobody_answers(answer: bytes | None) -> None:
    """With all servers of a list together; one that says a byte now and then does not answer."""
    patience, silent_servers = 1.0, 120
    with answering(answer) as (silent, heard):
        started = time.monotonic()
        knock(",".join(["127.0.0.1:1", "nonsense", *[silent] * silent_servers]), OPEN, patience)
        assert time.monotonic() - started < patience * silent_servers / 2, "half of what each on its own would take"
    assert heard


def test_a_tls_alert_alone_is_not_taken_for_tls() -> None:
    """TLS is tried before it is said. The control, a port that speaks it, is in tests/integration/test_secured.py."""
    with answering(b"\x15\x03\x03\x00\x02\x02\x28") as (server, heard):
        knock(f"127.0.0.1:1,{server}", OPEN, 2)
    assert any(each.startswith(b"\x16\x03") for each in heard), "it was tried"


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        ({}, ("all", True, None)),
        ({"acks": "1"}, (1, False, None)),
        ({"acks": "0"}, (0, False, None)),
        ({"enable_idempotence": False}, ("all", False, None)),
        ({"transactional_id": "t", "records_per_transaction": 5}, ("all", True, "t")),
    ],
)
def test_what_is_asked_for_is_what_kafka_python_is_told(asked: dict[str, Any], config: tuple[Any, ...]) -> None:
    told = Guarantees(**asked).config()
    assert (told["acks"], told["enable_idempotence"], told["transactional_id"]) == config


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"acks": "1", "enable_idempotence": True}, ["idempotence needs acks=all, found acks=1"]),
        ({"records_per_transaction": 5}, ["records per transaction need a transactional id"]),
        (
            {"acks": "0", "enable_idempotence": False, "transactional_id": "t"},
            ["a transactional id needs acks=all, found acks=0", "a transactional id needs idempotence"],
        ),
    ],
)
def test_contradictions_are_refused_all_at_once(asked: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(BadSetting, match="these producer options contradict each other") as caught:
        Guarantees(**asked)
    assert all(each in str(caught.value) for each in words)


class FakeProducer:
    """kafka-python's producer without a broker: it acknowledges what it is given when it is closed."""

    def __init__(self, **_: object) -> None:
        self.waiting: list[Future] = []

    def send(self, *_: object, **record: Any) -> Future:
        self.waiting.append(Future())
        SENT.append((record["key"], record["value"]))
        return self.waiting[-1]

    def flush(self) -> None:
        """Wait for nothing."""

    def close(self, **_: object) -> None:
        for each in self.waiting:
            each.success(None)


SENT: list[tuple[bytes | None, bytes]] = []


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    SENT.clear()
    monkeypatch.setattr(producer, "KafkaProducer", FakeProducer)


GOOD = b'{"id": 1, "at": 1700000000000}'
BAD_LINES = {
    "not an object": b"[1]",
    "not JSON": b"{",
    "bad UTF-8": b'{"id": "\xff\xfe"}',
    "too deep": b'{"id": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "no field": b'{"at": 1}',
    "1e400 as timestamp": b'{"id": 1, "at": 1e400}',
    "text as timestamp": b'{"id": 1, "at": "HUSH"}',
    "beyond int64": b'{"id": 1, "at": 9223372036854775808}',
    "true as timestamp": b'{"id": 1, "at": true}',
    "NaN": b'{"id": NaN, "at": 1}',
    "digits": b'{"id": ' + b"9" * 5000 + b', "at": 1}',
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": '{"id": 1, "at": 1}'.encode("utf-16"),
}


@pytest.mark.parametrize("what", BAD_LINES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_line_that_is_no_record_is_one_error_with_number_and_what_was_sent(what: str, tmp_path: Path, packed: bool) -> None:
    file = tmp_path / ("records.jsonl.gz" if packed else "records.jsonl")
    data = b"\n".join([GOOD, b"", GOOD, BAD_LINES[what], GOOD])
    file.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(Refused, match=rf"{file.name}:4 is not a record to produce") as caught:
        producer.produce("nowhere", "t", producer.read_jsonl(file, "id", "at"))
    assert "2 records before it sent, 2 of them acknowledged; nothing behind it was sent" in str(caught.value)
    assert SENT == [(b"1", GOOD)] * 2
    assert "HUSH" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_record_that_no_request_takes_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(FakeProducer):
        config: ClassVar = {"max_request_size": 10}

        def send(self, *_: object, **record: Any) -> Future:
            if len(record["value"]) > 10:
                raise MessageSizeTooLargeError("with what it holds: HUSH")
            return super().send(**record)

    monkeypatch.setattr(producer, "KafkaProducer", Small)
    with pytest.raises(Refused, match=r"record 2 has 11 bytes, expected at most 10 .*1 record before it sent") as caught:
        producer.produce("nowhere", "t", [producer.Record(None, b"x"), producer.Record(None, b"HUSH" + b"x" * 7)])
    assert "HUSH" not in str(caught.value)


@pytest.mark.parametrize(("error", "sent"), [(TopicAuthorizationFailedError, 1), (KafkaTimeoutError, 100)])
def test_records_that_a_broker_refuses_end_it(monkeypatch: pytest.MonkeyPatch, error: type[KafkaError], sent: int) -> None:
    """The control is an error that the next record need not have."""

    class Refusing(FakeProducer):
        def send(self, *_: object, **record: Any) -> Future:
            return super().send(**record).failure(error())

        def close(self, **_: object) -> None:
            """Leave each as it has ended."""

    monkeypatch.setattr(producer, "KafkaProducer", Refusing)
    with pytest.raises(BrokerUnavailable, match=rf"{error.__name__}.*; of {sent} records 0 are acknowledged"):
        producer.produce("nowhere", "t", [producer.Record(None, b"x")] * 100)
    assert len(SENT) == sent


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_gzip_is_one_error_that_says_how_far_it_came(kept: float, tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl.gz"
    lines = [b'{"id": %d, "pad": "%s"}' % (n, random.Random(n).randbytes(50).hex().encode()) for n in range(5000)]
    data = gzip.compress(b"\n".join(lines))
    file.write_bytes(data[: round(kept * len(data))] or b"no gzip")
    with pytest.raises(Refused, match=r"records\.jsonl\.gz cannot be read behind line \d+: ") as caught:
        producer.produce("nowhere", "t", producer.read_jsonl(file, "id"))
    assert f"{len(SENT):,} records before it sent" in str(caught.value)
    assert [value for _, value in SENT] == lines[: len(SENT)]


def test_raw_lines_are_produced_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "poison.txt"
    file.write_bytes(b"k1\t{\nno key\n\tempty key\n\xff\xfe\t\x00\x01\n\nk\t\nk\ta\tb\r\n")
    producer.produce("nowhere", "t", producer.read_raw(file))
    assert SENT == [
        (b"k1", b"{"),
        (None, b"no key"),
        (b"", b"empty key"),
        (b"\xff\xfe", b"\x00\x01"),
        (None, b""),
        (b"k", b""),
        (b"k", b"a\tb\r"),
    ]
    SENT.clear()
    file.write_bytes(b"a,b\tc")
    producer.produce("nowhere", "t", producer.read_raw(file, b","))
    producer.produce("nowhere", "t", producer.read_raw(file, b""))
    assert SENT == [(b"a", b"b\tc"), (None, b"a,b\tc")]


@given(data=st.binary(max_size=200) | st.lists(st.sampled_from([*BAD_LINES.values(), GOOD])).map(b"\n".join))
def test_no_file_is_a_traceback(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever a file holds is produced, or refused in one error; raw, all of it is produced."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("records.jsonl", "records.jsonl.gz"):
        file = folder / name
        file.write_bytes(data)
        with suppress(Refused):
            producer.produce("nowhere", "t", producer.read_jsonl(file, "id", "at"))
    SENT.clear()
    producer.produce("nowhere", "t", producer.read_raw(folder / "records.jsonl", b""))
    assert len(SENT) == len(data.split(b"\n")) - (not data or data.endswith(b"\n"))


def test_keys_that_are_no_text_are_json(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text('{"id": "a"}\n{"id": 7}\n{"id": null}\n{"id": true}\n{"id": {"x": [1]}}\n{"id": "\\ud800"}\n')
    producer.produce("nowhere", "t", producer.read_jsonl(file, "id"))
    assert [key for key, _ in SENT] == [b"a", b"7", None, b"true", b'{"x": [1]}', b"\xed\xa0\x80"]


NONE, GZIP, SNAPPY, ZSTD = 0, 1, 2, 4


def records(magic: int, compression: int, offset: int, count: int, *, leave_out: int = 0) -> bytes:
    """Return what a broker holds of `count` records from an offset on, without some of them from the second on."""
    builder = MemoryRecordsBuilder(magic, compression, 1 << 20, offset=offset)
    for n in range(count):
        if n and leave_out:
            builder.skip(leave_out)
            leave_out = 0
        builder.append(1000 + n, b"k", b"v%d" % n)
    builder.close()
    return bytes(builder.buffer())


class Bytes(str):
    """A header's key that is no text: Kafka takes any bytes."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        return b"\xff\xfe"


def strange(compression: int, timestamp_ms: int = 1000) -> bytearray:
    """Return a batch of two records, at offsets 0 and 1, whose headers' keys are no text."""
    builder = MemoryRecordsBuilder(2, compression, 1 << 20)
    for _ in range(2):
        builder.append(timestamp_ms, b"k", b"v", headers=[(Bytes("x"), b"1"), ("y", None)])
    builder.close()
    return bytearray(builder.buffer())


def read(data: bytes, end: int) -> list[RecordBatch]:
    answers: Any = iter([SimpleNamespace(records=each, aborted_transactions=None) for each in (data, b"")])
    return list(read_batches(lambda _: next(answers), 0, end))


@pytest.mark.parametrize("compression", [NONE, GZIP], ids=["plain", "gzip"])
@pytest.mark.parametrize("magic", [0, 1])
def test_records_of_before_kafka_0_11_are_read_as_what_they_are(magic: int, compression: int) -> None:
    """[R-28] I19: old segments of a topic have message sets without a header that counts; their records are looked at.

    [R-15] They are not read from the log: their range fails with Spark's words.
    """
    batches = read(records(magic, compression, 5, 3), 8)
    offsets = [offset for batch in batches for offset in batch.span.offsets or ()]
    assert offsets == [5, 6, 7]
    assert {batch.span.kind for batch in batches} == {SpanKind.DATA}
    assert (batches[0].span.start, batches[-1].span.end) == (5, 8)
    times = [batches[-1].first_time(at) for at in (7, 8)]
    assert times == [-1 if magic == 0 else 1002, None]
    assert [batch.look_into() for batch in batches] == [batch.span for batch in batches]
    assert not has_untellable(batches)
    with pytest.raises(Unavailable, match=r"before Kafka 0\.11"):
        list(read_records(batches, 5, 8))


@pytest.mark.parametrize("magic", [0, 1])
def test_a_damaged_old_set_is_one_clear_error_wherever_the_damage_is(magic: int) -> None:
    """[R-28] I19: also under a checksum that fits; gzip has errors of its own, which quote what there was to decompress."""
    whole, found = records(magic, GZIP, 5, 1), set[str]()
    for place, fits in product(range(len(whole)), (False, True)):
        data = bytearray(whole)
        data[place] ^= 0x41
        if fits:
            data[12:16] = struct.pack(">I", zlib.crc32(data[16:]))
        try:
            read(bytes(data), 6)
        except Unavailable as error:
            found.add(str(error).split("be read: ")[-1].split(";")[0])
    assert {"BadGzipFile", "error", "[Error 2] CorruptRecordError: its checksum is another one"} <= found
    assert not any("b'" in each for each in found)


@pytest.mark.parametrize("compression", [NONE, GZIP, ZSTD], ids=["plain", "gzip", "zstd"])
def test_which_records_a_batch_has_is_read_where_it_is_asked_for(compression: int) -> None:
    """[R-28] The header counts them; compaction leaves gaps, which only the records tell."""
    (batch,) = read(records(2, compression, 5, 3, leave_out=4), 12)
    assert (batch.span.start, batch.span.end, batch.span.records, batch.span.offsets) == (0, 12, 3, None)
    assert batch.look_into().offsets == (5, 10, 11)


@pytest.mark.parametrize("compression", [NONE, GZIP, ZSTD], ids=["plain", "gzip", "zstd"])
def test_a_time_that_no_column_holds_is_seen_and_its_record_read(compression: int) -> None:
    """[R-13] [R-28] Of a header's key that is no text each bad byte is replaced; kafka-python wants UTF-8, and is not asked."""
    batches = read(bytes(strange(compression, 2**62)), 2)
    assert has_untellable(batches)
    assert [batch.look_into().offsets for batch in batches * 2] == [(0, 1)] * 2, "and again"
    with pytest.raises(CorruptRecordError, match="UnicodeDecodeError"):  # the fault
        list(batches[0].raw)
    assert not has_untellable(read(bytes(strange(compression)), 2)), "the control"
    (record,) = read_records(batches, 1, 2)
    assert (record.offset, record.timestamp_ms, record.timestamp_type, record.key, record.value) == (1, 2**62, 0, b"k", b"v")
    assert record.headers == [("\ufffd\ufffd", b"1"), ("y", None)]


@pytest.mark.parametrize("compression", [NONE, GZIP, ZSTD], ids=["plain", "gzip", "zstd"])
def test_of_a_batch_whose_checksum_is_another_one_nothing_is_believed(compression: int) -> None:
    """[R-15] Spark's reader refuses it; a bit of its times, or of a value, must not be landed by way of the log."""
    whole = bytes(strange(compression, 2**62))
    for place in (27, 35, len(whole) - 1):
        data = bytearray(whole)
        data[place] ^= 0x40
        batches = read(bytes(data), 2)
        assert not has_untellable(batches)
        with pytest.raises(Unavailable, match="the record batch at offset 0 is damaged on the broker: its checksum"):
            list(read_records(batches, 0, 2))


def test_what_cannot_be_decompressed_here_is_one_clear_error() -> None:
    """[R-15] Its header tells of the time all the same; I19: nobody says what an old set holds: nothing is decided of it."""
    data = strange(NONE, 2**62)
    data[22] |= SNAPPY  # what the attributes say it is compressed by
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    (batch,) = read(bytes(data), 2)
    assert has_untellable([batch])
    with pytest.raises(Unavailable, match=r"batch at offset 0 cannot be decompressed here: .*snappy"):
        list(read_records([batch], 0, 2))
    plain = bytearray(records(1, NONE, 5, 1))
    plain[17] |= SNAPPY
    with pytest.raises(Unavailable, match="message format 1 behind offset 5 cannot be read"):
        read(bytes(plain), 6)


@pytest.mark.parametrize("compression", [NONE, GZIP, ZSTD], ids=["plain", "gzip", "zstd"])
def test_a_damaged_batch_is_one_clear_error(compression: int) -> None:
    """[R-28] What it holds nobody knows, so nothing is decided of its range."""
    data = strange(compression)
    data[-7:] = bytes(7) if compression else b"\xff" * 7
    data[61:63] = b"\x7f\x7f"
    (batch,) = read(bytes(data), 2)
    for use in (batch.look_into, lambda: [*read_records([batch], 0, 2)]):
        with pytest.raises(Unavailable, match="the record batch at offset 0 is damaged on the broker"):
            use()


@dataclass
class LogAdmin:
    """Admin client of a broker that sends of one log what it is asked for, and first holds back for so many ms each."""

    log: list[tuple[int, bytes]]  # where each batch ends, and itself
    aborted: Mapping[int, int] = field(default_factory=dict)  # by producer: where its batch begins
    throttles: list[int] = field(default_factory=list)
    fetches: list[int] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    config: ClassVar = {"request_timeout_ms": 20_000, "client_id": "offsetlake"}

    @property
    def _manager(self) -> Any:
        return SimpleNamespace(run=lambda ask: asyncio.run(ask()), send=self._send, close=lambda node: self.slept.append(-node))

    @property
    def _net(self) -> Any:
        return SimpleNamespace(sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def _async_get_leader_for_partitions(self, places: set[TopicPartition]) -> dict[int, set[TopicPartition]]:
        return {1: places}

    async def _send(self, request: Any, node_id: int) -> Any:
        (part,) = request.topics[0].partitions
        self.fetches.append(part.fetch_offset)
        if self.throttles:
            return SimpleNamespace(throttle_time_ms=self.throttles.pop(0), responses=[])
        left = [data for end, data in self.log if end > part.fetch_offset]
        sent = b"".join(left)[: max(part.partition_max_bytes, len(left[0]))]
        is_committed, end = request.isolation_level == ISOLATION["read_committed"], self.log[-1][0]
        aborted = [SimpleNamespace(first_offset=at, producer_id=who) for who, at in self.aborted.items() if is_committed]
        told = {"error_code": 0, "high_watermark": end, "last_stable_offset": end if is_committed else -1}
        answer = SimpleNamespace(**told, records=sent, aborted_transactions=aborted)
        return SimpleNamespace(throttle_time_ms=0, responses=[SimpleNamespace(partitions=[answer])])

    def close(self) -> None:
        pass


def test_a_fetch_beyond_a_quota_is_waited_for_as_long_as_a_request_may_take() -> None:
    """[R-20] Kafka answers it without an error and without an answer; kafka-python pauses the connection of all who ask."""
    admin = LogAdmin([(3, records(2, NONE, 0, 3))], throttles=[700, 0, 9_000])
    assert kafka_of(admin).read_timestamps("orders", {0: 0}, "read_committed") == {0: 1000}
    assert (admin.slept, admin.fetches) == ([0.7, 0.1, 9.0], [0] * 4)
    admin = LogAdmin(admin.log, throttles=[700, 43_300])
    with pytest.raises(
        BrokerUnavailable, match=r"broker 1 sends nothing of the log of orders/0: a quota .* wait 43\.3 s"
    ) as caught:
        kafka_of(admin).read_timestamps("orders", {0: 0}, "read_committed")
    assert (admin.slept, caught.value.retriable) == ([0.7, -1], True), "others need not wait for its end"


@dataclass(frozen=True)
class Batch:
    """What a broker may have of the offsets `[start, end)`."""

    start: int
    end: int
    times: Mapping[int, int]  # by offset
    attributes: int
    header_ms: int  # a delete horizon, the producer's first time, or the broker's time
    is_aborted: bool

    @property
    def is_seen_by_cleaner(self) -> bool:
        return bool(self.attributes & HORIZON) or len(self.times) < self.end - self.start

    def seen(self, at: int, isolation_level: str) -> list[int]:
        """Return the times that a reader is told, from an offset on; of a whole batch the first one is."""
        if self.end <= at or self.attributes & CONTROL or (self.is_aborted and isolation_level == "read_committed"):
            return []
        times = [ms for offset, ms in self.times.items() if offset >= at or not self.is_seen_by_cleaner]
        return [self.header_ms for _ in times] if self.attributes & BROKER_TIME else times

    @property
    def data(self) -> bytes:
        is_own = not self.attributes & (HORIZON | BROKER_TIME) and self.times
        base, body = (next(iter(self.times.values())) if is_own else self.header_ms), bytearray()
        for offset, time_ms in self.times.items():
            record = bytearray(b"\0")
            for number in (time_ms - base, offset - self.start, -1, -1, 0):
                encode_varint(number, record.append)
            encode_varint(len(record), body.append)
            body += record
        packed = gzip.compress(body) if self.attributes & GZIP else bytes(body)
        greatest = self.header_ms if self.attributes & BROKER_TIME else max(self.times.values(), default=base)
        ends = (self.end - self.start - 1, base, greatest, self.start, 0, 0, len(self.times))
        crc = crc32c(struct.pack(">hiqqqhii", self.attributes, *ends) + packed)
        return struct.pack(">qiibIhiqqqhii", self.start, 49 + len(packed), 0, 2, crc, self.attributes, *ends) + packed


BROKER_TIME, TRANSACTIONAL, CONTROL, HORIZON = 0x08, 0x10, 0x20, 0x40


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    found, start, times = list[Batch](), 0, st.integers(0, 2**42)
    for _ in range(draw(st.integers(1, 6))):
        start += draw(st.integers(0, 2))  # compaction may leave nothing
        size = draw(st.integers(1, 4))
        left = draw(st.just(range(size)) | st.sets(st.integers(0, size - 1)).map(sorted))
        kind = draw(st.sampled_from([0, 0, TRANSACTIONAL, TRANSACTIONAL | CONTROL]))
        attributes = kind | sum(draw(st.sets(st.sampled_from([GZIP, BROKER_TIME, HORIZON]))))
        is_aborted = kind == TRANSACTIONAL and draw(st.booleans())
        records = {start + n: draw(times) for n in left}
        found.append(Batch(start, start + size, records, attributes, draw(times), is_aborted))
        start += size
    return found


@pytest.mark.parametrize("level", ISOLATION)
@given(log=logs())
@example(log=[Batch(0, 4, {0: 5, 3: 9}, 0, 7, is_aborted=False)])
def test_the_first_time_is_that_of_the_first_record_that_a_reader_sees(level: str, log: list[Batch]) -> None:
    """[R-5] [R-30] Behind markers, aborted and emptied batches, whatever a header's times stand for, and at no cost else."""
    aborted = {each.start: each.start for each in log if each.is_aborted}
    for at in range(log[-1].end):
        admin = LogAdmin([(each.end, each.data) for each in log], aborted)
        found = kafka_of(admin).read_timestamps("orders", {0: at}, level)[0]
        seen = [each.seen(at, level) for each in log if each.end > at]
        assert found == next((times[0] for times in seen if times), None)
        assert len(admin.fetches) <= (1 if seen[0] or len(seen) == 1 else len(LOOKS))


def test_at_a_growth_the_ends_of_new_partitions_are_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-86] An old one's is then of a later moment: what was written to it before a key moved is of no later epoch."""
    asked = list[list[int]]()

    def end_of(_: Kafka, topic: str, partitions: Iterable[int], *__: object) -> dict[int, Mock]:
        asked.append(sorted(partitions))
        return {p: Mock(offset=7) for p in partitions}

    monkeypatch.setattr(Kafka, "_list_offsets", end_of)
    kafka, marks = object.__new__(Kafka), {p: Watermarks(0, 5) for p in range(3)}
    assert kafka._read_high_watermarks("orders", marks, dict.fromkeys(marks, 5)) == {} and asked == [], "the control"
    assert kafka._read_high_watermarks("orders", marks, {0: 5, 1: 5}) == {0: 7, 1: 7, 2: 7}
    assert asked == [[2], [0, 1]]
