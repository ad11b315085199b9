"""The one tree of errors, grouped by what a handler does with them.

    OffsetlakeError
    |- Refused           the request or configuration is wrong: nothing was read or written; fix it and ask again
    |- Unavailable       something outside does not answer: nothing is lost; retrying may help
    `- Violation         a law does not hold: nothing became visible; a person must look

Every message says what, where, expected against found, and the next step; lower case, no full stop. Tracebacks and commands
also show a note: the command that prints the error's paragraph of the runbook.
"""

import json
import re
import traceback
from collections.abc import Sequence

LONGEST_REASON = 500  # characters quoted from another program
NOTE = "what it means, and what to do"  # beginning of the note of each error
MOST_SHOWN = 200  # characters quoted from another library


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has no message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def cause_of(error: BaseException) -> str:
    """Return in a few words why a document cannot be read, quoting hardly anything of its content."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return "it is empty" if not error.doc else f"it is no JSON at character {error.pos}: {error.msg}"
    if isinstance(error, KeyError):
        return f"it has no {first_line(error)[:MOST_SHOWN]}"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    name, text = type(error).__name__, first_line(error)[:MOST_SHOWN]
    return text if text.startswith(name) else f"{name}: {text}"


class OffsetlakeError(Exception):
    """The root; `retriable` says whether the same call may succeed later.

    `kind` is the stable code by which the runbook lists it: by default the class's name in snake case.
    """

    kind = "offsetlake_error"
    retriable = False

    def __init_subclass__(cls) -> None:
        if "kind" not in vars(cls):
            cls.kind = re.sub(r"\B(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields
        self.add_note(f"{NOTE}: offsetlake explain {self.kind}")

    @property
    def reason(self) -> str:
        """The message after its kind, for use as the reason of another failure."""
        return f"{self.kind}: {self.message}"


class Refused(OffsetlakeError):
    """A request that is itself wrong; nothing was read or written."""


class BadKey(Refused):
    """A partition key that is malformed, not canonical, or not a range of the plan log."""


class EmptySelection(Refused):
    """A run that selects no range: Dagster would call it a success."""


class BadSetting(Refused):
    """A setting, policy or file with a wrong key or value."""


class UnknownTopic(Refused):
    """A topic that the broker does not have, or that no defs.yaml names."""


class TopicRecreated(Refused):
    """A topic that was deleted and created again since it was planned: how far it is landed cannot be said."""


class OtherCluster(Refused):
    """Brokers of another Kafka cluster than the one that the topic is read from: nothing is planned or landed."""


class UnknownSubject(Refused):
    """A subject, or a version of it, that the schema registry does not have."""


class UnusableSchema(Refused):
    """A schema that nothing can be decoded with: invalid in its language, or with something that Spark has no type for."""


def unusable_schema(what: str, reason: str) -> UnusableSchema:
    """Return the error of a schema that nothing can be decoded with; the reason is cut, since parsers quote whole schemas."""
    reason = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}..."
    return UnusableSchema(
        f"{what} cannot be used: {reason}; nothing was decoded; correct it, or give records a reader's schema of their own "
        "with `inline_schema` in defs.yaml",
        what=what,
        reason=reason,
    )


class Unavailable(OffsetlakeError):
    """A system outside did not answer; nothing is lost."""

    retriable = True


class BrokerUnavailable(Unavailable):
    """No Kafka broker answered at the configured address."""


class BrokerRefuses(BrokerUnavailable):
    """A Kafka broker answers and does not let us in: because of its certificate, our login, or the protocol."""

    retriable = False


class StaleAnswer(Unavailable):
    """Answer of a Kafka broker that lags behind its cluster: about a topic that is gone, or by a leader that was replaced."""


class NoLeader(Unavailable):
    """Kafka partitions that no broker leads: they can be neither planned nor read."""


class LakeUnavailable(Unavailable):
    """The lake cannot be read or written."""


class RegistryUnavailable(Unavailable):
    """The schema registry did not answer, or refused to."""


class OutcomeUnknown(Unavailable):
    """A write may or may not have happened and reading back did not settle it."""


class StagedFileGone(Unavailable):
    """A staged file went away before it was committed or published: a sweep, or somebody, deleted it."""


class JavaUnusable(Unavailable):
    """No Java of the needed version was found."""

    retriable = False


class JarsUnavailable(Unavailable):
    """The jars could not be resolved, or one is not the pinned one."""


class ScanFailed(Unavailable):
    """Spark could not read or write a scan; the ranges stay planned."""


class DiskRefuses(ScanFailed):
    """Disk that is full or read-only where Spark writes: no range is at fault, so none is tried on its own."""


class JobStuck(ScanFailed):
    """Spark job that was stopped because it finished no task for long: one file, or a function applied to all, is at fault."""


class EngineUnavailable(Unavailable):
    """Spark that could not be started or reached."""


class EngineUnfit(EngineUnavailable):
    """Spark that answers and cannot do what is asked: it has another version, say, or lacks the Kafka source."""

    retriable = False


class EngineLost(EngineUnavailable):
    """Spark that died during a job: by chance, or because of what it was reading."""


class FileUnusable(Unavailable):
    """A local file, or standard output, that the system does not let us use: it is another user's, or its disk is full."""

    retriable = False


class DaemonUnavailable(Unavailable):
    """No Dagster daemon is running that could execute the request."""


class HistoryUnavailable(Unavailable):
    """Dagster's database of runs and events cannot be opened: its server is down, or its file is damaged."""


class Violation(OffsetlakeError):
    """A law does not hold; collects all violations and is raised once."""

    def __init__(self, message: str, violations: Sequence[str] = (), **fields: object) -> None:
        text = "\n".join([message, *(f"  - {violation}" for violation in violations)])
        super().__init__(text, **fields)
        self.violations = tuple(violations)


class BrokenPlanLog(Violation):
    """The plan log does not tile, or one of its objects cannot be read."""


class BrokenManifest(Violation):
    """A manifest cannot be read or contradicts its own name."""


class BrokenTable(Violation):
    """A commit of a Delta log that cannot be read, or one that would break a law."""


class DamagedFile(Violation):
    """A Parquet file cannot be read: it was cut short or changed."""


class Unforeseen(Violation):
    """Any other fault, a library's or our own; its message is not shown, since it may quote a record."""


def as_ours(error: Exception, what: str) -> OffsetlakeError:
    """Return an error of ours as it is, else one of these by its type; `what` says what was done."""
    if isinstance(error, OffsetlakeError):
        return error
    if type(error).__module__.partition(".")[0] in {"sqlalchemy", "sqlite3"}:
        said = first_line(getattr(error, "orig", None) or error)[:MOST_SHOWN]
        return HistoryUnavailable(
            f"{what}: Dagster's history does not answer: {said}; what is landed stays landed; see that its database runs, and "
            "that its disk has room; the next tick goes on"
        )
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, (ConnectionError, TimeoutError)):
        return FileUnusable(
            f"{what}: {error.filename or 'a file'} cannot be used: {(error.strerror or '').lower()}; nothing of it became "
            "visible by this, others go on, and it is tried again; see that its disk is sound and has room, and that this user "
            "may use it"
        )
    place = traceback.extract_tb(error.__traceback__)[-1]
    file = place.filename.rpartition("/")[2]
    return Unforeseen(
        f"{what}: {type(error).__name__} was raised at {file}, line {place.lineno}, "
        "which nobody foresaw; nothing of it became visible by this, others go on; please report it"
    )


def as_one(errors: Sequence[OffsetlakeError]) -> OffsetlakeError:
    """Return the only error itself, and for several one of the first's kind that tells all of them."""
    first, *others = errors
    return type(first)("\n".join([first.message, *(each.reason for each in others)])) if others else first


class RangesFailed(Violation):
    """What a run did not land, decode or update, and why; its other ranges and topics are done."""


class TopicsFailed(Violation):
    """Topics of a code location that could not be planned, and why; the others were."""


class PruningFailed(Violation):
    """Old runs that could not be deleted from Dagster; the others were."""


class CompactionFailed(Violation):
    """Groups of a table's files that could not be compacted, and why; the table has them as before."""


class TableFileGone(Violation):
    """A range whose file was dropped and whose rows no file of the raw table has: nothing is read in its place."""


class RangeFilesKept(Violation):
    """Range files that were not dropped, and why; each stays where it is."""


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a Rust panic, which a caller turns into an error of one record; an exit never is one.

    pyo3 derives panics from BaseException and does not export the class.
    """
    return type(error).__name__ == "PanicException"
