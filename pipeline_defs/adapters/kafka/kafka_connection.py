"""One admin client of a Kafka cluster: opened at first use, asked again where that may help, its errors made ours.

What is asked is in `kafka.py`. Invariant: whatever Kafka answers, a caller gets an answer or one clear error of our tree.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import stamina
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import (
    AuthorizationError,
    BrokerResponseError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    NoError,
    RequestTimedOutError,
    StaleMetadata,
    UnknownTopicOrPartitionError,
)

from ...core.errors import BrokerRefuses, BrokerUnavailable, StaleAnswer, UnknownTopic, cause_of, first_line
from .access import OPEN, Access
from .kafka_knock import knock

stamina.instrumentation.set_on_retry_hooks([])  # a retry is no news: what fails for good says so once
logging.getLogger("kafka").setLevel(logging.CRITICAL)  # its warnings repeat what our own errors say once

T = TypeVar("T")


def is_retriable(error: Exception) -> bool:
    """Return whether Kafka calls an error retriable; an unknown topic is not waited for."""
    return isinstance(error, KafkaError) and error.retriable and not isinstance(error, UnknownTopicOrPartitionError)


def read_refusals(answers: Mapping[TopicPartition, type[KafkaError]]) -> dict[int, str]:
    """Return the Kafka partitions that a group's coordinator refused, and why; raise an error that is retriable."""
    refused = {}
    for tp, answer in sorted(answers.items()):
        if answer is not NoError:
            if is_retriable(answer()):
                raise answer
            refused[tp.partition] = answer.__name__
    return refused


NO_ANSWER = (KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError, RequestTimedOutError, OSError)
SILENT_SECONDS = 30.0  # for which a broker that did not answer is not asked again


class SilentBrokers:
    """Brokers of a cluster that do not answer us, as where their advertised address is wrong, while others do."""

    def __init__(self) -> None:
        self._noted: dict[int, tuple[float, str]] = {}  # when, and where and why
        self._avoided: set[int | None] = set()  # by what any of them can answer

    @property
    def now(self) -> set[int]:
        """Brokers that were asked in vain within the last `SILENT_SECONDS`."""
        return {broker for broker, (at, _) in [*self._noted.items()] if time.monotonic() - at < SILENT_SECONDS}

    @property
    def text(self) -> str:
        """Text on each of them, with its address and why it did not answer; empty for none."""
        noted = {**self._noted}  # another thread may change it
        return "; ".join(noted[broker][1] for broker in sorted(self.now) if broker in noted)

    def note(self, failed: Mapping[int, KafkaError | OSError], admin: KafkaAdminClient) -> None:
        """Note brokers that have just been asked in vain."""
        for broker, error in failed.items():
            known = admin._manager.cluster.broker_metadata(broker)
            where = f" at {known.host}:{known.port}" if known is not None else ""
            self._noted[broker] = time.monotonic(), f"broker {broker}{where} does not answer us: {first_line(error)}"

    def keep_from(self, admin: KafkaAdminClient) -> None:
        """Have a client put what any broker can answer to one that has not just left something unanswered, if there is one."""
        manager, send = admin._manager, admin._manager.send

        def choose() -> int | None:
            chosen: int | None = manager.least_loaded_node()
            others = [each.node_id for each in manager.cluster.brokers() if each.node_id not in self._avoided]
            return others[0] if chosen in self._avoided and others else chosen

        def send_to_answering(request: Any, node_id: int | None = None, request_timeout_ms: int | None = None) -> Any:
            broker = choose() if node_id is None else node_id
            sent = send(request, node_id=broker, request_timeout_ms=request_timeout_ms)
            sent.add_callback(lambda _: self._has_answered(broker))
            sent.add_errback(lambda _: self._avoided.add(broker))
            return sent

        manager.send = send_to_answering

    def _has_answered(self, broker: int | None) -> None:
        self._avoided.discard(broker)
        if broker is not None:
            self._noted.pop(broker, None)

    def judge(self, failed: Mapping[int, KafkaError | OSError], admin: KafkaAdminClient) -> set[int]:
        """Note the brokers that go on to be silent; return which fail for the first time."""
        self.note({broker: error for broker, error in failed.items() if broker in self._noted}, admin)
        return failed.keys() - self._noted.keys()

    def give_up(self, failed: Mapping[int, KafkaError | OSError], admin: KafkaAdminClient, until: float) -> None:
        """Note brokers that do not answer; before `until`, of the monotonic clock, raise the error of one not known as silent.

        Who asks again may find it back, or what it leads with another.
        """
        if (new := self.judge(failed, admin)) and time.monotonic() < until:
            raise failed[min(new)]
        self.note(failed, admin)


class Connection:
    """Connection to one Kafka cluster, closed with `close()`."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        timeout_seconds: float = 20.0,
        access: Access = OPEN,
        named_by: str = "OFFSETLAKE_BOOTSTRAP_SERVERS",
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.named_by = named_by  # where a person corrects the address
        self.access = access
        self._timeout_ms = int(timeout_seconds * 1000)
        self._admin: KafkaAdminClient | None = None
        self._silent = SilentBrokers()
        self._lock = threading.Lock()
        self._failed: tuple[float, Exception] | None = None  # when the last connection failed, and why

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        self._let_go(self._admin)

    def _let_go(self, admin: KafkaAdminClient | None) -> None:
        """Close a client if it is still the current one: threads share it, and another may have closed it."""
        with self._lock:
            is_asked = admin is self._admin
            if admin is not None and is_asked:
                admin.close()
                self._admin = None

    def _ask(self, topic: str, question: Callable[[KafkaAdminClient], T], attempts: int | None = None) -> T:
        """Ask the cluster; retry what Kafka calls retriable until the time-out, or until `attempts` are used up."""
        retriable = stamina.retry_context(on=is_retriable, timeout=self._timeout_ms / 1000, attempts=attempts, wait_max=1)
        admin = None
        try:
            for attempt in retriable:
                with attempt:
                    admin = self._connected()
                    return self._call(question, admin)
        except StaleMetadata as error:
            raise StaleAnswer(
                f"brokers at {self.bootstrap_servers} go on to tell different things of topic {topic}: {error}; nothing was "
                "written and nothing is lost; it is asked again later, and where it stays so, look which broker is cut off "
                "from the others",
                topic=topic,
            ) from error
        except UnknownTopicOrPartitionError as error:
            raise UnknownTopic(
                f"topic {topic} does not exist on the broker at {self.bootstrap_servers}; nothing was written; create the "
                "topic, correct `topic` in its defs.yaml, or delete that file; where a pattern matches it, `exclude` it",
                topic=topic,
            ) from error
        except AuthorizationError as error:
            what = f" of topic {topic}" if topic else ""
            raise BrokerRefuses(
                f"the Kafka broker at {self.bootstrap_servers} does not allow us what was asked{what} over "
                f"{self.access.properties}: {type(error).__name__}; nothing was written and nothing is lost; have it allowed, "
                "`offsetlake explain security` names what is needed",
                bootstrap_servers=self.bootstrap_servers,
            ) from error
        except (KafkaError, OSError) as error:
            if isinstance(error, BrokerResponseError) and not is_retriable(error):
                raise BrokerRefuses(
                    f"the Kafka broker at {self.bootstrap_servers} answers {type(error).__name__} to what was asked; nothing "
                    "was written and nothing is lost; look what its settings and its log say of it",
                    bootstrap_servers=self.bootstrap_servers,
                ) from error
            self._let_go(admin)
            strangers = knock(self.bootstrap_servers, self.access, self._timeout_ms / 1000)
            other = f" ({strangers} does, but not as Kafka does)" if strangers else ""
            raise BrokerUnavailable(
                f"the Kafka broker at {self.bootstrap_servers} does not answer{other}: {cause_of(error)}; nothing "
                f"was written and nothing is lost; start that broker, or correct its address: {self.named_by}",
                bootstrap_servers=self.bootstrap_servers,
            ) from error
        raise AssertionError("a retry context ends by returning or raising")

    def _call(self, question: Callable[[KafkaAdminClient], T], admin: KafkaAdminClient) -> T:
        """Put a question to a client; raise a retriable error if another thread has closed it meanwhile."""
        try:
            return question(admin)
        except RuntimeError as error:  # kafka-python's, of a selector that is closed
            with self._lock:
                is_closed = admin is not self._admin
            if is_closed:
                raise KafkaConnectionError("another thread has closed the connection") from error
            raise

    def check_answers(self) -> None:
        """Raise `BrokerUnavailable` if no broker lets us in within the time-out, `BrokerRefuses` if one says why not."""
        self._ask("", lambda _: None, attempts=1)

    def _connected(self) -> KafkaAdminClient:
        asked_at = time.monotonic()
        with self._lock:
            if self._admin is None:
                if self._failed is not None and self._failed[0] > asked_at:  # while this thread waited
                    raise KafkaConnectionError(str(self._failed[1])) from self._failed[1]
                try:
                    self._admin = self._connect()
                except (KafkaError, OSError) as error:
                    self._failed = time.monotonic(), error
                    raise
            return self._admin

    def _connect(self) -> KafkaAdminClient:
        if self.access.path is not None:  # a refused login is reported at once
            knock(self.bootstrap_servers, self.access, self._timeout_ms / 1000)
        admin = KafkaAdminClient(
            bootstrap_servers=self.bootstrap_servers,
            client_id="offsetlake",
            request_timeout_ms=self._timeout_ms,
            bootstrap_timeout_ms=self._timeout_ms,
            **self.access.kafka_python(),
        )
        self._silent.keep_from(admin)
        return admin
