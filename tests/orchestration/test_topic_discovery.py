"""Topics by pattern over a real broker: a new one is landed and shown; what is wrong of one is told."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from pipeline_defs import topic_files
from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.core.errors import TopicsFailed, Violation
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.orchestration.home.project import plan_project, write_project
from pipeline_defs.orchestration.pulse import topic_discovery
from pipeline_defs.orchestration.pulse.pulse import build_pulse
from pipeline_defs.orchestration.pulse.topic_discovery import Discovery, find_why_not
from pipeline_defs.orchestration.topic_set import Broken, PatternFile, TopicFiles, TopicPattern, read_stamps
from pipeline_defs.topic_files import read_topic_files
from pipeline_defs.topics import Topic
from tests.support.pulse import evaluate, refuse, run_pulse
from tests.support.world import World


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Look at each tick, and try files within it; note for what Dagster was asked to load the code location anew."""
    asked: list[object] = []

    def thread(target: Callable[..., object], args: tuple[object, ...], daemon: bool) -> Mock:
        return Mock(start=partial(target, *args))

    monkeypatch.setattr(topic_discovery, "threading", Mock(Thread=thread))
    monkeypatch.setattr(topic_discovery, "DISCOVER_SECONDS", 0.0)
    monkeypatch.setattr(topic_discovery, "_reload", lambda *given: asked.append(given))
    monkeypatch.setattr(topic_discovery, "find_why_not", lambda project: "")
    return asked


def files_of(world: World, *own: Topic, **changes: Any) -> TopicFiles:
    """Return a file with the pattern `<the world's topic>.*`, beside topics with files of their own."""

    def topic(name: str) -> Topic:
        return dataclasses.replace(world.topic, name=name, **changes)

    tree = dg.ComponentTree.for_test()
    pattern = TopicPattern(rf"{world.name}.*", r".*-not")
    patterns, stamps = [PatternFile(Path("all"), pattern, topic)], read_stamps(tree.defs_module_path)
    return TopicFiles(tree, {each.name: each for each in own}, patterns=patterns, stamps=stamps)


def sensor_of(world: World, files: TopicFiles) -> Callable[[], SensorExecutionData]:
    """Return the sensor of a code server that was loaded with these files, to be evaluated."""
    return partial(evaluate, world, build_pulse([*files.topics.values()], files))


def create(world: World, *names: str) -> None:
    for name in names:
        world.adapters.kafka().create_topic(name, 2)


def test_a_new_topic_is_planned_from_its_first_offset_and_loaded(world: World, asked: list[object]) -> None:
    """[R-98] What does not match, is left out or has a file of its own is not touched; the reload is asked for once."""
    own = dataclasses.replace(world.topic, name=f"{world.name}-own")
    tick = sensor_of(world, files_of(world, own))
    create(world, f"{world.name}-own", f"{world.name}-not", f"other-{world.name}")
    assert tick().skip_message == "nothing waits"
    create(world, world.name)
    world.send_numbered(150)
    said = tick().skip_message or ""
    assert said.startswith("shown once loaded (the code location is being reloaded): topics that are landed: ")
    assert set(world.adapters.lake.planned_topics()) == {world.name, f"{world.name}-own"}
    world.send_numbered(100)
    assert tick().run_requests, "it is planned on, and landed, whether it is loaded yet or not"
    assert len(asked) == 1, "once: it takes a moment"

    assert run_pulse(world).success, "as the code location is then, and as each run loads it"
    world.assert_all_landed_once()
    assert sensor_of(world, files_of(world, own, world.topic))().skip_message == "nothing waits"
    assert len(asked) == 1


def test_one_that_cannot_be_planned_is_told_and_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-98]"""
    bad = f"{world.name}-bad"
    create(world, world.name, bad)
    refuse(monkeypatch, Kafka, "read_topic_state", bad, Violation("the fault", ["one law", "another"]))
    with pytest.raises(TopicsFailed, match=f"{bad}: the fault.* - one law - another"):
        sensor_of(world, files_of(world))()
    assert world.adapters.lake.planned_topics() == (world.name,)


def test_a_new_topic_that_two_patterns_match_is_named_with_both_files(world: World) -> None:
    """[R-98] One of a single pattern is planned all the same."""
    files, both = files_of(world), f"{world.name}-both"
    other = dataclasses.replace(files.patterns[0], folder=Path("other"), pattern=TopicPattern(rf"{world.name}-b.*"))
    create(world, world.name, both)
    with pytest.raises(TopicsFailed, match=f"{both}: .*all/defs.yaml and other/defs.yaml, expected one"):
        sensor_of(world, dataclasses.replace(files, patterns=[*files.patterns, other]))()
    assert world.adapters.lake.planned_topics() == (world.name,)


def test_a_cluster_that_does_not_answer_is_told_and_stops_no_topic(world: World) -> None:
    """[R-98]"""
    world.adapters.kafka_timeout_seconds = 0.5
    own = dataclasses.replace(world.topic, bootstrap_servers=world.adapters.bootstrap_servers())
    create(world, world.name)
    world.send_numbered(100)
    tick = sensor_of(world, files_of(world, own, bootstrap_servers="127.0.0.1:1"))
    assert tick().run_requests, "the topic that is there is landed first"
    world.with_policy(max_age_seconds=10**9)
    assert run_pulse(world).success
    with pytest.raises(TopicsFailed, match=r"127\.0\.0\.1:1 does not answer"):
        tick()


def test_two_code_servers_plan_a_topic_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-98] Whoever comes second finds the step."""
    create(world, world.name)
    world.send_numbered(100)
    real, second = Kafka.read_topic_state, sensor_of(world, files_of(world))
    ticks = [second]

    def interrupt(self: Kafka, topic: str, *rest: Any) -> Any:
        state = real(self, topic, *rest)
        if ticks:
            ticks.pop()()
        return state

    monkeypatch.setattr(Kafka, "read_topic_state", interrupt)
    sensor_of(world, files_of(world))()
    assert not ticks, "the fault"
    assert len(world.adapters.lake.read_plan_log(world.name).steps) == 1


def test_what_is_new_of_an_empty_project_is_found(world: World, asked: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a sensor, though no asset yet; a topic may have no records; a code server that does not reload is told."""
    world.topic = dataclasses.replace(world.topic, policy=Policy(start="latest"))
    tick = sensor_of(world, files_of(world))
    assert tick().skip_message == "nothing waits" and not asked
    create(world, world.name)
    assert "is being reloaded" in (tick().skip_message or "")
    assert asked and world.adapters.lake.planned_topics() == (world.name,)
    monkeypatch.setattr(topic_discovery, "RELOAD_SECONDS", 0.0)
    assert "reload the code location, which was asked for in vain" in (tick().skip_message or "")
    assert len(asked) == 1
    monkeypatch.setattr(topic_discovery, "AGAIN_SECONDS", 0.0)
    assert tick().skip_message and len(asked) == 2, "and it is asked for again, after a while"


HEAD = "type: offsetlake.KafkaTopic\nattributes: {topic: %s, max_age_seconds: %s}\n"
EDITS: dict[str, Callable[[Path], object]] = {
    "added": lambda defs: (defs / "more/defs.yaml").write_text(HEAD % ("more", 1)),
    "edited": lambda defs: (defs / "orders/defs.yaml").write_text(HEAD % ("orders", 2)),
    "taken away": lambda defs: (defs / "orders/defs.yaml").unlink(),
    "broken": lambda defs: (defs / "orders/defs.yaml").write_text("type: ["),
    "mended": lambda defs: (defs / "wrong/defs.yaml").write_text(HEAD % ("wrong", 1)),
}


def project_of(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return a project and its folder of topics, of which one is linked to from elsewhere."""
    project = folder / world.name.replace("-", "_")
    defs = project / project.name / "defs"
    write_project(plan_project(project, ["orders", "wrong"], None))
    monkeypatch.syspath_prepend(project)
    (folder / "elsewhere").mkdir()
    (defs / "more").symlink_to(folder / "elsewhere")
    return project, defs


@pytest.mark.parametrize("age", [1, "never"], ids=["beside a topic", "where all are wrong"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_defs_yaml_that_was_edited_has_the_code_server_loaded_anew(
    world: World, asked: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str, age: object
) -> None:
    """[R-98] Without a person: runs and commands read it as it is now, and the sensor would go by what it was."""
    project, defs = project_of(world, tmp_path, monkeypatch)
    (defs / "orders/defs.yaml").write_text(HEAD % ("orders", age))
    (defs / "wrong/defs.yaml").write_text(HEAD % ("wrong", "never"))
    files = read_topic_files(project)
    assert [*files.topics] == ["orders"] * (age == 1) and files.broken
    tick = sensor_of(world, dataclasses.replace(files, topics={}))  # no broker has it
    assert tick().skip_message == "nothing waits" and not asked, "the control"
    EDITS[edit](defs)
    said = "shown once loaded (the code location is being reloaded): defs.yaml as it is now; nothing waits"
    assert (tick().skip_message, tick().skip_message, len(asked)) == (said, said, 1)


def test_a_file_that_is_saved_while_it_is_loaded_is_an_edit(
    world: World, asked: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-98] It may have been read as it was; other Python of a person's may make loading long."""
    project, defs = project_of(world, tmp_path, monkeypatch)
    (defs / "wrong/defs.yaml").write_text(HEAD % ("wrong", "never"))
    declare = topic_files._declare_all

    def then_save(tree: dg.ComponentTree, broken: dict[Path, Broken]) -> None:
        declare(tree, broken)
        EDITS["edited"](defs)

    with monkeypatch.context() as saving:
        saving.setattr(topic_files, "_declare_all", then_save)
        files = read_topic_files(project)
    tick = sensor_of(world, dataclasses.replace(files, topics={}))
    assert "defs.yaml as it is now" in (tick().skip_message or "") and asked
    trying = Mock(Thread=lambda **_: Mock())
    monkeypatch.setattr(topic_discovery, "threading", trying)
    again = sensor_of(world, dataclasses.replace(files, topics={}))
    assert "another process tries first whether they load" in (again().skip_message or "")


def test_files_that_do_not_load_fail_the_tick_which_plans_as_before(
    world: World, asked: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So `up` tells of them, and Dagster shows it."""
    project, defs = project_of(world, tmp_path, monkeypatch)
    (defs / "wrong/defs.yaml").write_text(HEAD % ("wrong", "never"))
    monkeypatch.setattr(topic_discovery, "find_why_not", lambda project: "mend them first: the fault")
    tick = sensor_of(world, dataclasses.replace(read_topic_files(project), topics={}))
    assert tick().skip_message == "nothing waits", "the control"
    (defs / "mine.py").touch()
    with pytest.raises(TopicsFailed, match=f"{defs}: not loaded as it is now: mend them first: the fault"):
        tick()
    assert not asked


def test_what_fails_to_load_waits(world: World, asked: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-98] A code location that failed to load would have no sensor to see it; another process tries it before."""
    monkeypatch.setattr(topic_discovery, "find_why_not", find_why_not)
    project, defs = project_of(world, tmp_path, monkeypatch)
    discovery = Discovery(read_topic_files(project))
    (defs / "__init__.py").write_text("def half(")

    def look() -> str:
        discovery.look(None, world.instance, world.adapters)
        return "".join(discovery.refusals) or discovery.text

    said = f"{defs}: not loaded as it is now: mend them first: "
    assert look() == look() and not asked
    assert look().startswith(said) and "SyntaxError: '(' was never closed" in look()
    why_not = Mock(return_value="")
    with monkeypatch.context() as patched:
        patched.setattr(topic_discovery, "find_why_not", why_not)
        look()
        assert not why_not.called, "it is the same"
        patched.setattr(topic_discovery, "AGAIN_SECONDS", 0.0)
        look()
        assert why_not.called and asked.pop(), "after a while: the reason may have been another"
    assert discovery.files is not None
    discovery = Discovery(dataclasses.replace(discovery.files, stamps=read_stamps(defs)))
    (defs / "__init__.py").write_text("HALF = 1")
    with monkeypatch.context() as patched:
        patched.setattr(topic_discovery, "find_why_not", lambda project: "mend them first: again")
        assert look().startswith(said) and not asked
    with monkeypatch.context() as slow:
        slow.setattr(topic_discovery, "LOAD_SECONDS", 0.0)
        assert "this machine is busy, or one of them hangs; it is tried again" in find_why_not(project)
    with monkeypatch.context() as patched:
        patched.setenv("OFFSETLAKE_LANES", "1")  # as the code server that asks has it, of `.env` as it was
        assert find_why_not(project) == "", "the control"
        (project / ".env").write_text("OFFSETLAKE_LANES=0\n")
        assert "OFFSETLAKE_LANES is '0'" in find_why_not(project)
        (project / ".env").write_text("no variable\n")
        assert find_why_not(project).startswith(f"mend them first: {project / '.env'}, line 1: it is not NAME=value")
        (project / ".env").unlink()
    (defs / "__init__.py").write_text("import os; os.kill(os.getpid(), 9)")
    assert find_why_not(project) == "what loaded them was killed by signal 9; it is tried again"
    (defs / "__init__.py").write_text("HALF = 2")
    assert look().startswith("shown once loaded") and len(asked) == 1
