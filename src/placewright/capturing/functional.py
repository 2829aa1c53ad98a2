"""A plain step function becomes one functional ATen graph, on fake tensors.

Two traces, because autograd and functionalization do not mix. The first records what the step
does: forward, loss, backward, with in-place operations as they are. In-place operations are
hidden dependencies: before an operator may move, the second trace replays the first under
`torch.func.functionalize`, which leaves values that never change and, at the end, one ``copy_``
for every buffer that the step updates.

Fake tensors stand for parameters, buffers, inputs and targets (`StepInputs`); some of their values
are known all the same, and shapes are those on a CPU.

A tensor that is computed from constants alone has a known value, and a model may branch on it:
transformers builds positions with ``arange`` and leaves out the mask of packed sequences where they
are consecutive. A fake tensor has no value to branch on (PyTorch 2.13 raises a data-dependent
error), so the value is computed from the recorded nodes, and the trace takes the branch that eager
mode takes. A value that depends on a parameter or an input stays unknown, and branching on it is an
error.

Shape rules for fake tensors where PyTorch's rule differs from its CPU kernel (torch 2.13).

A program gives the shape and dtype of every value before it runs, and receivers rely on them.

- ``_grouped_mm`` takes every dtype; PyTorch's rule admits bfloat16 alone (experts in float32).
- The gradient of a layer normalisation's input is row-major.
- Gradients of activations, and others that go by element, have the strides of the first tensor that
  they read; gradients of losses are row-major, but for that of the binary cross entropy.
- Normalisation of a bfloat16 input with float32 parameters, as under autocast, keeps its
  statistics in float32 and gives the input a gradient of the input's dtype; PyTorch's rules say
  otherwise.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, _decomp, _meta_registrations, fx, nn
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from placewright.capturing.checks import (
    UNTRACKED_MUTATION,
    changed_in_place,
    check_constants,
    check_operations,
    check_plain,
    check_repeatable,
    python_draws_refused,
    python_generators_kept,
    quantized,
    sparse,
    trace_error,
)
from placewright.capturing.containers import leaves_of, refilled
from placewright.capturing.isolation import note_constants, recorded_code
from placewright.capturing.python_state import PythonState
from placewright.capturing.rewrites import (
    FUNCTIONAL_BATCH_NORM,
    StateRestores,
    checked_calls,
    dropout_mask,
    is_dropout_mask,
    is_random,
    padding_as_in_eager,
    raising,
    recorded_rng_state,
    strided_updates,
    update_strided,
)
from placewright.capturing.source import Loss, ModelAndLoss, ModelSource
from placewright.capturing.value_reads import ValueReads, batches_counted
from placewright.errors import PlacewrightError, Terminated, UnsupportedError
from placewright.graph.graph import Role
from placewright.numerics.collector import collector_paused

REPEATED = "repeated"
"""Annotation of a copy of an earlier draw, which lowering replaces by the draw itself."""


def functional_graph(
    step: Callable[..., Sequence[Tensor]],
    inputs: StepInputs,
    state: PythonState,
    forward: Callable[..., Sequence[Tensor]] | None = None,
) -> fx.GraphModule:
    """Trace ``step(*values)`` to a functional graph without dead code.

    `state`: what the step's code can change in Python.
    `forward`: the first part of `step`, which is traced once more to see that it repeats itself.

    Raises `UnsupportedError`: it does not.
    """
    values = [entry.value for entry in inputs.tensors]
    name = type(inputs.source.model).__name__
    with python_generators_kept():
        with python_draws_refused(name):
            recorded, restores = _record(step, values, inputs)
        check_operations(recorded.graph)
        check_constants(recorded, inputs.source)
        read = (n.target for n in recorded.graph.nodes if n.op == "get_attr")
        note_constants(inputs.source.model, (getattr(recorded, str(name), None) for name in read))

        def again() -> fx.GraphModule:
            return _record(forward or step, values, inputs)[0]

        check_repeatable(recorded.graph, again, state, name)
    _name_backward(recorded.graph)
    repeats = restores.repeated_draws(recorded.graph)
    return _functionalized(recorded, repeats, values, name)


def _record(
    step: Callable[..., Sequence[Tensor]], values: Sequence[Tensor], inputs: StepInputs
) -> tuple[fx.GraphModule, StateRestores]:
    """First trace: all that the step does, and its restores of the RNG state."""
    path: list[str] = []
    model = inputs.source.model
    try:
        with (
            traceback.preserve_node_meta(),
            recorded_code(model),
            _modules_named(model, path),
            shape_rules(),
            recorded_rng_state() as restores,
            known_values_readable(),
            padding_as_in_eager(),
            batches_counted(),
            ValueReads(known_largest),
            # Both read values, which fakes have not.
            torch.autograd.set_detect_anomaly(False),
            patch.object(torch.distributions.Distribution, "_validate_args", False),
            deeper_recursion(),
            _quiet(),
        ):
            recorded = make_fx(
                step,
                tracing_mode="fake",
                decomposition_table=FUNCTIONAL_BATCH_NORM | KNOWN_SCALARS,
                _allow_non_fake_inputs=True,
            )(*values)
    except (PlacewrightError, Terminated, KeyboardInterrupt):
        raise
    except BaseException as error:
        module, name = path[-1] if path else "", type(model).__name__
        raise trace_error(error, module, name, given=inputs.described()) from error
    return recorded, restores


@contextmanager
def deeper_recursion() -> Iterator[None]:
    """Let a trace, which has several frames per module, go as deep as eager PyTorch does."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(TRACING_FRAMES * before)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


TRACING_FRAMES = 4
"""Frames of a trace for each that eager PyTorch needs; more could overflow the stack of C."""


def _functionalized(
    recorded: fx.GraphModule,
    repeats: Mapping[fx.Node, fx.Node],
    values: Sequence[Tensor],
    model: str,
) -> fx.GraphModule:
    """Second trace: the recorded graph without in-place operations on intermediate values."""
    replay = _Replay(recorded, repeats)

    def call(*values: Tensor) -> Any:
        return replay.run(*values)

    try:
        with traceback.preserve_node_meta(), torch.no_grad(), shape_rules(), _quiet():
            plain = [value.detach() for value in values]
            result = make_fx(
                torch.func.functionalize(call), tracing_mode="fake", _allow_non_fake_inputs=True
            )(*plain)
    except PlacewrightError:
        raise
    except Exception as error:
        if UNTRACKED_MUTATION in str(error) and replay.at is not None:
            raise changed_in_place(replay.at) from error
        raise trace_error(error, "", model) from error
    result.graph.eliminate_dead_code(_has_effect)
    return result


class _Replay(fx.Interpreter):
    """Runs a graph so that what it records inherits each node's annotations.

    A draw in `repeats` takes the result of the earlier draw of the same numbers.
    """

    def __init__(self, recorded: fx.GraphModule, repeats: Mapping[fx.Node, fx.Node]) -> None:
        super().__init__(recorded)
        self.repeats = repeats
        # First draws that are repeated later: filled in when they are replayed.
        self.drawn: dict[fx.Node, Any] = dict.fromkeys(repeats.values())
        self.strided = strided_updates(recorded.graph)
        self.checked = checked_calls(recorded.graph)
        self.at: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.at = n
        with traceback.set_current_meta(n):
            if n in self.repeats:
                return _repeated(self.drawn[self.repeats[n]])
            made = self._run(n)
            if n in self.drawn:
                # Copied at once: the step may change the draw before it is repeated.
                self.drawn[n] = _repeated(made)
            return made

    def _run(self, n: fx.Node) -> Any:
        if is_dropout_mask(n):
            return dropout_mask(*self.fetch_args_kwargs_from_env(n)[0])
        if n in self.strided:
            return update_strided(n, *self.fetch_args_kwargs_from_env(n))
        if n in self.checked:
            return raising(n, *self.fetch_args_kwargs_from_env(n))
        if n.target is torch.ops.aten._conj.default and isinstance(n.args[0], complex):
            return n.args[0].conjugate()  # the backward pass of a product with a number
        return super().run_node(n)


def _repeated(drawn: Any) -> Any:
    """A copy, because the step may change the first draw in place."""
    with traceback.annotate({REPEATED: True}):
        return tree_map_only(Tensor, torch.clone, drawn)


@contextmanager
def _modules_named(model: nn.Module, path: list[str]) -> Iterator[None]:
    """Annotate what a module records with its path; `path` stays as it was at an error."""
    with ExitStack() as hooks:
        open_: list[Any] = []
        for name, module in model.named_modules():

            def enter(_m: nn.Module, _args: Any, name: str = name) -> None:
                annotation = traceback.annotate({"module": name})
                annotation.__enter__()
                open_.append(annotation)
                path.append(name)

            def leave(_m: nn.Module, _args: Any, output: Any) -> None:
                open_.pop().__exit__(None, None, None)
                # At an error PyTorch calls this with ``None``: the path stays for the message.
                if output is not None:
                    path.pop()

            first = module.register_forward_pre_hook(enter)
            last = module.register_forward_hook(leave, always_call=True)
            hooks.callback(first.remove)
            hooks.callback(last.remove)
        try:
            yield
        finally:
            # Ctrl-C within a module calls no hook: annotations that are left would end, and put
            # older ones into force, whenever they are collected.
            while open_:
                open_.pop().__exit__(None, None, None)


def _name_backward(graph: fx.Graph) -> None:
    """Give backward nodes the module of the forward node they differentiate (``seq_nr``)."""
    module_of: dict[int, str] = {}
    for node in graph.nodes:
        custom, number = node.meta.get("custom") or {}, node.meta.get("seq_nr", -1)
        if custom.get("phase") != "backward" and "module" in custom:
            module_of.setdefault(number, custom["module"])
    for node in graph.nodes:
        custom = node.meta.get("custom") or {}
        # Autograd gives a backward node the number of the forward node that it differentiates.
        if custom.get("phase") == "backward" and node.meta.get("seq_nr") in module_of:
            node.meta["custom"] = {**custom, "module": module_of[node.meta["seq_nr"]]}


def _has_effect(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    mutable = bool(getattr(schema, "is_mutable", False))
    # An unread draw still advances the generator for the draws after it.
    return node.op in ("placeholder", "output") or mutable or is_random(node)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings and logs about a trace's internals: a user can do nothing about them."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_silent, log.disabled = log.disabled, True
    try:
        with warnings.catch_warnings(), collector_paused():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = was_silent


aten = torch.ops.aten

_MASKING = "transformers.masking_utils"


@contextmanager
def known_values_readable() -> Iterator[None]:
    """Let transformers read known values: its ``is_tracing`` says no for tensors that have one."""
    masking = sys.modules.get(_MASKING)
    if masking is None or not hasattr(masking, "is_tracing"):
        yield
        return
    traced = masking.is_tracing

    def is_tracing(tensor: Any = None) -> bool:
        unknown = bool(traced(tensor))
        return unknown and (not isinstance(tensor, FakeTensor) or known_value(tensor) is None)

    with patch.object(masking, "is_tracing", is_tracing):
        yield


def known_scalar(tensor: Tensor) -> Any:
    """The number in a tensor of one element, `NotImplemented` where it is unknown."""
    value = known_value(tensor)
    return NotImplemented if value is None else value.item()


KNOWN_SCALARS = {aten._local_scalar_dense.default: known_scalar}
"""Decomposition table for the trace."""


def known_value(tensor: Tensor) -> Tensor | None:
    """The value of a fake tensor, ``None`` if it depends on more than constants."""
    mode = get_proxy_mode()
    slot: Any = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    if mode is None or slot is None:
        return None
    ancestors = _constant_ancestors(slot.proxy.node)
    if ancestors is None or _changed_in_place(mode.tracer.graph, ancestors):
        return None
    values: dict[fx.Node, Any] = {}
    constants: Any = mode.tracer
    with _disable_current_modes(), torch.no_grad():
        # Later ones come first in the list: so every argument is there before it is read.
        for node in reversed(ancestors):
            if node.op == "get_attr":
                values[node] = getattr(constants.root, str(node.target))
                continue
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    made: Tensor = values[slot.proxy.node]
    return made


def known_largest(tensor: Tensor) -> int | None:
    """The largest of whole numbers, ``None`` where they are unknown."""
    value = known_value(tensor) if isinstance(tensor, FakeTensor) else tensor
    return None if value is None else int(value.max())


def _constant_ancestors(last: fx.Node) -> list[fx.Node] | None:
    """A node and its ancestors, later ones first; ``None`` if not all are constant."""
    pending, found = [last], dict[fx.Node, None]()
    while pending:
        node = pending.pop()
        if node.op not in ("get_attr", "call_function") or is_random(node) or _is_mutable(node):
            return None
        if node not in found:
            found[node] = None
            pending += node.all_input_nodes
    order = {node: k for k, node in enumerate(last.graph.nodes)}
    return sorted(found, key=order.__getitem__, reverse=True)


def _changed_in_place(graph: fx.Graph, ancestors: list[fx.Node]) -> bool:
    among = set(ancestors)
    # The whole graph: an update writes into a tensor that was made before it, so it is no ancestor.
    return any(_is_mutable(node) and among & set(node.all_input_nodes) for node in graph.nodes)


def _is_mutable(node: fx.Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


_GROUPED = "_meta_grouped_mm_common"


@contextmanager
def shape_rules() -> Iterator[None]:
    """Replace PyTorch's rules by those of this module."""
    with (
        patch.object(_meta_registrations, _GROUPED, _grouped(_meta_registrations)),
        patch.dict(fake_impls.op_implementations_dict, _RULES),
        patch.dict(_decomp.meta_table, _RULES),  # else a decomposition goes first
    ):
        yield


def _grouped(rules: Any) -> Callable[..., Tensor]:
    bfloat16_only = getattr(rules, _GROUPED)

    def grouped_mm(mat_a: Tensor, mat_b: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("scale_a") is not None or mat_a.dtype == torch.bfloat16:
            return bfloat16_only(mat_a, mat_b, *args, **kwargs)  # type: ignore[no-any-return]
        made: Tensor = rules._create_grouped_mm_output_tensor(
            mat_a, mat_b, kwargs.get("offs"), kwargs.get("out_dtype")
        )
        return made

    return grouped_mm


def _statistics(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """The output has the input's dtype, the statistics that of the parameters."""
    x, *others = [part for part in args if isinstance(part, Tensor)]
    kept = next((other.dtype for other in others), x.dtype)
    return _made(mode, operation, args, kwargs, (x.dtype, kept, kept))


def _as_suggested(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """As `_statistics`; the output has channels last where the input has, else it is row-major."""
    first, *others = _statistics(mode, operation, *args, **kwargs)
    with mode:
        suggested = torch._prims_common.suggest_memory_format(args[0])
        first = torch.empty_like(first, memory_format=suggested)
    return (first, *others)


def _untrained(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """As `_as_suggested`; a CPU keeps no statistics where running ones are used."""
    first, *others = _as_suggested(mode, operation, *args, **kwargs)
    with mode:
        return (first, *(torch.empty(0, dtype=other.dtype) for other in others))


def _gradients(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradient of the input has the input's dtype, the others are as PyTorch says."""
    return _made(mode, operation, args, kwargs, (args[1].dtype,))


def _row_major_gradients(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """The gradient of the input is row-major, whatever the strides of the input."""
    first, *others = _gradients(mode, operation, *args, **kwargs)
    if first is not None:
        with mode:
            first = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    return (first, *others)


def _apart(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """One gradient of both biases of a recurrent layer is two outputs in every capture.

    PyTorch's rule gives one tensor twice, and its cache two where it knows the call already.
    """
    return _made(mode, operation, args, kwargs, ())


def _by_order(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Strides are those of the first of its tensors, as of most kernels that go by element.

    PyTorch's rules of these are written in terms of others, which see them in another order.
    """
    return _laid_out(mode, operation, args, kwargs, args)


def _by_second(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Strides are those of the second tensor."""
    return _laid_out(mode, operation, args, kwargs, args[1:2])


def _row_major(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Whatever the strides of what it reads."""
    return _laid_out(mode, operation, args, kwargs, ())


def _laid_out(mode: Any, operation: Any, args: Any, kwargs: Any, like: Sequence[Any]) -> Any:
    """The results of PyTorch's rule, with the strides of a sum of others or row-major."""
    with in_kernel_invocation_manager(mode):
        made = operation(*args, **kwargs)
        several = isinstance(made, tuple | list)
        sum_ = sum(part.float() for part in like if isinstance(part, Tensor))
        results = [_strided_as(part, sum_) for part in (made if several else (made,))]
    device = next(part.device for part in args if isinstance(part, Tensor))
    found = tuple(FakeTensor(mode, part, device) for part in results)
    return found if several else found[0]


def _strided_as(made: Tensor, like: Any) -> Tensor:
    """Row-major where what it is like is no tensor, as it is where that has another shape."""
    if isinstance(like, Tensor):
        return torch.empty_like(like, dtype=made.dtype) if like.shape == made.shape else made
    return torch.empty_like(made, memory_format=torch.contiguous_format)


_RULES = {
    **dict.fromkeys(
        (
            *(aten.elu_backward.default, aten.hardsigmoid_backward.default),
            *(aten.hardswish_backward.default, aten.hardtanh_backward.default),
            *(aten.logit_backward.default, aten.softplus_backward.default),
            *(aten.copysign.Tensor, aten.floor_divide.default),
            *(aten.special_xlog1py.default, aten.xlogy.Tensor),
        ),
        _by_order,
    ),
    aten.binary_cross_entropy_backward.default: _by_second,
    **dict.fromkeys(
        (
            *(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.pow.Scalar),
            *(aten.log_sigmoid_forward.default, aten._standard_gamma.default),
            *(aten.huber_loss_backward.default, aten.mse_loss_backward.default),
            *(aten.smooth_l1_loss_backward.default, aten.rrelu_with_noise.default),
        ),
        _row_major,
    ),
    aten.native_group_norm.default: _statistics,
    aten.native_layer_norm.default: _statistics,
    aten._native_batch_norm_legit.default: _as_suggested,
    aten._native_batch_norm_legit_functional.default: _as_suggested,
    aten._native_batch_norm_legit.no_stats: _as_suggested,
    aten._native_batch_norm_legit_no_training.default: _untrained,
    aten.native_group_norm_backward.default: _gradients,
    aten.native_layer_norm_backward.default: _row_major_gradients,
    aten.mkldnn_rnn_layer_backward.default: _apart,
}


def _made(
    mode: Any, operation: Any, args: Any, kwargs: Any, dtypes: tuple[torch.dtype, ...]
) -> tuple[Any, ...]:
    """The results of PyTorch's rule, the first ones converted to `dtypes`."""
    with in_kernel_invocation_manager(mode):
        made = list(operation(*args, **kwargs))
        for k, dtype in enumerate(dtypes):
            if made[k] is not None and made[k].dtype != dtype:
                made[k] = torch.empty_like(made[k], dtype=dtype)
    device = next(part.device for part in args if isinstance(part, Tensor))
    return tuple(part if part is None else FakeTensor(mode, part, device) for part in made)


Rebound: TypeAlias = Sequence[tuple[Tensor, Tensor]]
"""Buffers that a forward pass replaced (``self.mean = ...``), each with its new tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class StepInput:
    """A fake of a tensor that the step reads; `path` is its name in `ModelAndLoss`, or empty."""

    role: Role
    key: str
    value: Tensor
    path: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """A model, its inputs and its targets as a flat sequence of tensors."""

    source: ModelSource
    tensors: tuple[StepInput, ...]

    def described(self) -> str:
        """What the model is called with, for error messages: the first tensors and their types."""
        named = (("input", self.source.arguments), ("target", self.source.targets))
        leaves = [(what, *pair) for what, tree in named for pair in leaves_of(tree)]
        found = [f"{what} {key} {_kind(leaf)}" for what, key, leaf in leaves if leaf is not None]
        if not found:
            return "called without inputs"
        return "called with " + ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")

    def run(
        self, values: Sequence[Tensor], then: Loss, *, called: bool = False
    ) -> tuple[Any, Rebound]:
        """Compute ``then(outputs, targets)`` with `values` in place of the tensors.

        They stay in place until `then` returns: what it differentiates may compute parts of the
        forward pass again (activation checkpointing), which must read the same values.

        `called`: the caller of the model has its arguments afterwards; the loop that trains it has
        no more use for a batch.
        """
        source, remaining = self.source, iter(values)
        held = {entry.path: next(remaining) for entry in self.tensors if entry.path}
        whole, state = ModelAndLoss(source.model, source.loss_fn, then), dict(held)
        whole.stand_in(held)
        arguments = (refilled(source.arguments, remaining), refilled(source.targets, remaining))
        given = tree_leaves(arguments[0])
        with _autocast_cache():
            made = torch.func.functional_call(whole, state, arguments)
        if called:
            _refuse_filled(given, arguments[0], type(source.model).__name__)
        return made, _rebound(held, state)


def _refuse_filled(given: Sequence[Any], arguments: Any, model: str) -> None:
    """Raise where the model has put something into a list or a dict that it was called with."""
    known = set(map(id, given))
    if any(id(leaf) not in known for leaf in tree_leaves(arguments)):
        raise UnsupportedError(
            "the forward pass puts something into a list or a dict among its arguments, which a "
            "placed call would leave as it is",
            where=f"model {model}",
            hint="return it from forward instead, or put it into a copy: dict(batch), list(batch)",
        )


def _kind(leaf: Any) -> str:
    """Shape and dtype of a tensor, else the class."""
    if not isinstance(leaf, Tensor):
        return type(leaf).__name__
    return f"{tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"


@contextmanager
def _autocast_cache() -> Iterator[None]:
    """Let autocast cast a parameter once for all its readers, as eager mode does.

    ``make_fx`` (PyTorch 2.13) turns that off, which changes bits: the gradients of several readers
    are added in the dtype of the readers where they share a cast, else in the parameter's.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(before)


def step_inputs(source: ModelSource, *, scaled: bool = False) -> StepInputs:
    """Make fakes on the CPU of all tensors that a step reads.

    The last one is the number by which a `scaled` loss is multiplied. What is no tensor inside of
    inputs and targets becomes a constant of the graph.
    """
    check_plain(source)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    parameters, buffers = source.members()
    groups: tuple[tuple[Role, Sequence[tuple[str, str, Any]]], ...] = (
        ("parameter", parameters),
        ("buffer", buffers),
        ("input", [(key, "", leaf) for key, leaf in leaves_of(source.arguments)]),
        ("target", [(key, "", leaf) for key, leaf in leaves_of(source.targets)]),
    )
    tensors = tuple(
        StepInput(role, key, _fake(mode, value, f"{role} {key}"), path)
        for role, members in groups
        for key, path, value in members
        if isinstance(value, Tensor)
    )
    if scaled:
        scale = _fake(mode, torch.empty((), dtype=torch.float32), "setting scale")
        tensors = (*tensors, StepInput("setting", "scale", scale))
    return StepInputs(source, tensors)


def _fake(mode: FakeTensorMode, value: Tensor, where: str) -> Tensor:
    if value.layout is not torch.strided:
        raise sparse(value, where)
    if value.is_quantized:
        raise quantized(where, f"{value.dtype}, shape {tuple(value.shape)}")
    if value.is_nested:
        raise UnsupportedError(
            "a nested tensor",
            where=where,
            hint="give a padded one, torch.nested.to_padded_tensor(value, 0.0), and a mask",
        )
    with mode:
        # On the CPU even where the model is on the meta device: kernels are chosen by device.
        fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    return fake.requires_grad_(value.requires_grad and value.is_leaf)


def _rebound(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Rebound:
    """The buffers that are other tensors now; a trace does not record an assignment."""
    changed = {key: (old, after[key]) for key, old in before.items() if after[key] is not old}
    for key, (old, new) in changed.items():
        if not isinstance(new, Tensor) or new.shape != old.shape or new.dtype != old.dtype:
            now = f"{tuple(new.shape)} {new.dtype}" if isinstance(new, Tensor) else repr(new)
            raise UnsupportedError(
                "the forward pass puts something of another shape in its place",
                where=f"buffer {key.removeprefix('model.')!r}",
                by=f"{tuple(old.shape)} {old.dtype}, then {now}",
                hint="give the buffer its final shape before capturing, by calling the model once",
            )
    return tuple(changed.values())


def write_back(rebound: Rebound) -> None:
    """Write the new values into the buffers, from which the next step starts.

    All are read before one is written: a model may swap two buffers.
    """
    with torch.no_grad():
        values = [new.detach().clone() for _, new in rebound]
        for (old, _), value in zip(rebound, values, strict=True):
            old.copy_(value)


def outputs_apart(outputs: Sequence[Tensor], rebound: Rebound) -> list[Tensor]:
    """The outputs; one that is a buffer about to be overwritten, as a copy."""
    overwritten = {_storage(old) for old, _ in rebound}
    return [x.clone() if _storage(x) in overwritten else x for x in outputs]


def _storage(x: Tensor) -> int:
    """Identity of the memory; fakes have no addresses, so it is the storage object's."""
    key: int = x.untyped_storage()._cdata
    return key
