"""Java on this machine: which one is used and whether it is new enough.

Only finds and asks; starts nothing that lasts. Imports the standard library and `core.errors` alone, so that `make setup`
can run it before anything is installed: `python3 -m pipeline_defs.adapters.system.java`.
Invariant: the path returned answered `-version` with a version from `FIRST` to `LAST` just now.
"""

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from ...core.errors import JavaUnusable

FIRST, LAST = 17, 22  # from 23 on Spark's Hadoop fails: `getSubject is not supported`
VERSIONS = f"{FIRST} to {LAST}"
KEY = ".key"  # beside a class archive: its size in bytes, a line, and what it was made for

_ANSWER_SECONDS = 30
_VERSION = re.compile(r'version "(?P<text>(?:1\.)?(?P<major>\d+)[^"]*)"')


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """Return the `java` that everything here runs: `$JAVA_HOME/bin/java`, else the first `java` on the PATH.

    | JAVA_HOME | PATH     | answer |
    |---|---|---|
    | usable    | any      | `$JAVA_HOME/bin/java` |
    | too old or new, or without bin/java | any | JavaUnusable: Spark obeys JAVA_HOME, so the PATH must not hide it |
    | not set   | usable   | the one on the PATH |
    | not set   | too old or new, or none | JavaUnusable |
    """
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        where = f"JAVA_HOME={home}"
        if not java.is_file():
            raise JavaUnusable(
                f"no Java at {where}: expected {java}; set JAVA_HOME to a JDK or JRE of version "
                f"{VERSIONS}, or unset it to use the PATH",
                path=java,
            )
    else:
        found = shutil.which("java", path=environ.get("PATH", os.defpath))
        if found is None:
            raise JavaUnusable(
                f"no Java found: neither JAVA_HOME nor a `java` on the PATH; install Java {VERSIONS} or set JAVA_HOME"
            )
        java, where = Path(found), "PATH"
    return _verified(java, where)


def use_java() -> None:
    """Have Spark's JVMs below this process use the `java` found, as pyspark's launcher looks at JAVA_HOME, and loopback."""
    os.environ["JAVA_HOME"] = str(find_java().parent.parent)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark asks for the address of this machine's name
    take_all_letters(os.environ)


def take_all_letters(environment: MutableMapping[str, str]) -> None:
    """Let a JVM of this environment name files with letters beyond ASCII: under the locale C, as of cron, it cannot."""
    locale = environment.get("LC_ALL") or environment.get("LC_CTYPE") or environment.get("LANG") or ""
    if locale in {"", "C", "POSIX"}:
        environment["LC_ALL"] = "C.UTF-8"


def _verified(java: Path, where: str) -> Path:
    """Return `java` itself once it has said a version that is new enough."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaUnusable(
            f"Java at {java} (from {where}) does not run: {error}; install Java {VERSIONS} or set JAVA_HOME", path=java
        ) from error
    said = (answer.stderr + answer.stdout).strip()
    version = _VERSION.search(said)
    if answer.returncode != 0 or version is None:
        last_line = said.splitlines()[-1] if said else "no output"
        raise JavaUnusable(
            f"Java at {java} (from {where}) gives no version, exit code {answer.returncode}: {last_line}; "
            f"install Java {VERSIONS} or set JAVA_HOME",
            path=java,
        )
    if not FIRST <= (major := int(version["major"])) <= LAST:
        raise JavaUnusable(
            f"Java at {java} (from {where}) is too {'old' if major < FIRST else 'new'}: found version {version['text']}, "
            f"expected {VERSIONS}; install it or set JAVA_HOME",
            path=java,
            found=version["text"],
        )
    uid = os.getuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise JavaUnusable(
            f"uid {uid}, which this runs as, has no name on this machine, and Spark's Java starts for no user without one: "
            f"expected a line such as offsetlake:x:{uid}:{os.getgid()}::/tmp:/bin/sh in /etc/passwd; have the container add it "
            "before anything else starts, or run as a user that is there"
        ) from None
    return java


def class_archive(jars: Path, what: str) -> Path:
    """Return where the jar cache keeps the class archive of `spark` or `broker` (see `class_archive.py`)."""
    return (jars / f"{what}-classes.jsa").absolute()


def made_for(archive: Path) -> str:
    """Return what a class archive was made for; empty if it was not made, or is cut short: a JVM that maps it then dies."""
    try:
        size, _, found = archive.with_suffix(KEY).read_text("utf-8").partition("\n")
        return found if int(size) == archive.stat().st_size else ""
    except (OSError, ValueError):
        return ""


def archive_options(jars: Path, what: str) -> list[str]:
    """Return the JVM's options that use a class archive; none if there is no whole one."""
    archive = class_archive(jars, what)
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if made_for(archive) else []


def main() -> int:
    """Check Java for `make setup`: silent and 0, or one line and 1."""
    try:
        find_java()
    except JavaUnusable as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
