"""Spark on a system that is read-only but for Offsetlake's folders, as the units of deploy/ have it, in a mount namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline_defs.adapters.spark.spark_server import stop_server
from pipeline_defs.adapters.system.jars import resolve_jars
from tests.conftest import JARS

pytestmark = pytest.mark.long
UNSHARE = [shutil.which("unshare") or "", "--mount", "--propagation", "private"]
# as systemd does: ProtectSystem=strict leaves /dev, /proc and /sys; what is below ReadWritePaths is mounted over itself first
STRICT = """
mount --bind "$OFFSETLAKE_HOME" "$OFFSETLAKE_HOME"
findmnt --raw --noheadings --output TARGET |
grep -Ev '^/(dev|proc|sys)(/|$)' | grep -Fvx "$OFFSETLAKE_HOME" |
while read -r each
do mount -o remount,bind,ro "$each"
done
"""
PRIVATE_TMP = "mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /var/tmp\n"
CONTROL = "if touch {} 2>/dev/null; then exit 99; fi\n"
RUN = f'exec "{sys.executable}" -m pipeline_defs.cli engine restart\n'


def can_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_unshare(), reason="needs a mount namespace of its own, which Linux gives to root")
@pytest.mark.parametrize("private", [True, False], ids=["private /tmp", "no /tmp"])
def test_spark_starts_where_only_its_home_is_writable(private: bool, tmp_path: Path) -> None:
    """With a /tmp of its own, as the units have it, and without any; the control: nothing else can be written."""
    home = tmp_path / "home"
    home.mkdir()
    resolve_jars("spark", JARS)
    (home / "jars").symlink_to(JARS)
    script = STRICT + CONTROL.format("/etc/x") + (PRIVATE_TMP if private else CONTROL.format("/tmp/x")) + RUN
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    environment |= {"OFFSETLAKE_HOME": str(home), "OFFSETLAKE_SPARK_DRIVER_MEMORY": "1g"}
    try:
        done = subprocess.run([*UNSHARE, "sh", "-euc", script], env=environment, capture_output=True, text=True, check=False)
    finally:
        stop_server(home / "engine")
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "runs" in done.stdout, said
