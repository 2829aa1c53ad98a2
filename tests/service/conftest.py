"""One service for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from placewright.service.client import Client
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
