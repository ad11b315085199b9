"""The jars that Spark and the embedded broker need beside pyspark: resolved once, pinned by sha256, kept as files.

Ivy, which pyspark brings, fetches what ivy.xml names; jars.sha256 says what must come out. Starts no broker and no
Spark. Invariant: a path returned here has just had its pinned sha256; a directory `<cache>/<conf>` is complete or absent.
"""

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from ...core.errors import JarsUnavailable, OffsetlakeError
from .java import find_java

JarsConf = Literal["broker", "spark", "registry", "s3a", "delta"]
SETUP: Sequence[JarsConf] = ("broker", "spark")  # the others are fetched by those tests that need them

IVY_FILE = Path(__file__).with_name("ivy.xml")
PINS_FILE = Path(__file__).with_name("jars.sha256")

_RESOLVE_SECONDS = 900
_ADVICE = "check the network (the first run needs it) and run `offsetlake jars` again, or `make setup`"


def resolve_jars(conf: JarsConf, cache: Path) -> tuple[Path, ...]:
    """Return the absolute paths of the pinned jars of `conf`, sorted by name, fetched only when they are not in `cache`.

    Resolving happens in a directory beside and is renamed when every sha256 is right, under a lock: whoever is
    interrupted leaves nothing half done, whoever comes second waits and finds it done. Files put there by hand are
    as good, once their sha256 is right. Raises JarsUnavailable, and JavaUnusable when it must resolve.
    """
    cache = cache.absolute()
    directory = cache / conf
    pins = read_pins(conf)
    if not _is_complete(directory, pins):
        with locked(cache):
            if not _is_complete(directory, pins):
                _resolve(conf, cache, pins)
    verify_jars(directory, pins)
    return tuple(directory / name for name in sorted(pins))


def read_pins(conf: JarsConf) -> dict[str, str]:
    """Return the table file name -> expected sha256 of `conf`; lines of the file read `<sha256>  <conf>/<file name>`."""
    pins = {}
    for line in PINS_FILE.read_text("utf-8").splitlines():
        sha256, _, path = line.partition("  ")
        of_conf, _, name = path.partition("/")
        if of_conf == conf:
            pins[name] = sha256
    return pins


def verify_jars(directory: Path, pins: Mapping[str, str]) -> None:
    """Raise JarsUnavailable when a jar of `directory` is not the pinned one; name each such file."""
    wrong = [
        f"{directory / name} expected sha256 {expected}, found {found}"
        for name, expected in pins.items()
        if (found := _sha256(directory / name)) != expected
    ]
    if wrong:
        raise JarsUnavailable(
            f"jar refused: {'; '.join(wrong)}; it is not the pinned file and was not used: remove {directory} and run "
            f"`offsetlake jars` or `make setup`, and if it comes back ask who serves it",
            files=tuple(wrong),
        )


def _is_complete(directory: Path, pins: Mapping[str, str]) -> bool:
    return all((directory / name).is_file() for name in pins)


def _resolve(conf: JarsConf, cache: Path, pins: Mapping[str, str]) -> None:
    """Fetch the jars of `conf` and put them at `<cache>/<conf>`, all of them and verified, or raise."""
    log = cache / f"ivy-{conf}.log"
    sys.stderr.write(f"resolving {len(pins)} {conf} jars, once, up to a minute (log: {log})\n")
    with scratch_folder(cache, ".resolving-") as scratch:
        _run_ivy(conf, scratch, log)
        fresh = scratch / conf
        got = {path.name for path in fresh.glob("*")}
        if got != set(pins):
            raise JarsUnavailable(
                f"{conf} jars differ from {PINS_FILE.name}: missing {_names(set(pins) - got)}, unpinned "
                f"{_names(got - set(pins))}, with pyspark {_pyspark_version()}; nothing was kept: install "
                f"requirements.lock, or pin the new files (log: {log})",
                log=log,
            )
        verify_jars(fresh, pins)
        directory = cache / conf
        if directory.exists():  # incomplete, or of older pins
            directory.rename(scratch / "replaced")
        fresh.rename(directory)


def _run_ivy(conf: JarsConf, scratch: Path, log: Path) -> None:
    """Run Ivy with all of its own state inside `scratch`; its output goes to `log`."""
    java, ivy = find_java(), _find_ivy()
    command: list[str | Path] = [
        java,
        f"-Doffsetlake.pyspark.version={_pyspark_version()}",
        f"-Divy.default.ivy.user.dir={scratch / 'ivy'}",
        *("-jar", ivy, "-ivy", IVY_FILE, "-cache", scratch / "ivy" / "cache", "-confs", conf),
        *("-types", "jar", "bundle", "tar.gz", "-retrieve", f"{scratch}/[conf]/[artifact]-[revision].[ext]"),
    ]
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_RESOLVE_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise JarsUnavailable(
            f"{conf} jars could not be resolved within {_RESOLVE_SECONDS} seconds: {_ADVICE} (log: {log})", log=log
        ) from error
    if done.returncode != 0:
        raise JarsUnavailable(
            f"{conf} jars could not be resolved, Ivy gave exit code {done.returncode}: {_ADVICE} (log: {log})", log=log
        )


def _find_ivy() -> Path:
    """Return the Ivy jar inside the installed pyspark; found without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for ivy in sorted(Path(location, "jars").glob("ivy-*.jar")):
            return ivy
    raise JarsUnavailable("no ivy-*.jar in the installed pyspark: run `make setup`, or install requirements.lock")


def _pyspark_version() -> str:
    return importlib.metadata.version("pyspark")


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def scratch_folder(cache: Path, prefix: str) -> Iterator[Path]:
    """Give a folder in a cache whose lock the caller holds, and delete those with this prefix that killed processes left."""
    for leftover in cache.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=cache) as folder:
        yield Path(folder).absolute()


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Hold the cache's lock, making the cache first; the system frees the lock when its holder dies."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        file = (cache / ".lock").open("a")
    except OSError as error:
        raise JarsUnavailable(
            f"jar cache {cache} cannot be written: {error.strerror}; name another directory in OFFSETLAKE_HOME"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    """Resolve everything for `make setup` into the directory named; one line on stderr and 1 when it cannot."""
    try:
        for conf in SETUP:
            resolve_jars(conf, Path(*arguments))
    except OffsetlakeError as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
