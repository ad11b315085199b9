"""`offsetlake demo`: a broker, real flights, Dagster, and every record landed, audited and queried, before your eyes."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import click
from dagster import AssetCheckSeverity, DagsterEventType, RunsFilter

from ...adapters.system.extras import require
from ...adapters.system.jars import resolve_jars
from ...adapters.system.project_folder import find_project
from ...adapters.tables.duck import Duck
from ...adapters.testbed.broker import read_broker, start_broker, stop_broker
from ...cli.home.engine import stopping_engine
from ...cli.show import find_topic, open_adapters, print_table, size_text
from ...cli.terminal import OUT, progress, styled
from ...core.errors import OffsetlakeError, RangesFailed, Refused, UnknownTopic
from ...core.log.manifest import Manifest
from ...operate.tables import read_tables, table_text
from ...orchestration.assets.decoded_checks import read_dead_letters
from ...orchestration.home.dagster_home import open_instance
from ...orchestration.home.dagster_server import DagsterServer
from ...orchestration.runs.projection import ACTIVE
from ...orchestration.runs.waiting import read_due
from ...orchestration.upkeep.housekeeping import AUDIT
from ...resources import Adapters
from ...settings import SERVER
from ...tables.latest import find_due
from ...topics import LAND_PENDING, Topic
from ..producing import DAYS, KAFKA_PARTITIONS, POISON, TOPIC, produce_all, read_flights, read_table

CHECK = DagsterEventType.ASSET_CHECK_EVALUATION
PATIENCE_SECONDS = 300  # without a single further range landed, or decoded
DEAD_LETTERS_SHOWN = 10
SHOWN_CHARACTERS = 60
QUERY = """
SELECT "partition", count(*) AS records, count(DISTINCT "key") AS aircraft, min("timestamp") AS first_departure,
       max("timestamp") AS last_departure
FROM flights GROUP BY ALL ORDER BY ALL
"""
DERIVED_QUERY = """
SELECT latest.key AS aircraft, latest.value.dest AS last_seen_flying_to, latest.value.time_hour AS last_departure,
       count(*) AS flights_of_that_day, round(avg(decoded.value.dep_delay), 1) AS their_mean_delay_minutes
FROM latest.flights AS latest JOIN decoded.flights AS decoded
  ON decoded.key = latest.key AND decoded.event_time::DATE = latest.value.time_hour::DATE
GROUP BY ALL ORDER BY flights_of_that_day DESC, last_departure DESC, aircraft LIMIT 5
"""


_SHOWN = {AssetCheckSeverity.WARN: "warns", AssetCheckSeverity.ERROR: "RED"}


class NothingHappens(OffsetlakeError):
    """The demo waited and nothing more was landed."""

    kind = "demo_stuck"


@click.command()
@click.option("--once", is_flag=True, help="End after the summary instead of staying up until Ctrl-C.")
@click.option(
    "--days",
    type=click.IntRange(1, DAYS),
    default=DAYS,
    show_default=True,
    help="Flights of so many days of 2013 only, for less to wait for.",
)
def demo(once: bool, days: int) -> None:
    """Run the whole system on this machine: Kafka, 336,776 real flights, Dagster, Spark, DuckDB.

    \b
    Examples:
      offsetlake demo
      offsetlake demo --once --days 31
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # a background job of a shell begins with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    project = find_project()
    if not project.joinpath("assets", TOPIC).is_dir():
        raise Refused(
            f"the demo's topic {TOPIC} is in Offsetlake's own checkout, and {project} is another project; nothing was started; "
            "run `make demo` in the checkout; `offsetlake up` starts Dagster for the project here"
        )
    require("demo", "the demo")
    adapters = open_adapters()
    topic = find_topic(TOPIC)
    with stopping_engine(adapters.settings), _starting_spark(adapters) as spark, _broker(adapters):
        records = _load_flights(adapters, topic, days)
        with DagsterServer(adapters.settings.home / "demo", adapters.settings.dagster_home) as server:
            spark.result()
            OUT.print(styled("Dagster is at ", (server.url, "bold"), "; its sensor plans and lands by itself"), soft_wrap=True)
            started_ms = adapters.now_ms()
            _watch_landing(adapters, topic)
            with progress("auditing through Dagster"):
                run_id, audited = server.run_job(AUDIT)
            is_good = _print_summary(adapters, started_ms, run_id, records)
            if not (audited and is_good):
                raise RangesFailed("the demo ends red: see the summary above, and the checks in Dagster")
            OUT.print("every record is landed, no check is red; what is derived from them comes next")
            _watch_deriving(adapters, topic)
            _print_dead_letters(adapters, topic)
            _print_derived(adapters, topic)
            if not once:
                OUT.print(styled("Dagster stays at ", (server.url, "bold"), "; press Ctrl-C to stop all of it"), soft_wrap=True)
                _wait_for_interrupt(server)


@contextmanager
def _starting_spark(adapters: Adapters) -> Iterator[Future[str]]:
    """Have the warm Spark, where it is ours, start beside Kafka and Dagster: it takes longest, and the first run needs it."""
    is_ours = adapters.settings.spark_remote is None and adapters.settings.engine == SERVER
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(lambda: adapters.engine(adapters.pyspark()).url if is_ours else "")


@contextmanager
def _broker(adapters: Adapters) -> Iterator[None]:
    """Run the embedded broker for the while, unless the machine's settings name another."""
    settings = adapters.settings
    if settings.bootstrap_servers:
        yield
        return
    mark, before = settings.home / "demo" / "broker.pid", read_broker(settings.broker)
    # one that a demo which was killed has left is the demo's, and a person's is not
    was_there = before is not None and not (mark.is_file() and mark.read_text() == str(before.pid))
    with progress("starting Kafka"):
        broker = start_broker(settings.broker, jars=resolve_jars("broker", settings.jars))
    OUT.print(f"Kafka answers at {broker.bootstrap_servers} (pid {broker.pid})")
    if not was_there:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(str(broker.pid))
    try:
        yield
    finally:
        if was_there:
            OUT.print("Kafka goes on: it ran before the demo (`offsetlake broker stop` stops it)")
        else:
            with progress("stopping Kafka"):
                stop_broker(settings.broker)
            OUT.print("Kafka is stopped")


def _load_flights(adapters: Adapters, topic: Topic, days: int) -> int:
    """Produce what of the flights the topic lacks; a load that was killed goes on where it stopped.

    Returns how many records there are; a topic that has more, of a demo before, is landed as it is.
    """
    kafka = adapters.kafka(topic)
    try:
        kafka.read_ids(TOPIC)
    except UnknownTopic:
        kafka.create_topic(TOPIC, KAFKA_PARTITIONS)
    there = {partition: marks.end for partition, marks in kafka.read_watermarks(TOPIC, "read_committed").items()}
    before = sum(there.values())
    with progress("reading flights"):
        table = read_table(days)
    records = len(table) + len(POISON)
    if before >= records:
        OUT.print(f"topic {TOPIC} has its {before:,} records already")
        return before
    with progress("producing flights", records) as shown:
        servers, advice = adapters.bootstrap_servers(topic), "start the demo again, it goes on where the topic ends"
        produce_all(servers, TOPIC, read_flights(table, there), advice, lambda done: shown.update(before + done))
    return records


def _watch_landing(adapters: Adapters, topic: Topic) -> None:
    """Show records as they land, until every one on the broker is landed, and every range."""
    marks = adapters.kafka(topic).read_watermarks(TOPIC, topic.policy.isolation_level)
    on_broker = sum(mark.end - mark.earliest for mark in marks.values())

    def waiting() -> int:
        coverage = adapters.lake.coverage(TOPIC)
        landed = [offsets for offsets in coverage.manifests if coverage.is_landed(offsets)]
        rows = sum(coverage.manifests[offsets].rows for offsets in landed)
        return max(on_broker - rows, len(coverage.log.ranges) - len(landed))

    _watch("landing records", on_broker, waiting)


def _watch_deriving(adapters: Adapters, topic: Topic) -> None:
    """Show what is derived from landed ranges until nothing of it is due: decoded ranges, latest records."""
    ranges = len(adapters.lake.coverage(TOPIC).log.ranges)
    _watch("decoding ranges", ranges, lambda: len(read_due(topic, adapters)))
    if latest := topic.latest:
        what = "finding the latest state of each aircraft"
        _watch(what, ranges, lambda: find_due(TOPIC, latest, adapters.decodings).waiting)
    with open_instance(adapters.settings.dagster_home) as instance:  # which the run's own checks end in
        active = RunsFilter(job_name=LAND_PENDING, statuses=ACTIVE)
        _watch("checking what was derived", 1, lambda: len(instance.get_run_records(active, limit=1)))


def _watch(text: str, total: int, due: Callable[[], int]) -> None:
    """Show how much of `total` is done, until nothing is due."""
    left, moved = total, time.monotonic()
    with progress(text, total) as shown:
        while now := due():
            shown.update(max(0, total - now))
            if now != left:
                left, moved = now, time.monotonic()
            elif time.monotonic() - moved > PATIENCE_SECONDS:
                raise NothingHappens(
                    f"{text}: {now} of {total} are left and nothing moved for {PATIENCE_SECONDS} s; look at the runs in "
                    "Dagster, and at its log in the demo folder of OFFSETLAKE_HOME"
                )
            time.sleep(0.5)


def _print_dead_letters(adapters: Adapters, topic: Topic) -> None:
    """Show the few records that are no flights, with what is wrong of each."""
    total, columns, rows = read_dead_letters(topic, None, DEAD_LETTERS_SHOWN, adapters)
    keep = [columns.index(name) for name in ("partition", "offset", "error_class", "error", "value")]
    shown = [[str(row[index])[:SHOWN_CHARACTERS] for index in keep] for row in rows]
    title = f"{total} records could not be decoded and are set aside: `offsetlake dead-letters {TOPIC}`"
    print_table(title, [columns[index] for index in keep], shown)


def _print_derived(adapters: Adapters, topic: Topic) -> None:
    """Show where each derived table stands, as `status` has it, and what can be asked of them."""
    with open_instance(adapters.settings.dagster_home) as instance:
        for each in read_tables(topic, adapters.lake.coverage(TOPIC), adapters, instance):
            OUT.print(table_text(each, adapters.now_ms()), soft_wrap=True)
    columns, answer = Duck(adapters.lake, [TOPIC]).query(DERIVED_QUERY)
    OUT.print(DERIVED_QUERY.strip(), style="dim")
    print_table("DuckDB over what is derived", columns, answer)


def _print_summary(adapters: Adapters, started_ms: int, run_id: str, records: int) -> bool:
    coverage = adapters.lake.coverage(TOPIC)
    manifests = [coverage.manifests[o] for o in coverage.manifests if coverage.is_landed(o)]
    rows = sum(manifest.rows for manifest in manifests)
    size = sum(manifest.file.bytes for manifest in manifests if manifest.file)
    with open_instance(adapters.settings.dagster_home) as instance:
        records_of_checks = instance.get_records_for_run(run_id, of_type=CHECK).records
    events = [record.event_log_entry.get_dagster_event() for record in records_of_checks]
    evaluations = [event.asset_check_evaluation_data for event in events]
    shown = {each.check_name: "green" if each.passed else _SHOWN[each.severity] for each in evaluations}
    is_red = any(not each.passed and each.severity is AssetCheckSeverity.ERROR for each in evaluations)
    print_table(
        "summary",
        ["what", "value"],
        [
            ("ranges landed", f"{len(manifests):,}"),
            ("rows", f"{rows:,}"),
            ("bytes of Parquet", size_text(size)),
            ("landed by this demo", _rate_text(manifests, started_ms)),
            *((f"check {name}", found) for name, found in sorted(shown.items())),
        ],
    )
    columns, answer = Duck(adapters.lake, [TOPIC]).query(QUERY)
    OUT.print(QUERY.strip(), style="dim")
    print_table("DuckDB over the lake", columns, answer)
    return rows == records and bool(evaluations) and not is_red


def _rate_text(manifests: Sequence[Manifest], started_ms: int) -> str:
    """Return how fast, from Dagster being up to the last range landed: ticks, launch and Spark's start included."""
    ours = [manifest for manifest in manifests if manifest.provenance.landed_at_ms >= started_ms]
    if not ours:
        return "nothing: it was all landed before"
    rows = sum(manifest.rows for manifest in ours)
    seconds = (max(manifest.provenance.landed_at_ms for manifest in ours) - started_ms) / 1000
    return f"{rows:,} records in {seconds:.1f} s: {rows / seconds:,.0f} records/s, Dagster's and Spark's start included"


def _wait_for_interrupt(server: DagsterServer) -> None:
    try:
        while server.is_running():
            time.sleep(0.5)
    except KeyboardInterrupt:
        OUT.print("stopping")
