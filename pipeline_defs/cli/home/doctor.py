"""`offsetlake doctor`, `jars` and `explain`: what this machine lacks, how it gets it, and what an error means.

Links between documents become the command that prints them, since a user's project has none of these files.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
from rich.markdown import Markdown

from ...adapters.system.jars import resolve_jars
from ...adapters.system.java import find_java
from ...adapters.system.project_folder import DEFAULT_HOME, DOCS, defs_folder, find_project, read_env_file
from ...adapters.testbed.broker import read_broker
from ...adapters.testbed.class_archive import try_archive
from ...core.advice import meant, some_of
from ...core.errors import OffsetlakeError, Refused
from ...core.log.expiry import Durability
from ...core.log.topic_state import refuse_other_cluster
from ...orchestration.home.dagster_home import open_instance
from ...orchestration.topic_set import TopicFiles
from ...resources import Adapters
from ...settings import read_settings
from ...topic_files import load_topics
from ...topics import Topic
from ..show import PATIENCE_SECONDS, json_option, open_adapters, print_json, print_table
from ..terminal import OUT, progress
from .engine import spark_text

_PARAGRAPH = re.compile(r"^### `(\w+)`\n+(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\[\]]+)\]\((?!\w+:)([^)#\s]*)(?:#[^)\s]*)?\)")


def read_runbook() -> Mapping[str, str]:
    """Return the runbook's paragraphs by the kind of error that they are about, in its order."""
    return {kind: _with_commands(text).strip() for kind, text in _PARAGRAPH.findall((DOCS / "runbook.md").read_text())}


def find_text(name: str) -> str:
    """Return what there is to read of a kind of error, or of a document by its name, as Markdown."""
    runbook = read_runbook()
    if name in runbook:
        return f"## {name}\n\n{runbook[name]}\n"
    documents = {path.stem: path for path in DOCS.glob("*.md")}
    if name in documents:
        return _with_commands(documents[name].read_text())
    raise Refused(
        f"{name} is neither a kind of error nor a document{meant(name, [*runbook, *documents])}; `offsetlake explain` lists "
        f"the kinds, documents are {', '.join(sorted(documents))}"
    )


def _with_commands(text: str) -> str:
    """Return Markdown with each link replaced by the command that prints its document, or by its words alone."""

    def replace(link: re.Match[str]) -> str:
        words, path = link[1], link[2]
        document = DOCS / path
        if path.endswith(".md") and document.parent == DOCS and document.is_file():
            command = f"`offsetlake explain {document.stem}`"
            return command if words.endswith(".md") else f"{words} ({command})"
        return words

    return _LINK.sub(replace, text)


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check Java, jars, Spark, broker, lake, Dagster home and topics. Exit code 1 where something is wrong.

    The last lines say of each topic what the loss of a broker would take: a risk is no error.

    \b
    Example:
      offsetlake doctor
    """
    adapters = open_adapters()
    answers: dict[str, tuple[bool, str]] = {}
    durable: dict[str, Durability] = {}
    with progress("looking at this machine") as shown:
        files = load_topics()
        questions: dict[str, Callable[[], str]] = {
            **_about_spark(adapters),
            "broker": lambda: _ask_brokers(files, adapters),
            "lake": lambda: _ask_lake(adapters),
            "dagster home": lambda: _ask_dagster(adapters),
            "topics": lambda: _ask_topics(files, adapters),
        }
        for name, question in questions.items():
            shown.update(text=f"asking for {name}, {PATIENCE_SECONDS:.0f} s at most for each address that does not answer")
            if name == "topics" and not answers["broker"][0]:
                answers[name] = False, "not asked: the broker does not answer"  # waiting twice tells nothing more
            else:
                answers[name] = _ask(question)
        for broken in files.broken:
            answers[f"topic {broken.name}"] = False, broken.error.message
        if answers["broker"][0]:
            answers |= {name: (True, text) for name, text in _ask_patterns(files, adapters)}
        for topic in files.topics.values() if answers["topics"][0] else ():
            shown.update(text=f"asking what the loss of a broker would take of {topic.name}")
            try:
                durable[topic.name] = adapters.kafka(topic).read_durability(topic.name)
            except OffsetlakeError as error:
                answers[f"topic {topic.name}"] = False, str(error)
    if as_json:
        rest = [{"what": name, "ok": ok, "found": found} for name, (ok, found) in answers.items()]
        risks = [{"what": f"topic {name}", "ok": True, "found": list(each.risks)} for name, each in durable.items()]
        print_json([*rest, *risks])
    else:
        told = [(name, "ok" if ok else "WRONG", found) for name, (ok, found) in answers.items()]
        print_table("doctor", ["what", "", "found"], [*told, *_rows_of(durable)])
    if not all(ok for ok, _ in answers.values()):
        raise SystemExit(1)


def _rows_of(durable: Mapping[str, Durability]) -> Iterator[tuple[str, str, str]]:
    """Yield what the loss of a broker would take, one row for all topics that share it."""
    topics = defaultdict[tuple[str, str], list[str]](list)
    for name, each in durable.items():
        for text in each.risks or [each.promise]:
            topics["risk" if each.risks else "ok", text].append(name)
    for (level, text), names in topics.items():
        yield f"topic{'s' if len(names) > 1 else ''} {some_of(names)}", level, text


def _about_spark(adapters: Adapters) -> dict[str, Callable[[], str]]:
    """Return the questions about Spark; a remote one is only asked whether it fits, and needs neither Java nor jars here."""
    settings = adapters.settings
    if settings.spark_remote is not None:
        return {"spark": lambda: f"Spark {adapters.engine(adapters.pyspark()).version}, {spark_text(settings)}"}
    return {
        "java": lambda: str(find_java()),
        "jars": lambda: f"{len(resolve_jars('spark', settings.jars))} in {settings.jars}",
        "spark": lambda: spark_text(settings),
    }


def _ask(question: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, question()
    except OffsetlakeError as error:
        return False, str(error)


def _ask_brokers(files: TopicFiles, adapters: Adapters) -> str:
    """Ask each broker that a topic is read from; the machine's own where no topic is configured yet."""
    of_clusters = [*(each.template for each in files.patterns), *files.topics.values()]
    settings = adapters.settings
    if files.broken and not of_clusters and settings.bootstrap_servers is None and read_broker(settings.broker) is None:
        return "not asked: no defs.yaml that can be used names one"
    asked: dict[str, Topic | None] = {adapters.bootstrap_servers(topic): topic for topic in of_clusters}
    found = []
    for address, topic in (asked or {adapters.bootstrap_servers(): None}).items():
        # first: this raises what is wrong with the address or the properties file
        topics = adapters.kafka(topic).list_topics()
        found.append(f"{address} answers over {adapters.access(topic).properties}, {len(topics)} topics")
    return "\n".join(found)


def _ask_patterns(files: TopicFiles, adapters: Adapters) -> Iterator[tuple[str, str]]:
    """Yield each pattern with what it matches on its cluster; a topic with a defs.yaml of its own belongs to none."""
    own = {*files.names} - {*files.found}
    for file in files.patterns:
        names = {name for name in adapters.kafka(file.template).list_topics() if file.pattern.matches(name)} - own
        new = sorted(names - {*files.found})
        more = f", {len(new)} of them not planned yet: {', '.join(new)}" if new else ""
        yield f"topics {file.pattern}", f"{len(names)} match{more}"


def _ask_lake(adapters: Adapters) -> str:
    adapters.check_lake()
    return f"{adapters.settings.lake} can be written"


def _ask_dagster(adapters: Adapters) -> str:
    """Look into Dagster's home, and whether a plain `dagster dev` of the project uses it."""
    project, home = find_project(), adapters.settings.dagster_home
    with open_instance(home) as instance:
        found = f"{home}, {instance.get_runs_count()} runs"
    is_ours = home == project.joinpath(*DEFAULT_HOME)  # and no variable names it, which a plain `dagster dev` would go by
    elsewhere = read_env_file(project).get("DAGSTER_HOME", "a home of its own" if is_ours else str(home))
    if Path(elsewhere) != home:
        found += f"; a plain `dagster dev` in {project} takes {elsewhere}: use `offsetlake up`"
    return found


def _ask_topics(files: TopicFiles, adapters: Adapters) -> str:
    found = []
    for name, topic in sorted(files.topics.items()):
        topic_id, cluster_id = adapters.kafka(topic).read_ids(name)
        refuse_other_cluster(name, topic.policy.cluster_id or adapters.lake.recent(name).log.state.cluster_id, cluster_id)
        found.append(name if topic_id else f"{name} (no topic id: recreation shows only as an end offset below the head)")
    if files.broken and not found:
        return "none of which the defs.yaml can be read"
    return ", ".join(found) or f"none configured: add {defs_folder(find_project())}/<topic>/defs.yaml"


@click.command()
def jars() -> None:
    """Fetch Spark's jars, check their sha256, and prepare Spark's start; what is there already is kept.

    \b
    Example:
      OFFSETLAKE_HOME=/opt/offsetlake/home offsetlake jars
    """
    folder = read_settings().jars
    with progress("fetching Spark's jars, where they are not there yet"):
        found = resolve_jars("spark", folder)
    if reason := try_archive(folder, "spark"):
        OUT.print(reason, soft_wrap=True)
    OUT.print(f"{len(found)} jars of Spark are in {folder}, each with its pinned sha256", soft_wrap=True)


@click.command()
@click.argument("kind", required=False)
def explain(kind: str | None) -> None:
    """Print what KIND, the word before an error's message, means and what to do. Without it: all kinds.

    The name of a document, such as `security` or `decoding`, prints that document.

    \b
    Examples:
      offsetlake explain broker_unavailable
      offsetlake explain security
    """
    if kind:
        OUT.print(Markdown(find_text(kind)))
        return
    sentence = re.compile(r"(?<=\.)\s")
    rows = [(kind, sentence.split(" ".join(text.split()), maxsplit=1)[0]) for kind, text in read_runbook().items()]
    print_table("kinds of errors", ["kind", "what it means"], rows)
