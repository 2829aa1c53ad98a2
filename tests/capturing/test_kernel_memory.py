"""Workspace of oneDNN's LSTM kernels, against their own report and in the judged peak."""

from __future__ import annotations

import torch
from torch import nn

from placewright.capturing.model import capture
from placewright.capturing.program_calls import RECURRENT, resolve_target
from placewright.cluster.cluster import Cluster, Device
from placewright.graph.program import SCRATCH
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.profiling.build import profile


def test_a_layer_says_how_large_its_workspace_is() -> None:
    """As the kernel makes it; scratch memory follows from shapes (`benchmarks/memory.py`)."""
    steps, batch, read, hidden = 11, 3, 5, 7
    layer, x = nn.LSTM(read, hidden), torch.zeros(steps, batch, read)
    graph = capture(layer, x, training=True)
    tensor_bytes = {tensor.name: tensor.bytes for tensor in graph.tensors}
    states = [torch.zeros(batch, hidden)] * 2
    fixed = (False, [], 2, hidden, 1, True, False, False, True)
    made = resolve_target(RECURRENT)(x, *layer.parameters(), *states, *fixed)
    assert tensor_bytes["mkldnn_rnn_layer.3"] == made[3].nbytes > 0
    weights, gates = 16 * hidden * (read + hidden), 16 * steps * batch * hidden
    assert tensor_bytes[f"{SCRATCH}mkldnn_rnn_layer"] == weights
    assert tensor_bytes[f"{SCRATCH}mkldnn_rnn_layer_backward"] == 2 * weights + gates


def test_the_judge_counts_it_while_the_kernel_runs() -> None:
    """An inference step of one layer: the peak is in its kernel, its weights held twice."""
    graph = capture(nn.LSTM(60, 50), torch.zeros(2, 1, 60))
    problem = profile(graph, Cluster((Device("a"),), ()), method="analytic")
    plan = OperatorPlan(torch.zeros(problem.n, dtype=torch.int64).numpy())
    weights, biases = 4 * 200 * (60 + 50), 4 * 400
    assert problem.resident_bytes.sum() == weights + biases
    assert judge(problem, plan).peak_bytes[0] > 2 * weights + biases
