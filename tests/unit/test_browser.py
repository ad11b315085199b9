"""Which browser the tests take, and what is said where there is none; only what a machine lacks is faked, by scripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.browser import NoBrowserError, find_browser, install_debians, read_version


def write_script(path: Path, text: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def nothing() -> Path:
    return Path("/nowhere/chrome")


def refuse(path: str | None) -> str | None:
    return "cannot be installed: there is no apt-get"


def test_a_browser_on_the_path_comes_first(tmp_path: Path) -> None:
    chromium = write_script(tmp_path / "bin" / "chromium")
    own = write_script(tmp_path / "own" / "chrome")
    assert find_browser(str(tmp_path / "bin"), lambda: own, refuse) == chromium


def test_then_playwrights_own(tmp_path: Path) -> None:
    own = write_script(tmp_path / "own" / "chrome")
    assert find_browser(str(tmp_path), lambda: own, refuse) == own


def test_then_debians_is_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the real code, as root; apt-get and sudo are scripts that do what they are asked for."""
    chromium = tmp_path / "chromium"
    write_script(tmp_path / "sudo", 'while [ "$1" = -n ]; do shift; done; exec "$@"')
    write_script(tmp_path / "true")
    write_script(
        tmp_path / "apt-get",
        f'echo "$@" >> {tmp_path}/asked; [ "$1" = update ] || {{ echo "#!/bin/sh" > {chromium}; chmod 755 {chromium}; }}',
    )
    path = os.pathsep.join([str(tmp_path)])
    assert find_browser(path, nothing, install_debians) == chromium
    assert (tmp_path / "asked").read_text().splitlines() == ["update", "install -y --no-install-recommends chromium"]
    assert "installing Debian's package chromium" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "Debian's package chromium cannot be installed: there is no apt-get"),
        ("echo 'E: no network' >&2; exit 100", "apt-get update says 'E: no network'"),
    ],
)
def test_none_to_be_had_is_an_error_that_says_what_to_do(tmp_path: Path, script: str | None, words: str) -> None:
    """Never a skip: no browser, no proof."""
    write_script(tmp_path / "sudo", 'while [ "$1" = -n ]; do shift; done; exec "$@"')
    if script:
        write_script(tmp_path / "apt-get", script)
    with pytest.raises(NoBrowserError) as said:
        find_browser(str(tmp_path), nothing, install_debians)
    assert words in str(said.value)
    assert "install Chrome or Chromium, or run `.venv/bin/playwright install chromium`" in str(said.value)


def test_a_browser_that_does_not_start_is_named(tmp_path: Path) -> None:
    broken = write_script(tmp_path / "chromium", "echo 'libnss3.so: cannot open' >&2; exit 127")
    with pytest.raises(NoBrowserError, match=r"chromium does not start: libnss3.so: cannot open"):
        read_version(broken)
