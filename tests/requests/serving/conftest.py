"""A server that several test modules send requests to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from placewright.requests.serving.server import Running, ServingOptions, serve
from tests.requests.serving.models import family


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """A server with one worker process."""
    with serve([family()], {"a": 1.0}, ServingOptions(port=0)) as found:
        yield found
