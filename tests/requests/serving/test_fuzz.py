"""Schemathesis on the OpenAPI file; `benchmarks/serving_malformed.py` sends 10,000 requests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewright.requests.serving.server import Running
from tests.requests.serving.test_server import body, infer

schemathesis = pytest.importorskip("schemathesis")


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_schema(running: Running, mode: str) -> None:
    """What the schema allows and what it does not: an answer it lists, never a 5xx or a crash."""
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    generation = schemathesis.GenerationMode(mode)
    operation = schema["/v2/models/{name}/infer"]["POST"]

    @given(case=operation.as_strategy(generation_mode=generation))
    @settings(max_examples=10, deadline=None, database=None)
    def each(case: schemathesis.Case) -> None:
        answer = case.call()
        assert 200 <= answer.status_code < 500
        if answer.status_code != 200:
            assert answer.json()["error"]

    each()
    assert infer(running, body())[0] == 200


@given(st.binary(max_size=200))
@settings(max_examples=25)
def test_noise(running: Running, noise: bytes) -> None:
    """A body of noise is refused."""
    status, _, answer = infer(running, noise)
    assert status == 400
    assert answer["error"]
