"""Orders between operators that no value carries."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import linear

import placewright
from placewright.capturing.dataflow import resolve
from placewright.capturing.lowering import RESIDENT, Call, Lowered
from placewright.capturing.model import capture, capture_source
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.cluster.cluster import Cluster, Device
from placewright.graph.graph import Graph, Instruction, Program, ProgramInput, Ref, TensorSpec
from placewright.numerics.arrays import IntArray
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.problem import OperatorProblem
from placewright.profiling.profiler import profile
from small_zoo import small
from tests.capturing.live_memory import peak_bytes
from tests.capturing.models import UNSEEN, unseen
from tests.capturing.reference_interpreter import run
from tests.capturing.small_graphs import small_graph, unseen_graph

SPEC = TensorSpec((2,), "float32", (1,))


def step_of(*calls: Instruction) -> Lowered:
    """A step over one buffer ``b`` and one input ``x``."""
    inputs = (ProgramInput("b:", "buffer", "b", SPEC), ProgramInput("x:", "input", "0", SPEC))
    return Lowered(inputs, tuple(Call(call, (SPEC,) * len(call.results)) for call in calls))


def pure(name: str, target: str, *names: str) -> Instruction:
    """A call without effects."""
    return Instruction(name, target, tuple(Ref(n) for n in names), {}, (name,))


def update(name: str, *names: str) -> Instruction:
    """A write to ``b``."""
    args = (Ref("b:"), *(Ref(n) for n in names))
    return Instruction(name, "aten.copy_.default", args, {}, ("",), mutates=("b:",))


@pytest.mark.parametrize("target", ["aten.t.default", "aten.unsafe_split.Tensor"])
def test_an_update_waits_for_readers_of_views_too(target: str) -> None:
    """The reader of a view of the buffer has no value that the update reads."""
    step = step_of(
        pure("view", target, "b:"),
        pure("reader", "aten.relu.default", "view"),
        pure("new", "aten.relu.default", "x:"),
        update("write", "new"),
    )
    assert resolve(step).order == {0: [3], 1: [3]}


def test_a_reader_behind_an_update_waits_for_it() -> None:
    """And the next update waits for that reader and for the update."""
    step = step_of(
        pure("new", "aten.relu.default", "x:"),
        update("write", "new"),
        pure("reader", "aten.relu.default", "b:"),
        update("again", "x:"),
    )
    assert resolve(step).order == {1: [2, 3], 2: [3]}


def test_orders_that_a_value_carries_are_not_repeated() -> None:
    """The update reads the reader's result."""
    step = step_of(pure("reader", "aten.relu.default", "b:"), update("write", "reader"))
    assert resolve(step).order == {}


def test_a_buffer_that_nobody_changes_orders_nothing() -> None:
    """Two readers may run in any order."""
    calls = [pure(name, "aten.relu.default", "b:") for name in ("one", "two")]
    assert resolve(step_of(*calls)).order == {}


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_the_forward_read_of_a_weight_precedes_its_update(name: str) -> None:
    """By reachability over the graph's tensors, for every parameter and every reader."""
    graph = small_graph(name, training=True)
    position = {op: k for k, op in enumerate(graph.operator_names)}
    reach = torch.eye(len(position), dtype=torch.bool)
    after: list[set[int]] = [set() for _ in position]
    for tensor in graph.tensors:
        after[position[tensor.producer]] |= {position[c] for c in tensor.consumers}
    for k in reversed(range(len(position))):
        for c in sorted(after[k]):
            reach[k] |= reach[c]
    for update_ in graph.program.instructions:
        for name_ in update_.mutates:
            for call in graph.program.instructions:
                if Ref(name_) in call.args and call.name != update_.name:
                    a, b = position[call.name], position[update_.name]
                    assert reach[a, b] or reach[b, a]


DIM = 64
FULL = DIM * DIM * 4
"""Bytes of a full-size weight."""


class Quantised(nn.Module):
    """A linear layer with a weight in 8 bits or, packed in pairs, 4."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        rows = DIM // 2 if kind == "packed" else DIM
        self.register_buffer("q", torch.randint(0, 127, (rows, DIM), dtype=torch.uint8))
        self.register_buffer("scale", torch.rand(DIM, 1) / 64)
        self.register_buffer("table", torch.randn(128) / 8)

    def weight(self) -> Tensor:
        """In full size."""
        if self.kind == "table":
            return self.table[self.q.int()]
        q = torch.cat([self.q & 15, self.q >> 4]) if self.kind == "packed" else self.q
        return q.float() * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """Dequantise and multiply."""
        return linear(x, self.weight())


class Stack(nn.Module):
    """Quantised layers; the sum of `width` of them is a block. `early`: all weights come first."""

    def __init__(self, kinds: list[str], width: int = 1, *, early: bool = False) -> None:
        super().__init__()
        self.layers, self.width, self.early = nn.ModuleList(map(Quantised, kinds)), width, early

    def forward(self, x: Tensor) -> Tensor:
        """Block by block."""
        weights = [layer.weight() for layer in self.layers] if self.early else []
        for at in range(0, len(self.layers), self.width):
            block = range(at, min(at + self.width, len(self.layers)))
            x = sum(
                (linear(x, weights[k]) if self.early else self.layers[k](x) for k in block),
                torch.zeros(()),
            ).tanh()
        return x


def problem_of(graph: Graph, devices: int = 1) -> OperatorProblem:
    """With no bytes resident, so that peaks are those of tensors."""
    cluster = Cluster(tuple(Device(f"d{k}") for k in range(devices)))
    problem = profile(graph, cluster, method="analytic")
    return problem.replace(resident_bytes=np.zeros(problem.n))


def peaks(problem: OperatorProblem, placement: IntArray) -> list[int]:
    """By device, of a plan without an order."""
    return judge(problem, OperatorPlan(placement)).peak_bytes.tolist()  # type: ignore[no-any-return]


@settings(max_examples=8, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["scaled", "packed", "table"]), min_size=6, max_size=9),
    width=st.integers(1, 3),
    early=st.booleans(),
)
def test_one_device_holds_what_eager_would(kinds: list[str], width: int, *, early: bool) -> None:
    """To the byte, a few weights; the program, reordered or not, still computes what eager does."""
    torch.manual_seed(0)
    model, x = Stack(kinds, width, early=early).eval(), torch.randn(2, DIM)
    source = ModelSource(model, x, None, None, "stack")
    graph = capture_source(source)
    state = initial_state(source, graph.program)
    problem = problem_of(graph)
    peak = peaks(problem, np.zeros(problem.n, dtype=np.int64))
    assert peak == [peak_bytes(graph, state)]
    assert peak[0] <= 3.5 * FULL
    with torch.no_grad():
        assert torch.equal(run(graph, state)["output"], model(x))


@pytest.mark.parametrize("early", [False, True])
def test_an_idle_device_does_not_prepare_all_of_its_weights(*, early: bool) -> None:
    """The second device waits for the first and holds the weights of one layer all the same."""
    graph = capture(Stack(["scaled"] * 8, early=early).eval(), torch.randn(2, DIM))
    problem = problem_of(graph, 2)
    # The groups keep a weight and its use together, so that a cut is between two layers.
    cut = problem.operator_names.index("mm_3") + 1
    _, first, group = np.unique(problem.colocation, return_index=True, return_inverse=True)
    placement = (first >= cut).astype(np.int64)[group]
    assert set(placement.tolist()) == {0, 1}
    assert max(peaks(problem, placement)) <= 2.5 * FULL


def test_a_quantised_model_runs_in_half_as_much_again_as_its_weights() -> None:
    """The planner takes it, and the outputs are eager's."""
    model, x = Stack(["scaled"] * 24).eval(), torch.randn(2, DIM)
    held = sum(b.numel() * b.element_size() for b in model.buffers())
    cluster = Cluster((Device("a", memory_bytes=1.5 * held),))
    with placewright.place(model, x, cluster, planner="only:a", method="analytic") as placed:
        assert torch.equal(placed(x), model(x))


def _deep(build: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(*(build() for _ in range(3))).eval()


def test_weight_norm_is_computed_next_to_its_use() -> None:
    """Not only integers: any weight that is computed from parameters alone."""
    normed = _deep(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(DIM, DIM)))
    graph = capture(normed, torch.randn(2, DIM))
    problem = problem_of(graph)
    assert peaks(problem, np.zeros(problem.n, dtype=np.int64))[0] <= 2.5 * FULL
    assert any(op.from_weights for op in graph.operators)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_other_models_stay_as_they_are(name: str, *, training: bool) -> None:
    """Positions, masks and rotary tables are small: no plan of these models changes."""
    source = unseen(name) if name == "llama" else small(name)
    graph = capture_source(source, training=training)
    assert not any(op.from_weights for op in graph.operators)


def named(argument: object) -> set[str]:
    """All values in nested arguments."""
    if isinstance(argument, Ref):
        return {argument.name}
    parts = argument if isinstance(argument, tuple) else ()
    return set().union(*(named(part) for part in parts))


def check_homes(graph: Graph) -> None:
    """Whoever reads or changes a parameter, buffer or state is in its group."""
    program: Program = graph.program
    group = {op.name: op.colocation for op in graph.operators}
    homes = {e.name: e.colocation for e in program.inputs if e.role in RESIDENT}
    assert all(homes.values())
    for call in program.instructions:
        referenced = named(call.args) | named(tuple(call.kwargs.values())) | set(call.mutates)
        for name in referenced & homes.keys():
            assert group[call.name] == homes[name], (call.name, name)


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "gnmt", "bert"])
def test_operators_on_a_parameter_share_its_group(name: str) -> None:
    """In a training step, by a walk over all instructions."""
    check_homes(small_graph(name, training=True))


@pytest.mark.parametrize("name", ["tied", "counting", "normed", "transposed", "vision transformer"])
def test_colocation_in_inference_and_with_views_of_parameters(name: str) -> None:
    """Expanded, transposed and sliced parameters."""
    assert name in UNSEEN
    check_homes(unseen_graph(name))
    check_homes(unseen_graph(name, training=True))


@pytest.mark.parametrize("name", ["alexnet", "gnmt", "bert"])
def test_random_draws_share_one_group_and_a_chain(name: str) -> None:
    """So that one generator gives them in the order of eager mode."""
    graph = small_graph(name, training=True)
    draws = [call.name for call in graph.program.instructions if call.random]
    group = {op.name: op.colocation for op in graph.operators}
    assert len(draws) > 1
    assert len({group[name] for name in draws}) == 1
    after = {t.producer: set(t.consumers) for t in graph.tensors if t.name.startswith("after:")}
    assert all(b in after[a] for a, b in pairwise(draws))


def test_groups_are_named_after_their_first_operator() -> None:
    """A name that stays the same from capture to capture."""
    graph = small_graph("resnet50", training=True)
    first: dict[str, str] = {}
    for op in graph.operators:
        if op.colocation:
            first.setdefault(op.colocation, op.name)
    assert all(group == name for group, name in first.items())


def test_convolutions_of_a_resnet_may_be_apart() -> None:
    """Nothing ties layers together."""
    graph = small_graph("resnet50", training=True)
    groups = [op.colocation for op in graph.operators if op.kind == "aten.convolution.default"]
    assert len(set(groups)) == len(groups) == 53


class Shapes(nn.Module):
    """Views of every kind around two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Reduced, expanded, shifted."""
        y = self.one(x).sum(0)
        return self.two(y.expand(5, 4)) + torch.arange(4)


def test_views_are_placed_so_that_the_smaller_tensor_is_sent() -> None:
    """A transposed weight with its readers, an expanded value with its only consumer."""
    graph = capture(Shapes(), torch.randn(3, 4))
    ops = {op.name: op for op in graph.operators}
    assert ops["t"].colocation == ops["addmm"].colocation
    assert ops["t_1"].colocation == ops["addmm_1"].colocation == ops["expand"].colocation
    assert ops["expand"].colocation not in (ops["sum_1"].colocation, "")
    assert ops["arange"].colocation == ops["add"].colocation != ""
