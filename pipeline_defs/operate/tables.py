"""Where a topic's tables stand: versions, what waits and since when, dead letters, days; as plain documents.

Reads only. A broken table has an `error` of its own, and affects no other.
"""

from collections.abc import Callable
from typing import Any

import dagster as dg

from ..adapters.tables.delta_log import raw_table_log
from ..adapters.tables.latest_table import LatestTable
from ..adapters.tables.topic_rows import why_no_day
from ..core.advice import counted
from ..core.errors import OffsetlakeError
from ..core.log.coverage import Coverage
from ..core.log.latency import WINDOW_MS, latency_facts, waits_of
from ..core.tables.days import GONE, Days
from ..core.tables.decoded_sums import first_decoded
from ..core.tables.latest import Latest
from ..core.tables.raw_table import find_due as find_due_for_raw
from ..core.tables.raw_table import find_due_by_files
from ..orchestration.assets.decoded_asset import find_untold
from ..orchestration.runs.moments import duration_text
from ..orchestration.runs.projection import read_data_versions
from ..orchestration.runs.waiting import with_undecoded
from ..resources import Adapters
from ..tables.latest import find_due
from ..topics import Topic


def read_tables(topic: Topic, coverage: Coverage, adapters: Adapters, instance: dg.DagsterInstance) -> list[dict[str, Any]]:
    """Read a document of the raw table, of each that the topic's defs.yaml names, and of its days; times are ms since 1970.

    Latencies are of the records that came into a table within the last hour, as far as they came for the first time.
    """
    found = []
    since_ms = adapters.now_ms() - WINDOW_MS
    if adapters.settings.has_raw_table:
        found.append(_read("raw", lambda: _raw(topic.name, coverage, adapters)))
    if topic.decode is not None:
        fingerprint = topic.decode.fingerprint
        found.append(_read("decoded", lambda: _decoded(topic.name, coverage, adapters, fingerprint, since_ms)))
    if topic.latest is not None:
        config = topic.latest
        found.append(_read("latest", lambda: _latest(topic.name, config, adapters, since_ms)))
    if topic.days is not None:
        days = topic.days
        found.append(_read("days", lambda: _days(topic, days, adapters, instance)))
    return found


def _read(table: str, describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"table": table, **describe()}
    except OffsetlakeError as error:
        return {"table": table, "error": str(error), "kind": error.kind}


def _raw(topic: str, coverage: Coverage, adapters: Adapters) -> dict[str, Any]:
    log = raw_table_log(topic, adapters.lake.store)
    head = log.read_head()
    due = find_due_for_raw(coverage, head) or find_due_by_files(coverage, log.read())
    landed = [manifest.provenance.landed_at_ms for manifest in due.adds]
    return {"version": head.version, "waiting_ranges": len(landed), "waiting_since_ms": min(landed, default=None)}


def _decoded(topic: str, coverage: Coverage, adapters: Adapters, fingerprint: str, since_ms: int) -> dict[str, Any]:
    decoded = adapters.decodings.read_ranges(topic)
    coverage = with_undecoded(coverage, decoded, adapters.lake)
    due = [coverage.manifests[offsets].provenance.landed_at_ms for offsets in decoded.find_due(coverage)]
    sums, lately = decoded.sums, decoded.among(lambda sums: (sums.last_decoded_ms or 0) > since_ms)
    return {
        "version": decoded.table.version,
        "ranges": sums.ranges,
        "rows": sums.rows,
        "dead_letters": sums.dead,
        "outdated_ranges": sums.outdated(fingerprint),
        "waiting_ranges": len(due),
        "waiting_since_ms": min(due, default=None),
        **latency_facts(waits_of(first_decoded(lately), since_ms)),
    }


def _latest(topic: str, config: Latest, adapters: Adapters, since_ms: int) -> dict[str, Any]:
    due = find_due(topic, config, adapters.decodings)
    waiting = map(due.decoded.get, (*due.change.fresh, *due.change.changed))
    decoded_at = [each.provenance.landed_at_ms for each in waiting if each is not None]
    return {
        "version": due.snapshot.version if due.snapshot else -1,
        "waiting_ranges": due.waiting,
        "waiting_since_ms": min(decoded_at, default=None),
        "made_anew_because": due.why_anew or None,
        **latency_facts(LatestTable(adapters.lake, topic).read_waits(due.snapshot, since_ms)),
    }


def _days(topic: Topic, days: Days, adapters: Adapters, instance: dg.DagsterInstance) -> dict[str, Any]:
    decoded = adapters.decodings.read_ranges(topic.name)
    shown = read_data_versions(instance, topic.days_key)
    told = [day for day, version in shown.items() if version != GONE.version]
    return {
        "version": decoded.table.version,
        "days": len(told),
        "newest_day": max(told, default=None),
        "untold_days": len(find_untold(days, decoded, shown, adapters.now_ms())),
        "unreadable_because": why_no_day(decoded) or None,
    }


def latency_text(document: dict[str, Any]) -> str:
    """Return how long the records of the last hour waited, for a person; nothing where that is not known."""
    if document.get("latency_p95_seconds") is None:
        return ""
    half, most = (duration_text(document[f"latency_p{share}_seconds"]) for share in (50, 95))
    return f"records of the last hour within {half} (p50), {most} (p95) of their timestamps"


def table_text(document: dict[str, Any], now_ms: int) -> str:
    """Return where a table stands, for a person."""
    name = document["table"]
    if "error" in document:
        return f"{name}: {document['error']}"
    if name == "days":
        newest = f", the newest {document['newest_day']}" if document["days"] else ""
        untold = f"; {document['untold_days']:,} wait to be told" if document["untold_days"] else ""
        why = f"; none can be read: {document['unreadable_because']}" if document.get("unreadable_because") else ""
        return f"days: Dagster was told of {document['days']:,}{newest}{untold}{why}"
    parts = [f"version {document['version']}" if document["version"] >= 0 else "not there yet"]
    if document.get("rows") is not None:
        parts.append(f"{counted(document['rows'], 'row')} of {counted(document['ranges'], 'range')}")
    if document.get("dead_letters"):
        parts.append(counted(document["dead_letters"], "dead letter"))
    if document.get("outdated_ranges"):
        parts.append(f"{counted(document['outdated_ranges'], 'range')} by older settings")
    if document["waiting_ranges"]:
        since = document["waiting_since_ms"]
        age = "" if since is None else f" for {duration_text((now_ms - since) / 1000)}"
        parts.append(f"{counted(document['waiting_ranges'], 'range waits', 'ranges wait')}{age}")
    if document.get("made_anew_because"):
        parts.append(f"to be made anew: {document['made_anew_because']}")
    return f"{name}: {', '.join(parts)}"
