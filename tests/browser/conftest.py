"""What the browser tests share: a real Chromium, and pictures of what it shows where they are asked for."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from pipeline_defs.adapters.system.project_folder import PROJECT
from tests.support.browser import FLAGS, find_browser, open_page

PICTURES = PROJECT / "docs" / "pictures"
SHOP = Path("/tmp/shop")
Take = Callable[..., None]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One real browser for a module. Playwright's loop runs while it is open: nothing else may run one here."""
    executable = find_browser()  # which may ask Playwright too, and two of its loops cannot run at once
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=executable, args=FLAGS) as browser:
        yield browser


@pytest.fixture
def page(chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    """An empty page with a profile of its own; how it looked at the end is kept for who looks at a failure."""
    page = open_page(chromium)
    yield page
    page.screenshot(path=tmp_path / "last.png")
    page.context.close()


@pytest.fixture(scope="session")
def wants_pictures() -> bool:
    """Say whether `make pictures` runs: else the tree is left as it is."""
    return bool(os.environ.get("PICTURES"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, wants_pictures: bool) -> Iterator[Path]:
    """Where lake and Dagster of a desk lie: on pictures a path that a reader does not stumble over."""
    if not wants_pictures:
        yield tmp_path_factory.mktemp("desk")
        return
    SHOP.mkdir()  # what somebody else has there is not ours to use
    yield SHOP
    shutil.rmtree(SHOP)


@pytest.fixture
def picture(page: Page, wants_pictures: bool, tmp_path: Path) -> Take:
    """Take pictures, of the page or of one thing on it: for docs/dagster.md where asked for, else for a failure's reader."""
    folder = PICTURES if wants_pictures else tmp_path

    def take(name: str, of: Locator | None = None) -> None:
        (of or page).screenshot(path=folder / f"{name}.png", animations="disabled")

    return take
