"""`offsetlake status`: where each topic stands at a glance, and what to do next."""

import time
from typing import Any

import click

from ...operate.status import broken_document, find_instance, read_left_behind, read_statuses
from ...operate.tables import latency_text, table_text
from ...orchestration.runs.moments import duration_text
from ..home.engine import spark_text
from ..show import choose_topics, json_option, open_adapters, optional_topic_argument, print_json, print_table, size_text
from ..terminal import OUT, progress, styled

COLUMNS = ("lag", "~bytes", "oldest", "landed/s", "pending", "failed", "landed", "time to loss")
PARTITION_COLUMNS = ("p", "landed to", "end", "lag", "oldest", "pending", "failed", "last", "loss")


@click.command()
@optional_topic_argument
@json_option
def status(topic: str | None, as_json: bool) -> None:
    """Show lag, pace, age, time to loss, failures and what to do next: per topic, or per Kafka partition of TOPIC.

    \b
    lag           offsets, their bytes on the broker, and how long the oldest of them has waited
    landed/s      records landed a second, over the last ten minutes at most
    pending       ranges planned and not landed; failed: those of them that a run has failed with
    time to loss  when the broker may delete what is not landed; a dash where it keeps it, or nothing waits

    Where the broker does not answer, what the lake says is shown. Exit code 1 where a topic cannot be read whole.

    \b
    Examples:
      offsetlake status
      offsetlake status flights
      offsetlake status --json
    """
    with progress(f"asking lake, broker and Dagster about {topic or 'all topics'}") as shown:
        files, adapters = choose_topics(topic), open_adapters()
        shown.update(total=len(files.topics))
        with find_instance(adapters.settings.dagster_home) as instance:
            documents = [document for document, _ in shown.each(read_statuses(files.topics.values(), adapters, instance))]
    documents += map(broken_document, files.broken)
    documents += read_left_behind(files, adapters) if topic is None else ()
    if as_json:
        print_json(documents)
    else:
        print_status(documents, time.time_ns() // 1_000_000, by_partition=topic is not None)
        for each in files.patterns:
            if not any(each.pattern.matches(document["topic"]) for document in documents):
                OUT.print(
                    f"no topic is known that matches `{each.pattern}`; `offsetlake doctor` asks the broker", soft_wrap=True
                )
        OUT.print(f"Spark: {spark_text(adapters.settings)}", style="dim", soft_wrap=True)
    if any("error" in each for each in documents):
        raise SystemExit(1)


def print_status(documents: list[dict[str, Any]], now_ms: int, *, by_partition: bool) -> None:
    """Print a table of topics, with `by_partition` one of each topic's Kafka partitions, and what to do next.

    An error that several topics, or tables of one, share is said once.
    """
    title = "status (lag in offsets; pending, failed and landed in ranges)"
    print_table(title, ["topic", *COLUMNS], [(each["topic"], *_cells(each)) for each in documents])
    for each in documents if by_partition else ():
        rows = [_partition_cells(row, now_ms) for row in each["partitions"]]
        if rows:
            print_table(f"{each['topic']} by Kafka partition (generation {each['generation']})", PARTITION_COLUMNS, rows)
    for each in documents:
        OUT.print(styled((each["topic"], "bold"), f": {each['next_action']}"), soft_wrap=True)
        if each.get("group_off"):
            OUT.print(
                f"  consumer group {each['group']} is {each['group_off']:,} offsets off what is landed, so lag tools show "
                "what is not so; the next run or tick moves it",
                soft_wrap=True,
            )
        said = {each.get("error")}
        if not any(table["table"] == "raw" for table in each["tables"]) and (latency := latency_text(each)):
            OUT.print(f"  raw: {latency}", soft_wrap=True)
        for table in each["tables"]:
            error, short = table.get("error"), f"{table['table']}: see the error ({table.get('kind')})"
            latency = latency_text(each if table["table"] == "raw" else table)
            told = [short if error and error in said else table_text(table, now_ms), latency]
            OUT.print(f"  {', '.join(filter(None, told))}", soft_wrap=True)
            said.add(error)
    for kind, error in dict.fromkeys((each["kind"], each["error"]) for each in documents if "error" in each):
        OUT.print(styled(("error", "bold red"), " ", (kind, "dim"), f": {error}"), soft_wrap=True)
    for row in (row for each in documents for row in each["partitions"]):
        for transaction in row["open_transactions"]:
            OUT.print(transaction["text"], soft_wrap=True)


def _cells(of: dict[str, Any]) -> tuple[object, ...]:
    if "landed_ranges" not in of:
        return (styled((of["kind"], "red")) if "kind" in of else "-", *["-"] * (len(COLUMNS) - 1))
    return (
        of["lag"],
        "-" if of["lag_bytes"] is None else size_text(of["lag_bytes"]),
        duration_text(of["lag_seconds"]),
        round(of["landed_per_second"]),
        of["pending_ranges"],
        _alarming(of["failed_ranges"]),
        of["landed_ranges"],
        duration_text(of["seconds_to_loss"]),
    )


def _partition_cells(row: dict[str, Any], now_ms: int) -> tuple[object, ...]:
    last = row["last_landed_at_ms"]
    return (
        row["partition"],
        row["landed_offset"],
        row["end_offset"],
        row["lag"],
        duration_text(row["lag_seconds"]),
        row["pending_ranges"],
        _alarming(row["failed_ranges"]),
        "-" if last is None else f"{duration_text((now_ms - last) / 1000)} ago",
        duration_text(row["seconds_to_loss"]),
    )


def _alarming(count: int) -> object:
    return styled((f"{count:,}", "red")) if count else 0
