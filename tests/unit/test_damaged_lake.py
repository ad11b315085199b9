"""A topic that is damaged, a broker that is away, a lake that is gone: whoever looks says so, and others are unharmed.

A lake that is gone is not a new one: nobody makes it, and nothing is landed again under its name.
"""

import dataclasses
import importlib
import io
import json
import random
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.lake_memory import LakeMemory
from pipeline_defs.adapters.store.disk_store import DiskStore
from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.cli import show, terminal
from pipeline_defs.cli.look import glance
from pipeline_defs.cli.terminal import progress
from pipeline_defs.cli.work.read import run_audit
from pipeline_defs.core import errors
from pipeline_defs.core.decode.decoders import Decode
from pipeline_defs.core.errors import BrokenPlanLog, BrokenTable, BrokerUnavailable, LakeUnavailable
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.core.steps import no_step
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.auditing import Finding, check_completeness, check_published, check_replay, check_table, check_tiling
from pipeline_defs.landing.landing import land
from pipeline_defs.operate.metrics import read_metrics
from pipeline_defs.operate.reports import trace_row
from pipeline_defs.operate.status import read_statuses
from pipeline_defs.orchestration.assets.decoded_checks import read_dead_letters
from pipeline_defs.orchestration.map.page import read_picture
from pipeline_defs.orchestration.pulse.rebuilding import rebuild_topic
from pipeline_defs.orchestration.pulse.ticking import run_tick
from pipeline_defs.orchestration.runs.projection import register_keys
from pipeline_defs.orchestration.topic_set import TopicFiles
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import read_settings
from pipeline_defs.topics import Topic
from tests.support.commands import samples_of
from tests.support.fake_log import TOPIC, FakeSpark, fake_tools, kafka_with, plan_all
from tests.support.interleaving import SmallWorld, Writer, beside, watch_obstore
from tests.support.strategies import EPOCH_MS, World, decide, mutate

MEND = r"tables/decoded/orders/_delta_log/.* move .*/tables/decoded/orders away, and `offsetlake decode orders` makes it again"
GOOD, DAMAGED = Topic("orders", Policy()), Topic("damaged", Policy())


def write_step(lake: Lake, topic: str, end: int = 20) -> Path:
    """Plan two ranges of a topic, or what comes next up to an end, and return the file of its first step."""
    log, log_state = World(), lake.read_plan_log(topic).state
    log.grow(0, end)
    state = dataclasses.replace(log.observe(log_state), topic=topic)
    assert lake.commit_step(decide(log_state, state, Policy(records_per_range=10), EPOCH_MS))
    assert isinstance(lake.store, DiskStore)
    return min((lake.store.folder / "plan" / topic).rglob("*.json"))


def open_adapters(lake: Path, home: Path) -> Adapters:
    """Adapters of a new process, for which no broker answers."""
    places = {"OFFSETLAKE_LAKE": str(lake), "DAGSTER_HOME": str(home)}
    return Adapters(read_settings({**places, "OFFSETLAKE_BOOTSTRAP_SERVERS": "127.0.0.1:1"}), kafka_timeout_seconds=0.2)


@pytest.fixture
def adapters(tmp_path: Path) -> Adapters:
    """A lake with a good topic and a damaged one, whose broker does not answer."""
    adapters = open_adapters(tmp_path, tmp_path / "dagster")
    write_step(adapters.lake, GOOD.name)
    write_step(adapters.lake, DAMAGED.name).write_text("{}")
    return adapters


def test_two_who_register_a_key_both_go_on(
    adapters: Adapters, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: the other process's keys come between Dagster's look at what there is and its insert."""
    name, coverage = str(GOOD.partitions.name), adapters.lake.coverage(GOOD.name)
    keys = [offsets.key for offsets in coverage.log.ranges]
    fault = IntegrityError("INSERT INTO dynamic_partitions", {}, Exception("UNIQUE constraint failed"))
    added = Mock(side_effect=[fault, None])  # the first time it is the other process that has added them
    beside(monkeypatch, instance, "add_dynamic_partitions", after=added)
    assert register_keys(instance, GOOD, coverage) == 0
    assert added.called, "the fault"
    assert sorted(instance.get_dynamic_partitions(name)) == sorted(keys)


def test_a_damaged_topic_is_named_and_the_other_is_counted_drawn_and_asked(
    adapters: Adapters, instance: dg.DagsterInstance
) -> None:
    families = samples_of(read_metrics([DAMAGED, GOOD], adapters, instance))
    assert families["offsetlake_topic_error"] == {("damaged", "broken_plan_log"): 1, ("orders", "broker_unavailable"): 1}
    assert families["offsetlake_up"] == {("damaged",): 0, ("orders",): 0}
    assert families["offsetlake_ranges"]["orders", "0", "pending"] == 2
    offsets = [families[f"offsetlake_{name}_offset"]["orders", "0"] for name in ("planned", "landed")]
    assert offsets == [20, 0]
    assert families["kafka_consumergroup_lag"] == {}, "only the broker knows"
    picture, remark = read_picture(GOOD, adapters, instance)
    assert len(picture.lengths) == 2 and "does not answer" in remark
    duck = Duck(adapters.lake, [DAMAGED.name, GOOD.name])
    assert duck.query("SELECT count(*) FROM ranges")[1] == [(2,)]
    assert duck.query("SELECT count(*) FROM orders")[1] == [(0,)]
    with pytest.raises(BrokenPlanLog):
        read_picture(DAMAGED, adapters, instance)
    with pytest.raises(BrokenPlanLog):
        duck.query("SELECT count(*) FROM damaged")


def test_sql_answers_for_other_topics_where_a_landed_file_is_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-85] What needs it says which file, and what to do."""
    watch_obstore(monkeypatch)
    world = SmallWorld(tmp_path, "disk", records=6, grid=3)
    world.land()
    first, second = sorted((tmp_path / "data").rglob("*.parquet"))
    for torn in (first, second):  # DuckDB opens the first for its columns, the others when they are read
        data = torn.read_bytes()
        torn.write_bytes(data[:-4])
        duck = Duck(world.lake, [TOPIC])
        assert duck.ask("SELECT count(*) FROM ranges")[1] == [(2,)]
        with pytest.raises(errors.OffsetlakeError, match=rf"{torn.name}.*`offsetlake audit.*` names"):
            duck.ask(f"SELECT count(value) FROM {TOPIC}")
        torn.write_bytes(data)


def test_sql_answers_for_what_is_landed_where_a_derived_table_is_damaged(adapters: Adapters) -> None:
    """[R-85] A view that there is not says why."""
    adapters.lake.store.put_new(f"tables/decoded/orders/_delta_log/{0:020d}.json", b"{torn", "staging/scratch")
    duck = Duck(adapters.lake, [DAMAGED.name, GOOD.name])
    assert duck.query("SELECT count(*) FROM orders")[1] == [(0,)]
    with pytest.raises(BrokenTable, match=MEND):
        duck.ask("SELECT count(*) FROM decoded.orders")
    assert [type(each) for each in duck.find_left_out('SELECT 1 FROM dead_letters."orders"')] == [BrokenTable]
    assert duck.find_left_out("SELECT count(*) FROM orders") == [], "the control"
    adapters.lake.store.delete("tables/decoded/orders")
    adapters.lake.store.put_new(f"tables/latest/orders/_delta_log/{0:020d}.json", b"", "staging/scratch")
    with pytest.raises(BrokenTable, match=r"latest\.orders has no view: its log cannot be read"):
        Duck(adapters.lake, [GOOD.name]).ask("SELECT count(*) FROM latest.orders")


def shown(documents: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> str:
    printed = io.StringIO()
    for module in (show, glance):
        monkeypatch.setattr(module, "OUT", terminal.Terminal(file=printed, width=200))
    glance.print_status(documents, EPOCH_MS, by_partition=True)
    return printed.getvalue()


def test_status_shows_each_error_once(
    adapters: Adapters, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the lake says; the broker is asked once, however many topics it has."""
    write_step(adapters.lake, "payments")
    payments = dataclasses.replace(GOOD, name="payments")
    documents = [document for document, _ in read_statuses([DAMAGED, GOOD, payments], adapters, instance)]
    assert [each["kind"] for each in documents] == ["broken_plan_log", "broker_unavailable", "broker_unavailable"]
    assert documents[1]["error"] == documents[2]["error"]
    row: dict[str, Any] = documents[1]["partitions"][0]
    assert (row["planned_offset"], row["landed_offset"], row["pending_ranges"]) == (20, 0, 2)
    assert (row["lag"], row["end_offset"], documents[1]["lag"]) == (None, None, None)

    text = shown(documents, monkeypatch)
    assert text.count("the Kafka broker at 127.0.0.1:1 does not answer") == 1
    assert text.count("plan step") == 1 and text.count("broken_plan_log") == 3, "in its row, next action and error"
    assert "│ orders" in text and "orders: only what the lake says is shown" in text


def test_what_tables_share_is_said_once(
    adapters: Adapters, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoded table, the latest one that is made of it, and the topic itself, where its broker answers."""
    adapters.lake.store.put_new(f"tables/decoded/orders/_delta_log/{1:020d}.json", b"{}", "staging/scratch")
    topic = dataclasses.replace(GOOD, decode=Decode(), latest=Latest())
    ((document, _),) = read_statuses([topic], adapters, instance)
    raw, torn, latest = document["tables"]
    assert re.search(MEND, torn["error"]) and latest["error"] == torn["error"], "the fault"
    assert raw == {"table": "raw", "version": -1, "waiting_ranges": 0, "waiting_since_ms": None}, "the control"
    for changed, tables in (({}, ["latest"]), ({"error": torn["error"], "kind": torn["kind"]}, ["decoded", "latest"])):
        text = shown([document | changed], monkeypatch)
        assert text.count(torn["error"]) == 1
        assert re.findall(r"  (\w+): see the error \(broken_table\)", text) == tables
    adapters.lake.store.put_new(f"tables/raw/orders/_delta_log/{1:020d}.json", b"{}", "staging/scratch")
    ((document, _),) = read_statuses([topic], adapters, instance)
    assert "tables/raw/orders" in document["tables"][0]["error"] and document["tables"][0]["kind"] == "broken_table"


def test_who_has_a_broker_of_their_own_is_told_where_its_address_stands(
    adapters: Adapters, instance: dg.DagsterInstance
) -> None:
    """defs.yaml wins, so what to correct is there; nobody is told to start another broker. The control has none of its own."""
    for own, words in (("127.0.0.1:1", "bootstrap_servers in the defs.yaml"), (None, "OFFSETLAKE_BOOTSTRAP_SERVERS")):
        topic = dataclasses.replace(GOOD, bootstrap_servers=own)
        ((document, _),) = read_statuses([topic], Adapters(adapters.settings, kafka_timeout_seconds=0.2), instance)
        assert f"correct its address: {words}" in document["error"] and "broker start" not in document["error"]


@given(seed=st.integers(0, 2**32), is_legal=st.booleans())
def test_damage_of_a_step_is_one_error(seed: int, is_legal: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """However the object is damaged, it reads as before, or is one error of its topic; nothing else is raised."""
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    file = write_step(lake, "orders")
    drawn, data = random.Random(seed), file.read_bytes()
    if is_legal:  # JSON; `test_documents_laws.py` draws what is none of ours at all
        document = json.loads(data)
        document[drawn.choice(sorted(document))] = drawn.choice([None, 1, -1, "x", [], {}, [[]], {"0": 1}, 1e400, True])
        file.write_text(json.dumps(document))
    else:
        file.write_bytes(mutate(drawn, data))
    try:
        coverage = Lake(lake.store.root).coverage("orders")
    except BrokenPlanLog:
        return
    coverage.states(), coverage.frontier(0)


def test_nothing_is_planned_from_a_log_of_which_an_earlier_step_is_damaged(
    adapters: Adapters, instance: dg.DagsterInstance
) -> None:
    """[R-2] Planning needs the end of the log alone, yet the whole of it is held; the control asks the broker."""
    first = write_step(adapters.lake, "held")
    write_step(adapters.lake, "held", 40)
    with pytest.raises(BrokerUnavailable):
        run_tick(Topic("held", Policy()), instance, adapters)
    first.write_text("{}")
    with pytest.raises(BrokenPlanLog):
        run_tick(Topic("held", Policy()), instance, Adapters(adapters.settings, kafka_timeout_seconds=0.2))


@pytest.mark.parametrize("name", ["x.json", f"{0:020d}.json.swp", f"backup/{0:020d}.json", f"{0:020d} (1).json", "1.json"])
def test_a_stray_file_in_a_plan_log_is_named_and_nobody_is_sent_to_a_backup(adapters: Adapters, name: str) -> None:
    """What could be a step is not passed over. The control is the other topic."""
    assert isinstance(adapters.lake.store, DiskStore)
    stray = adapters.lake.store.folder / "plan" / GOOD.name / name
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("{}")
    for read in (adapters.lake.read_plan_log, adapters.lake.coverage):
        with pytest.raises(BrokenPlanLog, match="what is no step lies in the plan log of topic orders") as caught:
            read(GOOD.name)
        assert str(stray) in str(caught.value) and "move it away" in str(caught.value) and "backup of" not in str(caught.value)
    write_step(adapters.lake, "payments")
    assert len(adapters.lake.read_plan_log("payments").steps) == 1


# the package has the commands under the names of their modules
land_commands, losses_commands = (importlib.import_module(f"pipeline_defs.cli.work.{name}") for name in ("land", "losses"))


@pytest.mark.parametrize(
    ("module", "command", "work"), [(losses_commands, "losses", "read_ledger"), (land_commands, "rebuild", "rebuild_topic")]
)
@pytest.mark.usefixtures("capfd")
def test_a_refused_topic_is_named_and_the_others_are_done(
    adapters: Adapters, monkeypatch: pytest.MonkeyPatch, module: ModuleType, command: str, work: str
) -> None:
    """The control is the other topic alone. Where the refused one is asked for by its name, its error is the command's."""
    done, said = list[str](), list[str]()
    beside(monkeypatch, module, work, after=lambda topic, *_, **__: done.append(topic.name))
    monkeypatch.setattr(Adapters, "kafka", lambda self, topic=None: kafka_with(20))
    monkeypatch.setattr(module, "open_adapters", lambda: adapters)
    monkeypatch.setattr(land_commands, "open_instance", lambda home: dg.DagsterInstance.ephemeral())
    monkeypatch.setattr(show, "print_error", lambda error, where="": said.append(f"{where}{error.kind}"))
    topics = {topic.name: topic for topic in (DAMAGED, GOOD)}
    monkeypatch.setattr(show, "load_topics", lambda: TopicFiles(dg.ComponentTree.for_test(), topics))

    def ran(*arguments: str) -> tuple[int, Any]:
        done.clear()
        result = CliRunner().invoke(getattr(module, command), list(arguments))
        return result.exit_code, result.exception

    assert ran(GOOD.name)[0] == 0 and done == [GOOD.name] and not said
    code, raised = ran()
    assert (code, done) == (1, [GOOD.name]) and isinstance(raised, SystemExit)
    assert said == [f"topic {DAMAGED.name}: broken_plan_log"]
    assert isinstance(ran(DAMAGED.name)[1], BrokenPlanLog)


POLICY = Policy(records_per_range=4, max_age_seconds=0)
ORDERS = Topic(TOPIC, POLICY)


class Place:
    """A project's lake and Dagster home in a folder, and a broker with one topic."""

    def __init__(self, folder: Path) -> None:
        self.lake, self.home, self.kafka = folder / "lake", folder / "dagster", kafka_with(8)

    @property
    def adapters(self) -> Adapters:
        return open_adapters(self.lake, self.home)

    def plan(self, topic: str = TOPIC) -> None:
        plan_all(self.adapters.lake, self.kafka, POLICY, topic)

    def land(self) -> list[Outcome]:
        lake = self.adapters.lake
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
    assert place.adapters.lake.coverage("-dash").log.steps
    place.adapters.check_lake()
    delete(place)
    with pytest.raises(LakeUnavailable, match=f"has nothing of topic {TOPIC},"):
        list(land_commands._commit(ORDERS, place.adapters, through_end=False, is_restored=False))
    for asked, named in ((TOPIC, TOPIC), ("-dash", "-dash"), (None, "-dash"), ("new", "-dash")):
        with pytest.raises(LakeUnavailable, match=f"has nothing of topic {named},"):
            place.adapters.check_lake(asked)


@pytest.mark.parametrize("is_tick", [True, False], ids=["a tick", "rebuild"])
def test_a_home_that_shows_what_another_planned_remembers_it(place: Place, is_tick: bool) -> None:
    """[R-76] As on a second machine, or in a new home; else a lake that goes missing would be landed again."""
    place.home = place.home.with_name("second")
    with dg.DagsterInstance.ephemeral() as instance, suppress(BrokerUnavailable):
        (run_tick(ORDERS, instance, place.adapters) if is_tick else rebuild_topic(ORDERS, place.adapters, instance))
    kept = place.lake.rename(place.lake.with_name("kept"))
    with pytest.raises(LakeUnavailable, match=GONE):
        place.plan()
    assert names_of(place.lake) is None
    place.home = place.home.with_name("third")
    place.plan()  # the control: a home that has seen nothing of it begins a lake
    assert names_of(place.lake) != names_of(kept)


def names_of(folder: Path) -> list[str] | None:
    return sorted(str(each) for each in folder.rglob("*")) if folder.exists() else None


def ask_status(place: Place) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        ((document, _),) = read_statuses([ORDERS], place.adapters, instance)
    if document["kind"] == "lake_unavailable":
        raise LakeUnavailable(document["error"])
    raise BrokerUnavailable(document["error"])


def tick(place: Place) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_tick(ORDERS, instance, place.adapters)


ASKING: dict[str, Callable[[Place], object]] = {
    "status": ask_status,
    "tick": tick,
    "audit: tiling": lambda place: check_tiling(TOPIC, place.adapters.lake),
    "audit: completeness": lambda place: check_completeness(TOPIC, place.adapters.lake),
    "audit: digests": lambda place: check_published(TOPIC, place.adapters.lake),
    "dead letters": lambda place: read_dead_letters(ORDERS, None, 1, place.adapters),
    "trace": lambda place: trace_row(ORDERS, 0, 1, place.adapters),
    "sql": lambda place: Duck(place.adapters.lake, [TOPIC]).ask(f"SELECT count(*) FROM {TOPIC}"),
    "plan": Place.plan,
    "land": Place.land,
    "begin a run": lambda place: place.adapters.check_lake(),
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
        place.adapters.check_lake()
        place.plan()
        assert place.land() == [Outcome.LANDED] * 2
        return
    # what they say of a topic of which nothing is planned
    with suppress(BrokerUnavailable, errors.EmptySelection, errors.Refused):
        ASKING[ask](place)
    assert names_of(place.lake) is None


@pytest.mark.parametrize("content", [b"\x00\x00\x00\x01Bud1\xff\xfe", b""], ids=["no text", "empty"])
def test_a_file_that_is_no_topics_in_what_is_remembered_is_left_alone(place: Place, content: bytes) -> None:
    """[R-76] A file browser leaves one; a lake that is gone is still refused, and one begun where a person says so."""
    stray = place.home / "known_topics" / ".DS_Store"
    stray.write_bytes(content)
    place.adapters.check_lake()
    delete(place)
    with pytest.raises(LakeUnavailable, match=r"to begin an empty lake instead, delete .*known_topics/orders"):
        place.adapters.check_lake()
    (place.home / "known_topics" / TOPIC).unlink()
    place.adapters.check_lake()
    memory = LakeMemory(place.home, str(place.lake))  # of a process that goes on
    memory.remember(TOPIC)
    (place.home / "known_topics" / TOPIC).unlink()
    memory.refuse_missing(TOPIC)
    memory.remember(TOPIC)
    with pytest.raises(LakeUnavailable):
        memory.refuse_missing(TOPIC)
    (place.home / "known_topics" / TOPIC).unlink()
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


CHECKS = ["tiling", "completeness", "published_digest", "raw_table", "broker", "losses"]


def audit(world: SmallWorld, replay: str) -> dict[str, Finding]:
    settings = SimpleNamespace(has_raw_table=True, dagster_home=world.folder / "dagster")
    adapters: Any = SimpleNamespace(lake=world.lake, kafka=lambda topic: world.kafka, settings=settings, now_ms=lambda: 0)
    with progress("auditing") as shown:
        findings = run_audit(Topic(TOPIC, Policy()), adapters, replay, "0", shown)
    assert len({finding.check for finding in findings}) == len(findings)
    return {finding.check: finding for finding in findings}


@pytest.fixture
def world(tmp_path: Path, watched: object) -> SmallWorld:
    """A landed topic."""
    world = SmallWorld(tmp_path, "disk")
    world.has_raw_table = True
    world.land()
    return world


def test_losses_and_broker_are_looked_at_where_the_lake_does_not_tile(world: SmallWorld) -> None:
    """The fault is a file that is no range's; what Kafka has deleted is named all the same, and what is not read again too.

    Nor does a plan log that cannot be read leave a row out.
    """
    found = audit(world, "none")
    assert list(found) == CHECKS and all(finding.passed for finding in found.values()), "the control"
    partition = world.kafka.now.partitions[0]
    world.grow(3)
    partition.earliest = len(partition.appended)
    (world.folder / "data" / TOPIC / "stray.parquet").write_bytes(b"")
    found = audit(world, "1")
    assert list(found) == [*CHECKS, "replay"]
    assert not found["tiling"].passed, "the fault"
    assert found["losses"].facts["not_accepted_offsets"] == 3 and not found["losses"].passed
    assert found["broker"].passed and found["broker"].facts["pending"] == 3
    assert not found["replay"].passed and "nothing was read again" in found["replay"].violations[0]
    next((world.folder / "plan" / TOPIC).iterdir()).write_text("{}")
    world.lake = world.open(Writer())
    found = audit(world, "1")
    assert list(found) == [*CHECKS, "replay"]
    assert not any(finding.passed for finding in found.values())


def test_what_was_landed_by_another_isolation_level_is_read_again_by_that(world: SmallWorld) -> None:
    """[R-44] Else a changed defs.yaml would make the audit red for ever, over rows that are as they were landed."""
    partition = world.kafka.now.partitions[0]
    partition.append([SpanKind.DATA, SpanKind.ABORTED, SpanKind.CONTROL], "v", EPOCH_MS)
    world.plan()
    world.land()
    tools = dataclasses.replace(world.tools(world.lake), isolation_level="read_uncommitted")
    assert len(partition.rows(0, 9, "read_uncommitted")) > len(world.shown()), "the fault"
    found = check_replay(TOPIC, tools, sample=None, seed="0")
    assert found.passed and found.facts["unchanged"] == found.facts["replayed"] == len(world.coverage.manifests)


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("mode", ["land", "replace"])
def test_a_run_at_any_of_its_steps_is_no_alarm(tmp_path: Path, mode: str, delivery: Delivery) -> None:
    """[R-37] Another run audits what this one is landing: what is committed and about to be published is no gap.

    Nor is a compacted file amiss that has the rows of the revision before: it is cut once the new ones are published.
    """
    world = SmallWorld(tmp_path / "lake", "disk", records=6, grid=3)
    world.delivery, world.has_raw_table = delivery, mode == "replace"
    first, _ = world.coverage.log.ranges
    if mode == "replace":
        world.land()
        world.compact()
        world.kafka.compact(100)
    unfinished, said = [], []

    def look(step: str, **_: object) -> None:
        lake = world.open(Writer())
        unfinished.extend(found := lake.coverage(TOPIC).unfinished)
        checks = (check_tiling, check_published, *([check_table] if found and world.has_raw_table else []))
        said.extend((step, each) for check in checks for each in check(TOPIC, lake).violations)

    world.land(mode, world.open(Writer()), on_step=look, only=first)
    assert unfinished or delivery is Delivery.AT_LEAST_ONCE, "an audit fell between commit and publish"
    assert said == []


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("mode", ["land", "replace"])
def test_what_is_published_while_the_lake_is_listed_is_no_alarm(tmp_path: Path, mode: str) -> None:
    """[R-37] A whole run passes between the listing of `data/`, or of the table's log, and any later call of an audit."""
    for check in (check_tiling, check_published, check_table):
        begun = SmallWorld(tmp_path / check.__name__, "disk", records=6, grid=3)
        begun.has_raw_table = check is check_table
        if mode == "replace":
            begun.land()
            begun.compact()
            begun.kafka.compact(100)
        for at in range(40):
            world = begun.copied(tmp_path / f"{check.__name__}-{at}")

            def run(number: int, world: SmallWorld = world, at: int = at) -> None:
                if number == at:
                    world.land(mode, world.open(Writer()))

            auditor = Writer(before=run)
            assert check(TOPIC, world.open(auditor)).violations == (), at
            if at >= len(auditor.calls):
                break
        assert at > 3, "the run did pass in between"


@pytest.mark.usefixtures("watched")
def test_what_lands_without_end_while_the_table_is_audited_is_no_alarm(tmp_path: Path) -> None:
    """[R-37] A run passes before each call: the version that is read later has ranges of which nothing else was read."""
    begun, passed = SmallWorld(tmp_path / "begun", "disk", records=6, grid=3), []
    begun.has_raw_table = True
    begun.land()
    for at in range(12):
        world, versions = begun.copied(tmp_path / str(at)), []

        def run(number: int, world: SmallWorld = world, at: int = at, versions: list[int] = versions) -> None:
            if at <= number < at + 12:
                world.grow(3)
                world.land(lake=world.open(Writer()))
                versions.append(raw_table_log(TOPIC, world.lake.store).read().version)

        assert check_table(TOPIC, world.open(Writer(before=run))).violations == (), at
        assert versions == sorted({*versions})
        passed.append(len(versions))
    assert passed[0] > 3, "runs did pass in between"


def test_a_file_that_goes_is_an_alarm_though_a_run_passed(world: SmallWorld) -> None:
    """The control; so is a range that is landed and that no run has appended."""
    world.grow(3)
    world.has_raw_table = False
    world.land()
    (lacking,) = check_table(TOPIC, world.open(Writer())).violations
    assert lacking.startswith("range orders/0 [6, 9): landed, and not in the table; the next run appends it, or `")
    next((world.folder / "data").rglob("*.parquet")).unlink()
    lake = world.open(Writer())
    assert "its file is not published" in check_tiling(TOPIC, lake).violations[0]
    assert "the published file is not there" in check_published(TOPIC, lake).violations[0]
