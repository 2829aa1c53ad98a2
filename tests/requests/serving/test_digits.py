"""The family trained on scikit-learn's digits."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.requests.serving.digits import accuracy, digits, held_out
from placewright.requests.serving.models import open_session

pytest.importorskip("torch")


def test_accuracy_is_that_of_held_out_images() -> None:
    """Above guessing by far, the larger the better, and what anybody counts again."""
    found = digits(("linear", "mlp"))
    linear, mlp = found.variants
    assert 0.9 < linear.accuracy < mlp.accuracy < 1.0
    x, y = held_out()
    answers = open_session(mlp.model, "mlp").run(None, {"image": x})[0]
    assert answers.sum(axis=1) == pytest.approx(np.ones(len(x)), abs=1e-5)
    assert accuracy(mlp.model) == mlp.accuracy == np.mean(answers.argmax(axis=1) == y)
    assert found.inputs[0].shape == (-1, 64)
    assert found.outputs[0].name == "probabilities"
