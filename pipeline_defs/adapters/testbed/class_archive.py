"""Class archives: what a JVM loads at its start, as one file that it maps instead of reading hundreds of jars.

Made once by `make setup`, one for Spark and one for the embedded broker; each starts in half the time. Invariant: an
archive changes nothing else; a JVM that it was not made for ignores it.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ...core.errors import first_line
from ..system.jars import locked, scratch_folder
from ..system.java import KEY, class_archive, find_java, made_for, use_java

_EXIT_SECONDS = 120


def make_archive(jars: Path, what: str) -> bool:
    """Make the archive of `spark` or `broker` unless it is there for this Java and these jars; return whether it was made."""
    archive, wanted = class_archive(jars, what), _describe(jars, what)
    if made_for(archive) == wanted:
        return False
    with locked(jars):
        if made_for(archive) == wanted:  # by another process meanwhile
            return False
        sys.stdout.write(f"making the class archive of {what}, once, some seconds\n")
        sys.stdout.flush()
        with scratch_folder(jars, ".making-") as folder:
            fresh = folder / archive.name
            _JOBS[what](jars, fresh)
            archive.with_suffix(KEY).unlink(missing_ok=True)  # until the new one is whole, none is used
            fresh.replace(archive)
        archive.with_suffix(KEY).write_text(f"{archive.stat().st_size}\n{wanted}", "utf-8")
    return True


def try_archive(jars: Path, what: str) -> str:
    """Make an archive as `make_archive` does; return why it could not be made: then starts take longer, and nothing else."""
    try:
        make_archive(jars, what)
    except Exception as error:  # noqa: BLE001 (of Spark and its gateway any: told, and nothing depends on it)
        return f"{what} will start slower, its class archive could not be made: {first_line(error)}"
    return ""


def _describe(jars: Path, what: str) -> str:
    """Return what an archive depends on: the JVM, and each jar's place and time, which a new .venv changes."""
    java = find_java().resolve()
    pyspark = find_spec("pyspark")  # which is not imported for it
    assert pyspark is not None
    used = Path(str(pyspark.origin)).parent / "jars" if what == "spark" else (jars / what).resolve()
    return f"{java}\n{_read_version(java)}{used} {used.stat().st_mtime_ns}\n"


@cache
def _read_version(java: Path) -> str:
    plain = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    return subprocess.run([java, "-version"], env=plain, capture_output=True, text=True, errors="replace", check=True).stderr


def _run_spark(jars: Path, archive: Path) -> None:  # noqa: ARG001 (its jars are pyspark's own)
    """Start a session, write a Parquet file with it, and wait for its JVM to write the archive as it ends."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    use_java()
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config(
            "spark.driver.extraJavaOptions",  # the folder is where Spark makes `artifacts`
            f'"-XX:ArchiveClassesAtExit={archive}" "-Duser.dir={archive.parent}" -Xlog:disable',
        )
        .getOrCreate()
    )
    rows = session.range(1000).selectExpr("id", "cast(id as string) AS text")
    rows.write.option("compression", "zstd").parquet(str(archive.with_suffix(".parquet")))
    session.stop()
    gateway = SparkContext._gateway  # the JVM ends, and writes the archive, when its gateway is closed
    assert gateway is not None
    try:
        gateway.shutdown()
        gateway.proc.stdin.close()
        if code := gateway.proc.wait(_EXIT_SECONDS):
            raise subprocess.CalledProcessError(code, "java")
    finally:
        gateway.proc.kill()


def _run_broker(jars: Path, archive: Path) -> None:
    """Start a broker and have it write the archive as it ends."""
    from .broker import start_broker, stop_broker

    directory = archive.parent / "broker"
    start_broker(
        directory,
        jars=sorted((jars / "broker").glob("*.jar")),
        java_options=("-Xmx1g", f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:disable"),
    )
    stop_broker(directory, timeout_seconds=_EXIT_SECONDS)


_JOBS: Mapping[str, Callable[[Path, Path], None]] = {"spark": _run_spark, "broker": _run_broker}


def main(arguments: list[str]) -> int:
    """Make the archives for `make setup` in the jar cache named."""
    for what in _JOBS:
        if reason := try_archive(Path(*arguments), what):
            sys.stdout.write(f"setup: {reason}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
