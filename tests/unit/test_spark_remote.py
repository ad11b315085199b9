"""A Spark of somebody else's, named by the environment or the `pyspark` resource: what is refused; no token is shown."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest
from dagster_pyspark import LazyPySparkResource

from pipeline_defs.adapters.spark import engine, remote_engine, spark_knock, spark_session
from pipeline_defs.adapters.spark.remote_engine import RemoteEngine
from pipeline_defs.core.errors import BadSetting, EngineUnavailable
from pipeline_defs.resources import Edges
from pipeline_defs.settings import read_settings

SECRET = "hush-4711"


def open_edges(folder: Path, remote: str | None = None) -> Edges:
    return Edges(dataclasses.replace(read_settings({}, folder), home=folder / "home", spark_remote=remote))


def configured(url: str) -> LazyPySparkResource:
    return LazyPySparkResource(spark_config={"spark.remote": url})


@pytest.mark.parametrize(
    "url", ["nonsense", "", " ", "http://h", "sc://", "sc://[::1", "sc://h:99999", "sc://a..b", f"sc://h/;token={SECRET}/a"]
)
def test_a_remote_of_the_resource_is_checked_as_that_of_the_environment(url: str, tmp_path: Path) -> None:
    said = r"spark\.remote of the `pyspark` resource cannot be used: .*nothing was started"
    with pytest.raises(BadSetting, match=said) as told:
        open_edges(tmp_path).engine(configured(url))
    assert SECRET not in str(told.value)


def test_a_token_in_the_resource_is_refused_for_dagster_stores_it(tmp_path: Path) -> None:
    """The controls: TLS alone is no secret, and the token of the environment is not in the resource."""
    with pytest.raises(BadSetting, match=r"has the parameter token .*set the whole URL as OFFSETLAKE_SPARK_REMOTE") as told:
        open_edges(tmp_path).engine(configured(f"sc://h:1/;use_ssl=true;token={SECRET}"))
    assert SECRET not in str(told.value)
    assert isinstance(open_edges(tmp_path).engine(configured("sc://h:1/;use_ssl=true")), RemoteEngine)
    edges = open_edges(tmp_path, f"sc://h:1/;use_ssl=true;token={SECRET}")
    found = edges.engine(edges.pyspark())
    assert SECRET not in str(edges.pyspark().spark_config)
    assert found.url.endswith(SECRET)


def test_what_sparks_client_says_of_a_url_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows the whole path; the control is its own words."""
    from pyspark.errors import PySparkValueError

    url = f"sc://localhost:1/;token={SECRET}/abc"
    with pytest.raises(PySparkValueError, match=SECRET):
        spark_session.open_session(url)
    monkeypatch.setattr(engine.Engine, "_why_silent", lambda *_, **__: None)
    with pytest.raises(BadSetting, match="OFFSETLAKE_SPARK_REMOTE") as told:
        RemoteEngine(url).session({})
    assert SECRET not in "".join(traceback.format_exception(told.value))


def url_of(listener: socket.socket) -> str:
    return f"sc://127.0.0.1:{listener.getsockname()[1]}"


def refuse(listener: socket.socket) -> None:
    """Answer everybody as a web server does, until the socket is closed."""
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return
        with caller:
            caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


KNOCKING = """
import sys
from pipeline_defs.adapters.spark import remote_engine
from pipeline_defs.core.errors import EngineUnavailable
remote_engine.REFUSED_SECONDS = 0.0
try:
    remote_engine.RemoteEngine(sys.argv[1]).session({})
except EngineUnavailable as error:
    print(error)
"""


def test_grpc_prints_nothing_where_a_token_is_for_a_server_without_tls(listener: socket.socket) -> None:
    """It would print a line for each try; what is said has both ways. The control: it prints where it is told to."""
    threading.Thread(target=refuse, args=[listener], daemon=True).start()
    command = [sys.executable, "-c", KNOCKING, f"{url_of(listener)}/;token={SECRET}"]
    plain = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    assert ";use_ssl=true where it speaks TLS; where it does not, with ;use_ssl=false, and without a token" in done.stdout
    done = subprocess.run(
        command, env=plain | {"GRPC_VERBOSITY": "INFO"}, capture_output=True, text=True, check=True, timeout=60
    )
    assert "Handshake failed" in done.stderr


def test_only_a_remote_that_says_nothing_is_waited_for(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server, or a broker, is none after a minute either. The control says nothing."""
    monkeypatch.setattr(engine.Engine, "_why_silent", lambda *_, **__: "a minute was waited")
    monkeypatch.setattr(remote_engine, "REFUSED_SECONDS", 0.0)
    threading.Thread(target=refuse, args=[listener], daemon=True).start()
    with pytest.raises(EngineUnavailable, match="UNAVAILABLE: "):
        RemoteEngine(url_of(listener)).session({})
    with socket.socket() as frozen:
        frozen.bind(("127.0.0.1", 0))
        frozen.listen()
        monkeypatch.setattr(spark_knock, "ANSWER_SECONDS", 0.1)
        with pytest.raises(EngineUnavailable, match="a minute was waited"):
            RemoteEngine(url_of(frozen)).session({})
