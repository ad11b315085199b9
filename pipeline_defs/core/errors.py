"""The one tree of errors, grouped by what a handler does with them.

    OffsetlakeError
    |- Refused           the request or configuration is wrong: nothing was read or written; fix it and ask again
    |- Unavailable       something outside does not answer: nothing is lost; retrying may help
    `- Violation         a law does not hold: nothing became visible; a person must look

Every message says what, where, expected against found, and the next step; lower case, no full stop. A note that every
traceback and command shows names the command that prints the runbook's paragraph.
"""

import json
import re
import traceback
from collections.abc import Sequence

LONGEST_REASON = 500  # characters of what another program says
NOTE = "what it means, and what to do"  # begins what each error has beside its message
MOST_SHOWN = 200  # characters of what another library says


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says; of one that says nothing, its type."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def cause_of(error: BaseException) -> str:
    """Return in a few words why a document cannot be read; of what is in it, hardly anything."""
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

    `kind` is a stable code, that of the runbook: the class's name in snake case where the class gives no other.
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
        """The message with its kind before it, for who is told of it as the reason of something else."""
        return f"{self.kind}: {self.message}"


class Refused(OffsetlakeError):
    """The request itself is wrong; nothing was read or written."""


class BadKey(Refused):
    """Refuses a partition key that is malformed, not canonical, or not a range of the plan log."""


class EmptySelection(Refused):
    """Refuses a run that selects no range: Dagster would call it a success."""


class BadSetting(Refused):
    """Refuses a setting, policy or file with a wrong key or value."""


class UnknownTopic(Refused):
    """Refuses a topic that the broker does not have, or that no defs.yaml names."""


class TopicRecreated(Refused):
    """Refuses to say how far a topic is landed that was deleted and created again since it was planned."""


class OtherCluster(Refused):
    """Refuses to plan or land a topic of brokers that are of another Kafka cluster than it is read from."""


class UnknownSubject(Refused):
    """Refuses a subject, or a version of it, that the schema registry does not have."""


class UnusableSchema(Refused):
    """Refuses a schema that nothing can be decoded with: not of its language, or of what Spark has no type for."""


def unusable_schema(what: str, reason: str) -> UnusableSchema:
    """Return the error of a schema that nothing can be decoded with; a parser may say all of it again."""
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
    """A Kafka broker answers and does not let us in: its certificate, our login, or what is spoken there."""

    retriable = False


class StaleAnswer(Unavailable):
    """Answer of a Kafka broker that lags behind its cluster: of a topic that is gone, or by a leader that was replaced."""


class NoLeader(Unavailable):
    """Kafka partitions that no broker leads: what they have can be neither planned nor read."""


class LakeUnavailable(Unavailable):
    """The lake cannot be read or written."""


class RegistryUnavailable(Unavailable):
    """The schema registry did not answer, or would not."""


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
    """Disk that is full or read-only where Spark writes: no range's fault, so none is tried on its own."""


class JobStuck(ScanFailed):
    """Spark's job that finished no task for long and was stopped: one file's fault, or that of a function for all of them."""


class EngineUnavailable(Unavailable):
    """Spark that could not be started or reached."""


class EngineUnfit(EngineUnavailable):
    """Spark that answers and cannot do what is asked of it: of another version, say, or without the Kafka source."""

    retriable = False


class EngineLost(EngineUnavailable):
    """Spark that went away while it was at work: by chance, or by what it was reading."""


class FileUnusable(Unavailable):
    """A file of this machine, or standard output, that the system does not let us use: another user's, or on a full disk."""

    retriable = False


class DaemonUnavailable(Unavailable):
    """No Dagster daemon is there to execute what was asked for."""


class HistoryUnavailable(Unavailable):
    """Dagster's database of runs and events that cannot be opened: a server that is away, or a damaged file."""


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
    """A fault that is none of these, of a library or of ours; its words are not told, for they may have a record in them."""


def as_ours(error: Exception, what: str) -> OffsetlakeError:
    """Return an error as one of these: itself, or else by its type and where it was raised; `what` says what was done."""
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


class RangesFailed(Violation):
    """Kind `ranges_failed`: what of a run is not landed, decoded or updated, and why; its other ranges and topics are."""


class TopicsFailed(Violation):
    """Which topics of a code location could not be planned, and why; the others were."""


class PruningFailed(Violation):
    """Which old runs could not be deleted from Dagster; the others were."""


class CompactionFailed(Violation):
    """Which groups of a table's files could not be compacted, and why; the table has them as before."""


class TableFileGone(Violation):
    """A range whose file was dropped, and that no file of the raw table has: nothing is read in its place."""


class RangeFilesKept(Violation):
    """Which range files were not dropped, and why; each stays where it is."""


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of Rust, of which a caller must make an error of one record; an exit never is one.

    pyo3 derives them from BaseException, and lets nobody import them.
    """
    return type(error).__name__ == "PanicException"
