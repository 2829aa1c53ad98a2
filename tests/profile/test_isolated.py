"""One operator at a time on made-up inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from placewright.capture.model import capture
from placewright.graph.program import Instruction
from placewright.profile.isolated import Bench, isolated_seconds
from tests.execute.chain import diamond


def test_a_recurrent_backward_has_a_real_workspace() -> None:
    """Its kernel reads a workspace whose size no spec knows; an empty one ends the process."""
    graph = capture(nn.LSTM(5, 7, num_layers=2), torch.randn(11, 3, 5), training=True)
    seconds = isolated_seconds(graph, repeats=1)
    kinds = [op.kind for op in graph.operators]
    backward = [k for k, kind in enumerate(kinds) if "mkldnn_rnn_layer_backward" in kind]
    assert len(backward) == 2
    assert (seconds[backward] > 0).all()


def test_operators_without_a_signature_have_costs_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal signatures are measured once, unknown ones each."""
    measured: list[str] = []

    def seconds(bench: Bench, instruction: Instruction) -> float:
        measured.append(instruction.name)
        return float(len(measured))

    monkeypatch.setattr(Bench, "seconds", seconds)
    graph, _ = diamond()
    assert isolated_seconds(graph).tolist() == [1.0, 2.0, 3.0, 4.0]
    alike = [replace(op, signature="s" * (op.name in "bd")) for op in graph.operators]
    measured.clear()
    found = isolated_seconds(replace(graph, operators=tuple(alike)))
    assert (measured, found.tolist()) == (["a", "b", "c"], [1.0, 2.0, 3.0, 2.0])


def test_what_refuses_made_up_inputs_is_not_a_number() -> None:
    """A factorisation of a matrix that is not square has no time; the others do."""
    graph, _ = diamond("aten.linalg_cholesky.default")
    assert np.isnan(isolated_seconds(graph)).tolist() == [True, False, False, False]
