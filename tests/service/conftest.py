"""One service for all tests that leave it as it was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from placewright.web.client import Client
from tests.service.serving import Serving


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The service."""
    made = Serving(tmp_path_factory.mktemp("service"), "--jobs", "2")
    made.start()
    yield made
    made.end()


@pytest.fixture
def client(serving: Serving) -> Client:
    """A client of it."""
    return Client(serving.url)


CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of the system."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page in which nothing goes wrong: no error of a script, nothing refused by its rules."""
    made, wrong = browser.new_page(), list[str]()
    made.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    made.on("pageerror", lambda error: wrong.append(str(error)))
    yield made
    made.close()
    assert wrong == []
