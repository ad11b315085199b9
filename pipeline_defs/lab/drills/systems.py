"""The systems that are drilled: Offsetlake under each delivery policy, and two that people use instead.

Each reads a topic to the end that it has now and ends, as often as it is started; each is drilled as its users would run
it, started again when it fails, as by a supervisor. What it has made visible is what a plain glob over `glob` shows.
"""

import errno
import resource
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import stamina

from ...adapters.kafka.operations import Operations
from ...adapters.lake.lake import Lake
from ...adapters.store.disk_store import DiskStore
from ...adapters.tables.duck import Duck
from ...adapters.tables.sql_text import file_pattern
from ...cli.launching import InProcessRuns
from ...core.errors import OffsetlakeError, ScanFailed
from ...core.log.losses import find_losses
from ...core.offsets import OffsetRange
from ...core.steps import StepWatcher, no_step
from ...orchestration.home.dagster_home import open_instance
from ...orchestration.pulse.ticking import run_tick
from ...resources import Adapters
from ...settings import IN_PROCESS, Settings
from ...topics import Topic

OURS, STREAMING, LOOP = "offsetlake", "structured_streaming", "hand_written_loop"
TUTORIAL = "tutorial_consumer"
KILLS: Mapping[str, tuple[str, ...]] = {
    OURS: (
        *("plan_decided", "plan_committed", "keys_registered"),
        *("find", "claim", "scan", "stage", "verify", "commit", "publish", "reported", "report"),
    ),
    STREAMING: ("writing", "written"),
    LOOP: ("written", "committed"),
    TUTORIAL: ("auto_committed",),
}
TRIES = 6
STARTS = 5
END_SECONDS = 600
AGAIN_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Books:
    """What a system itself says of a topic: holes explained, and what is lost; a peer only shows rows."""

    holes: int = 0
    lost: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class System:
    """A system that lands one topic as Parquet below `out`, and commits to a group; `disk_bytes` bounds a file it writes."""

    settings: Settings
    topic: Topic
    out: Path
    disk_bytes: int | None = None

    name: ClassVar[str]

    @property
    def policy(self) -> str:
        """What it promises."""
        raise NotImplementedError

    @property
    def folder(self) -> str:
        """Where its Parquet files lie, the published and no others; a URL where that is a bucket."""
        return f"{self.out}/data"

    @property
    def group(self) -> str:
        """The consumer group that it commits to."""
        return f"{self.name}-{self.topic.name}"

    def run(self, watch: StepWatcher) -> None:
        """Land what the topic has now, and ends."""
        raise NotImplementedError

    def books(self) -> Books:
        """Read what it says of holes and losses."""
        return Books()

    def forget(self) -> None:
        """Delete what it keeps beside its Parquet files and can lose: a database, a checkpoint, a consumer group."""
        assert self.settings.bootstrap_servers is not None
        Operations(self.settings.bootstrap_servers).delete_group(self.group)


@dataclass(frozen=True, slots=True)
class Offsetlake(System):
    """Lands through Dagster, a tick and then runs, as the sensor and daemon do."""

    lands: bool = True
    answers_lost: int = 0

    name = OURS

    @property
    def policy(self) -> str:
        """The topic's delivery policy."""
        return self.topic.delivery.value

    @property
    def folder(self) -> str:
        """Data tree of the lake."""
        return f"{self.settings.lake}/data/{self.topic.name}"

    @property
    def group(self) -> str:
        """The group that shows how far it is."""
        return self.topic.group

    def run(self, watch: StepWatcher) -> None:
        """Tick and land until nothing is pending; a run that fails is tried again, as the sensor would."""
        limit_files(self.disk_bytes)
        adapters = Adapters(self.settings, watch_step=watch)
        if self.answers_lost:
            lose_answers(adapters.lake, self.answers_lost, watch)
        with open_instance(self.settings.dagster_home) as instance:
            reasons: list[str] = []
            for _ in range(TRIES):
                while run_tick(self.topic, instance, adapters).planned:
                    pass
                pending = adapters.lake.coverage(self.topic.name).pending()
                if not (self.lands and pending):
                    break
                reasons = [
                    launched.reason
                    for launched in InProcessRuns(self.topic, adapters, instance).land(pending, redo=False)
                    if not launched.succeeded
                ]
            else:
                raise ScanFailed(f"{self.topic.name} still has pending ranges after {TRIES} runs: {reasons}")
        adapters.kafka(self.topic).close()

    def books(self) -> Books:
        """Read plan log and manifests."""
        coverage = Lake(self.settings.lake).coverage(self.topic.name)
        manifests = [manifest for offsets, manifest in coverage.manifests.items() if coverage.is_landed(offsets)]
        holes = sum(h.end - h.start for m in manifests for h in m.holes if h.cause != "lost")
        return Books(holes, tuple(loss.offsets for loss in find_losses(coverage)))

    def forget(self) -> None:
        """Delete Dagster's whole home and the consumer group."""
        shutil.rmtree(self.settings.dagster_home, ignore_errors=True)
        System.forget(self)


def visible_values(folder: str) -> list[bytes]:
    """Read the value of every row that a plain glob shows below a folder or URL; raise `Refused` where it cannot be read."""
    above, _, name = folder.rpartition("/")
    lake = Lake(above)
    files = [path for path in lake.store.list(name) if path.endswith(".parquet")]
    if not files:
        return []
    glob = [f"{file_pattern(lake, name)}/**/*.parquet"]
    shown = [file_pattern(lake, path) for path in files] if lake.store.is_remote else glob
    return [row[0] for row in Duck(lake, []).query('SELECT "value" FROM read_parquet($1, union_by_name = true)', [shown])[1]]


def with_own_jvm(system: System) -> System:
    """Return a system whose Spark ends with its process, as that of most people does; ours shares a server by default.

    One that a cluster serves stays as it is: the cluster goes on with what the dead process has asked for.
    """
    if not isinstance(system, Offsetlake) or system.settings.spark_remote is not None:
        return system
    return replace(system, settings=replace(system.settings, engine=IN_PROCESS))


def limit_files(size: int | None) -> None:
    """Have every write of this process and its JVM fail that would make a file larger than `size` bytes."""
    if size is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def lose_answers(lake: Lake, count: int, watch: StepWatcher) -> None:
    """Have the answers of the next `count` writes of manifests and plan steps be lost, after they have happened."""
    assert isinstance(lake.store, DiskStore)
    disk = lake.store.disk
    link, left = disk.link, count

    def link_without_answer(source: str, target: str) -> None:
        nonlocal left
        link(source, target)
        if left and target.startswith(("manifests/", "plan/")):
            left -= 1
            watch("answer_lost")
            raise OSError(errno.EIO, "the drill has lost the answer")

    disk.link = link_without_answer  # type: ignore[method-assign]


class DoesNotEnd(OffsetlakeError):
    """An undisturbed system was still at it after all the time that it was given."""


def run_to_end(system: System) -> None:
    """Run a system in this process, with the Spark session that there is; raise `DoesNotEnd` after `END_SECONDS`."""
    with _bounded() as is_over:

        def is_worth_a_start(error: BaseException) -> bool:  # Ctrl-C and SIGTERM come here too
            return isinstance(error, Exception) and not is_over()

        for attempt in stamina.retry_context(on=is_worth_a_start, attempts=STARTS, timeout=None, wait_initial=1.0):
            with attempt:
                system.run(no_step)


@contextmanager
def _bounded() -> Iterator[Callable[[], bool]]:
    """Raise in what runs inside, again and again, for what runs inside may take the first for a failure of its own."""
    over = False

    def give_up(*_: object) -> None:
        nonlocal over
        over = True
        raise DoesNotEnd(f"an undisturbed run was not at its end after {END_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, END_SECONDS, AGAIN_SECONDS)
    try:
        yield lambda: over
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
