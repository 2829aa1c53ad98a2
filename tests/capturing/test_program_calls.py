"""Conversion of plain data to PyTorch calls."""

from __future__ import annotations

import pytest
import torch

from placewright.capturing.program_calls import materialise, operation, resolve_target
from placewright.errors import InputError
from placewright.graph.program import Const, Ref


def test_targets_become_operations() -> None:
    """With overload."""
    assert resolve_target("aten.relu.default") is torch.ops.aten.relu.default
    assert operation("aten.add_.Tensor") is torch.ops.aten.add_.Tensor


@pytest.mark.parametrize("target", ["aten.relu", "aten.no_such_thing.default", "os.system", ""])
def test_what_is_no_operation_is_refused(target: str) -> None:
    """A file can name nothing but operations of PyTorch."""
    with pytest.raises(InputError, match="has no operation"):
        resolve_target(target)


def test_constants_become_real_and_references_stay() -> None:
    """Inside lists too."""
    arguments = (Ref("x"), (1, Const("dtype", "float16")), None, Const("device", "cpu"))
    assert materialise(arguments) == [Ref("x"), [1, torch.float16], None, torch.device("cpu")]
    assert materialise(Const("memory_format", "channels_last")) is torch.channels_last
    assert materialise(Const("layout", "strided")) is torch.strided


def test_the_device_can_be_another() -> None:
    """A program captured for the CPU runs elsewhere."""
    assert materialise(Const("device", "cpu"), "cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize(
    "const", [Const("dtype", "float33"), Const("dtype", "load"), Const("x", "y")]
)
def test_what_is_no_constant_is_refused(const: Const) -> None:
    """A name of PyTorch is not enough, it must be of that kind."""
    with pytest.raises(InputError, match=f"is no {const.kind}"):
        materialise(const)


@pytest.mark.parametrize("train", [False, True])
def test_a_recurrent_layer_has_a_workspace_only_to_train(train: bool) -> None:
    """Whatever the gradient mode of the caller."""
    weights = [torch.randn(*shape) for shape in ((8, 2), (8, 2), (8,), (8,))]
    states = (torch.zeros(3, 2), torch.zeros(3, 2))
    call = resolve_target("aten.mkldnn_rnn_layer.default")
    fixed = (False, [], 2, 2, 1, True, False, False, train)
    with torch.no_grad():
        *_, workspace = call(torch.randn(4, 3, 2), *weights, *states, *fixed)
    assert (workspace is not None) == train
