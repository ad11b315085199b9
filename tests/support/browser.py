"""A real browser for the tests: Chrome or Chromium as it is found, or Debian's package, installed where that is allowed.

`python -m tests.support.browser` finds one and says in a line which; `make test` does that before any test runs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import stamina
from playwright.sync_api import Browser, Locator, Page, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

NAMES = ("google-chrome", "google-chrome-stable", "chrome", "chromium", "chromium-browser")
PACKAGE = "chromium"
PATIENCE_MS = 120_000
WIDTH, HEIGHT = 1200, 700
FLAGS = [
    "--no-sandbox",  # root may not have one; the only pages are our own, on loopback
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


class NoBrowserError(Exception):
    """Says that there is no browser, and how to get one."""


def find_browser() -> Path:
    """Find a browser on the PATH, else Playwright's own, else install Debian's; raises `NoBrowserError` where none is."""
    found = _on_path()
    if found is None and (playwrights := playwrights_own()).is_file():
        found = playwrights
    if found is None:
        reason = install_debians()
        found = _on_path()
        if found is None:
            raise NoBrowserError(
                f"no browser for the tests: none of {', '.join(NAMES)} is on the PATH, Playwright has none of its own, and "
                f"Debian's package {PACKAGE} {reason or 'put none on the PATH'}; install Chrome or Chromium, or run "
                "`.venv/bin/playwright install chromium`, then `make test` again"
            )
    return found


def playwrights_own() -> Path:
    """Where a browser that Playwright has downloaded would lie."""
    with sync_playwright() as playwright:
        return Path(playwright.chromium.executable_path)


def install_debians() -> str | None:
    """Install Debian's package where this user may; return why not."""
    apt = shutil.which("apt-get")
    if apt is None:
        return "cannot be installed: there is no apt-get"
    sudo: list[str] = []
    if os.geteuid() != 0:
        tool = shutil.which("sudo")
        if tool is None or subprocess.run([tool, "-n", "true"], capture_output=True, check=False).returncode:
            return "cannot be installed: this user is not root and has no sudo without a password"
        sudo = [tool, "-n"]
    print(f"browser: installing Debian's package {PACKAGE}, once, about a minute", file=sys.stderr, flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", PACKAGE]):
        done = subprocess.run([*sudo, apt, *words], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            return f"cannot be installed: apt-get {words[0]} says {' '.join(last)!r}"
    return None


def open_page(chromium: Browser) -> Page:
    """Open an empty page of a new profile, that waits for what it is asked for."""
    context = chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT}, timezone_id="UTC")
    context.set_default_timeout(PATIENCE_MS)
    return context.new_page()


def open_dialog(page: Page) -> Locator:
    """Open the dialog that asks which partitions to materialise."""
    page.get_by_role("button", name="Materialize…").click()
    return page.get_by_role("dialog").filter(has_text="Partition selection")


def load_until(page: Page, url: str, words: str) -> None:
    """Load a page until it shows the words, as a person would who waits for something to end."""
    for attempt in stamina.retry_context(on=PlaywrightTimeout, timeout=300, attempts=None, wait_max=1):
        with attempt:
            page.goto(url)
            page.get_by_text(words).filter(visible=True).first.wait_for(timeout=15_000)


def read_version(executable: Path) -> str:
    with tempfile.TemporaryDirectory() as profile:
        command: Sequence[str] = [str(executable), f"--user-data-dir={profile}", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode or not done.stdout.strip():
        raise NoBrowserError(
            f"the browser {executable} does not start: {done.stderr.strip() or 'it says nothing'}; mend or remove it, then "
            "run `make test` again"
        )
    return done.stdout.strip()


def _on_path() -> Path | None:
    return next((Path(found) for name in NAMES if (found := shutil.which(name))), None)


if __name__ == "__main__":
    try:
        executable = find_browser()
        print(f"browser: {executable} ({read_version(executable)})", file=sys.stderr)
    except NoBrowserError as error:
        sys.exit(f"browser: {error}")
