"""Where a drill happens: a broker of its own, a fresh topic, and the ground truth of what was produced.

Every record's value is its number, so a row can be told apart from every other. Invariant: a record is in the truth once
its acknowledgement is there, and, where it is part of a transaction, once that is committed.
"""

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from ...adapters.kafka.kafka import Kafka
from ...adapters.kafka.operations import Operations
from ...adapters.lake.lake import Lake
from ...adapters.system.project_folder import find_project
from ...core.errors import Refused
from ...core.log.cutting import Policy
from ...core.log.delivery import Delivery
from ...core.log.plan_step import Watermarks
from ...orchestration.home.project import make_home
from ...settings import Settings
from ...topics import Topic
from ..processes import wait_until
from .children import Child, EndedBefore, started, stopped_at
from .peers import HandWrittenLoop, StructuredStreaming, TutorialConsumer
from .systems import OURS, Books, Offsetlake, System, visible_values, with_own_jvm

RECORDS_PER_RANGE = 50
TRIES = 20
_SYSTEMS: Mapping[str, Callable[..., System]] = {
    each.name: each for each in (Offsetlake, StructuredStreaming, HandWrittenLoop, TutorialConsumer)
}
Place = tuple[int, int, int]
"""Generation (how often the topic was recreated before), Kafka partition, offset."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report: what a fault did to one system's rows."""

    system: str
    policy: str
    drill: str
    fault_proven: bool
    produced: int
    landed: int
    holes: int
    lost: int
    missing: int
    doubled: int
    verdict: str
    seconds: float
    note: str = ""
    seconds_until_whole: float | Literal["never"] | None = None
    """From the fault to a glob that shows every record; `None` where the drill does not measure it."""


COUNTS = ("produced", "landed", "holes", "lost", "missing", "doubled")
T = TypeVar("T")


def compare(wanted: Iterable[T], seen: Iterable[T], lost: AbstractSet[T] = frozenset()) -> dict[str, int]:
    """Count what was produced and what of it is seen, in rows; `lost` is what may be missing."""
    there, shown = Counter(wanted), Counter(seen)
    return {
        "produced": there.total(),
        "landed": (there & shown).total(),
        "lost": len(lost - shown.keys()),
        "missing": (there - shown - Counter(lost)).total(),
        "doubled": (shown - there).total(),
    }


def name_faults(verdict: str, **counts: int) -> str:
    """Return a verdict with what there is of each fault, `right` where there is nothing."""
    found = [f"{count} {name}" for name, count in counts.items() if count]
    return f"{verdict}: {', '.join(found)}" if found else "right"


@dataclass
class Arena:
    """One topic on the drill's broker, with everything that was produced to it."""

    settings: Settings
    folder: Path
    delivery: Delivery = Delivery.EFFECTIVELY_ONCE
    configs: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 2
    broker_pid: int = 0
    truth: dict[Place, bytes] = field(default_factory=dict)
    incarnation: int = 0
    numbers: int = 0
    fault_proven: bool = False
    note: str = ""
    seconds_until_whole: float | Literal["never"] | None = None

    def __post_init__(self) -> None:
        """Create the topic, and give it a lake and a Dagster home of its own."""
        self.folder.mkdir(parents=True)
        base = self.settings.lake if Lake(self.settings.lake).store.is_remote else self.folder.parent
        self.settings = replace(self.settings, lake=f"{base}/{self.folder.name}/lake", dagster_home=self.folder / "dagster")
        make_home(self.settings.dagster_home, find_project())  # else its commands say that they found it empty
        policy = Policy(records_per_range=RECORDS_PER_RANGE, max_age_seconds=0)
        self.topic = Topic(f"drill-{uuid.uuid4().hex[:8]}", policy, on_loss="record", delivery=self.delivery)
        servers = self.settings.bootstrap_servers
        assert servers is not None
        self.kafka, self.operations = Kafka(servers), Operations(servers)
        self.kafka.create_topic(self.topic.name, self.partitions, self.configs)

    def system(self, name: str, **options: Any) -> System:
        """Return a system that lands this topic; `options` are those of its class."""
        return _SYSTEMS[name](self.settings, self.topic, self.folder / name, **options)

    def produce(self, count: int, partition: int | None = None, **record: Any) -> None:
        """Produce numbered records, to one Kafka partition or to each of them."""
        wanted = range(self.partitions) if partition is None else [partition]
        self.truth |= self._send([self._record(p, **record) for p in wanted for _ in range(count)])

    def is_begun(self) -> bool:
        """Return whether there is a plan step: what expires before the first one is history, by `start: earliest`."""
        return Lake(self.settings.lake).read_plan_log(self.topic.name).state.seq > 0

    def is_planned(self) -> bool:
        """Return whether every record produced so far has a place in the plan log: else recreation takes it untold."""
        heads = Lake(self.settings.lake).read_plan_log(self.topic.name).state.heads
        return all(p in heads and heads[p].offset >= self.watermarks(p).end for p in range(self.partitions))

    def produce_aborted(self, count: int, transactional_id: str) -> None:
        """Produce records in a transaction that is aborted, and produces the same records again in one that commits."""
        records = [self._record(p) for p in range(self.partitions) for _ in range(count)]
        with self.operations.begin_transaction(transactional_id) as producer:
            self._send(records, producer)
            producer.abort_transaction()
            producer.begin_transaction()
            sent = self._send(records, producer)
            producer.commit_transaction()
        self.truth |= sent

    @contextmanager
    def open_transaction(self, count: int) -> Iterator[None]:
        """Have a transaction with records be open for the while; then it is aborted, and they are produced again."""
        records = [self._record(p) for p in range(self.partitions) for _ in range(count)]
        with self.operations.begin_transaction(f"{self.topic.name}-open") as producer:
            self._send(records, producer)
            yield
            producer.abort_transaction()
        self.truth |= self._send(records)

    def _record(self, partition: int, **record: Any) -> dict[str, Any]:
        self.numbers += 1
        given = {"partition": partition, "value": b"%d" % self.numbers, **record}
        if "value_bytes" in given:  # what cannot be compressed
            size = given.pop("value_bytes")
            given["value"] = b"%d:%b" % (self.numbers, random.Random(self.numbers).randbytes(size))  # noqa: S311
        return given

    def _send(self, records: Sequence[dict[str, Any]], producer: Any = None) -> dict[Place, bytes]:
        sent = self.operations.send(self.topic.name, records, producer)
        return {
            (self.incarnation, partition, offset): record["value"]
            for record, (partition, offset, _) in zip(records, sent, strict=True)
        }

    def recreate(self) -> None:
        """Delete the topic and create it again."""
        self.operations.delete_topic(self.topic.name)
        self.kafka.create_topic(self.topic.name, self.partitions, self.configs)
        self.incarnation += 1

    def add_partitions(self, count: int) -> None:
        """Have the topic have more Kafka partitions."""
        self.partitions += count
        self.operations.add_partitions(self.topic.name, self.partitions)

    def expire(self, partition: int, before: int) -> None:
        """Have the broker delete what is before an offset, and wait until it is gone."""
        self.operations.delete_records(self.topic.name, partition, before)
        wait_until(lambda: self.watermarks(partition).earliest == before, f"an expiry before offset {before}")

    def watermarks(self, partition: int) -> Watermarks:
        """Read `[earliest, end)` of a Kafka partition."""
        return self.kafka.read_watermarks(self.topic.name, "read_committed")[partition]

    def readable(self) -> set[Place]:
        """Read the places of all records that a plain consumer gets now."""
        return {
            (self.incarnation, partition, record.offset)
            for partition in range(self.partitions)
            for record in self.operations.read_records(self.topic.name, partition)
        }

    def forget_compacted(self) -> None:
        """Take out of the truth what compaction has legally removed: what a plain consumer no longer reads."""
        left = self.readable()
        self.truth = {place: value for place, value in self.truth.items() if place in left}

    @contextmanager
    def stopped(self, system: System, step: str, nth: int = 1, *, each: int = 0, own_jvm: bool = True) -> Iterator[Child]:
        """Run the system in a child up to a step; the child is killed in the end, unless it was let go on.

        It has `each` records more to land; where it ends unseen, as the step of a peer may pass too fast, so many again.
        """
        work = with_own_jvm(system) if own_jvm else system
        with ExitStack() as stack:
            child, tries = None, TRIES if each else 1
            while child is None:
                self.produce(each)
                tries -= 1
                with suppress(*((EndedBefore,) if tries else ())):
                    child = stack.enter_context(stopped_at(work.run, step, nth, log=self.log))
            self.fault_proven = True
            yield child

    def kill(self, system: System, step: str, nth: int = 1, *, each: int = 0, own_jvm: bool = True) -> None:
        """Run the system in a child and kill it, by SIGKILL with its JVM, where it stands at a step."""
        with self.stopped(system, step, nth, each=each, own_jvm=own_jvm):
            pass

    @contextmanager
    def running(self, system: System, *, own_jvm: bool = True) -> Iterator[Child]:
        """Run the system in a child for the while."""
        work = with_own_jvm(system) if own_jvm else system
        with started(work.run, log=self.log) as child:
            yield child

    def fail_in_child(self, system: System) -> None:
        """Run the system in a child to its end, which is to fail: that is the fault, and why it did the note."""
        with self.running(system) as child:
            word, said = child.hear()
        self.fault_proven, self.note = word != "finished", said[:120]

    def elsewhere(self, system: System) -> System:
        """Return the system as another machine runs it: with a Dagster home of its own, whose pools know nothing of ours."""
        if not isinstance(system, Offsetlake):
            return system
        return replace(system, settings=replace(system.settings, dagster_home=self.folder / "elsewhere"))

    @property
    def log(self) -> Path:
        """Where children write what they print."""
        return self.folder / "children.log"

    def is_whole(self, system: System) -> bool:
        """Return whether a plain glob shows every record but those that the system itself names as lost."""
        try:
            hidden = set(self.truth.values()) - set(visible_values(system.folder))
        except Refused:  # a file that cannot be read hides all the others
            return False
        return not hidden or hidden <= self._named_lost(system.books())

    def _named_lost(self, books: Books) -> set[bytes]:
        return {
            value
            for place, value in self.truth.items()
            if any(place[:2] == lost.place and place[2] in lost for lost in books.lost)
        }

    def judge(self, system: System, drill: str, seconds: float) -> Row:
        """Hold what a plain glob shows against what was produced, and what the system itself says is lost."""
        books = system.books()
        try:
            seen = visible_values(system.folder)
        except Refused as error:
            seen, self.note = [], f"the glob cannot be read: {error}"
        counts = compare({*self.truth.values()}, seen, self._named_lost(books))
        may_double = self.delivery is Delivery.AT_LEAST_ONCE and system.name == OURS
        verdict = name_faults("wrong", missing=counts["missing"], doubled=0 if may_double else counts["doubled"])
        return Row(
            system.name,
            system.policy,
            drill,
            self.fault_proven,
            **counts,
            holes=books.holes,
            verdict=verdict if self.fault_proven else "fault not proven",
            seconds=round(seconds, 1),
            note=self.note,
            seconds_until_whole=self.seconds_until_whole,
        )

    def close(self) -> None:
        """Close the connection to the broker, and delete the lake where that is in a bucket."""
        self.kafka.close()
        base, _, name = self.settings.lake.rpartition("/")
        store = Lake(base).store
        if store.is_remote:
            store.delete(name)
