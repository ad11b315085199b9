"""The environment: what Kubernetes injects is nobody's setting, a misspelt one is refused, lineage is off until it is set."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BadSetting
from pipeline_defs.settings import PREFIX, VARIABLES, read_settings
from tests.support import strategies  # noqa: F401  -- its profile: a fixed seed, more with HUNT

OURS = sorted(name for name in VARIABLES if name.startswith(PREFIX))


def injected(service: str, ports: dict[str, tuple[int, str]]) -> dict[str, str]:
    """Return what a kubelet sets for a Service, as `pkg/kubelet/envvars` makes it."""
    name = service.upper().replace("-", "_")
    first, protocol = next(iter(ports.values()))
    made = {
        f"{name}_SERVICE_HOST": "10.96.0.12",
        f"{name}_SERVICE_PORT": str(first),
        f"{name}_PORT": f"{protocol.lower()}://10.96.0.12:{first}",
    }
    for label, (port, kind) in ports.items():
        if label:
            made[f"{name}_SERVICE_PORT_{label.upper().replace('-', '_')}"] = str(port)
        own = f"{name}_PORT_{port}_{kind}"
        made[own] = f"{kind.lower()}://10.96.0.12:{port}"
        made |= {f"{own}_PROTO": kind.lower(), f"{own}_PORT": str(port), f"{own}_ADDR": "10.96.0.12"}
    return made


@pytest.mark.parametrize(
    "service",
    [
        "offsetlake",
        "offsetlake-lake",
        "offsetlake-home",
        "offsetlake-metrics-2",
        "dagster-home",
        "dagster-home-2",
        *(name.lower().replace("_", "-").replace("offsetlake", "offset-lake") for name in OURS),
        *(name.lower().replace("_", "-") + "-2" for name in OURS),
    ],
)
def test_what_kubernetes_injects_for_a_service_is_ignored(service: str) -> None:
    ports = {"http": (8080, "TCP"), "metrics-web": (9308, "TCP"), "": (53, "UDP")}
    settings = read_settings(injected(service, ports) | {"OFFSETLAKE_LAKE": "/somewhere"}, project=Path("/project"))
    assert settings == read_settings({"OFFSETLAKE_LAKE": "/somewhere"}, project=Path("/project"))


@given(
    service=st.from_regex(r"([a-z]{1,3}-)?offset-?lake(-[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?)?", fullmatch=True),
    label=st.from_regex(r"[a-z]([a-z0-9-]{0,12}[a-z0-9])?", fullmatch=True),
    port=st.integers(1, 65_535),
    kind=st.sampled_from(["TCP", "UDP", "SCTP"]),
)
def test_whatever_the_service_is_called(service: str, label: str, port: int, kind: str) -> None:
    made = {name: value for name, value in injected(service, {label: (port, kind)}).items() if name not in VARIABLES}
    assert read_settings(made, project=Path("/project")) == read_settings({}, project=Path("/project"))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OFFSETLAKE_LAKES", "OFFSETLAKE_LAKE"),
        ("OFFSETLAKE_LAEK", "OFFSETLAKE_LAKE"),
        ("DAGSTER_HMOE", "DAGSTER_HOME"),
        ("DAGSTERHOME", "DAGSTER_HOME"),
        ("dagster_home", "DAGSTER_HOME"),
        ("OFFSETLAKE_BOOTSTRAP_SERVER", "OFFSETLAKE_BOOTSTRAP_SERVERS"),
        ("OFFSET_LAKE_HOME", "OFFSETLAKE_HOME"),
        ("offsetlake_lake", "OFFSETLAKE_LAKE"),
        ("OFFSETLAKE_ALERTS_URL", "OFFSETLAKE_ALERT_URLS"),
        ("OFFSETLAKE_KAFKA_PROPERTY", "OFFSETLAKE_KAFKA_PROPERTIES"),
    ],
)
def test_a_near_miss_is_refused_with_the_name_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(BadSetting, match=f"environment variable {name} is not one of .*{meant} was probably meant"):
        read_settings({name: "x"})


@given(name=st.sampled_from([*OURS, "DAGSTER_HOME"]), seed=st.integers(0, 2**32))
def test_any_single_slip_of_the_finger_is_refused(name: str, seed: int) -> None:
    drawn = random.Random(seed)
    at = drawn.randrange(len(name))
    letter = drawn.choice(string.ascii_uppercase + "_")
    swapped = name[:at] + name[at : at + 2][::-1] + name[at + 2 :]
    slips = {name[:at] + name[at + 1 :], name[:at] + letter + name[at:], name[:at] + letter + name[at + 1 :], swapped}
    for slip in slips - set(VARIABLES):
        with pytest.raises(BadSetting, match=f"environment variable {slip} is not one of .* was probably meant"):
            read_settings({slip: "x"})


@pytest.mark.parametrize("name", ["OFFSETLAKE_FROBNICATE", "OFFSETLAKE_", "OFFSETLAKE_PORT"])
def test_our_prefix_is_ours(name: str) -> None:
    """A port that a person sets is no link of Kubernetes: those begin with tcp://."""
    with pytest.raises(BadSetting, match=f"environment variable {name} is not one of .*nothing was started"):
        read_settings({name: "8080"})


def test_what_has_nothing_to_do_with_us_is_left_alone() -> None:
    others = {
        "KAFKA_PORT": "tcp://10.0.0.1:9092",
        "DELTALAKE_HOME": "x",
        "LAKE": "x",
        "OFFSET": "1",
        "DAGSTER_HOME_OLD": "x",
        "DAGSTER_HOME_2": "x",
        "DAGSTER_CLOUD_HOME": "x",
        "DAGSTER_IS_DEV_CLI": "1",
        "DAGSTER_HOST": "x",
    }
    assert read_settings(others, project=Path("/project")) == read_settings({}, project=Path("/project"))


@pytest.mark.parametrize(
    ("environment", "is_on"),
    [
        ({}, False),
        ({"OPENLINEAGE_NAMESPACE": "x"}, False),
        ({"OPENLINEAGE_URL": "http://127.0.0.1:5000"}, True),
        ({"OPENLINEAGE_CONFIG": "lineage.yml"}, True),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "console"}, True),
        ({"OPENLINEAGE_URL": "http://127.0.0.1:5000", "OPENLINEAGE_DISABLED": "True"}, False),
    ],
)
def test_its_own_variables_turn_it_on(
    environment: dict[str, str], is_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_settings(environment).lineage is is_on


@pytest.mark.parametrize("place", ["openlineage.yml", ".openlineage/openlineage.yml"])
def test_its_own_file_turns_it_on(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("transport: {type: console}\n")
    assert read_settings({}).lineage
    assert not read_settings({"OPENLINEAGE_DISABLED": "true"}).lineage
