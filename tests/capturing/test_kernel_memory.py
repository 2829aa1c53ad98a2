"""Memory of oneDNN's LSTM kernels: as processes need it, and in the judged peak."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.kernel_memory import BACKWARD
from placewright.capturing.model import capture
from placewright.capturing.program_calls import RECURRENT, resolve_target
from placewright.cluster.cluster import Cluster, Device
from placewright.graph.program import SCRATCH
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.profiling.build import profile
from placewright.runtime.memory_use import MemoryUse

STEPS, BATCH, READ, HIDDEN = 40, 4, 700, 1000


def test_a_process_needs_what_is_counted() -> None:
    """Beside what the two kernels make, within a tenth; the workspace is as large as said."""
    layer = nn.LSTM(READ, HIDDEN)
    graph = capture(layer, torch.zeros(STEPS, BATCH, READ), training=True)
    said = {tensor.name: tensor.bytes for tensor in graph.tensors}
    x, states = torch.zeros(STEPS, BATCH, READ), [torch.zeros(BATCH, HIDDEN)] * 2
    weights = [value.detach() for value in layer.parameters()]
    fixed = (2, HIDDEN, 1, True, False)
    forward = (x, *weights, *states, False, [], *fixed, False, True)
    made = resolve_target(RECURRENT)(*forward)
    assert made[3].nbytes == said["mkldnn_rnn_layer.3"]
    gradients = [torch.zeros_like(value) for value in made[:3]]
    back = (x, *weights, *states, *made[:3], *gradients, False, *fixed[:3])
    kernel = resolve_target(BACKWARD)

    def backward() -> list[Tensor]:
        found: list[Tensor] = kernel(*back, True, True, False, [], False, made[3])
        return found

    backward()  # code, and pages of the workspace
    memory = MemoryUse(["cpu"])
    memory.begin()
    needed = -sum(value.nbytes for value in backward()) + memory.peaks()[0]
    assert needed == pytest.approx(said[f"{SCRATCH}mkldnn_rnn_layer_backward"], rel=0.1)


def test_the_judge_counts_it_while_the_kernel_runs() -> None:
    """An inference step of one layer: the peak is in its kernel, its weights held twice."""
    graph = capture(nn.LSTM(60, 50), torch.zeros(2, 1, 60))
    problem = profile(graph, Cluster((Device("a"),), ()), method="analytic")
    plan = OperatorPlan(torch.zeros(problem.n, dtype=torch.int64).numpy())
    weights, biases = 4 * 200 * (60 + 50), 4 * 400
    assert problem.resident_bytes.sum() == weights + biases
    assert judge(problem, plan).peak_bytes[0] > 2 * weights + biases
