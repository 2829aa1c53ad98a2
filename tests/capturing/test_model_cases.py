"""A dozen models placed on two workers equal eager; the whole list is benchmarks/models.py."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.model_cases.cases import CASES

from placewright.capturing.model import capture_source
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import UnsupportedError
from placewright.operators.check import check_session
from placewright.runtime.session import Session

PAIR = Cluster((Device("a"), Device("b")), name="pair")

DOZEN = [
    "autocast",
    "LSTM",
    "packed sequences",
    "tied weights",
    "LoRA",
    "input changed in place",
    "checkpointing, reentrant",
    "checkpointing, batch norm",
    "checkpointing, reentrant, batch norm",
    "loss with parameters",
    "mixtral",
    "llama, decode with a static cache, inference",
    "t5, decode, inference",
    "rotary by complex numbers",
    "frozen batch norm",
    "complex layer, conj(), inference",
    "weight norm, by hook",
    "loss: ignored labels",
]


@pytest.fixture(params=DOZEN)
def name(request: pytest.FixtureRequest) -> str:
    """Of a model."""
    if "llama" in request.param or request.param in ("mixtral", "t5, decode, inference"):
        pytest.importorskip("transformers")
    made: str = request.param
    return made


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_placed_model_equals_eager(name: str) -> None:
    """Three steps; operators alternate between two workers, group by group."""
    case = CASES[name]
    source = case.source()
    graph = capture_source(source, training=case.training)
    names = [op.colocation or op.name for op in graph.operators]
    first = {key: k for k, key in reversed(list(enumerate(names)))}
    half = np.median(list(first.values()))
    placement = [int(first[key] > half) for key in names]
    assert set(placement) == {0, 1}
    with Session(graph, PAIR, initial_state(source, graph.program)) as session:
        session.load(placement, range(len(names)), 3)
        check = check_session(session, source, seed=3, steps=3, devices=PAIR.devices)
        assert sum(len(part.receives) for part in session.parts) > 0
    assert check.max_abs_error == 0.0, str(check)


@pytest.mark.parametrize(
    "name",
    [
        "branching on a value",
        "weight read past its name",
        "layer drop by random",
        "counter in Python",
    ],
)
def test_what_cannot_be_captured_is_refused_by_name(name: str) -> None:
    """The model, and a way out."""
    case = CASES[name]
    with pytest.raises(UnsupportedError) as caught:
        capture_source(case.source(), training=True)
    assert caught.value.where.startswith("model ")
    assert caught.value.hint


def test_there_are_at_least_120() -> None:
    """Models and situations, some of them in several steps."""
    assert len({case.name for case in CASES.values()}) >= 120
