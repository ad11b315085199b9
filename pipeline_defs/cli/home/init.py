"""`offsetlake init`: a project of your own, for the topics of your broker."""

import shlex
from dataclasses import replace
from pathlib import Path

import click

from ...core.advice import command, counted, meant
from ...core.errors import EmptySelection, UnknownTopic
from ...orchestration.home.project import plan_project, write_env, write_project
from ...resources import Adapters
from ...settings import read_settings
from ..show import PATIENCE_SECONDS, TopicName, print_table
from ..terminal import OUT, progress


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--bootstrap-servers", metavar="HOST:PORT,...", help="Your brokers; kept in each defs.yaml.")
@click.option(
    "--topic",
    "topics",
    type=TopicName(),
    multiple=True,
    metavar="TOPIC",
    help="Land this topic; by default all that there are.",
)
def init(folder: Path, bootstrap_servers: str | None, topics: tuple[str, ...]) -> None:
    """Make a project of your own in FOLDER, with a defs.yaml for each topic found on your brokers.

    Topics whose names begin with __ are Kafka's own, and left out.

    \b
    Examples:
      offsetlake init my_lake --bootstrap-servers kafka-1:9092,kafka-2:9092
      offsetlake init my_lake --topic orders --topic payments
    """
    project = folder.resolve()  # `new/..` is a folder that is there, though `new` is not
    adapters = Adapters(read_settings(), kafka_timeout_seconds=PATIENCE_SECONDS)
    if bootstrap_servers:
        adapters.settings = replace(adapters.settings, bootstrap_servers=bootstrap_servers)
        adapters.servers_said_by = "--bootstrap-servers"
    where = adapters.bootstrap_servers()
    with progress(f"asking {where} for its topics, {PATIENCE_SECONDS:.0f} s at most where it does not answer"):
        there = adapters.kafka().list_topics()
        unknown = sorted(set(topics) - set(there))
        if unknown:
            near = meant(unknown[0], there)
            raise UnknownTopic(
                f"{', '.join(unknown)}: no such topic at {where}{near}; found {', '.join(there) or 'none'}, beside Kafka's "
                "own, which begin with __; nothing was written"
            )
        if not there:
            raise EmptySelection(
                f"{where} has no topic; nothing was written; create one and produce to it, or name another broker by "
                "--bootstrap-servers"
            )
        chosen = sorted(set(topics or there))
        files = plan_project(project, chosen, bootstrap_servers)
        dagster_home = read_settings(project=project).dagster_home
        rows = []
        for name in chosen:
            marks = adapters.kafka().read_watermarks(name, "read_committed")
            rows.append((name, len(marks), sum(mark.end - mark.earliest for mark in marks.values())))
    write_project(files)
    write_env(project, dagster_home)
    print_table(
        f"{folder}: {counted(len(chosen), 'topic')} of {where}", ["topic", "Kafka partitions", "offsets on the broker"], rows
    )
    OUT.print("next, a preview of what would be landed; nothing is written by it:")
    OUT.print(f"  cd {shlex.quote(str(folder))} && {command('plan', chosen[0])}", soft_wrap=True)
    OUT.print("or let Dagster land all of it, and go on landing what arrives:")
    OUT.print(f"  cd {shlex.quote(str(folder))} && offsetlake up", soft_wrap=True)
