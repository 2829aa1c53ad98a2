"""Workers of these tests train."""

from __future__ import annotations

from typing import Any

import pytest

from placewright.layers.execution import layer_problem
from placewright.layers.problem import LayerProblem
from tests.processes import preload_training

preload_training()


@pytest.fixture(scope="module")
def _measured() -> dict[Any, LayerProblem]:
    """Problems by what they are of."""
    return {}


@pytest.fixture
def measured_once(monkeypatch: pytest.MonkeyPatch, _measured: dict[Any, LayerProblem]) -> None:
    """Measure a model in the first test of a file only: plans are given, costs do not matter."""
    measure = layer_problem.measured_problem

    def measured(session: Any, *, exact: bool = False) -> LayerProblem:
        model = session.model
        names = tuple(layer.name for layer in model.layers)
        devices, moments = session.cluster.device_names, session.update.moments
        key = names, model.batch, model.step.autocast, devices, moments, exact
        if key not in _measured:
            _measured[key] = measure(session, exact=exact)
        return _measured[key]

    monkeypatch.setattr(layer_problem, "measured_problem", measured)
