"""Checks of a decoded table: that every landed record is decoded or set aside, what was set aside, and that files are whole."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...adapters.tables.decodings import decoded_table_log
from ...adapters.tables.sql_text import file_pattern
from ...adapters.tables.topic_rows import within
from ...core.advice import command
from ...core.offsets import OffsetRange
from ...core.tables.decoded_ranges import DecodedRanges
from ...core.tables.decoded_sums import DecodedSums
from ...core.tables.decoded_table import TREE, first_range
from ...core.tables.decoding import Decoding, completeness_of
from ...landing.auditing import DIGEST_THREADS, Finding, files_of_night
from ...landing.landed_files import why_changed
from ...resources import Adapters
from ...topics import Topic
from ..runs.waiting import with_undecoded

_FIRST_DEAD_LETTERS = """
    SELECT generation, "partition", "offset", "timestamp", side, error_class, error, raw_key AS "key",
           raw_value AS "value", headers
    FROM read_parquet($1) WHERE {wanted} ORDER BY generation, "partition", "offset" LIMIT $2
"""
COMPLETENESS = "decoded_completeness"
DIGEST = "decoded_digest"
DEAD_LETTERS = "dead_letters"
OUTSIDE = "rows_outside_of_days"
_WHY = {
    "none": "have no event time; the producer, the decoder or `days.event_time` is to be mended",
    "before": "are of days before `days.start`; move it back, and Dagster is told of their days",
    "future": "are of days to come; Dagster is told of these once they have begun",
}


def check_decoded(topic: Topic, adapters: Adapters, *, is_recent: bool = False) -> Finding:
    """Check the equation of every range that is decoded, and that the table's files are there.

    Count, too, the ranges that wait and those that an older decoder made. `is_recent` leaves out what a frontier document sums
    up.
    """
    coverage = adapters.lake.recent(topic.name) if is_recent else adapters.lake.coverage(topic.name)
    decoded = adapters.decodings.read_ranges(topic.name)
    coverage, sums = with_undecoded(coverage, decoded, adapters.lake), decoded.sums
    looked_at = decoded.known if coverage.log.base is None else decoded.of(coverage)
    lacking = adapters.decodings.find_lacking(decoded)
    violations = completeness_of(topic.name, coverage.manifests, looked_at)
    violations += [
        f"range {offsets.text(topic.name)}: no file of the table has its {what}; "
        f"`{command('decode', topic.name, '--key', offsets.key)}` makes one"
        for offsets, what in _find_without_file(decoded, looked_at)
    ]
    violations += [
        f"range {offsets.text(topic.name)}: {adapters.lake.store.url(path)} is gone, or not as large as the table says; "
        f"`{command('decode', topic.name, '--key', offsets.key)}` makes it again"
        for offsets, path in lacking
    ]
    current = topic.decode.fingerprint if topic.decode else ""
    facts = {
        "decoded_ranges": sums.ranges,
        "rows": sums.rows,
        "dead_letters": sums.dead,
        "waiting_ranges": len(decoded.find_due(coverage)),
        "by_an_older_decoder": sums.outdated(current),
    }
    return Finding(COMPLETENESS, f"{sums.ranges} decoded ranges", tuple(violations), facts)


def _find_without_file(decoded: DecodedRanges, looked_at: Mapping[OffsetRange, Decoding]) -> Iterator[tuple[OffsetRange, str]]:
    """Find the ranges whose rows, or dead letters, no file of the table has, and say what is missing."""
    for offsets, each in looked_at.items():
        for count, what, is_dead in ((each.rows, "rows", False), (each.dead, "dead letters", True)):
            if count and decoded.file_of(offsets, is_dead=is_dead) is None:
                yield offsets, f"{count} {what}"


def check_decoded_files(
    topic: Topic, adapters: Adapters, *, night: int | None = None, doubted: Collection[str] = ()
) -> Finding:
    """Check the table's log, that each file of it has the digest in that log, and so has what says its columns.

    `night` and the `doubted` keys are those of `check_published`. A file that is gone is `check_decoded`'s to name.
    """
    decoded, folder = adapters.decodings.read_ranges(topic.name), f"{TREE}/{topic.name}"
    lacking = {path for _, path in adapters.decodings.find_lacking(decoded)}
    files = [file for path, file in sorted(decoded.table.files.items()) if f"{folder}/{path}" not in lacking]
    part, nights = files_of_night(night, count := len(files), sum(file.bytes for file in files))
    files = [file for at, file in enumerate(files) if at in part or first_range(file).key in doubted]
    violations = list[tuple[OffsetRange, str]]()
    with ThreadPoolExecutor(DIGEST_THREADS) as pool:
        for file, reason in zip(files, pool.map(lambda file: why_changed(file, folder, adapters.lake), files), strict=True):
            if reason:
                again = command("decode", topic.name, "--key", first_range(file).key)
                violations.append((first_range(file), f"{reason}; `{again}` makes it again"))
    for offsets, path in adapters.decodings.find_lacking_texts(decoded):
        text = (
            f"{adapters.lake.store.url(path)}, which says what it was decoded to, is gone or changed; "
            f"`{command('decode', topic.name, '--key', offsets.key)}` makes it again, or where defs.yaml has changed since "
            f"`{command('decode', topic.name, '--outdated')}`"
        )
        violations.append((offsets, text))
    texts = [f"range {offsets.text(topic.name)}: {text}" for offsets, text in violations]
    damage = decoded_table_log(topic.name, adapters.lake).find_damage()
    texts += [f"{topic.name}: {damage}"] if damage else []
    told = f"{len(files)} files" + (f"; all {count} within {nights} nights" if nights > 1 else "")
    concerns = tuple(offsets.key for offsets, _ in violations)
    return Finding(DIGEST, told, tuple(texts), {"bytes": sum(file.bytes for file in files)}, concerns)


def check_dead_letters(topic: Topic, adapters: Adapters, *, is_recent: bool = False) -> Finding:
    """Name the ranges that hold dead letters, and how many of which error.

    `is_recent` counts those of compacted files without naming their ranges.
    """
    decoded = adapters.decodings.read_ranges(topic.name)
    all_known = decoded.recent.values() if is_recent else decoded.among(lambda sums: sums.dead > 0)
    found = [each for each in all_known if each.dead]
    texts = [_text(topic, each) for each in found]
    if others := decoded.sums.dead - sum(each.dead for each in found):
        texts.append(f"{others} more records of ranges that are compacted; `{command('dead-letters', topic.name)}`")
    return Finding(
        DEAD_LETTERS,
        f"{decoded.sums.ranges} decoded ranges",
        tuple(texts),
        {"dead_letters": decoded.sums.dead, "ranges": len(found)},
        tuple(each.offsets.key for each in found),
        is_warning=True,
    )


def check_outside(topic: Topic, adapters: Adapters, *, is_recent: bool = False) -> Finding:
    """Count the decoded rows whose day Dagster does not have, and say why and in which ranges; also rows not counted by day.

    `is_recent` counts those of compacted files without naming their ranges.
    """
    assert topic.days is not None
    days, decoded, now_ms = topic.days, adapters.decodings.read_ranges(topic.name), adapters.now_ms()
    own = days.event_time.text

    def rows_outside(found: Mapping[str, int]) -> dict[str, int]:
        return {why: sum(rows for day, rows in found.items() if days.place(day, now_ms) == why) for why in _WHY}

    def outside(sums: DecodedSums) -> dict[str, int]:
        return rows_outside({day: facts.rows for day, facts in sums.days.get(own, {}).items()})

    def is_wanted(sums: DecodedSums) -> bool:
        return any(outside(sums).values()) or not sums.days.keys() <= {own}

    texts, ranges, told = list[str](), list[str](), Counter[str]()
    for each in decoded.recent.values() if is_recent else decoded.among(is_wanted):
        rows, where = rows_outside(each.event_days), f"range {each.offsets.text(topic.name)}"
        if not days.event_time.counted(each):
            again = command("decode", topic.name, "--outdated")
            found = [f"its {each.rows} rows were counted by another event time; `{again}`"]
        else:
            told.update(rows)
            found = [f"{rows[why]} rows {reason}" for why, reason in _WHY.items() if rows[why]]
        texts += [f"{where}: {text}" for text in found]
        ranges += [each.offsets.key] if found else []
    facts = outside(decoded.sums)
    others = {why: facts[why] - told[why] for why in _WHY}
    texts += [f"{others[why]} more rows of ranges that are compacted {reason}" for why, reason in _WHY.items() if others[why]]
    looked_at = f"{decoded.sums.ranges} decoded ranges"
    return Finding(OUTSIDE, looked_at, tuple(texts), facts, tuple(ranges), is_warning=True)


def read_dead_letters(
    topic: Topic, wanted: Collection[OffsetRange] | None, limit: int, adapters: Adapters
) -> tuple[int, list[str], list[tuple[Any, ...]]]:
    """Return how many dead letters all ranges, or the wanted ones, have, and columns and rows of the first `limit`."""
    from ...adapters.tables.duck import Duck  # late: code server and runs load this, and hardly ever ask DuckDB

    adapters.lake.check_present(topic.name)
    decoded = adapters.decodings.read_ranges(topic.name)
    known = decoded.among(lambda sums: sums.dead > 0)
    dead = {each.offsets: each.dead for each in known if each.dead and (wanted is None or each.offsets in wanted)}
    if not dead:
        return 0, [], []
    paths = sorted({file_pattern(adapters.lake, decoded.path_of(offsets, is_dead=True)) for offsets in dead})
    rows = "true" if wanted is None else within(dead)
    statement = _FIRST_DEAD_LETTERS.format(wanted=rows)
    return sum(dead.values()), *Duck(adapters.lake, []).query(statement, [paths, limit])


def _text(topic: Topic, decoding: Decoding) -> str:
    classes = ", ".join(f"{rows} {name}" for name, rows in decoding.error_classes.items())
    return (
        f"range {decoding.offsets.text(topic.name)}: {decoding.dead} of {decoding.rows + decoding.dead} records could not be "
        f"decoded ({classes}); `{command('dead-letters', topic.name, '--key', decoding.offsets.key)}` shows them"
    )
