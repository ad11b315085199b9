"""`offsetlake produce`: records from a file into a topic."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from ...adapters.kafka import producer
from ...adapters.kafka.kafka import Kafka
from ...core.advice import counted, meant
from ...core.errors import BadSetting, UnknownTopic
from ...core.offsets import is_internal
from ...topic_files import load_topics
from ..show import open_adapters, topic_argument
from ..terminal import ERRORS, OUT, progress

MOST_PARTITIONS = 200_000  # what a whole cluster may have


def _read(
    path: Path, *, raw: bool, key_field: str | None, key_separator: str | None, timestamp_field: str | None
) -> Iterator[producer.Record]:
    if raw and (key_field or timestamp_field):
        raise BadSetting(
            "--raw takes lines as they are and has no fields; nothing was produced; leave --key-field and --timestamp-field out"
        )
    if raw:
        separator = "\t" if key_separator in {None, r"\t"} else str(key_separator)
        return producer.read_raw(path, separator.encode())
    if key_separator is not None:
        raise BadSetting("--key-separator is of --raw; nothing was produced; name a field of JSON lines by --key-field")
    return producer.read_jsonl(path, key_field, timestamp_field)


@click.command()
@topic_argument
@click.option("--file", "path", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--key-field", help="Field of each JSON line that becomes the record's key.")
@click.option("--raw", is_flag=True, help="Produce each line as it is, JSON or not: key, a tab, value; or value alone.")
@click.option("--key-separator", metavar="TEXT", help="With --raw: what stands between key and value; empty for no keys.")
@click.option("--timestamp-field", help="Field with the record's timestamp, in ms since 1970.")
@click.option(
    "--partitions", type=click.IntRange(1, MOST_PARTITIONS), help="Create the topic with so many Kafka partitions first."
)
@click.option("--replicas", type=click.IntRange(1, 2**15 - 1), help="Copies of each partition that is created. [default: 1]")
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="Who must have a record before it is acknowledged: nobody, the leader, all replicas in sync.",
)
@click.option(
    "--idempotence/--no-idempotence",
    "enable_idempotence",
    default=None,
    help="Whether a record that is sent again stands once. [default: with acks=all]",
)
@click.option("--transactional-id", help="Produce in transactions under this id.")
@click.option(
    "--records-per-transaction",
    type=click.IntRange(min=1),
    help=f"Commit after so many records. [default: {producer.RECORDS_PER_TRANSACTION}]",
)
def produce(topic: str, path: Path, partitions: int | None, replicas: int | None, **given: Any) -> None:
    """Produce each line of a .jsonl or .jsonl.gz file to TOPIC; say what was acknowledged, and what was not.

    A line that is no record ends it: what came before is produced, but for its open transaction, and that is said.

    \b
    Examples:
      offsetlake produce orders --file orders.jsonl --key-field order_id
      offsetlake produce orders --file orders.jsonl.gz --key-field order_id --partitions 4
      offsetlake produce orders --file poison.txt --raw --key-separator ,
      offsetlake produce orders --file orders.jsonl --transactional-id loader --records-per-transaction 500
    """
    guarantees = producer.Guarantees(**{each.name: given.pop(each.name) for each in fields(producer.Guarantees)})
    if guarantees.transactional_id == "":
        raise BadSetting(
            "--transactional-id is empty, expected a name; nothing was produced; name one, or leave the option out"
        )
    if is_internal(topic):
        raise BadSetting(f"topic {topic} is Kafka's own, as all are that begin with __; nothing was produced; name another")
    if replicas is not None and partitions is None:
        raise BadSetting("--replicas is of a topic that is created; nothing was produced; say --partitions as well")
    records = _read(path, **given)
    with progress(f"producing to {topic}") as shown:
        adapters = open_adapters()
        found = load_topics()
        configured = found.find(topic)
        if configured is None and (broken := found.find_broken(topic)):
            raise broken.error
        servers = adapters.bootstrap_servers(configured)
        if not adapters.is_told(configured):
            ERRORS.print(
                f"no broker is configured here, so {servers} is taken; to name another: OFFSETLAKE_BOOTSTRAP_SERVERS, or "
                "bootstrap_servers in the topic's defs.yaml",
                soft_wrap=True,
            )
        kafka = adapters.kafka(configured)
        _make_topic(topic, kafka, partitions, replicas or 1)
        count = producer.produce(servers, topic, records, shown.update, guarantees, adapters.access(configured))
    if guarantees.acks == "0":
        OUT.print(
            f"{counted(count, 'record')} sent to {topic}; with acks=0 none of them is acknowledged: they may be there or not"
        )
    elif guarantees.transactional_id is not None:
        OUT.print(f"{counted(count, 'record')} committed to {topic} by {guarantees.transactional_id}")
    else:
        OUT.print(f"{counted(count, 'record')} acknowledged by {topic}")


def _make_topic(topic: str, kafka: Kafka, partitions: int | None, replicas: int) -> None:
    """Create a topic that does not exist; raise `UnknownTopic` where nobody says with how many Kafka partitions."""
    try:
        kafka.read_ids(topic)
        if partitions is not None:
            ERRORS.print(f"topic {topic} is there already: --partitions and --replicas change nothing of it", soft_wrap=True)
    except UnknownTopic:
        if partitions is None:
            near = meant(topic, kafka.list_topics())
            raise UnknownTopic(
                f"topic {topic} does not exist at {kafka.bootstrap_servers}{near}; nothing was produced; to "
                "create it with N Kafka partitions first, add --partitions N"
            ) from None
        kafka.create_topic(topic, partitions, replicas=replicas)
