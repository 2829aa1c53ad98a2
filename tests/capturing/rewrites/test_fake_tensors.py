"""Branches on values computed from constants are captured; branches on inputs are refused."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, _meta_registrations, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from placewright.capturing.functional import shape_rules
from placewright.capturing.lowering import spec_of
from placewright.capturing.model import capture, capture_source
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from placewright.errors import UnsupportedError
from tests.capturing.against_eager import differences
from tests.capturing.reference_interpreter import mismatched_specs

# ruff: noqa: D102 - the docstring of the class describes `forward`


class Counting(nn.Module):
    """Looks at positions of its own making, or at its input's values."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.linear, self.own = nn.Linear(4, 4), own

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[0]) if self.own else x.sum(1)
        rates = [rate.item() for rate in torch.linspace(0.0, 1.0, 3)]
        made: Tensor = self.linear(x) * rates[1]
        return made if (positions.diff() == 1).all() else made + 1


def test_a_branch_on_constants_is_taken_as_eager_takes_it() -> None:
    """And numbers are read from a table that is computed on the way."""
    source = ModelSource(Counting(own=True), torch.randn(3, 4), name="counting")
    assert differences(source) == {}


def test_a_branch_on_an_input_is_refused() -> None:
    """Another batch might take the other branch."""
    with pytest.raises(UnsupportedError, match="depends on values"):
        capture(Counting(own=False), torch.randn(3, 4))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_transformers_leaves_out_the_mask_that_eager_leaves_out() -> None:
    """Without a cache it looks whether positions count on; with checkpoints there is no cache."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    model.gradient_checkpointing_enable()
    tokens = torch.randint(0, 20, (2, 6))
    inputs = {"input_ids": tokens, "labels": tokens.clone()}
    source = ModelSource(model, inputs, lambda outputs, _: outputs.loss, name="llama")
    graph = capture_source(source, training=True)
    assert not graph.program.constants
    assert differences(source, graph) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_grouped_product_has_the_shape_that_the_kernel_gives_it(dtype: torch.dtype) -> None:
    """Weights as they are and transposed, and the backward's two operands of two dimensions."""
    rows, cols = torch.randn(8, 16, dtype=dtype), torch.randn(8, 24, dtype=dtype)
    weights = torch.randn(4, 16, 24, dtype=dtype)
    ends = torch.tensor([2, 5, 5, 8], dtype=torch.int32)
    product = torch.ops.aten._grouped_mm.default
    mode = FakeTensorMode()
    for a, b in ((rows, weights), (cols, weights.transpose(1, 2)), (rows.T, cols)):
        real = product(a, b, ends)
        with shape_rules(), mode:
            fake = product(*map(mode.from_tensor, (a, b, ends)))
        assert spec_of(fake) == spec_of(real)


def _by_element() -> Iterator[torch._ops.OpOverload]:
    """Operators of PyTorch that read up to three tensors, and numbers, and write into nothing."""
    known = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    for name in sorted(name.removeprefix("aten::") for name in known if name.startswith("aten::")):
        if re.search(
            r"rand|normal|bernoulli|poisson|dropout|exponential|cauchy|geometric|resize", name
        ):
            continue
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            found = getattr(packet, overload)
            needed = [x for x in found._schema.arguments if not x.has_default_value()]
            kinds = [str(x.type) for x in needed]
            writes = any(x.alias_info for x in found._schema.arguments)
            if not writes and {*kinds} <= {"Tensor", *NUMBERS} and 1 <= kinds.count("Tensor") <= 3:
                yield found


NUMBERS = {"number": 0.5, "float": 0.5, "bool": False}
LAYOUTS = torch.randn(2, 6, 4), torch.randn(2, 4, 6).transpose(1, 2)


def test_strides_are_those_of_the_kernels() -> None:
    """Of every such operator, for tensors of other layouts: a view of them may not be one else."""
    mode, tried, wrong = FakeTensorMode(), set(), {}
    for found in _by_element():
        needed = [str(x.type) for x in found._schema.arguments if not x.has_default_value()]
        for layouts in itertools.product(LAYOUTS, repeat=needed.count("Tensor")):
            left = iter(layouts)
            given = [next(left) if kind == "Tensor" else NUMBERS[kind] for kind in needed]
            try:
                real = found(*given)
                with shape_rules(), mode:
                    fake = found(*tree_map_only(Tensor, mode.from_tensor, given))
            except (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError):
                continue  # of tensors of other shapes
            tried.add(str(found))
            strided = isinstance(real, Tensor) and real.layout is torch.strided
            if strided and spec_of(fake) != spec_of(real):
                wrong[str(found)] = spec_of(fake), spec_of(real)
    assert len(tried) > 250
    assert wrong == {}


def test_the_rule_is_put_back() -> None:
    """Nobody else's traces are changed."""
    rule = _meta_registrations._meta_grouped_mm_common
    with shape_rules():
        assert _meta_registrations._meta_grouped_mm_common is not rule
    assert _meta_registrations._meta_grouped_mm_common is rule


HALF = torch.bfloat16


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.GroupNorm(2, 8), (2, 8, 4, 4)),
        (nn.BatchNorm2d(8), (2, 8, 4, 4)),
        (nn.BatchNorm2d(8).eval(), (2, 8, 4, 4)),
        (nn.InstanceNorm2d(8, affine=True), (2, 8, 4, 4)),
        (nn.LayerNorm(4), (2, 8, 4)),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_norms_of_bfloat16_with_float32_parameters_are_what_the_kernels_make(
    norm: nn.Module, shape: tuple[int, ...], turned: bool
) -> None:
    """Forward and backward, of a row-major input and of one that is not."""
    x = torch.randn(shape, dtype=HALF)
    x = x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x
    model = nn.Sequential(Scaled(), copy.deepcopy(norm))
    for training in (False, True):
        source = ModelSource(model, x, name="norm")
        graph = capture_source(source, training=training)
        assert mismatched_specs(graph, initial_state(source, graph.program)) == []


class Scaled(nn.Module):
    """Has a parameter, so that a gradient of the norm's input is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=HALF))

    def forward(self, x: Tensor) -> Tensor:
        """As it was."""
        return x * self.scale


def test_a_cast_under_autocast_is_shared_as_in_eager() -> None:
    """A layer that is called twice adds up its gradient in bfloat16."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=HALF):
                return self.layer(self.layer(x).relu()).float()

    torch.manual_seed(0)
    assert differences(ModelSource(Twice(), torch.randn(5, 8), name="twice")) == {}
