"""An Instruction's target and arguments as a PyTorch callable and real values.

Settings of PyTorch that operators read when they run are recorded with a program, set in workers.
They belong to the process, not to a model: the default dtype (integers divided become it), the
precision of float32 products, whether oneDNN's kernels are used, deterministic algorithms. So does
the state of the random-number generator, which travels between processes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch

import placewright.capturing.rewrites
import placewright.capturing.value_reads  # noqa: F401  both register operations of our own
from placewright.capturing.update_rule import UPDATE, is_own_optimizer, rule_of
from placewright.errors import InputError
from placewright.graph.graph import Const, Instruction, Program, Ref
from placewright.io.boundary import placed

RECURRENT = "aten.mkldnn_rnn_layer.default"
"""Chooses its kernel by the gradient mode beside its argument `train` (PyTorch 2.13)."""

_UNCHECKED = {"aten._reshape_alias.default": "aten.as_strided.default"}
"""Takes sizes and strides that reach beyond the memory, and what does the same with a check."""


@cache
def resolve_target(target: str) -> Callable[..., Any]:
    """The callable behind ``aten.convolution.default``.

    Raises `InputError`: see `operation`.
    """
    overload = operation(_UNCHECKED.get(target, target))
    return _in_own_mode(overload) if target == RECURRENT else overload


@cache
def operation(target: str) -> torch._ops.OpOverload:
    """The `OpOverload` itself, with its schema and tags.

    Operators of a library that this process has imported are accepted: the model, or the
    coordinator that has proved itself, needs them. PyTorch's own must be free of effects
    (`has_no_effects`). What a file may name is less: `check_read_program`.

    Raises `InputError`: PyTorch has no such operation, or it acts on more than its tensors.
    """
    parts = target.split(".")
    found: Any = torch.ops
    try:
        for part in parts:
            found = getattr(found, part)
    except (AttributeError, RuntimeError) as error:
        raise _unknown(target) from error
    if not isinstance(found, torch._ops.OpOverload) or len(parts) != 3:
        raise _unknown(target)
    if parts[0] in {*_PURE_NAMESPACES, *_FOREIGN_NAMESPACES} and not has_no_effects(found):
        raise InputError(
            f"the operation {target!r} acts on more than its tensors",
            by="files, memory, processes or settings of PyTorch",
            hint="take it out of the model; programs compute on tensors",
        )
    return found


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PURE_NAMESPACES = _words("aten prims placewright quantized_decomposed torchvision")
"""Namespaces of tensor arithmetic, where a schema tells the effects.

torchvision reads and writes files in another, ``image``.
"""

_FOREIGN_NAMESPACES = _words(
    "prim profiler c10d _c10d_functional _c10d_functional_autograd symm_mem static_runtime "
    "inductor _dtensor debug_mode_ops image video_reader"
)
"""Namespaces of control, files, communication and profiling."""

_PLAIN = _words("Tensor int float bool complex number str Device Generator ScalarType Layout")
"""Types of arguments that programs may have, besides lists and ``Optional`` of them."""

_VARIANTS = _words(
    "reduce approximate norm rounding_mode ord p equation padding padding_side interpolation side "
    "driver UPLO mode pad_mode indexing activation api_name assert_msg rule"
)
"""Names of string arguments that choose a variant: ``filename``, ``group_name`` are none."""

_CHECKS = ("_assert_", "_functional_assert", "sym_constrain_range", "_linalg_check_errors")
"""Begin operators that only raise."""

_REACHES_FURTHER = re.compile(
    r"set_?|set_data|resize.*|_resize.*|sparse_resize.*|_copy_from_and_resize|_?pin_memory|"
    r"record_stream|requires_grad_|retain_grad|_make_dual.*|_unpack_dual|_nested_.*|.*_dual_copy|"
    r"_sparse_.*_unsafe|_?sparse_coo_tensor.*|_convert_indices.*|_cudnn_init_dropout_state|_cslt.*|_cufft.*|_propagate.*|"
    r"_reshape_alias_copy"
)
"""Operators whose schema looks pure, and that exchange or lock storage, change autograd's state or
take places in memory on trust."""


def has_no_effects(overload: torch._ops.OpOverload) -> bool:
    """Whether an operator only computes on the tensors that it is given.

    By its schema: registered with the dispatcher (TorchScript's own ``aten.save`` is not),
    arguments and results are tensors, numbers and words that choose a variant, and it returns
    something or writes into an argument.
    """
    schema = overload._schema
    namespace, _, name = schema.name.partition("::")
    return (
        namespace in _PURE_NAMESPACES
        and torch._C._dispatch_has_kernel(overload.name())  # type: ignore[no-untyped-call]
        and _REACHES_FURTHER.fullmatch(name) is None
        and all(_is_plain(value) for value in (*schema.arguments, *schema.returns))
        and (bool(schema.returns) or schema.is_mutable or name.startswith(_CHECKS))
    )


def _is_plain(value: torch.Argument) -> bool:
    kinds = set(re.findall(r"\w+", str(value.type))) - {"Optional", "List"}
    return kinds <= _PLAIN and ("str" not in kinds or value.name in _VARIANTS)


def check_read_program(program: Program) -> None:
    """Check that a program which comes from a file may be executed.

    Nobody in this process has chosen its operators, so all of them must be free of effects, and
    optimizers must be PyTorch's own. A program that was captured here is not restricted.

    Raises `InputError`: it names the file and the operator.
    """
    for call in program.instructions if program.source else ():
        where = f"{program.source}: operator {call.name!r}"
        try:
            pure = has_no_effects(operation(call.target))
            own = call.target != UPDATE or is_own_optimizer(rule_of(call.args).kind)
        except InputError as error:
            raise placed(error, where) from None
        if not pure or not own:
            named = call.target if own else rule_of(call.args).kind
            raise InputError(
                f"a file may not call {named!r:.100}, which may have effects of any kind",
                where=where,
                by="a file may call operators of PyTorch without effects, and its optimizers",
                hint="give the model itself, or use --method analytic, which executes nothing",
            )


def materialise(argument: Any, device: str | torch.device | None = None) -> Any:
    """An argument with every `Const` as PyTorch's object; a `Ref` stays for the caller to fill.

    A `device` replaces the one that was captured, for programs that run elsewhere.
    """
    if isinstance(argument, Const):
        return _constant(argument, device)
    if isinstance(argument, tuple | list):
        return [materialise(part, device) for part in argument]
    return argument


def filled(argument: Any, values: Mapping[str, Any]) -> Any:
    """A materialised argument with values in place of references."""
    if isinstance(argument, Ref):
        return values[argument.name]
    if isinstance(argument, tuple | list):
        return [filled(part, values) for part in argument]
    return argument


def dead_after(instructions: Sequence[Instruction], kept: Collection[str]) -> list[list[str]]:
    """After every call, the values that nothing reads any more, but for those that are `kept`."""
    last: dict[str, int] = {}
    for k, call in enumerate(instructions):
        last |= dict.fromkeys((*call.reads(), *filter(None, call.results)), k)
    dead: list[list[str]] = [[] for _ in instructions]
    for name, k in last.items():
        if name not in kept:
            dead[k].append(name)
    return dead


def _constant(const: Const, device: str | torch.device | None) -> Any:
    if const.kind == "device":
        return torch.device(const.value if device is None else device)
    made = getattr(torch, const.value, None)
    if const.kind not in _KINDS or not isinstance(made, _KINDS[const.kind]):
        raise InputError(f"{const.value!r} is no {const.kind} of PyTorch {torch.__version__}")
    return made


_KINDS = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def _in_own_mode(recurrent: Callable[..., Any]) -> Callable[..., Any]:
    """The layer in the gradient mode that its argument `train` asks for."""

    def layer(*args: Any) -> Any:
        train = bool(args[-1])
        with torch.set_grad_enabled(train):
            made = recurrent(*args)
        return tuple(part if part is None else part.detach() for part in made)

    return layer


def _unknown(target: str) -> InputError:
    return InputError(
        f"PyTorch {torch.__version__} has no operation {target!r}",
        hint="import the package that registers it, or use the PyTorch it was captured with",
    )


class _Setting(NamedTuple):
    """How a setting is read, how it is set, and what a fresh process has."""

    get: Callable[[], Any]
    put: Callable[[Any], Any]
    usual: Any


def _default_dtype() -> str:
    return str(torch.get_default_dtype()).removeprefix("torch.")


def _set_default_dtype(name: str) -> None:
    torch.set_default_dtype(getattr(torch, name))


def _set_deterministic(level: int) -> None:
    torch.set_deterministic_debug_mode(level)


_SETTINGS: Mapping[str, _Setting] = {
    "default_dtype": _Setting(_default_dtype, _set_default_dtype, "float32"),
    "float32_matmul_precision": _Setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"
    ),
    "mkldnn": _Setting(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, True),
    "deterministic": _Setting(torch.get_deterministic_debug_mode, _set_deterministic, 0),
}


def current_settings() -> dict[str, Any]:
    """Settings of this process that a fresh one does not have."""
    found = {name: setting.get() for name, setting in _SETTINGS.items()}
    return {name: value for name, value in found.items() if value != _SETTINGS[name].usual}


def apply_settings(settings: Mapping[str, Any]) -> None:
    """Give this process these settings, and all others as a fresh process has them."""
    for name, setting in _SETTINGS.items():
        wanted = settings.get(name, setting.usual)
        if setting.get() != wanted:
            setting.put(wanted)


def tracing_settings() -> tuple[Any, ...]:
    """All that a trace depends on and that belongs to the process, in about a microsecond.

    Read from PyTorch's own functions in C: its functions in Python take three times as long.
    """
    cast = _autocast("cpu")
    return (
        torch.get_default_dtype(),
        torch.get_autocast_dtype("cpu") if cast else None,
        *[read() for read in _READ_BY_TRACES],
        global_hooks(),
    )


def global_hooks() -> tuple[Any, ...]:
    """Hooks that PyTorch calls for every module."""
    return tuple(chain.from_iterable(map(dict.values, _GLOBAL_HOOKS)))


_GLOBAL_HOOKS = (
    torch.nn.modules.module._global_forward_pre_hooks,
    torch.nn.modules.module._global_forward_hooks,
    torch.nn.modules.module._global_backward_pre_hooks,
    torch.nn.modules.module._global_backward_hooks,
)


_autocast = torch.is_autocast_enabled

_READ_BY_TRACES = (
    torch._C._get_float32_matmul_precision,
    torch._C._get_mkldnn_enabled,
    torch._C._get_deterministic_algorithms,
    torch._C._get_deterministic_algorithms_warn_only,
    torch._C._get_flash_sdp_enabled,
    torch._C._get_math_sdp_enabled,
)


def random_state() -> bytes:
    """Where the generator of `torch.manual_seed` stands, on the CPU."""
    return bytes(torch.get_rng_state().numpy())


def set_random_state(state: bytes) -> None:
    """Let the generator go on from a state that `random_state` gave, here or elsewhere."""
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
