"""One training step of a model as high-level ATen calls: forward pass and loss, no backward.

`torch.export` keeps whole layers as one call (``aten.linear``, ``aten.conv2d``, ``aten.lstm``),
which is what formulas are about and what strategies split. Shapes are fixed: a program is traced
once for every number of samples that some worker takes.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.checkpoint import CheckpointFunction

from placewright.capturing.checks import (
    ONE_ROW,
    check_parameters,
    check_repeatable,
    python_draws_refused,
    python_generators_kept,
    reads_values,
    trace_error,
)
from placewright.capturing.functional import deeper_recursion, shape_rules
from placewright.capturing.isolation import isolated_trace, note_constants, recorded_code
from placewright.capturing.program_calls import operation
from placewright.capturing.python_state import PythonState, in_mode
from placewright.capturing.real_calls import called
from placewright.capturing.source import (
    ModelSource,
    TrainingRecipe,
    copied,
    default_loss,
    modules_in,
)
from placewright.capturing.split_loss import CountedMeans, LossSplit
from placewright.capturing.tracing import check_loss, loss_value
from placewright.capturing.value_reads import ValueReads, batches_counted
from placewright.errors import InputError, PlacewrightError, UnsupportedError
from placewright.graph.graph import Const, Instruction, Ref, TensorSpec
from placewright.io.arguments import described_value

MODEL = "model."
"""Prefix of the model's parameters in a traced step; those of the loss begin with ``loss.``"""

WHOLE = LossSplit()
"""Of a batch that is not split."""

_IGNORED = ("aten._assert_tensor_metadata.default", "aten._assert_async.msg")


@dataclass(frozen=True, slots=True, eq=False)
class TracedStep:
    """Forward pass and loss on `batch` samples.

    Attributes
    ----------
    modules
        Path of the module that made each call.
    specs
        Of every value.
    parameters, buffers
        Value -> name in the model; tied weights have one name.
    feeds
        Values that a batch brings, in the order of its tensors, then what the whole batch counts
        (`LossSplit`), per sample where parts count by their rows; `batched` are cut along samples.
    constants
        Values that the model's code made.
    loss
        The value that the backward pass starts from.
    counts
        Values that are what these samples count.
    without_gradient
        Parameters, as `parameters` names them, of which the loss has no gradient, such as those
        of what is detached.
    autocast
        Dtype of the autocast under which the calls are made; empty for none.
    """

    batch: int
    instructions: tuple[Instruction, ...]
    modules: tuple[str, ...]
    specs: Mapping[str, TensorSpec]
    parameters: Mapping[str, str]
    buffers: Mapping[str, str]
    feeds: tuple[str, ...]
    batched: frozenset[str]
    constants: Mapping[str, Tensor]
    loss: str
    counts: tuple[str, ...] = ()
    without_gradient: frozenset[str] = frozenset()
    autocast: str = ""


@contextmanager
def _as_called() -> Iterator[None]:
    """Let models that ask whether they are being compiled do what they do when they are called."""
    with (
        patch.object(torch.compiler, "_is_compiling_flag", False),
        patch.object(torch.compiler, "_is_exporting_flag", False),
    ):
        yield


class _PartStep(nn.Module):
    """Model and loss of a part of a batch as one module; `weight`: its rows, or 1 for a sum."""

    def __init__(self, source: ModelSource, split: LossSplit, weight: float) -> None:
        super().__init__()
        self.model, self.split, self.weight = source.model, split, weight
        self.loss = source.loss_fn or default_loss
        self.without_gradient = set[str]()

    def forward(self, args: Any, kwargs: Any, targets: Any, whole: Any) -> tuple[Tensor, ...]:
        """What the part counts, and its loss, whose means are over what the `whole` counts."""
        with _as_called(), CountedMeans(self.split.divisors(whole, self.weight)) as means:
            loss = loss_value(self.loss, self.model(*args, **kwargs), targets)
        check_loss(loss)
        reached = _differentiated(loss)
        every = self.model.named_parameters(remove_duplicate=False)
        # Not assigned: `torch.export` takes back what a forward pass assigns.
        self.without_gradient.clear()
        self.without_gradient.update(f"model.{n}" for n, p in every if id(p) not in reached)
        seen = zip(means.counts, self.split.counted, strict=False)
        return (*(count for count, counted in seen if counted), loss)


def batch_of(source: ModelSource) -> int:
    """Samples in the inputs: the first dimension of the first tensor.

    Raises `InputError`: no input is a tensor.
    """
    for leaf in _leaves(source):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    raise InputError(
        "no input of the model has samples",
        where=f"model {source.name}: inputs",
        by=f"got {described_value(source.inputs)}",
        hint="give tensors whose first dimension is the batch",
    )


def with_batch(source: ModelSource, batch: int) -> ModelSource:
    """The same model on `batch` samples: the first ones, repeated where there are too few."""
    have = batch_of(source)
    rows = torch.arange(batch) % have

    def cut(leaf: Any) -> Any:
        samples = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == have
        return leaf[rows.to(leaf.device)] if samples else leaf

    leaves, spec = tree_flatten((source.inputs, source.targets))
    inputs, targets = tree_unflatten([cut(leaf) for leaf in leaves], spec)
    return replace(source, inputs=inputs, targets=targets)


def feed_tensors(source: ModelSource) -> list[Tensor]:
    """The tensors of inputs and targets, in the order of `TracedStep.feeds`, without counts."""
    return [leaf for leaf in _leaves(source) if isinstance(leaf, Tensor)]


def trace_step(
    source: ModelSource, batch: int, split: LossSplit = WHOLE, *, repeatable: bool = True
) -> TracedStep:
    """Trace the training step of `source` on `batch` samples, of a batch that is split like that.

    `repeatable`: check that it is a function of its inputs, which takes a second trace.

    Raises `UnsupportedError`: `torch.export` cannot trace the model, it has control flow of its
    own, or is not a function of its inputs.
    """
    name = type(source.model).__name__
    if repeatable:
        _refuse_changes_in_backward(source)
    with (
        isolated_trace(name),
        in_mode(source.model, source.loss_fn, training=True) as state,
        recorded_code(source.model),
    ):
        return _traced(with_batch(source, batch), batch, split, state if repeatable else None)


def _traced(
    source: ModelSource, batch: int, split: LossSplit, state: PythonState | None
) -> TracedStep:
    """The step, checked to be repeatable from a `state` if it is given."""
    check_parameters(source)
    _refuse_backward_hooks(source)
    source = _on_fake_tensors(source)
    step = _PartStep(source, split, float(batch) if split.reduction == "mean" else 1.0)
    name = type(source.model).__name__

    def export() -> torch.export.ExportedProgram:
        return _exported(step, source)

    with python_generators_kept():
        with python_draws_refused(name):
            exported = export()
        if state is not None:
            check_repeatable(
                exported.graph_module.graph, lambda: export().graph_module, state, name
            )
    lowered = _lowered(exported, step, source, batch, sum(split.counted))
    _refuse_sparse_gradients(lowered, name)
    return lowered


def _refuse_sparse_gradients(step: TracedStep, name: str) -> None:
    """Workers exchange dense gradients, and Adam takes no others."""
    for call in step.instructions:
        weight = call.args[0] if call.args else None
        arguments = operation(call.target)._schema.arguments
        given = dict(zip((a.name for a in arguments), call.args, strict=False))
        asked = {**given, **call.kwargs}.get("sparse") is True
        path = step.parameters.get(weight.name) if isinstance(weight, Ref) else None
        if asked and path is not None and path not in step.without_gradient:
            raise UnsupportedError(
                "a sparse gradient, which workers that share a batch do not exchange",
                where=f"model {name}, parameter {path.removeprefix(MODEL)!r}",
                by=call.target,
                hint="make the embedding with sparse=False, which computes the same; or take "
                "placewright.place(..., training=True)",
            )


def _on_fake_tensors(source: ModelSource) -> ModelSource:
    """A model on the meta device, its loss and its batch as tensors of the CPU without data.

    Batches, and buffers that are computed when a model is built, are often on the CPU, and no
    operation takes tensors of both.
    """
    if not any(member.value.is_meta for members in source.members() for member in members):
        return source
    model, loss_fn = copied(source.model, source.loss_fn)
    known: dict[int, Tensor] = {}

    def fake(value: Tensor) -> Tensor:
        if id(value) not in known:  # tied weights stay tied
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            is_parameter = isinstance(value, nn.Parameter)
            known[id(value)] = nn.Parameter(made, value.requires_grad) if is_parameter else made
        return known[id(value)]

    with FakeTensorMode():
        for module in (m for whole in (model, *modules_in(loss_fn)) for m in whole.modules()):
            every: list[dict[str, Any]] = [module._parameters, module._buffers]
            for members in every:
                made = {n: fake(v) for n, v in members.items() if v is not None}
                members.update(made)
        inputs, targets = tree_map_only(Tensor, fake, (source.inputs, source.targets))
    return replace(source, model=model, loss_fn=loss_fn, inputs=inputs, targets=targets)


def _differentiated(loss: Tensor) -> set[int]:
    """The `id` of every leaf that the loss has a gradient of.

    Refuses functions with a backward pass of their own: a trace has their forward pass only.
    """
    nodes, seen, leaves = [loss.grad_fn], set[Any](), set[int]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [before for before, _ in node.next_functions]
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        function = getattr(node, "_forward_cls", None)
        if function is CheckpointFunction:  # its forward pass has no gradients in a trace
            raise UnsupportedError(
                "a reentrant activation checkpoint, whose gradients layers would not have",
                where="torch.utils.checkpoint.checkpoint(..., use_reentrant=True)",
                hint="use_reentrant=False, or leave it out: plans of layers recompute by "
                "themselves; or take placewright.place(..., training=True)",
            )
        # Those of PyTorch recompute, and have the gradients of their forward pass.
        if function is not None and function.__module__.partition(".")[0] != "torch":
            raise UnsupportedError(
                f"{function.__name__} has a backward pass of its own, which layers would not have",
                where=f"class {function.__module__}.{function.__qualname__}",
                hint="write it by operations of PyTorch, x + (f(x) - x).detach() say; or take "
                "placewright.place(..., training=True), which captures backward passes",
            )
    return leaves


def _refuse_backward_hooks(source: ModelSource) -> None:
    """Refuse hooks of modules that are called in the backward pass; for the same reason."""
    for whole in (source.model, *modules_in(source.loss_fn)):
        for name, module in whole.named_modules():
            if module._backward_hooks or module._backward_pre_hooks:
                raise _own_backward("a backward hook of a module", f"module {name!r}")
    if nn.modules.module._global_backward_hooks or nn.modules.module._global_backward_pre_hooks:
        raise _own_backward("a backward hook of all modules", f"model {source.name}")


FEW_ROWS = 2
"""Of the example: whether a module is computed again does not depend on how many there are, and
batch norm takes two."""


def _refuse_changes_in_backward(source: ModelSource) -> None:
    """Refuse batch norms in checkpoints, whose backward pass updates their statistics once more."""
    if not any(True for _ in source.model.buffers()):
        return
    rows = min(FEW_ROWS, batch_of(source))
    real = called(with_batch(source, rows), training=True) or called(source, training=True)
    if real is None or not real.calls[0].again:
        return
    path = real.calls[0].again[0].removeprefix("model.")
    raise UnsupportedError(
        "its activation checkpoint computes it again in the backward pass, which changes this "
        "buffer a second time, as layers would not",
        where=f"buffer {path!r}",
        hint="leave the checkpoint out, as plans of layers recompute by themselves where memory "
        "is short; take batch norm out of it, or freeze it (.eval()); or take "
        "placewright.place(..., training=True), which changes it twice as PyTorch does",
    )


@contextmanager
def _tensor_hooks_refused() -> Iterator[None]:
    def refuse(tensor: Tensor, hook: Any) -> Any:
        raise _own_backward("a hook on a tensor", "Tensor.register_hook in forward")

    with patch.object(Tensor, "register_hook", refuse):
        yield


def _own_backward(what: str, where: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} changes the backward pass, which layers would not have",
        where=where,
        hint="remove it, or take placewright.place(..., training=True), which captures backward "
        "passes",
    )


def _exported(step: _PartStep, source: ModelSource) -> torch.export.ExportedProgram:
    args, kwargs = _arguments(source)
    whole = [torch.ones((), dtype=torch.float64) for counted in step.split.counted if counted]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of lists of weights in recurrent layers
            given = (args, kwargs, source.targets, whole)
            casting = (source.recipe or TrainingRecipe()).casting()
            # Calls are traced as they are made, before autocast: they are made under it again.
            with (
                torch.inference_mode(False),
                torch.enable_grad(),
                deeper_recursion(),
                shape_rules(),
                casting,
                batches_counted(),
                ValueReads(lambda lengths: None),
                _tensor_hooks_refused(),
            ):
                return torch.export.export(step, given, strict=False)
    except PlacewrightError:
        raise
    except Exception as error:
        if isinstance(error, RecursionError) or ONE_ROW in str(error) or reads_values(error):
            raise trace_error(error, "", source.name) from error
        raise UnsupportedError(
            "the model cannot be traced as layers",
            where=f"model {source.name}",
            by=f"{type(error).__name__}: {error}".splitlines()[0][:300],
            hint="loss_fn(model(*inputs), targets) has to run in plain PyTorch, and "
            "torch.export.export(model, inputs, strict=False) has to work on it",
        ) from error


def _lowered(
    exported: torch.export.ExportedProgram,
    step: _PartStep,
    source: ModelSource,
    batch: int,
    counts: int,
) -> TracedStep:
    lowering = _FxLowering()
    signature, first = exported.graph_signature, _first_names(step)
    parameters = {v: first[k] for v, k in signature.inputs_to_parameters.items()}
    buffers = {v: first[k] for v, k in signature.inputs_to_buffers.items() if k in first}
    lifted = {
        **signature.inputs_to_lifted_tensor_constants,
        **{v: k for v, k in signature.inputs_to_buffers.items() if k not in first},
    }
    held = {**exported.constants, **exported.state_dict}
    constants = {v: held[k].detach() for v, k in lifted.items() if isinstance(held[k], Tensor)}
    note_constants(source.model, (held[k] for k in lifted.values()))
    for node in exported.graph.nodes:
        lowering.lower(node)
    tensors = [isinstance(leaf, Tensor) for leaf in _leaves(source)] + [True] * counts
    users = [n for n in exported.graph.nodes if n.op == "placeholder"]
    known = {*parameters, *buffers, *constants, *lifted}
    given = [n.name for n in users if n.name not in known]
    feeds = tuple(name for name, tensor in zip(given, tensors, strict=True) if tensor)
    specs = lowering.specs
    return TracedStep(
        batch=batch,
        instructions=tuple(lowering.instructions),
        modules=tuple(lowering.modules),
        specs=specs,
        parameters=parameters,
        buffers=buffers,
        feeds=feeds,
        batched=frozenset(f for f in feeds if specs[f].shape[:1] == (batch,)),
        constants=constants,
        loss=lowering.outputs[-1],
        counts=tuple(lowering.outputs[:-1]),
        without_gradient=frozenset(step.without_gradient),
        autocast=_autocast(source),
    )


def _autocast(source: ModelSource) -> str:
    dtype = None if source.recipe is None else source.recipe.autocast_dtype
    return "" if dtype is None else str(dtype).removeprefix("torch.")


class _FxLowering:
    """fx nodes -> instructions on named values."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.modules: list[str] = []
        self.specs: dict[str, TensorSpec] = {}
        self.names: dict[fx.Node, Any] = {}
        self.outputs: list[str] = []
        self.prefix = ""  # of the values of a region, which have names of their own

    def lower(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.names[node] = Ref(node.name)
            self._specify(node.name, node.meta.get("val"))
        elif node.op == "output":
            self.outputs = [self._argument(made).name for made in _parts(node.args[0])]
        elif node.target is operator.getitem:
            source, k = _parts(node.args)
            self.names[node] = self.names[source][k]
        elif isinstance(node.target, torch._ops.OpOverload):
            self._call(node, str(node.target))
        elif node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            self._inline(node)
        elif node.users and not _is_region(node):
            raise UnsupportedError(
                f"the model calls {node.target}, which is no operation of ATen",
                where=_module(node),
                hint="control flow, autocast and enabled gradients inside a model cannot be split",
            )

    def _inline(self, node: fx.Node) -> None:
        """Lower a region without gradients in place, on what it reads without theirs."""
        enabled, region, *given = node.args
        if enabled or not isinstance(region, fx.Node):
            raise UnsupportedError(
                "a part of the model enables gradients inside torch.no_grad()",
                where=_module(node),
                hint="compute it outside of torch.no_grad()",
            )
        inner = getattr(node.graph.owning_module, str(region.target)).graph
        before, self.prefix = self.prefix, f"{self.prefix}{node.name}."
        values = iter(given)
        for each in inner.nodes:
            if each.op == "placeholder":
                self.names[each] = self._detached(self._argument(next(values)))
            elif each.op == "output":
                self.names[node] = [self._argument(part) for part in _parts(each.args[0])]
            else:
                self.lower(each)
        self.prefix = before

    def _detached(self, value: Any) -> Any:
        if not isinstance(value, Ref):
            return value
        name = f"{self.prefix}{value.name}"
        call = Instruction(name, "aten.detach.default", (value,), {}, (name,))
        self.instructions.append(call)
        self.modules.append(self.modules[-1] if self.modules else "")
        self.specs[name] = self.specs[value.name]
        return Ref(name)

    def _call(self, node: fx.Node, target: str) -> None:
        if target in _IGNORED:
            return
        value, made = node.meta.get("val"), f"{self.prefix}{node.name}"
        if isinstance(value, tuple | list):
            results = tuple(f"{made}.{k}" for k in range(len(value)))
            self.names[node] = [Ref(name) for name in results]
            for name, part in zip(results, value, strict=True):
                self._specify(name, part)
        else:
            results = (made,)
            self.names[node] = Ref(made)
            self._specify(made, value)
        kwargs = {key: self._argument(part) for key, part in node.kwargs.items()}
        args = tuple(self._argument(part) for part in node.args)
        self.instructions.append(Instruction(made, target, args, kwargs, results))
        self.modules.append(_module(node))

    def _specify(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            if not all(isinstance(size, int) for size in value.shape):
                raise UnsupportedError(
                    "what the model computes depends on values, not on shapes alone",
                    where=f"value {name!r}",
                    by=f"shape {tuple(value.shape)}",
                    hint="replace `.item()` and boolean indexing by torch.where",
                )
            self.specs[name] = TensorSpec(tuple(map(int, value.shape)), dtype)

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self.names[argument]
        if isinstance(argument, tuple | list):
            return tuple(self._argument(part) for part in argument)
        for kind, types in _CONSTANTS.items():
            if isinstance(argument, types):
                return Const(kind, str(argument).removeprefix("torch."))
        return argument


_CONSTANTS = {
    "dtype": torch.dtype,
    "device": torch.device,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def _parts(argument: Any) -> tuple[Any, ...]:
    return tuple(argument)


def _is_region(node: fx.Node) -> bool:
    """Whether it is the code of a region without gradients, which is lowered where it is called."""
    region = torch.ops.higher_order.wrap_with_set_grad_enabled
    return node.op == "get_attr" and all(user.target is region for user in node.users)


def _module(node: fx.Node) -> str:
    """Path of the innermost module that made the call."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return str(path).removeprefix(MODEL)


def _first_names(step: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer -> the first name of the same tensor."""
    first: dict[int, str] = {}
    found = {}
    for name, value in (
        *step.named_parameters(remove_duplicate=False),
        *step.named_buffers(remove_duplicate=False),
    ):
        found[name] = first.setdefault(id(value), name)
    return found


def _arguments(source: ModelSource) -> tuple[tuple[Any, ...], dict[str, Any]]:
    inputs = source.arguments
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})


def _leaves(source: ModelSource) -> list[Any]:
    args, kwargs = _arguments(source)
    return tree_flatten((args, kwargs, source.targets))[0]
