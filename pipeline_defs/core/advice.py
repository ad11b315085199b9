"""Advice in messages: what was probably meant, which command to type, and what to do next about a topic.

Invariants: a topic in any state gets exactly one sentence, about the most urgent thing; a command works as printed for each
name that Kafka allows: of its characters only a leading dash is special to a command or a shell.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

NOTHING = "nothing to do"


def meant(written: str, known: Iterable[str]) -> str:
    """Return `, did you mean ...?` for a known name that is close to what was written, ignoring case; else nothing."""
    by_folded = {name.lower(): name for name in known}
    close = get_close_matches(written.lower(), by_folded, n=1, cutoff=0.6)
    return f", did you mean `{by_folded[close[0]]}`?" if close else ""


def command(verb: str, topic: str, *rest: str) -> str:
    """Return a command for a topic; `rest` is options, which begin with dashes, or other words.

    | topic | line |
    |---|---|
    | `orders` | `offsetlake land orders --pending` |
    | `-dash` | `offsetlake land --pending -- -dash` |
    """
    if not topic.startswith("-"):
        return " ".join(["offsetlake", verb, topic, *rest])
    is_option = bool(rest) and rest[0].startswith("-")
    options, words = (rest, ()) if is_option else ((), rest)
    return " ".join(["offsetlake", verb, *options, "--", topic, *words])


def replace_command(topic: str, key: str) -> str:
    """Return the command that replaces the landed rows of the range with this partition key by what Kafka has now."""
    return command("land", topic, "--key", key, "--on-change replace")


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """State that the advice depends on; counts are of ranges, `lag` and `not_accepted` of offsets.

    `late`, `stuck` and `held_back` are the messages of the checks on records that are soon deleted, on what is stalled, and on
    open transactions; `why_failed` is the reason of the last failure. `in_progress` of the pending ranges are in an active run.
    `waiting` says what waits, for what and since when, `undecoded` the same of what is landed and not decoded. `is_landing`
    means that an active run has landed something. `to_tick` is what a person must do before planning and landing happen by
    themselves; it is empty where they do.
    """

    topic: str
    lag: int = 0
    pending: int = 0
    in_progress: int = 0
    failed: int = 0
    not_accepted: int = 0
    late: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()
    waiting: str = ""
    undecoded: str = ""
    why_failed: str = ""
    is_landing: bool = False
    to_tick: str = ""


def next_action(now: TopicStatus) -> str:
    """Return the sentence for the first of these conditions that holds.

    | condition | what to do |
    |---|---|
    | records may soon be deleted | land them, and decide on lost offsets that block their ranges |
    | offsets are lost that nobody has accepted | decide on them |
    | something is stalled: fails again and again, is silent, hangs | what its message says |
    | something waits, no run has it, and nothing would land it | start Dagster, or land by hand |
    | ranges have failed and are tried again | see why |
    | ranges are pending, and nothing lands yet | wait for what is named |
    | landed ranges wait to be decoded | wait for what is named; if nothing decodes, start Dagster, or decode by hand |
    | a run is landing; a transaction or the tail's age is waited for | nothing |
    | none of them | nothing |
    """
    return next(_sentences(now))


def _sentences(now: TopicStatus) -> Iterator[str]:
    lost = f"decide on {now.not_accepted:,} lost offsets that nobody has accepted: `{command('losses', now.topic)}`"
    if now.late:
        rest = f"; and {lost}, or the rest of their ranges is not landed" if now.not_accepted else ""
        yield f"{_first(now.late, now)}{rest}"
    if now.not_accepted:
        yield lost
    if now.stuck:
        yield _first(now.stuck, now)
    if (now.lag or now.pending) and not now.in_progress and now.to_tick:
        failed = f"; {counted(now.failed, 'range')} failed, {now.why_failed}" if now.failed else ""
        yield f"{_by_hand(now)}, or {now.to_tick}: nothing plans and lands by itself now{failed}"
    if now.failed:
        waiting = f"; {now.waiting}" if now.waiting else ""
        yield f"{counted(now.failed, 'range')} failed and {_is(now.failed)} tried again, {now.why_failed}{waiting}"
    yield from _waits(now)
    if now.in_progress and now.is_landing:
        yield f"{NOTHING}: a run is landing {now.in_progress:,} of {counted(now.pending, 'range')}"
    if now.held_back:
        yield f"{NOTHING} yet: {_first(now.held_back, now)}"
    if now.lag:
        yield f"{NOTHING}: {now.waiting or f'{now.lag:,} records wait for a full range'}"
    yield f"{NOTHING}: everything is landed"


def _waits(now: TopicStatus) -> Iterator[str]:
    if now.pending and not (now.in_progress and now.is_landing):
        yield f"wait: {now.waiting or 'the next run takes ' + counted(now.pending, 'range')}"
    if now.undecoded and not now.to_tick:
        yield f"wait: {now.undecoded}"
    elif now.undecoded:
        yield f"`{command('decode', now.topic, '--due')}`, or {now.to_tick}: {now.undecoded}"


def _first(texts: tuple[str, ...], now: TopicStatus) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} (and {len(texts) - 1:,} more: `{command('audit', now.topic)}`)"


def _by_hand(now: TopicStatus) -> str:
    if now.pending:
        return f"land {counted(now.pending, 'range')}: `{command('land', now.topic, '--pending')}`"
    return f"plan {now.lag:,} offsets: `{command('plan', now.topic, '--through-end --apply')}`"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return how many of something there are: `1 row`, `2,000 rows`, `2 losses`."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def some_of(names: Sequence[str], most: int = 10) -> str:
    """Return names in one line, at most the first `most` of them: `a, b`, `a, b and 298 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
