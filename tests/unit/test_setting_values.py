"""Settings: what cannot work is refused by its name, no login is shown, what is no setting is ignored; and Dagster's home.

Commands and a plain `dagster dev` of the same folder record in the same place, or somebody is told.
"""
# ruff: noqa: E501  the table reads better with a case on a line

import logging
import os
import random
import re
import shutil
import string
import traceback
from pathlib import Path
from unittest.mock import Mock

import obstore
import pytest
from click.testing import CliRunner
from dagster._cli.utils import get_possibly_temporary_instance_for_cli
from hypothesis import given
from hypothesis import strategies as st
from obstore.exceptions import GenericError

from pipeline_defs.adapters.kafka.access import read_access
from pipeline_defs.adapters.store.object_store import open_store
from pipeline_defs.adapters.system.project_folder import STARTED_BY_US, check_home, load_env_file, read_env_file
from pipeline_defs.cli.commands import cli
from pipeline_defs.core.decode.decoders import Format, Side
from pipeline_defs.core.errors import BadSetting, HistoryUnavailable, LakeUnavailable, OffsetlakeError, OutcomeUnknown, Refused
from pipeline_defs.core.login.client_properties import parse_client_properties
from pipeline_defs.core.setting_values import VARIABLES
from pipeline_defs.definitions import build_defs
from pipeline_defs.operate.status import find_instance
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.home.project import find_other_config, make_home, plan_project, write_env, write_project
from pipeline_defs.settings import PREFIX, read_settings
from tests.support import strategies  # noqa: F401  -- its profile: a fixed seed, more with HUNT
from tests.support.secured import jaas, write_properties
from tests.support.strategies import PanicException, draws, mutate

SECRET = "hush-4711"
pytestmark = pytest.mark.usefixtures("clean_environment")

WRONG_REMOTES = [
    *("host:15002", "http://h", "sc://", "sc://h/x", f"sc://u:{SECRET}@h", f"sc://h:1;token={SECRET}", f"sc://h/;{SECRET}", "sc://h:x"),
    *(f"sc://h:1/;token={each}" for each in (f"{SECRET}/a", f"a#{SECRET}", f"a?{SECRET}", f"{SECRET}==", f"{SECRET}%", f"{SECRET}%0A", f"{SECRET}é", f"{SECRET};more")),
    *("sc://a..b:1500", "sc://.:1", f"sc://{'h' * 300}:1", f"sc://{'abc.' * 80}b", "sc://h:99999", "sc://h:0", "sc://[::1]:15002"),
    *(f"sc://h:1/;{each}={SECRET}" for each in ("a-bin", "-bin", "Token", "USE_SSL", "xY")),
    *(f"sc://h:1/;use_ssl={each}" for each in ("maybe", "1", "yes")),
]  # fmt: skip
WRONG = [
    ("OFFSETLAKE_LAKE", "s3:/b", "begins with s3: and has no //, expected a path, or a URL such as s3://bucket/lake"),
    ("OFFSETLAKE_LAKE", "ftp://x/y", r"begins with ftp://, expected a path, or one of s3://, gs://, az://"),
    ("OFFSETLAKE_LAKE", "s3://", "names no bucket, expected such as s3://bucket/lake"),
    ("OFFSETLAKE_LAKE", f"s3://key:{SECRET}@b/lake", r"has a login in it \(not shown\).*AWS_SECRET_ACCESS_KEY"),
    ("OFFSETLAKE_LAKE", "s3://[b/lake", "it is no address"),
    ("OFFSETLAKE_LAKE", "/a\0b", "has a control character"),
    ("OFFSETLAKE_LAKE", " /srv/lake", "has spaces around it"),
    ("OFFSETLAKE_LAKE", "/dev/null", "OFFSETLAKE_LAKE is /dev/null, expected a folder, .*something else is there"),
    ("OFFSETLAKE_HOME", "/dev/null", "OFFSETLAKE_HOME is /dev/null, expected a folder"),
    ("DAGSTER_HOME", "/dev/null", "DAGSTER_HOME is /dev/null, expected a folder"),
    *((name, "~nosuchuser/x", f"{name} is ~nosuchuser/x, and this machine knows no home of ~nosuchuser; .*write the whole path") for name in ("OFFSETLAKE_HOME", "OFFSETLAKE_LAKE", "DAGSTER_HOME", "OFFSETLAKE_KAFKA_PROPERTIES")),
    ("DAGSTER_HOME", "/nowhere/a%41b", "DAGSTER_HOME is /nowhere/a%41b.*its path has %, with which Dagster's database is another file"),
    ("DAGSTER_HOME", "/nowhere/a?b", r"its path has \?"),
    ("OFFSETLAKE_HOME", "/nowhere/a,b", "OFFSETLAKE_HOME is /nowhere/a,b, .*its path has ,, with which Spark does not start"),
    *(("OFFSETLAKE_HOME", f"/nowhere/a{sign}b", re.escape(f"its path has {sign}, with which Spark does not start, or not with its jars")) for sign in '"[]{}?#:'),
    ("OFFSETLAKE_SPARK_MASTER", "locl[2]", r"found 'locl\[2\]', expected local\[\*\]"),
    *(("OFFSETLAKE_SPARK_MASTER", each, "expected local") for each in ("local[0]", "local[-1]", "local[]", "local [2]", "LOCAL", "spark://")),
    *(("OFFSETLAKE_SPARK_DRIVER_MEMORY", each, "such as 4g") for each in ("-1g", "1x", "4", "4gb", "g", "1.5g", "4 g", "٤g")),
    *(("OFFSETLAKE_SPARK_DRIVER_MEMORY", each, "at least 512m") for each in ("0g", "0k", "100m", "1k")),
    *(("OFFSETLAKE_SPARK_REMOTE", each, r"not shown: it may have a token\), expected sc://host:port.*%2F for /") for each in WRONG_REMOTES),
    ("OFFSETLAKE_SPARK_MASTER", f"sc://h:1/;token={SECRET}", r"found another \(not shown.*sc://host:port is OFFSETLAKE_SPARK_REMOTE's"),
    *((name, f"u:{SECRET}@h", "is another .not shown: it may have a login., expected") for name in ("OFFSETLAKE_ENGINE", "OFFSETLAKE_LANES", "OFFSETLAKE_RUN_RETENTION_DAYS")),
    *(("OFFSETLAKE_LAKE", each, "in which nobody replaces a variable") for each in ("/data/${ENV}/lake", "a${HOME}/lake", "${X}")),
    *((name, "$HOME/x", r"is \$HOME/x, in which nobody replaces a variable; .* in \.env write it as \$\{HOME\}") for name in ("OFFSETLAKE_HOME", "OFFSETLAKE_LAKE")),
    ("OFFSETLAKE_PAGES_URL", "javascript:alert(1)", "begins with javascript:, expected http:// or https://"),
    ("OFFSETLAKE_PAGES_URL", "http://", "has no host"),
    ("OFFSETLAKE_PAGES_URL", SECRET, "it has no scheme"),
    ("OPENLINEAGE_URL", "localhost:5000", "begins with localhost:, expected http:// or https://"),
    ("OFFSETLAKE_PAGES_URL", "http://h:99999999", "no port from 1 to 65535"),
    ("OFFSETLAKE_PAGES_URL", "http://h/<script>", "signs of no address"),
    ("OFFSETLAKE_PAGES_URL", f"http://u:{SECRET}@h", r"has a login in it \(not shown\)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "reason"), WRONG)
def test_a_value_that_cannot_work_is_refused_by_its_name(name: str, text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=reason) as caught:
        read_settings({name: text}, tmp_path)
    assert name in str(caught.value) and "nothing was started" in str(caught.value)
    assert SECRET not in str(caught.value) and len(str(caught.value)) < 700


S3 = {"OFFSETLAKE_LAKE": "s3://bucket/lake"}
WRONG_ENDPOINTS = [
    ("127.0.0.1:9000", "", "expected http:// or https://"),
    ("s3:9000", "true", "expected http:// or https://"),
    (f"http://key:{SECRET}@s3:9000", "true", r"has a login in it \(not shown\)"),
    ("http://s3:9000", "", "is in the clear, and AWS_ALLOW_HTTP does not say true, expected https:// or that"),
    ("http://s3:9000", "no", "AWS_ALLOW_HTTP does not say true"),
]


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
@pytest.mark.parametrize(("address", "is_allowed", "reason"), WRONG_ENDPOINTS)
def test_an_address_of_no_store_is_refused(name: str, address: str, is_allowed: str, reason: str, tmp_path: Path) -> None:
    wrong = {name: address, "AWS_ALLOW_HTTP": is_allowed}
    with pytest.raises(BadSetting, match=reason) as caught:
        read_settings(S3 | wrong, tmp_path)
    assert name in str(caught.value) and SECRET not in str(caught.value)
    assert read_settings(wrong, tmp_path), "a lake on disk has nothing to do with it"
    assert read_settings(S3 | {name: "https://s3:9000"}, tmp_path)
    assert read_settings(S3 | {name: "http://s3:9000", "AWS_ALLOW_HTTP": "True"}, tmp_path)


RIGHT = {
    "OFFSETLAKE_LAKE": ["lake", "/srv/lake", "s3://b", "s3://b/a/b", "gs://b/x", "az://c/x", "file:///srv/lake", "abfss://c@a.dfs/x", "/nowhere/a,b%?"],
    "OFFSETLAKE_HOME": ["/nowhere/a b'c*é", "~/nowhere"],
    "DAGSTER_HOME": ["/nowhere/a,b"],
    "OFFSETLAKE_SPARK_MASTER": ["local", "local[*]", "local[2]", "local[*,4]", "spark://h:7077", "yarn", ""],
    "OFFSETLAKE_SPARK_REMOTE": [
        *("sc://h", "sc://10.0.0.7:15002", "sc://h:1/", "sc://h:1/;use_ssl=true;token=a.b-c", "sc://h.example.:1/;token=a%2Fb%3D%3D"),
        *("sc://h/;use_ssl=True;x-cluster_id.2=a;bin=b;a-binary=c", "sc://h/;use_ssl=FALSE;user_agent=a%61", ""),
    ],
    "OFFSETLAKE_SPARK_DRIVER_MEMORY": ["512m", "1g", "4G", "1t", "2000000k", ""],
    "OFFSETLAKE_PAGES_URL": ["http://h", "https://h:9308/a/", "http://[::1]:9308", ""],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in RIGHT.items() for text in texts])
def test_a_value_that_may_work_is_taken(name: str, text: str, tmp_path: Path) -> None:
    """The control."""
    assert read_settings({name: text}, tmp_path)


def test_a_home_is_judged_where_nobody_names_it_and_where_its_links_lead(tmp_path: Path) -> None:
    """Dagster's is in OFFSETLAKE_HOME then, or in the project's folder; one that cannot be made is named."""
    with pytest.raises(BadSetting, match=r"DAGSTER_HOME is /nowhere/a%41b/dagster, .*its path has %"):
        read_settings({"OFFSETLAKE_HOME": "/nowhere/a%41b"}, tmp_path)
    with pytest.raises(BadSetting, match=r"DAGSTER_HOME is .*/a%b/\.offsetlake/dagster, .*its path has %"):
        read_settings({}, tmp_path / "a%b")
    (tmp_path / "a,b").mkdir()
    (tmp_path / "comma").symlink_to(tmp_path / "a,b")
    with pytest.raises(BadSetting, match=r"OFFSETLAKE_HOME is .*/comma, .*its path has ,"):
        read_settings({"OFFSETLAKE_HOME": "comma"}, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetting, match=r"DAGSTER_HOME .*/file/home cannot be written: not a directory"):
        make_home(tmp_path / "file" / "home", tmp_path)


@pytest.mark.parametrize("below", ["", "lake"])
def test_a_folder_by_a_link_to_nowhere_is_refused(below: str, tmp_path: Path) -> None:
    """A disk that is not mounted, say: it cannot be made through the link, and whoever tries says that it exists."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk")
    with pytest.raises(BadSetting, match=rf"{link} is a link to {tmp_path}/disk, which is not there"):
        read_settings({"OFFSETLAKE_LAKE": str(link / below)}, tmp_path)
    (tmp_path / "disk").mkdir()
    assert read_settings({"OFFSETLAKE_LAKE": str(link / below)}, tmp_path).lake == str(link / below), "the control"


def test_a_user_whom_the_machine_does_not_know_has_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's, for instance: HOME is unset and the uid is in no passwd."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    assert not read_settings({}, tmp_path).lineage
    with pytest.raises(BadSetting, match="OFFSETLAKE_LAKE is ~/lake, and this machine knows no home of ~;"):
        read_settings({"OFFSETLAKE_LAKE": "~/lake"}, tmp_path)


REGISTRIES = ["ftp://h", "http://h:99999999", "http://h:0", "http://[::1", "http://", "h:8081", "", " ", "http://a b"]


@pytest.mark.parametrize("address", [*REGISTRIES, "http://h,ftp://h"])
def test_an_address_that_is_no_registrys_is_refused_when_definitions_load(address: str) -> None:
    with pytest.raises(ValueError, match=r"`registry` address \d|has no schema"):
        Side(Format.AVRO, registry=address)
    assert Side(Format.AVRO, registry="http://h:8081, https://[::1]:8081")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"export sasl.jaas.config={jaas('PLAIN', SECRET)}", "line 2: a key of 6 signs"),
        (f"set sasl.jaas.config={jaas('PLAIN', SECRET)}", "line 2: a key of 3 signs"),
        (f"schema.registry.basic.auth.user.info=:{SECRET}", "basic.auth.user.info has no user before a colon"),
    ],
)  # fmt: skip
def test_a_line_of_the_properties_that_java_reads_as_another_is_refused(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(f"client.id=x\n{line}\n")
    with pytest.raises(BadSetting, match=reason) as caught:
        read_access(path)
    assert SECRET not in str(caught.value)
    assert parse_client_properties({"retries": "3", "client.id": "a=b"}, "the file").kafka, "the control of `export`"


def test_what_is_no_properties_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="is a directory"):
        read_access(tmp_path)
    store = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(tmp_path)}
    with pytest.raises(BadSetting, match="is a directory"):
        read_access(write_properties(tmp_path / "c.properties", store))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A=1\nwhat is this\n", r"\.env, line 2: it is not NAME=value"),
        ("A=1\n\nB='open\n", r"\.env, line 3: it is not NAME=value"),
        ("OFFSETLAKE_LAKE\n", r"\.env, line 1: it has no value"),
        ("A=a\0b\n", r"\.env, line 1: it has a NUL character"),
        (b"A=\xff\n", r"\.env cannot be read: line 1 has the byte 0xff, expected UTF-8"),
        ("OFFSETLAKE_LAKE=s3:/b\n", "OFFSETLAKE_LAKE cannot be used: it begins with s3:"),
    ],
)  # fmt: skip
def test_a_line_of_env_that_is_no_setting_is_named(text: str | bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadSetting, match=reason):
        read_settings({}, tmp_path)
    (tmp_path / ".env").unlink()
    (tmp_path / ".env").mkdir()
    assert read_env_file(tmp_path, {}) == {}, "the control: a virtual environment of that name"


def test_an_env_that_is_a_link_to_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / ".env").symlink_to(tmp_path / "gone")
    with pytest.raises(BadSetting, match=r"\.env cannot be read: no such file"):
        read_settings({}, tmp_path)


ENV = "# of this machine\nexport OFFSETLAKE_LAKE=\"/srv/lake\"\nDAGSTER_HOME='${DAGSTER_HOME:-/srv/dagster}'\nA=b # c\nOFFSETLAKE_SPARK_MASTER=local[2]\n"


def test_no_text_of_env_or_properties_ends_in_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, or one error; nothing of a login is in it."""
    monkeypatch.setattr("pipeline_defs.adapters.system.project_folder.find_project", lambda: tmp_path)
    good = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas("PLAIN", SECRET)}
    for seed, dice in draws(150):
        (tmp_path / ".env").write_bytes(mutate(dice, ENV.encode()))
        path = write_properties(tmp_path / f"{seed}.properties", good)
        path.write_bytes(mutate(dice, path.read_bytes()))
        for read in (lambda: read_settings({}, tmp_path), load_env_file, lambda path=path: read_access(path)):
            said = ""
            with monkeypatch.context() as fresh:
                fresh.setattr(os, "environ", dict(os.environ))
                try:
                    read()
                except OffsetlakeError as error:
                    said = str(error)
            assert SECRET not in said and len(said) < 4_000, f"seed {seed}"


def test_who_may_not_read_a_lake_is_not_sent_to_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system's answer comes as a text of obstore's; the control is another answer."""
    store = open_store(str(tmp_path))
    for words, step in [
        ("Unable to open file: Permission denied (os error 13)", "let this user read there"),
        ("Unable to copy data to file: No space left on device (os error 28)", "make room on that disk"),
        ("Unable to open file: Read-only file system (os error 30)", "mount that disk writable"),
        ("Is a directory (os error 21)", "check that OFFSETLAKE_LAKE"),
    ]:
        monkeypatch.setattr("obstore.get", Mock(side_effect=GenericError(f"Generic LocalFileSystem error: {words}")))
        with pytest.raises(LakeUnavailable, match=step) as caught:
            store.get("plan/x")
        assert ("OFFSETLAKE_LAKE" in str(caught.value)) == ("directory" in words)


def test_a_panic_of_the_stores_client_is_an_error_of_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: who interrupts is not told of the lake."""
    panic = PanicException(f"unwrap() on RelativeUrlWithoutBase of http://u:{SECRET}@h")
    monkeypatch.setattr("obstore.get", Mock(side_effect=panic))
    with pytest.raises(LakeUnavailable, match=r"cannot read .*plan/x: the object store's client fails.*unset") as caught:
        open_store(str(tmp_path)).get("plan/x")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    monkeypatch.setattr("obstore.get", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        open_store(str(tmp_path)).get("plan/x")


@pytest.mark.parametrize("login", [f"key:{SECRET}", f"a@{SECRET}", SECRET])
def test_no_login_of_an_address_is_in_what_a_store_says(login: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the error nor in its cause, which Dagster keeps; the control has none, and keeps its cause and its path."""
    said = f"Generic S3 error: Error performing GET http://{login}@s3:9000/b/a@b in 9 s\n{login}"
    store = open_store(str(tmp_path))
    for owner, name, ask in (
        (store, "_create", lambda: store.put_new("plan/x", b"", "staging/a")),
        (obstore, "get", lambda: store.get("plan/x")),
        (obstore, "list", lambda: store.list("plan")),
    ):
        monkeypatch.setattr(owner, name, Mock(side_effect=GenericError(said)))
        with pytest.raises((LakeUnavailable, OutcomeUnknown), match="GET http://s3:9000/b/a@b in 9 s") as caught:
            ask()
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    monkeypatch.setattr("obstore.get", Mock(side_effect=GenericError("GET http://s3/b/a@b")))
    with pytest.raises(LakeUnavailable, match="GET http://s3/b/a@b") as caught:
        store.get("plan/x")
    assert isinstance(caught.value.__cause__, GenericError)


def test_dagster_dev_never_records_where_no_command_looks(tmp_path: Path) -> None:
    """OFFSETLAKE_HOME moves the commands' home, `.env` is stronger for `dagster dev`: two homes, so it is refused."""
    (tmp_path / ".env").write_text(f"DAGSTER_HOME={tmp_path}/.offsetlake/dagster\n")
    dev = {"DAGSTER_IS_DEV_CLI": "1", "DAGSTER_HOME": f"{tmp_path}/.offsetlake/dagster"}
    check_home(tmp_path, dev)
    check_home(tmp_path, dev | {"OFFSETLAKE_HOME": ".offsetlake"})
    two_homes = r"OFFSETLAKE_HOME is /srv/o, so that commands record in /srv/o/dagster, and .*`offsetlake up`"
    with pytest.raises(BadSetting, match=two_homes):
        check_home(tmp_path, dev | {"OFFSETLAKE_HOME": "/srv/o"})
    check_home(tmp_path, dev | {"OFFSETLAKE_HOME": "/srv/o", "DAGSTER_HOME": "/srv/o/dagster"})
    for one in (STARTED_BY_US, "DAGSTER_IS_DEFS_VALIDATION_CLI"):
        check_home(tmp_path, dev | {"OFFSETLAKE_HOME": "/srv/o", one: "1"})
    (tmp_path / ".env").write_text(f"OFFSETLAKE_HOME=/srv/o\nDAGSTER_HOME={tmp_path}/.offsetlake/dagster\n")
    check_home(tmp_path, dev | {"OFFSETLAKE_HOME": "/srv/o"})


OUR_NAMES = sorted(name for name in VARIABLES if name.startswith(PREFIX))


def injected(service: str, ports: dict[str, tuple[int, str]]) -> dict[str, str]:
    """Return what a kubelet sets for a Service, as `pkg/kubelet/envvars` makes it."""
    name = service.upper().replace("-", "_")
    first, protocol = next(iter(ports.values()))
    made = {f"{name}_SERVICE_HOST": "10.96.0.12", f"{name}_SERVICE_PORT": str(first)}
    made[f"{name}_PORT"] = f"{protocol.lower()}://10.96.0.12:{first}"
    for label, (port, kind) in ports.items():
        if label:
            made[f"{name}_SERVICE_PORT_{label.upper().replace('-', '_')}"] = str(port)
        own = f"{name}_PORT_{port}_{kind}"
        made[own] = f"{kind.lower()}://10.96.0.12:{port}"
        made |= {f"{own}_PROTO": kind.lower(), f"{own}_PORT": str(port), f"{own}_ADDR": "10.96.0.12"}
    return made


@given(
    service=st.from_regex(r"([a-z]{1,3}-)?offset-?lake(-[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?)?", fullmatch=True)
    | st.sampled_from(["dagster-home", "dagster-home-2", *(name.lower().replace("_", "-") for name in OUR_NAMES)]),
    label=st.from_regex(r"[a-z]([a-z0-9-]{0,12}[a-z0-9])?", fullmatch=True),
    port=st.integers(1, 65_535),
    kind=st.sampled_from(["TCP", "UDP", "SCTP"]),
)
def test_what_kubernetes_injects_for_a_service_is_ignored(service: str, label: str, port: int, kind: str) -> None:
    made = {name: value for name, value in injected(service, {label: (port, kind)}).items() if name not in VARIABLES}
    assert read_settings(made, project=Path("/project")) == read_settings({}, project=Path("/project"))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OFFSETLAKE_LAKES", "OFFSETLAKE_LAKE"),
        ("dagster_home", "DAGSTER_HOME"),
        ("OFFSET_LAKE_HOME", "OFFSETLAKE_HOME"),
        ("OFFSETLAKE_KAFKA_PROPERTY", "OFFSETLAKE_KAFKA_PROPERTIES"),
        *((name, None) for name in ("OFFSETLAKE_FROBNICATE", "OFFSETLAKE_", "OFFSETLAKE_PORT")),
    ],
)
def test_a_near_miss_is_refused_with_the_name_that_was_meant(name: str, meant: str | None) -> None:
    """And so is all that begins like ours: a port that a person sets is no link of Kubernetes, which begins with tcp://."""
    said = f"{meant} was probably meant" if meant else "nothing was started"
    with pytest.raises(BadSetting, match=f"environment variable {name} is not one of .*{said}"):
        read_settings({name: "8080"})


@given(name=st.sampled_from([*OUR_NAMES, "DAGSTER_HOME"]), seed=st.integers(0, 2**32))
def test_any_single_slip_of_the_finger_is_refused(name: str, seed: int) -> None:
    drawn = random.Random(seed)
    at = drawn.randrange(len(name))
    letter = drawn.choice(string.ascii_uppercase + "_")
    swapped = name[:at] + name[at : at + 2][::-1] + name[at + 2 :]
    slips = {name[:at] + name[at + 1 :], name[:at] + letter + name[at:], name[:at] + letter + name[at + 1 :], swapped}
    for slip in slips - set(VARIABLES):
        with pytest.raises(BadSetting, match=f"environment variable {slip} is not one of .* was probably meant"):
            read_settings({slip: "x"})


def test_what_has_nothing_to_do_with_us_is_left_alone() -> None:
    names = "DELTALAKE_HOME LAKE OFFSET DAGSTER_HOME_OLD DAGSTER_HOME_2 DAGSTER_CLOUD_HOME DAGSTER_IS_DEV_CLI DAGSTER_HOST"
    others = {"KAFKA_PORT": "tcp://10.0.0.1:9092", **dict.fromkeys(names.split(), "1")}
    assert read_settings(others, project=Path("/project")) == read_settings({}, project=Path("/project"))


@pytest.mark.parametrize(
    ("environment", "file", "is_on"),
    [
        ({}, None, False),
        ({"OPENLINEAGE_URL": "http://127.0.0.1:5000"}, None, True),
        ({"OPENLINEAGE_CONFIG": "lineage.yml"}, None, True),
        ({"OPENLINEAGE_URL": "http://127.0.0.1:5000", "OPENLINEAGE_DISABLED": "True"}, None, False),
        *(({}, place, True) for place in ("openlineage.yml", ".openlineage/openlineage.yml")),
        ({"OPENLINEAGE_DISABLED": "true"}, "openlineage.yml", False),
    ],
)
def test_its_own_variables_or_its_own_file_turn_lineage_on(
    environment: dict[str, str], file: str | None, is_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    if file:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("transport: {type: console}\n")
    assert read_settings(environment).lineage is is_on


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project as `init` writes it, in a folder whose name needs quoting."""
    folder = tmp_path / "my lake's"
    write_project(plan_project(folder, ["orders"], None))
    write_env(folder, read_settings(project=folder).dagster_home)
    return folder


def home_of_dagster_dev(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home that `dagster dev` and `dg dev` open in a folder: by Dagster's own function that both call."""
    with monkeypatch.context() as inside:
        inside.chdir(folder)
        with get_possibly_temporary_instance_for_cli("dagster dev", logger=logging.getLogger("quiet")) as instance:
            return Path(instance.root_directory)


def test_dagster_dev_takes_the_home_of_the_commands(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is stronger than the file, for Dagster as for the commands."""
    home, elsewhere = read_settings(project=project).dagster_home, tmp_path / "elsewhere"
    assert home_of_dagster_dev(project, monkeypatch) == home
    assert home == project / ".offsetlake" / "dagster"
    assert (home / "dagster.yaml").read_text() == (project / "dagster.yaml").read_text()
    elsewhere.mkdir()
    with monkeypatch.context() as exported:
        exported.setenv("DAGSTER_HOME", str(elsewhere))
        assert home_of_dagster_dev(project, monkeypatch) == read_settings(project=project).dagster_home == elsewhere
    (project / ".env").unlink()
    assert ".tmp_dagster_home_" in home_of_dagster_dev(project, monkeypatch).name, "the control: else it is thrown away"


def test_a_home_that_begins_anew_is_said_unless_it_is_the_projects_own(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """U4: a mistyped DAGSTER_HOME shows nothing of before, and would record elsewhere without a word; it is said once."""
    monkeypatch.chdir(project)
    mistyped = tmp_path / "dagstre"
    with open_instance(mistyped):
        assert f"DAGSTER_HOME {mistyped} was empty: a new history of runs begins there" in capsys.readouterr().err
    for home in (mistyped, read_settings(project=project).dagster_home):
        with open_instance(home):
            assert "a new history" not in capsys.readouterr().err, "the control"
    with find_instance(tmp_path / "none") as instance:
        assert instance.is_ephemeral, "looking makes no home"
    (mistyped / "dagster.yaml").unlink()
    with find_instance(mistyped) as instance:
        assert not instance.is_ephemeral and capsys.readouterr().err == "", "it is there, though somebody deleted that"


def test_what_a_person_writes_into_the_file_holds_for_the_commands_too(project: Path, tmp_path: Path) -> None:
    (project / ".env").write_text(f"DAGSTER_HOME={tmp_path}/shared\nOFFSETLAKE_LAKE=s3://bucket/lake\n")
    found = read_settings(project=project)
    assert (found.dagster_home, found.lake) == (tmp_path / "shared", "s3://bucket/lake")
    assert read_settings({"OFFSETLAKE_HOME": "/x"}, project).dagster_home == Path("/x/dagster")
    assert read_settings({"OFFSETLAKE_LAKE": "/x"}, project).lake == "/x", "what the environment says itself holds"


def test_a_file_that_came_with_a_moved_folder_is_refused(project: Path, tmp_path: Path) -> None:
    """A copied project would record in the first one's home."""
    check_home(project)
    moved = tmp_path / "moved"
    shutil.copytree(project, moved)
    with pytest.raises(BadSetting, match=r"\.env is .*my lake's/\.offsetlake/dagster, the home of another folder than"):
        check_home(moved)
    for exported in ("DAGSTER_HOME", "OFFSETLAKE_HOME"):  # what `.env` says of Dagster's home does not count then
        check_home(moved, {exported: "/srv/dagster"})
    linked = tmp_path / "link"
    linked.symlink_to(project)
    check_home(linked)


def test_a_home_that_the_environment_moved_is_kept(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next shell: `.env` names both. The control is one that names the default home of another folder alone."""
    (project / ".env").unlink()
    shared = tmp_path / "elsewhere" / ".offsetlake"
    monkeypatch.setenv("OFFSETLAKE_HOME", str(shared))
    write_env(project, read_settings(project=project).dagster_home)
    monkeypatch.delenv("OFFSETLAKE_HOME")
    check_home(project)
    found = read_settings(project=project)
    assert (found.dagster_home, found.lake) == (shared / "dagster", str(shared / "lake"))
    (project / ".env").write_text(f"DAGSTER_HOME={shared}/dagster\n")
    with pytest.raises(BadSetting, match="the home of another folder than"):
        check_home(project)


def test_a_project_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """Half-way, as where the disk is full."""
    files = plan_project(tmp_path / "half", ["orders"], None)
    max(files).mkdir(parents=True)
    with pytest.raises(Refused, match="is a directory; no file of the project is left"):
        write_project(files)
    assert [path for path in (tmp_path / "half").rglob("*") if path.is_file()] == []


def test_a_code_location_without_a_home_does_not_load(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would record is deleted when `dagster dev` ends: started in another folder, or in a clone without `.env`.

    Definitions that are only checked load: `dg check defs` says that it is `dagster dev`.
    """
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    said = r"started by `dagster dev` without DAGSTER_HOME.*nothing was started; .*`offsetlake doctor`"
    with pytest.raises(BadSetting, match=said):
        build_defs(project=project)
    check_home(project.parent, {"DAGSTER_IS_DEV_CLI": "1", "DAGSTER_IS_DEFS_VALIDATION_CLI": "1"})
    monkeypatch.setenv("DAGSTER_HOME", str(project))
    check_home(project)


def test_the_file_keeps_what_it_has_is_not_committed_and_is_told_where_it_cannot_be_written(project: Path) -> None:
    assert {".env", ".offsetlake/", ".tmp_dagster_home_*"} <= set((project / ".gitignore").read_text().splitlines())
    (project / ".env").write_text("AWS_REGION=eu-north-1")
    write_env(project, project / ".offsetlake" / "dagster")
    assert (project / ".env").read_text().startswith("AWS_REGION=eu-north-1\n# Read by")
    write_env(project, project / "again")
    assert "again" not in (project / ".env").read_text()
    (project / ".env").unlink()
    (project / ".env").mkdir()
    with pytest.raises(BadSetting, match=r"\.env cannot be written: is a directory; .*add the line yourself: DAGSTER_HOME="):
        write_env(project, project / "home")


def test_a_history_that_cannot_be_opened_is_told_and_which_of_two_configurations_counts(project: Path) -> None:
    home = project / ".offsetlake" / "dagster"
    with open_instance(home):
        runs = home / "history" / "runs.db"  # the control: it is made, and opens
    runs.write_bytes(b"torn by a power cut" * 9)
    with pytest.raises(HistoryUnavailable, match=f"{home} cannot be opened: file is not a database.*; .*offsetlake rebuild"):
        open_instance(home)
    assert find_other_config(home, project) == "", "the control"
    (project / "dagster.yaml").write_text("concurrency: {}\n")
    assert find_other_config(home, project).startswith(f"{home / 'dagster.yaml'} counts, and {project / 'dagster.yaml'}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("storage: [\n", r"it is not what Dagster expects in line 2"),
        ("storage:\n  postgres: {postgres_url: [hush]}\n", "it is not what .* its key storage.postgres.postgres_url;"),
        ("event_log_storage: {module: no_such_module, class: X}\n", ".*import module no_such_module"),
    ],
)
def test_a_configuration_that_dagster_does_not_take_is_told_without_its_values(text: str, reason: str, project: Path) -> None:
    home = project / ".offsetlake" / "dagster"
    (home / "dagster.yaml").write_text(text)
    with pytest.raises(BadSetting, match=f"dagster.yaml cannot be used: {reason}") as told:
        open_instance(home)
    assert "hush" not in str(told.value)


def test_the_demo_is_refused_outside_the_checkout(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topic is not installed; nothing is started before that is said."""
    monkeypatch.chdir(project)
    refused = CliRunner().invoke(cli, ["demo", "--once"])
    assert isinstance(refused.exception, Refused) and "nothing was started" in str(refused.exception)
