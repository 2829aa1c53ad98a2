"""A program captured on a CPU runs on GPUs, tested with fake tensors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torchgen
import yaml
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from placewright.capturing.model import capture_source
from placewright.capturing.program_calls import RECURRENT, resolve_target
from placewright.capturing.state import initial_state
from placewright.graph.graph import Instruction, Ref
from placewright.runtime import messages
from placewright.runtime.specs import Layout
from placewright.runtime.step import slots
from placewright.runtime.step.partition import partition
from placewright.runtime.step.sequence import compile_share, shares
from placewright.runtime.step.slots import ATTENTION
from placewright.runtime.step_record import Timer
from placewright.runtime.wire import Streams
from small_zoo import small

LACKS_KERNEL = slots.lacks_kernel

PLACES = ["cuda:0", "cuda:1", "cpu"]


@cache
def cuda_kernels() -> frozenset[str]:
    """Operations with a CUDA kernel, by PyTorch's own list of them."""
    file = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    entries = yaml.load(file.read_text(), yaml.CSafeLoader)
    found = set()
    for entry in entries:
        keys = " ".join(entry.get("dispatch", {"CompositeImplicitAutograd": ""}))
        if "structured_delegate" in entry or "CUDA" in keys or "Composite" in keys:
            found.add("aten::" + entry["func"].split("(")[0])
    return frozenset(found)


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs as far as fake tensors go: no streams, and the kernels that PyTorch lists."""
    monkeypatch.setattr(messages, "Streams", lambda names: Streams([]))
    monkeypatch.setattr("placewright.runtime.step.sequence.timer_of", lambda name: Timer())
    monkeypatch.setattr(slots, "lacks_kernel", _lacks_kernel)


def _lacks_kernel(call: object, device: str) -> bool:
    if not isinstance(call, torch._ops.OpOverload):
        return True
    name = call.name()  # type: ignore[no-untyped-call]
    return name.startswith("aten::") and name not in cuda_kernels() | {
        "aten::_native_batch_norm_legit_functional"
    }


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", ["alexnet", "rnnlm", "bert"])
def test_every_tensor_is_where_its_operators_are(name: str, training: bool) -> None:
    """A random placement on two GPUs and a CPU of one process, as fake tensors allow no mixing."""
    source = small(name)
    graph = capture_source(source, training=training)
    state = initial_state(source, graph.program)
    groups = {op.colocation or op.name: k for k, op in enumerate(graph.operators)}
    place = np.random.default_rng(0).integers(0, 3, size=len(graph.operators))
    placement = [int(place[groups[op.colocation or op.name]]) for op in graph.operators]
    layout = Layout.of([0, 0, 0], PLACES, nccl=False)
    order = range(len(placement))
    parts = partition(graph, placement, order, 3, layout.ways)
    (share,) = shares(parts, order, layout.processes)
    with FakeTensorMode() as mode:
        known = {
            part.device: {
                i.name: mode.from_tensor(state[i.name]).to(PLACES[part.device]) for i in part.inputs
            }
            for part in parts
        }
        compiled = compile_share(share, known, layout)
        everything = [replace(slot, frees=()) for slot, _, _ in compiled.turns]
        kept = replace(
            compiled,
            turns=tuple(
                (slot, r, k) for slot, (_, r, k) in zip(everything, compiled.turns, strict=True)
            ),
        )
        kept.run(messages.Exchange(layout, 0, {}))
    for part, at in zip(kept.parts, PLACES, strict=True):
        made = [part.registers[r] for slot in part.slots for r in slot.results if r >= 0]
        tensors = [t for t in made if isinstance(t, FakeTensor)]
        assert tensors
        assert {str(t.device) for t in tensors} == {at}


def test_a_missing_kernel_is_noticed() -> None:
    """The CPU has its kernels; a build without CUDA has none of CUDA's."""
    everywhere = ("aten.relu.default", "aten.t.default", "aten.native_layer_norm.default")
    for target in (*everywhere, "placewright.bernoulli.default", ATTENTION):
        assert not LACKS_KERNEL(resolve_target(target), "cpu")
    assert LACKS_KERNEL(resolve_target(RECURRENT), "cpu")  # wrapped: has its own mode
    if torch.version.cuda is None:
        assert LACKS_KERNEL(resolve_target("aten.relu.default"), "cuda:0")


def test_attention_is_the_devices_own_where_only_its_result_is_read() -> None:
    """The same numbers as the CPU's kernel; with its sums read, that kernel itself."""
    query = torch.randn(2, 3, 8, 4, generator=torch.Generator().manual_seed(0))
    alone = Instruction("a", ATTENTION, (Ref("q"), Ref("q"), Ref("q")), {"scale": 0.3}, ("a.0", ""))
    kernel = resolve_target(ATTENTION)
    call, kwargs = slots.kernel_on(kernel, alone, "cuda:0")
    expected = kernel(query, query, query, **kwargs)[0]
    assert torch.allclose(call(query, query, query, **kwargs)[0], expected, atol=1e-6)
    both = replace(alone, results=("a.0", "a.1"))
    call, kwargs = slots.kernel_on(kernel, both, "cpu")
    assert torch.equal(call(query, query, query, **kwargs)[0], expected)


def test_random_numbers_are_drawn_on_the_host() -> None:
    """A mask drawn for a GPU has the bits of the CPU's generator."""
    draw = Instruction("r", "aten.rand.default", ([4],), {}, ("r",), random=True)
    call, kwargs = slots.kernel_on(resolve_target(draw.target), draw, "cpu")
    assert "device" in kwargs
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(call([4], device=torch.device("cuda:0")), expected)
