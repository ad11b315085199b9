"""The drill of the producer's side: a leader dies while records are produced, and what is left is landed.

Two rows for each acks level: what the producer lost or doubled before anything was landed, and what landing did to the
log that came of it, which must be nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ...adapters.kafka.producer import Guarantees
from ...adapters.system.jars import resolve_jars
from ...adapters.testbed.cluster import start_cluster, stop_cluster
from ...core.log.planning import Policy
from ...settings import Settings
from ...topics import Topic
from .arena import Row
from .producing import Produced, lose_leader
from .supervisor import run_to_end
from .systems import Offsetlake, visible_values

NAME = "lose_leader"
LEVELS = {
    "acks=0": Guarantees("0", enable_idempotence=False),
    "acks=1": Guarantees("1", enable_idempotence=False),
    "acks=all": Guarantees("all", enable_idempotence=False),
    "acks=all, idempotent": Guarantees("all", enable_idempotence=True),
}


def drill_acks(settings: Settings, folder: Path) -> Iterator[Row]:
    """Run the drill on three brokers of its own, and yield the rows of each acks level."""
    cluster = start_cluster(folder / "cluster", jars=resolve_jars("broker", settings.jars))
    try:
        for number, (level, guarantees) in enumerate(LEVELS.items()):
            topic = f"acks-{number}"
            began = time.monotonic()
            produced = lose_leader(cluster, topic, guarantees)
            own = replace(
                settings,
                bootstrap_servers=cluster.bootstrap_servers,
                lake=str(folder / topic / "lake"),
                dagster_home=folder / topic / "dagster",
            )
            system = Offsetlake(own, Topic(topic, Policy(records_per_range=100, max_age_seconds=0)), folder / topic)
            run_to_end(system)
            yield from _judge(system, level, produced, time.monotonic() - began)
    finally:
        stop_cluster(folder / "cluster")


def _judge(system: Offsetlake, level: str, produced: Produced, seconds: float) -> Iterator[Row]:
    seen = Counter(int(value) for value in visible_values(system.folder))
    log = Counter(produced.log)
    lost, doubled = len(produced.lost), len(produced.log) - len(log)
    faults = [f"{lost} lost"] * bool(lost) + [f"{doubled} doubled"] * bool(doubled)
    yield Row(
        "kafka_producer",
        level,
        NAME,
        fault_proven=True,  # lose_leader raises where the leader does not change
        produced=len(produced.acknowledged),
        landed=len(produced.acknowledged & set(log)),
        holes=0,
        lost=lost,
        missing=lost,
        doubled=doubled,
        verdict=f"before landing: {', '.join(faults)}" if faults else "right",
        seconds=round(seconds, 1),
    )
    missing, too_many = (log - seen).total(), (seen - log).total()
    books = system.books()
    yield Row(
        system.name,
        system.policy,
        f"{NAME}, {level}",
        fault_proven=True,
        produced=log.total(),
        landed=(seen & log).total(),
        holes=books.holes,
        lost=0,
        missing=missing,
        doubled=too_many,
        verdict=f"wrong: {missing} missing, {too_many} doubled" if missing or too_many else "right",
        seconds=0.0,
    )
