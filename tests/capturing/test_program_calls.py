"""Conversion of plain data to PyTorch calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture
from placewright.capturing.program_calls import (
    apply_settings,
    check_read_program,
    current_settings,
    has_no_effects,
    materialise,
    operation,
    resolve_target,
)
from placewright.capturing.update_rule import UPDATE, UpdateRule
from placewright.errors import InputError
from placewright.graph.files import read_graph, write_graph
from placewright.graph.graph import Const, Instruction, Program, Ref


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


REFUSED = (
    *("aten.from_file.default", "aten.from_file.out", "aten.save.default", "aten._print.default"),
    *("aten.set_.source_Tensor_storage_offset", "aten.set_data.default", "aten.resize_.default"),
    *("aten.record_stream.default", "aten._pin_memory.default", "aten.manual_seed.default"),
    *("aten._nested_view_from_buffer.default", "aten._cufft_set_plan_cache_max_size.default"),
    *(
        "aten._sparse_coo_tensor_unsafe.default",
        "aten.requires_grad_.default",
        "prim.Print.default",
    ),
    *("profiler._record_function_enter.default", "_c10d_functional.all_reduce.default"),
    *(
        "aten.sparse_coo_tensor.indices_size",
        "aten._sparse_coo_tensor_with_dims_and_tensors.default",
    ),
    *("aten.warn.default", "aten.grad.default", "prims.resize.default"),
)


@pytest.mark.parametrize("target", REFUSED)
def test_operators_that_act_on_more_than_their_tensors_are_refused(target: str) -> None:
    """Whoever names them: a file, a coordinator or a captured model."""
    with pytest.raises(InputError, match="acts on more than its tensors"):
        resolve_target(target)


def test_most_operators_of_pytorch_are_free_of_effects() -> None:
    """So that a rule which becomes too strict is found here, before a model misses an operator."""
    names = torch._C._dispatch_get_all_op_names()
    kept = [n for n in names if n.startswith("aten::") and _effectless(n)]
    assert len(kept) > 0.95 * sum(name.startswith("aten::") for name in names)


def _effectless(name: str) -> bool:
    base, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return packet is not None and has_no_effects(getattr(packet, overload or "default"))


def test_strides_beyond_the_memory_are_refused() -> None:
    """``_reshape_alias`` itself reads what lies behind."""
    reshape = resolve_target("aten._reshape_alias.default")
    assert reshape(torch.arange(4.0), [2, 2], [2, 1]).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match="out of bounds"):
        reshape(torch.arange(4.0), [1 << 20], [1])


def program(target: str, *arguments: object, source: str = "graph.json") -> Program:
    """One call, read from a file."""
    return Program((), (Instruction("op", target, arguments, {}, ("op",)),), (), source=source)


def test_a_file_may_call_pure_operators_alone() -> None:
    """An operator of an imported library may be called by a program of this process only."""
    library = torch.library.Library("acme", "DEF")  # type: ignore[no-untyped-call]
    library.define("twice(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
    check_read_program(program("aten.relu.default"))
    check_read_program(program("acme.twice.default", source=""))
    assert resolve_target("acme.twice.default")
    where = "graph.json: operator 'op': a file may not call 'acme.twice.default'"
    with pytest.raises(InputError, match=where):
        check_read_program(program("acme.twice.default"))
    with pytest.raises(InputError, match=r"graph\.json: operator 'op': .*from_file"):
        check_read_program(program("aten.from_file.default"))


def test_a_file_may_name_optimizers_of_pytorch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module of another is not even imported."""
    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    for kind, fine in {"torch.optim.adam:Adam": True, "hostile:Adam": False}.items():
        update = program(UPDATE, UpdateRule(kind, (), (), {}, {}).text())
        if fine:
            check_read_program(update)
        else:
            with pytest.raises(InputError, match="may not call 'hostile:Adam'"):
                check_read_program(update)
    with pytest.raises(InputError, match="update without a rule"):
        check_read_program(program(UPDATE))
    assert not (tmp_path / "ran").exists()


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    apply_settings({})


class _Thirds(nn.Module):
    def forward(self, i: Tensor) -> Tensor:
        return i / 3


def _settings(graph: object) -> object:
    program = graph.program  # type: ignore[attr-defined]
    assert isinstance(program, Program)
    return program.settings


def test_a_program_has_the_settings_that_differ(tmp_path: Path) -> None:
    """In a file too; most have none."""
    assert _settings(capture(_Thirds(), torch.arange(3))) == {}
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.set_flags(False)
    torch.use_deterministic_algorithms(True)
    graph = capture(_Thirds(), torch.arange(3))
    wanted = {
        "default_dtype": "float64",
        "float32_matmul_precision": "medium",
        "mkldnn": False,
        "deterministic": 2,
    }
    assert _settings(graph) == wanted
    assert _settings(read_graph(write_graph(graph, tmp_path / "graph.json"))) == wanted
    apply_settings({})
    assert current_settings() == {}
    apply_settings(wanted)
    assert current_settings() == wanted
