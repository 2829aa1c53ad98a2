"""Bytes and signatures, and the workspace of oneDNN's LSTM kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from placewright.capturing.lowering import spec_bytes
from placewright.capturing.model import capture
from placewright.capturing.program_calls import RECURRENT, resolve_target
from placewright.cluster.cluster import Cluster, Device
from placewright.graph.graph import SCRATCH, TensorSpec
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.profiling.profiler import profile
from tests.capturing.small_graphs import only_operator


def test_bytes_accessed_are_arguments_and_results() -> None:
    """A view accesses nothing."""
    graph = capture(nn.Linear(5, 7), torch.randn(3, 5))
    assert only_operator(graph, "aten.addmm.default").bytes_accessed == 4 * (
        3 * 5 + 5 * 7 + 7 + 3 * 7
    )
    assert only_operator(graph, "aten.t.default").bytes_accessed == 0


class Lookups(nn.Module):
    """The four ways to pick a few rows of something large."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 4)

    def forward(self, large: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Two rows of four numbers each, every time."""
        spread = rows[:, None].expand(2, 4).contiguous()
        return (
            self.table(rows),
            large.gather(0, spread),
            large.index_select(0, rows),
            large[rows],
        )


def test_lookups_access_what_they_pick() -> None:
    """Twice the result and once the indices, however large the source."""
    graph = capture(Lookups(), (torch.randn(1000, 4), torch.tensor([3, 5])))
    result, rows, spread = 4 * 2 * 4, 8 * 2, 8 * 2 * 4
    for kind, indices in (
        ("aten.embedding.default", rows),
        ("aten.gather.default", spread),
        ("aten.index_select.default", rows),
        ("aten.index.Tensor", rows),
    ):
        assert only_operator(graph, kind).bytes_accessed == 2 * result + indices


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        (TensorSpec((2, 3), "float32", (3, 1)), 24),
        (TensorSpec((), "int64", ()), 8),
        (TensorSpec((0, 4), "bool", (4, 1)), 0),
        (TensorSpec((4,), "bfloat16", (1,)), 8),
        (TensorSpec((0,), "none"), 0),
    ],
)
def test_bytes_of_a_spec(spec: TensorSpec, size: int) -> None:
    """Elements times the size of one."""
    assert spec_bytes(spec) == size


def test_equal_calls_have_equal_signatures_and_others_do_not() -> None:
    """Two equal layers cost the same; another size, stride or constant may not."""
    same = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 5))
    graph = capture(same, torch.randn(2, 4))
    linear = [op.signature for op in graph.operators if op.kind == "aten.addmm.default"]
    assert linear[0] == linear[1] != linear[2]
    pools = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.MaxPool2d(3, 1, 1), nn.MaxPool2d(5, 1, 2))
    graph = capture(pools, torch.randn(1, 2, 6, 6))
    pool = [op.signature for op in graph.operators]
    assert pool[0] == pool[1] != pool[2]
    x = torch.randn(2, 3, 4, 4)
    rows, columns = (
        capture(nn.ReLU(), x.to(memory_format=layout))
        for layout in (torch.contiguous_format, torch.channels_last)
    )
    assert rows.operators[0].signature != columns.operators[0].signature


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
