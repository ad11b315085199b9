"""The login of a schema registry: never in an address, never in the clear to another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_defs.adapters.kafka.schema_registry import connect
from pipeline_defs.core.errors import BadSetting
from pipeline_defs.core.login.client_properties import ANYBODY, RegistryLogin
from pipeline_defs.orchestration.assets.derived_config import SideConfig

SECRET = "hush-4711"
LOGIN = RegistryLogin(f"reader:{SECRET}")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_login_in_the_address_is_refused_and_not_shown(tmp_path: Path, scheme: str) -> None:
    """I12: the address stands in errors, in documents of the lake and in Dagster."""
    config = SideConfig(format="avro", registry=f"{scheme}://reader:{SECRET}@registry.example:8081")
    with pytest.raises(BadSetting, match=r"`decode.value` .* has a login in it, expected the address alone") as caught:
        config.as_side("value", tmp_path)
    assert SECRET not in str(caught.value) + repr(caught.value.fields)
    without = SideConfig(format="avro", registry=f"{scheme}://registry.example:8081")
    assert without.as_side("value", tmp_path).registry == f"{scheme}://registry.example:8081", "the control"


@pytest.mark.parametrize("sign", ["?", "#"])
def test_a_token_behind_the_address_is_refused_and_not_shown(tmp_path: Path, sign: str) -> None:
    """I12: no registry is asked with it, and it would stand in errors."""
    config = SideConfig(format="avro", registry=f"http://registry.example:8081/{sign}token={SECRET}")
    with pytest.raises(BadSetting, match=r"`registry` address 1: it has \? or # in it \(what follows is not shown\)") as caught:
        config.as_side("value", tmp_path)
    assert SECRET not in str(caught.value) + repr(caught.value.fields)


@pytest.mark.parametrize("url", ["http://registry.example:8081", "http://10.0.0.7", "https://a,http://registry.example"])
def test_a_login_is_not_sent_in_the_clear_to_another_machine(url: str) -> None:
    """I12: whoever is on the way would read it; the error comes before anything is sent."""
    with pytest.raises(BadSetting, match=r"is asked over plain http, .* expected https://") as caught:
        connect(url, LOGIN)
    assert SECRET not in str(caught.value)
    assert connect(url, ANYBODY).url == url, "the control: nobody logs in"


@pytest.mark.parametrize("url", ["https://registry.example", "http://localhost:8081", "http://127.0.0.1:1", "http://[::1]:1"])
def test_a_login_goes_over_tls_or_to_this_machine(url: str) -> None:
    assert connect(url, LOGIN).url == url
