"""The class archive: what Spark's JVM loads at its start, as one file that it maps instead of reading 300 jars.

Made once by `make setup`; a session starts, and runs its first job, in half the time. Invariant: it changes nothing
else; a JVM that it was not made for ignores it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .java import find_java

ARCHIVE = "spark-classes.jsa"
_KEY = "spark-classes.key"
_EXIT_SECONDS = 120


def archive_options(jars: Path) -> str:
    """Are the JVM's options that use the archive in the jar cache; none where it was not made."""
    archive = (jars / ARCHIVE).absolute()
    return f'"-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off' if archive.is_file() else ""


def make_archive(jars: Path) -> bool:
    """Makes the archive unless it is there for this Java and this pyspark; false where it was."""
    java = find_java()
    key = _describe(java)
    if (jars / ARCHIVE).is_file() and (jars / _KEY).is_file() and (jars / _KEY).read_text() == key:
        return False
    sys.stdout.write("setup: making Spark's class archive, once, half a minute\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(dir=jars) as folder:
        fresh = Path(folder).absolute() / ARCHIVE
        _run_small_job(java, fresh)
        fresh.replace(jars / ARCHIVE)
    (jars / _KEY).write_text(key)
    return True


def _describe(java: Path) -> str:
    """Is what the archive depends on: the JVM, and each jar's place and time, which a new .venv changes."""
    import pyspark

    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    spark = Path(pyspark.__file__).parent / "jars"
    return f"{java}\n{version}{spark} {spark.stat().st_mtime_ns}\n"


def _run_small_job(java: Path, archive: Path) -> None:
    """Starts a session, writes a Parquet file with it, and waits for its JVM to write the archive as it ends."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(java.parent.parent)  # what pyspark's launcher looks at
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f'"-XX:ArchiveClassesAtExit={archive}" -Xlog:disable')
        .getOrCreate()
    )
    rows = session.range(1000).selectExpr("id", "cast(id as string) AS text")
    rows.write.option("compression", "zstd").parquet(str(archive.with_suffix(".parquet")))
    session.stop()
    gateway = SparkContext._gateway  # the JVM ends, and writes the archive, when its gateway is closed
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_EXIT_SECONDS)


def main(arguments: list[str]) -> int:
    """Makes the archive for `make setup` in the jar cache named; without it everything works, and starts slower."""
    try:
        make_archive(Path(*arguments))
    except (OSError, subprocess.SubprocessError) as error:
        sys.stdout.write(f"setup: Spark will start slower, its class archive could not be made: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
