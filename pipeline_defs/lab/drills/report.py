"""Drills: which fault to whom under which policies, and random schedules of faults; and the report of what each did to rows.

In a schedule records arrive, expire and are aborted, processes die by SIGKILL at random steps. Children attach to one JVM, so
that it takes seconds; what the dead one's scan still writes is a zombie's. Invariants: every step of `KILLS` has its drill, so
that none is left out when a system gets a further step; the same seed and number give the same schedule.
"""

import logging
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...adapters.lake.lake import Lake
from ...adapters.system.jars import resolve_jars
from ...adapters.testbed.broker import Broker
from ...core.errors import BadSetting, OffsetlakeError
from ...core.log.delivery import Delivery
from ...settings import Settings
from ..bench.measurement import own_broker
from . import faults, recovery
from .acks import NAME as ACKS
from .acks import drill_acks
from .arena import COUNTS, Arena, Row
from .children import ChildFailed
from .systems import KILLS, LOOP, OURS, STREAMING, TUTORIAL, Offsetlake, run_to_end

ALL = (OURS, STREAMING, LOOP)
COMMITS = (*ALL, TUTORIAL)  # who is drilled where it matters when offsets are committed
_BY_STEP = {step: tuple(name for name in COMMITS if step in KILLS[name]) for steps in KILLS.values() for step in steps}
STEPS = tuple(step for step in KILLS[OURS] if step != "claim")
MAX_KILLS = 3
MAX_RECORDS = 120
# retention and compaction at once, for topics that ask for them; the broker's own defaults are minutes
BROKER_PROPERTIES = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "200",
}


@dataclass(frozen=True, slots=True)
class Drill:
    """One fault: who is drilled with it, and under which policies of Offsetlake."""

    name: str
    act: faults.Fault
    systems: tuple[str, ...] = ALL
    policies: tuple[Delivery, ...] = (Delivery.EFFECTIVELY_ONCE,)
    configs: Mapping[str, str] = field(default_factory=dict)
    is_of_disk: bool = False
    """Whether it brings about what only a lake on this machine's disk has."""
    recovers_alone: bool = False
    """Whether it is left alone afterwards, not run to its end: that it gets there without hands is what is drilled."""


DRILLS: Mapping[str, Drill] = {
    drill.name: drill
    for drill in (
        Drill("no_fault", faults.no_fault, COMMITS, tuple(Delivery)),
        *(
            Drill(
                f"kill_at_{step}",
                faults.kill_at(step),
                systems,
                (Delivery.AT_MOST_ONCE,) if step == "claim" else tuple(Delivery),
            )
            for step, systems in _BY_STEP.items()
        ),
        Drill("kill_again_and_again", faults.kill_again_and_again),
        Drill("stall", faults.stall),
        Drill("expire_unplanned", faults.between(faults.expire_unplanned)),
        Drill("expire_planned", faults.expire_planned, (OURS,)),
        Drill("compact", faults.compact, configs=faults.COMPACTED),
        Drill("abort_transactions", faults.abort_transactions),
        Drill("leave_transaction_open", faults.leave_transaction_open),
        Drill("recreate", faults.between(faults.recreate)),
        Drill("add_partitions", faults.between(faults.add_partitions)),
        Drill("lose_books", faults.between(faults.lose_books)),
        Drill("delete_group", faults.between(faults.delete_group), (OURS,)),
        Drill("overtake", faults.overtake),
        Drill("tear_staged_file", faults.tear_staged_file, (OURS,), is_of_disk=True),
        Drill("lose_answers", faults.lose_answers, (OURS,), is_of_disk=True),
        Drill("race_planners", faults.race_planners, (OURS,)),
        Drill("fill_disk", faults.fill_disk, COMMITS, is_of_disk=True),
        Drill("recover_from_kill", recovery.recover_from_kill, COMMITS, recovers_alone=True),
        Drill("recover_from_failed_write", recovery.recover_from_failed_write, COMMITS, is_of_disk=True, recovers_alone=True),
    )
}


def run_schedule(arena: Arena, seed: int, number: int) -> Row:
    """Run schedule `number` of a seed, and hold what is landed in the end against what was produced."""
    chance = random.Random(f"{seed}:{number}")  # noqa: S311
    started = time.monotonic()
    arena.topic = replace(arena.topic, policy=replace(arena.topic.policy, records_per_range=chance.choice([7, 20, 50, 100])))
    system = arena.system(OURS)
    assert isinstance(system, Offsetlake)
    told = []
    for _ in range(chance.randint(1, MAX_KILLS)):
        told.append(_happen(arena, chance, number))
        step, nth = chance.choice(STEPS), chance.choice([1, 1, 2, 3])
        try:
            arena.kill(system, step, nth, own_jvm=False)
            told.append(f"kill {step}#{nth}")
        except ChildFailed:  # it ended before: the step is passed less often than that
            told.append(f"no {step}#{nth}")
    run_to_end(system)
    arena.fault_proven = True
    arena.note = ", ".join(told)
    return arena.judge(system, f"schedule {seed}:{number}", time.monotonic() - started)


def _happen(arena: Arena, chance: random.Random, number: int) -> str:
    """Do what the world does between two crashes: always more records, and sometimes something else."""
    for partition in range(arena.partitions):
        arena.produce(chance.randint(1, MAX_RECORDS), partition)
    what = chance.choice(["", "", "expire", "abort", "partitions", "recreate"])
    if what == "expire" and arena.is_begun():
        marks = arena.watermarks(0)
        arena.expire(0, chance.randint(marks.earliest, marks.end))
    elif what == "abort":
        arena.produce_aborted(chance.randint(1, 20), f"schedule-{number}")
    elif what == "partitions":
        arena.add_partitions(1)
    elif what == "recreate" and arena.is_planned():
        arena.recreate()
        arena.produce(chance.randint(1, MAX_RECORDS))
    return what or "produce"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a person asked for: drills, whether acks are drilled too, random schedules, and where.

    In a bucket, or on a cluster, Offsetlake alone is drilled.
    """

    drills: Sequence[Drill]
    acks: bool
    schedules: int = 0
    seed: int = 1
    first: int = 0
    lake: str = "disk"
    engine: str = "local"

    def check(self, settings: Settings) -> None:
        """Refuse places that the settings do not name; raise `BadSetting`."""
        if self.lake == "s3" and not Lake(settings.lake).store.is_remote:
            raise BadSetting(
                f"--lake s3 drills below OFFSETLAKE_LAKE, which is {settings.lake}, expected s3://bucket/prefix; nothing was "
                "started; set it to a bucket, where drills make and delete lakes of their own"
            )
        if self.engine == "cluster" and settings.spark_remote is None:
            raise BadSetting(
                "--engine cluster drills the Spark of OFFSETLAKE_SPARK_REMOTE, which is not set, expected sc://host:port; "
                "nothing was started; set it to a cluster's Spark Connect server"
            )


def choose(names: Sequence[str], schedules: int, seed: int, first: int, lake: str, engine: str) -> Chosen:
    """Return the drills named, or all; refuse names that are none. Schedules without names are run alone."""
    unknown = [name for name in names if name not in {*DRILLS, ACKS}]
    if unknown:
        raise BadSetting(
            f"{', '.join(unknown)}: no such drill; nothing was started; drills are {', '.join([*DRILLS, ACKS])}", names=unknown
        )
    wanted = names or ([] if schedules else [*DRILLS, ACKS])
    drills = [DRILLS[name] for name in wanted if name != ACKS]
    is_remote = lake == "s3" or engine == "cluster"
    if is_remote:
        local = [name for name in names if name == ACKS or DRILLS[name].is_of_disk or OURS not in DRILLS[name].systems]
        if local:
            raise BadSetting(
                f"{', '.join(local)}: of this machine's disk, brokers or other systems; nothing was started; leave out "
                "--lake s3 and --engine cluster for these",
                names=local,
            )
        drills = [replace(drill, systems=(OURS,)) for drill in drills if OURS in drill.systems and not drill.is_of_disk]
    return Chosen(drills, ACKS in wanted and not is_remote, schedules, seed, first, lake, engine)


def run_drills(settings: Settings, chosen: Chosen, say: Callable[[str], None]) -> dict[str, Any]:
    """Run drills, then random schedules, chosen and checked before; return the report as a document for JSON."""
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    rows: list[Row] = []
    random_rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="offsetlake-drill-") as folder, _ground(settings, chosen, Path(folder)) as ground:
        own, broker = ground
        turns = [(drill, name, policy) for drill in chosen.drills for name, policy in _turns(drill)]
        for number, (drill, name, policy) in enumerate(turns, 1):
            say(f"drill {number} of {len(turns)}: {drill.name}, {name} {policy.value if name == 'offsetlake' else ''}")
            with open_arena(own, broker, Path(folder) / f"d{number}", policy, drill.configs) as arena:
                rows.append(_run(arena, drill, name))
        if chosen.acks:
            say(f"drill {ACKS}, on three brokers")
            rows += drill_acks(own, Path(folder))
        for number in range(chosen.first, chosen.first + chosen.schedules):
            wrong = sum(row.verdict != "right" for row in random_rows)
            done = number - chosen.first + 1
            say(f"schedule {done} of {chosen.schedules}, seed {chosen.seed}: {wrong} wrong so far")
            with open_arena(own, broker, Path(folder) / f"s{number}", Delivery.EFFECTIVELY_ONCE, {}) as arena:
                random_rows.append(run_schedule(arena, chosen.seed, number))
    report: dict[str, Any] = {"seed": chosen.seed, "drills": [asdict(row) for row in rows]}
    if chosen.schedules:
        report["drills"].append(asdict(_sum_up(random_rows, chosen.seed)))
        report["schedules"] = {
            "count": len(random_rows),
            "kills": sum(row.note.count("kill ") for row in random_rows),
            "failed": [asdict(row) for row in random_rows if row.verdict != "right"],
        }
    return report


def is_right(report: Mapping[str, Any]) -> bool:
    """Return whether Offsetlake did what it promises in every drill, each with its fault proven."""
    return all(row["verdict"] == "right" for row in report["drills"] if row["system"] == OURS)


def _turns(drill: Drill) -> Iterator[tuple[str, Delivery]]:
    for name in drill.systems:
        for policy in drill.policies if name == OURS else (Delivery.EFFECTIVELY_ONCE,):
            yield name, policy


def _run(arena: Arena, drill: Drill, name: str) -> Row:
    system, began, stuck = arena.system(name), time.monotonic(), ""
    try:
        drill.act(arena, system)
        if not drill.recovers_alone:
            run_to_end(system)
    except Exception as error:  # noqa: BLE001 (that a system cannot go on is a result)
        arena.note, stuck = f"{type(error).__name__}: {str(error)[:300]}", "stuck: "
    row = arena.judge(system, drill.name, time.monotonic() - began)
    return replace(row, verdict=f"{stuck}{row.verdict}")


def _sum_up(rows: Sequence[Row], seed: int) -> Row:
    """Return one line for all random schedules."""
    wrong = [row for row in rows if row.verdict != "right"]
    return Row(
        OURS,
        Delivery.EFFECTIVELY_ONCE.value,
        f"{len(rows)} random schedules, seed {seed}",
        any("kill " in row.note for row in rows),
        **{name: sum(getattr(row, name) for row in rows) for name in COUNTS},
        verdict=f"wrong: {', '.join(row.drill for row in wrong[:10])}" if wrong else "right",
        seconds=round(sum(row.seconds for row in rows), 1),
    )


@contextmanager
def _ground(settings: Settings, chosen: Chosen, folder: Path) -> Iterator[tuple[Settings, Broker]]:
    """Start a broker, and have what lands share a warm Spark of its own, or the cluster's."""
    if chosen.engine == "local":
        resolve_jars("spark", settings.jars)
    with own_broker(settings, folder, properties=BROKER_PROPERTIES) as (own, broker):
        lake = f"{settings.lake}/{folder.name}" if chosen.lake == "s3" else str(folder)
        remote = settings.spark_remote if chosen.engine == "cluster" else None
        yield replace(own, spark_master="local[2]", spark_remote=remote, lake=lake), broker


@contextmanager
def open_arena(
    settings: Settings, broker: Broker, folder: Path, policy: Delivery, configs: Mapping[str, str]
) -> Iterator[Arena]:
    """Give an arena, and delete its lake and folder; where a drill fails before that, its own error is the one raised."""
    arena = Arena(settings, folder, policy, configs=configs, broker_pid=broker.pid)
    try:
        yield arena
    except BaseException as error:
        try:
            arena.close()
        except OffsetlakeError as another:
            error.add_note(f"its lake {arena.settings.lake} was not deleted either: {another}")
        raise
    else:
        arena.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # its parent is deleted at the end
