"""Dagster's checks of event days: that each day has the rows that the decoded table counts, and what no day holds."""

import dagster as dg

from .auditing import Finding
from .checks import as_result
from .core.days import Days, touching
from .day_situation import Situation, read_days
from .resources import Edges
from .topics import Topic

COMPLETE, OUTSIDE = "days_complete", "rows_outside_of_days"
WHY = {
    "none": "have no event time; the producer, the decoder or `days.event_time` is to be mended",
    "before": "are of days before `days.start`; move it back, and they are put into days",
    "future": "are of days to come; they are put into their days once those have begun",
}


def build_days_checks(topic: Topic, days: Days) -> list[dg.AssetChecksDefinition]:
    """Builds the checks of a topic's days."""

    @dg.asset_check(
        asset=topic.days_key,
        name=COMPLETE,
        description="Each day holds as many rows as the decoded table counts, day by day.",
    )
    def days_complete(edges: dg.ResourceParam[Edges]) -> dg.AssetCheckResult:
        return days_results(topic, days, edges)[COMPLETE]

    @dg.asset_check(
        asset=topic.days_key,
        name=OUTSIDE,
        description="Every decoded row is in a day; names the ranges of those that are not, and why.",
    )
    def rows_outside(edges: dg.ResourceParam[Edges]) -> dg.AssetCheckResult:
        return days_results(topic, days, edges)[OUTSIDE]

    return [days_complete, rows_outside]


def days_results(topic: Topic, days: Days, edges: Edges) -> dict[str, dg.AssetCheckResult]:
    """Are the results of all checks of a topic's days, as of now."""
    return {
        COMPLETE: as_result(check_days(topic, days, edges)),
        OUTSIDE: as_result(check_outside(topic, days, edges), dg.AssetCheckSeverity.WARN),
    }


def check_days(topic: Topic, days: Days, edges: Edges) -> Finding:
    """Holds the rows of every day's file against the decoded table; one that is due, or held up, is counted as waiting."""
    situation = _read(topic, days, edges)
    now_ms = edges.now_ms()
    waiting = set(situation.due(days, now_ms)) | situation.held_up.keys()
    violations = [
        f"{path} is no day of {topic.name}: its rows are doubled for who reads days/{topic.name}/*.parquet; move it away"
        for path in edges.day_files.read_strays(topic.name)
    ]
    violations += [text for _, text in sorted(situation.broken.items())]
    expected = {
        day: sum(situation.counts[offsets][day] for offsets in ranges)
        for day, ranges in touching(situation.counts).items()
    }
    for day, state in sorted(situation.states.items()):
        if days.place(day, now_ms) != "held":
            violations.append(
                f"day {day} of {topic.name} is not one of those since {days.start}: nothing keeps it up to date; move it away"
            )
        elif day not in waiting and state.rows != expected.get(day, 0):
            violations.append(
                f"day {day} of {topic.name} has {state.rows} rows, expected {expected.get(day, 0)}, as the decoded "
                f"table counts; materialise the day: it is made anew"
            )
    facts = {
        "days": len(situation.states),
        "rows": sum(state.rows for state in situation.states.values()),
        "counted_rows": sum(rows for day, rows in expected.items() if days.place(day, now_ms) == "held"),
        "waiting_days": len(waiting),
        "being_decoded_ranges": len(situation.moving),
    }
    return Finding(COMPLETE, f"{len(situation.states)} days", tuple(violations), facts)


def check_outside(topic: Topic, days: Days, edges: Edges) -> Finding:
    """Counts the decoded rows that are in no day, why, and in which ranges; they stay where they are decoded."""
    situation = _read(topic, days, edges)
    now_ms = edges.now_ms()
    facts = dict.fromkeys(WHY, 0)
    violations, ranges = [], []
    for offsets, counts in sorted(situation.counts.items()):
        for why, reason in WHY.items():
            rows = sum(each for day, each in counts.items() if days.place(day, now_ms) == why)
            if rows:
                facts[why] += rows
                ranges.append(offsets.key)
                violations.append(
                    f"range {offsets.text(topic.name)}: {rows} rows {reason}; they are in tables/decoded/{topic.name} as ever"
                )
    return Finding(OUTSIDE, f"{len(situation.counts)} decoded ranges", tuple(violations), facts, tuple(ranges))


def _read(topic: Topic, days: Days, edges: Edges) -> Situation:
    return read_days(topic.name, days, edges.day_files, edges.decodings)
