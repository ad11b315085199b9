"""What is shown of an error of Spark's: the cause, in one line.

Invariant: `find_cause` shows nothing of a record's content. Spark's log has its whole message.
"""

import re

STACK = "JVM stacktrace:"  # what is behind it is not for people
_REFUSED = re.compile(r'status = StatusCode\.(\w+)\s+details = "(.*)"')
_RAISED = re.compile(r"^(?:\S+: )?Traceback \(most recent call last\):$.*?^([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE | re.DOTALL)
_FRAME = re.compile(r'^\s*File "((?!.*/pyspark/)[^"]+)", line (\d+), in (\S+)$', re.MULTILINE)
_CONFIGURED = re.compile(r"Invalid value .* for configuration ([\w.]+)")  # Kafka's client's, of what may be a secret
_CLASS_ALONE = re.compile(r"\s*(\([\w.$]+\))?\s*")
# a Java class before its message, and the condition that may begin the message
_JAVA = re.compile(
    r"^(?:Caused by: |Job aborted .*\(TID \d+\) \([^)]*\): |\()?((?:[a-z]\w*\.)+[A-Z][\w$]*)(?=[:)\s]|$)"
    r"(?:: \[([A-Z][A-Z0-9_.]+)\])?",
    re.MULTILINE,
)
_ANY_JOB = "org.apache.spark.SparkException"  # of each job that fails, whatever the reason
# of files, networks, Kafka, memory and the scheduler, which know no record's content
_SYSTEMS = re.compile(
    r"java\.(io|nio\.file|security|util\.concurrent)\.|java\.net\.(?!URI)|javax\.(net|security)\.|sun\.security\."
    r"|java\.lang\.(?!Assertion)\w+Error$|org\.apache\.(hadoop\.(?!shaded)|kafka\.|parquet\.|spark\.(?!sql\.))"
    r"|software\.amazon\.|com\.amazonaws\."
)
# what a JVM remembers: a class that failed to load fails for ever. It has its frames below it, which no record's text has by
# chance; the last is of a task's error that the driver cannot read
_SPENT = re.compile(
    r"^(?:Caused by: |Job aborted .*\(TID \d+\) \([^)]*\): )?(?:scala\.MatchError: )?"
    r"java\.lang\.(?:NoClassDefFound|ExceptionInInitializer|UnsatisfiedLink|VirtualMachine|Internal)Error\b.*\n\s+at "
    r"|^Job aborted .*: UnknownReason$",
    re.MULTILINE,
)
_CONDITIONS = re.compile(
    r"FAILED_(READ|RENAME_TEMP)_FILE|UNABLE_TO_ACQUIRE_MEMORY|SPARK_JOB_CANCELLED|KAFKA_|(UN)?RESOLVED_START_OFFSET_"
)


def find_cause(error: Exception) -> str:
    """Return the cause of a job's error in one line.

    | the error | what is told |
    |---|---|
    | of analysis, which is of columns | its words |
    | of files, networks, Kafka, memory, or Spark's scheduler | its words |
    | of Python in a worker | type and place |
    | any other, which may be of a record | condition and SQLSTATE, or Java class |
    """
    from pyspark.errors import AnalysisException
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    own = _condition_of(error)
    if isinstance(error, AnalysisException) or (not own and _RAISED.search(str(error))):
        return innermost_cause(error)
    causes = _causes(str(error), own)
    unsure = [each for each in causes if not _is_of_systems(*each)]
    if own and not causes:
        unsure = [("", own)]
    if _CONDITIONS.match(own):  # it says which file, and its cause why
        unsure = [each for each in unsure if each[1] not in {"", own}]
    if not unsure:
        return innermost_cause(error)
    told = next((each for _, each in reversed(unsure) if each), own or unsure[-1][0])
    state = error.getSqlState() if isinstance(error, SparkConnectGrpcException) and told == own else None
    return f"it raised {told}{f', SQLSTATE {state}' if state else ''}; what it says is in Spark's log"


def is_jvm_spent(error: Exception) -> bool:
    """Return whether a job failed by what its JVM will do again and another JVM may not, even if a disk was full just then."""
    text = str(error)
    return bool(_SPENT.search(_without_message(text, _condition_of(error)))) and not _RAISED.search(text)


def _condition_of(error: Exception) -> str:
    """Return an error's own condition, or an empty text."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    return (error.getCondition() if isinstance(error, SparkConnectGrpcException) else None) or ""


def _without_message(text: str, own: str) -> str:
    """Return what may be read of an error: where it has its own condition its stack, as its message may be of a record."""
    _, mark, stack = text.rpartition(STACK)
    return (stack if mark else "") if own else text


def _causes(text: str, own: str) -> list[tuple[str, str]]:
    """Return Java class and condition, or an empty one, of each cause of an error, the innermost last.

    The message of an error with its own condition may have lines of a record that look like causes: only its stack is read.
    """
    found = _JAVA.findall(_without_message(text, own))[1 if own else 0 :]
    return [each for each in found if each != (_ANY_JOB, "")]


def _is_of_systems(name: str, condition: str) -> bool:
    return bool(_CONDITIONS.match(condition) if condition else _SYSTEMS.match(name))


def innermost_cause(error: Exception) -> str:
    """Return the innermost `Caused by` of a Java error in one line, or the first line that says more than its class.

    For what happens outside of a job, where no record is read; `find_cause` is for jobs.

    For an error of gRPC itself, such as a refused login, it is its status and details; for one in a worker's Python, its
    type and place, since its message may be of a record.
    """
    if raised := _RAISED.findall(str(error)):
        frames = _FRAME.findall(str(error))
        place = f" in {frames[-1][2]} of {frames[-1][0].rpartition('/')[2]}, line {frames[-1][1]}" if frames else ""
        return f"Python of a Spark worker raised {raised[-1]}{place}; what it says is in Spark's log"
    if refused := _REFUSED.search(str(error)):
        return f"{refused[1]}: {refused[2] or 'it gave no reason; its log may say more'}"
    lines = [line.strip() for line in str(error).splitlines() if not _CLASS_ALONE.fullmatch(line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    said = causes[-1] if causes else lines[0] if lines else type(error).__name__
    return _CONFIGURED.sub(r"\1 has a value that it cannot have: correct it where OFFSETLAKE_KAFKA_PROPERTIES leads to", said)
