"""A lake that is gone is not a new one: whoever looks says so, nobody makes it, and nothing is landed again under its name."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest

from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.errors import BrokerUnavailable, EmptySelection, LakeUnavailable, Refused
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.core.steps import no_step
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.auditing import check_completeness, check_published, check_tiling
from pipeline_defs.landing.landing import land
from pipeline_defs.operate.reports import trace_row
from pipeline_defs.operate.status import read_statuses
from pipeline_defs.orchestration.assets.decoded_checks import read_dead_letters
from pipeline_defs.orchestration.pulse.ticking import run_tick
from pipeline_defs.resources import Edges
from pipeline_defs.settings import read_settings
from pipeline_defs.topics import Topic
from tests.support.fake_log import TOPIC, FakeSpark, fake_tools, kafka_with, plan_all
from tests.support.strategies import EPOCH_MS

land_command = importlib.import_module("pipeline_defs.cli.work.land")
POLICY = Policy(records_per_range=4, max_age_seconds=0)
ORDERS = Topic(TOPIC, POLICY)


class Place:
    """A project's lake and Dagster home in a folder, and a broker with one topic."""

    def __init__(self, folder: Path) -> None:
        self.lake, self.home, self.kafka = folder / "lake", folder / "dagster", kafka_with(8)

    @property
    def edges(self) -> Edges:
        """Edges of a new process, for which no broker answers."""
        named = {"OFFSETLAKE_LAKE": str(self.lake), "DAGSTER_HOME": str(self.home)}
        settings = read_settings({**named, "OFFSETLAKE_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
        return Edges(settings, kafka_timeout_seconds=0.2)

    def plan(self, topic: str = TOPIC) -> None:
        plan_all(self.edges.lake, self.kafka, POLICY, topic)

    def land(self) -> list[Outcome]:
        lake = self.edges.lake
        keys = [offsets.key for offsets in lake.coverage(TOPIC).log.ranges]
        tools = fake_tools(lake, self.kafka, FakeSpark(self.kafka, no_step))
        return [verdict.outcome for verdict in land(TOPIC, keys, Attempt("a", "run", "test"), tools)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.plan()
    assert place.land() == [Outcome.LANDED] * 2
    return place


def delete(place: Place) -> None:
    shutil.rmtree(place.lake)


def unmount(place: Place) -> None:
    """Leave the empty folder that a lake was mounted on."""
    shutil.rmtree(place.lake)
    place.lake.mkdir()


def mistype(place: Place) -> None:
    place.lake = place.lake.with_name("lkae")


def mount_another(place: Place) -> None:
    other = Place(place.lake.parent / "other")
    other.plan("payments")
    shutil.rmtree(place.lake)
    other.lake.rename(place.lake)


def test_the_topic_that_was_asked_for_is_named(place: Place) -> None:
    """[R-76] Where the lake has gone of both topics; who asks for none, or for a new one, hears of one that was there."""
    place.plan("-dash")  # the control: another topic begins in a lake that is there
    assert place.edges.lake.coverage("-dash").log.steps
    place.edges.check_lake()
    delete(place)
    with pytest.raises(LakeUnavailable, match=f"has nothing of topic {TOPIC},"):
        list(land_command._commit(ORDERS, place.edges, through_end=False))
    for asked, named in ((TOPIC, TOPIC), ("-dash", "-dash"), (None, "-dash"), ("new", "-dash")):
        with pytest.raises(LakeUnavailable, match=f"has nothing of topic {named},"):
            place.edges.check_lake(asked)


def names_of(folder: Path) -> list[str] | None:
    return sorted(str(each) for each in folder.rglob("*")) if folder.exists() else None


def ask_status(place: Place) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        ((document, _),) = read_statuses([ORDERS], place.edges, instance)
    if document["kind"] == "lake_unavailable":
        raise LakeUnavailable(document["error"])
    raise BrokerUnavailable(document["error"])


def tick(place: Place) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_tick(ORDERS, instance, place.edges)


ASKING: dict[str, Callable[[Place], object]] = {
    "status": ask_status,
    "tick": tick,
    "audit: tiling": lambda place: check_tiling(TOPIC, place.edges.lake),
    "audit: completeness": lambda place: check_completeness(TOPIC, place.edges.lake),
    "audit: digests": lambda place: check_published(TOPIC, place.edges.lake),
    "dead letters": lambda place: read_dead_letters(ORDERS, None, 1, place.edges),
    "trace": lambda place: trace_row(ORDERS, 0, 1, place.edges),
    "sql": lambda place: Duck(place.edges.lake, [TOPIC]).ask(f"SELECT count(*) FROM {TOPIC}"),
    "plan": Place.plan,
    "land": Place.land,
    "begin a run": lambda place: place.edges.check_lake(),
}
GONE = (
    f"nothing of topic {TOPIC}, and something of it was planned or landed.*"
    "to begin an empty lake instead, delete .*known_topics/orders"
)


@pytest.mark.parametrize(
    ("lose", "ask"),
    [(delete, ask) for ask in ASKING]
    + [(lose, ask) for lose in (unmount, mistype, mount_another) for ask in ("plan", "tick")]
    + [(lose, "begin a run") for lose in (unmount, mistype)],
)
def test_a_lake_that_is_gone_is_a_clear_error_and_stays_as_it_is(place: Place, lose: Callable[[Place], None], ask: str) -> None:
    """[R-76] Who reads, plans, ticks or begins a run; the control is the same question before, and once the lake is back."""
    kept = place.lake.with_name("kept")

    def is_answered() -> bool:
        try:
            ASKING[ask](place)
        except LakeUnavailable:
            return False
        except BrokerUnavailable:
            assert ask in {"status", "tick"}
        return True

    assert is_answered(), "the control"
    shutil.copytree(place.lake, kept)
    lose(place)
    before = names_of(place.lake)
    with pytest.raises(LakeUnavailable, match=GONE):
        ASKING[ask](place)
    assert names_of(place.lake) == before
    shutil.rmtree(place.lake, ignore_errors=True)
    kept.rename(place.lake)
    assert is_answered()


@pytest.mark.parametrize("ask", [ask for ask in ASKING if ask != "begin a run"])
def test_looking_at_a_lake_that_is_not_begun_makes_nothing(tmp_path: Path, ask: str) -> None:
    """[R-76] A new project says that nothing is planned; planning begins it, without any further step."""
    place = Place(tmp_path)
    if ask == "plan":
        place.edges.check_lake()
        place.plan()
        assert place.land() == [Outcome.LANDED] * 2
        return
    with suppress(BrokerUnavailable, EmptySelection, Refused):  # what they say of a topic of which nothing is planned
        ASKING[ask](place)
    assert names_of(place.lake) is None


@pytest.mark.parametrize("content", [b"\x00\x00\x00\x01Bud1\xff\xfe", b""], ids=["no text", "empty"])
def test_a_file_that_is_no_topics_in_what_is_remembered_is_left_alone(place: Place, content: bytes) -> None:
    """[R-76] A file browser leaves one; a lake that is gone is still refused, and one begun where a person says so."""
    stray = place.home / "known_topics" / ".DS_Store"
    stray.write_bytes(content)
    place.edges.check_lake()
    delete(place)
    with pytest.raises(LakeUnavailable, match=r"to begin an empty lake instead, delete .*known_topics/orders"):
        place.edges.check_lake()
    (place.home / "known_topics" / TOPIC).unlink()
    place.edges.check_lake()
    place.plan()
    assert place.land() == [Outcome.LANDED] * 2
    assert stray.read_bytes() == content


def test_a_lake_that_was_moved_is_remembered_where_it_is_now(place: Place) -> None:
    """[R-76] The next commit of each topic says so, and leaves nothing else in Dagster's home."""
    before = set(place.home.iterdir())
    moved = place.lake.with_name("moved")
    place.lake.rename(moved)
    place.lake = moved
    place.kafka.now.partitions[0].append([SpanKind.DATA] * 4, "v", EPOCH_MS)
    place.plan()
    assert (place.home / "known_topics" / TOPIC).read_text() == str(moved)
    assert set(place.home.iterdir()) == before
