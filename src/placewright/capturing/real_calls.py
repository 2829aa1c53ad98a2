"""What a model computes in two real calls, which its program must compute, too.

A trace cannot see everything that Python does: a state that a call leaves for the next one (a
hidden state in an attribute, a flag that says that a layer has been initialised), ``x.data = ...``,
a branch on the class of a tensor. So a model is called twice in a row before it is traced, and its
program is executed in the same way: where outputs, parameters or buffers are others, the model is
refused.

The calls also fill caches, so that a trace reads them as constants: masks by length, positions,
filter banks. What both calls change is no cache and is put back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from placewright.capturing.checks import check_plain, python_generators_kept
from placewright.capturing.containers import leaves_of, memory_of, refilled, tensors_of
from placewright.capturing.python_state import PythonState, flags_kept, set_by_hooks, set_mode
from placewright.capturing.rewrites import is_random
from placewright.capturing.source import (
    ModelAndLoss,
    ModelSource,
    TrainingRecipe,
    default_loss,
    modules_in,
)
from placewright.capturing.tracing import Traced
from placewright.errors import UnsupportedError


class SideEffectWarning(UserWarning):
    """The forward pass leaves values in Python, which calls of a placed model do not."""


CHEAP_BYTES = 1 << 30
"""Of parameters and buffers: a model up to this size is called before it is traced."""


@dataclass(frozen=True, slots=True)
class RealCall:
    """What one call got and gave.

    Attributes
    ----------
    members
        Parameters and buffers after it, by their path; of a training step with its backward pass.
    again
        Buffers that the backward pass changed once more: those of a batch norm in a checkpoint,
        which computes it again.
    """

    source: ModelSource
    outputs: Sequence[Tensor]
    members: Mapping[str, Tensor]
    again: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class RealCalls:
    """Calls in a row, the first of which began with `members`.

    `random`: the state of PyTorch's generator at the beginning.
    `before`: what the model's code could change in Python, as it was then.
    `effects`: what the second call has set anew: attributes, entries of lists and dicts.
    """

    calls: Sequence[RealCall]
    members: Mapping[str, Tensor]
    random: Tensor
    before: PythonState
    effects: Sequence[str] = ()

    def demand_of(self, traced: Traced) -> None:
        """Raise `UnsupportedError` where the traced step computes something else.

        Warns (`SideEffectWarning`) of what the model leaves in Python beside that.
        """
        model = type(self.calls[0].source.model).__name__
        made = [e.path for e in traced.inputs if e.path and e.path not in self.members]
        if made:
            raise UnsupportedError(
                "the first call makes a parameter or a buffer",
                where=f"model {model}",
                by=repr(made[0].removeprefix("model.")),
                hint="call the model once before it is placed, and before its optimizer is made",
            )
        members = {path: _own(value) for path, value in self.members.items()}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.random)
            for number, call in enumerate(self.calls, 1):
                outputs = _Forward(traced).outputs(_values(traced, call.source, members))
                self._demand(call, outputs, members, number, _roundoff(traced))
        if self.effects:
            warnings.warn(
                f"{model} leaves values in Python in every call, which calls and steps of the "
                f"placed model do not: {', '.join(self.effects[:4])}\n"
                "  next: return as outputs what is read afterwards; counters may become buffers "
                "that are changed in place",
                SideEffectWarning,
                stacklevel=2,
            )

    def _demand(
        self,
        call: RealCall,
        outputs: Sequence[Tensor],
        members: Mapping[str, Tensor],
        number: int,
        roundoff: float,
    ) -> None:
        pairs = zip(outputs, call.outputs, strict=False)  # of a training step, the loss alone
        named = [
            *((f"output {k}", *pair) for k, pair in enumerate(pairs)),
            *((path.removeprefix("model."), members[path], x) for path, x in call.members.items()),
        ]
        for name, found, expected in named:
            apart = _apart(found, expected)
            if apart <= roundoff**0.5:
                continue
            self.before.restore()
            raise UnsupportedError(
                "its program, traced from its code, does not compute what the model computes",
                where=f"model {type(call.source.model).__name__}, call {number} of two in a row",
                by=f"{name} differs by {apart:.2g} of its largest value",
                hint="the code keeps a state between calls that is no buffer (an attribute, a "
                "list, a flag for the first call), assigns to .data, or asks for the class of a "
                "tensor, its attributes, or whether two arguments are one: keep state in buffers "
                "that are changed in place; call a model that initialises itself once before it "
                "is placed",
            )


def called(source: ModelSource, *, training: bool) -> RealCalls | None:
    """Call a model twice for real; ``None`` where that is dear, impossible or ends in an error.

    Parameters, buffers, counters and random numbers stay as they are. A large model is not called,
    nor one on the meta device or a GPU; errors are left to the trace, which names the module. The
    second call gets half of the numbers of the first.

    Raises `UnsupportedError` or `InputError`: a module is compiled, scripted or lazy.
    """
    check_plain(source)
    model, loss_fn = source.model, source.loss_fn if training else None
    whole = ModelAndLoss(model, loss_fn)
    held = [*whole.parameters(), *whole.buffers()]
    if any(x.device.type != "cpu" or x.layout is not torch.strided for x in held):
        return None
    if sum(x.nbytes for x in held) > CHEAP_BYTES:
        return None
    before = PythonState.of(model, *modules_in(loss_fn), loss_fn)
    with _undisturbed(source, training=training):
        members, random, lent = dict(_copied(whole)), torch.get_rng_state(), _Lent()
        try:
            first = _call(source, members, lent, training=training)
            between = PythonState.of(model, *modules_in(loss_fn), loss_fn)
            second = _second(source, first, lent, training=training)
        except Exception:
            before.restore()
            return None
        effects = _effects(between, lent)
        before.restore_changing(between, lambda value: _is_lent(value, lent))
    if training and (source.recipe or TrainingRecipe()).micro_batches > 1:
        return None  # the step computes its parts, one after another
    return RealCalls((first, second), members, random, before, effects)


_OF_RECURRENT = {"_flat_weights", "_flat_weight_refs"}
"""Attributes of recurrent layers of PyTorch, which list their weights."""


def _effects(between: PythonState, lent: _Lent) -> list[str]:
    """What has been set since `between`: not weights, nor what PyTorch computes before a call."""
    found = []
    for box in between.containers:
        computed = set_by_hooks(box.content) if isinstance(box.content, dict) else set()
        keys = [key for key in box.changed_keys() if key not in computed | _OF_RECURRENT]
        keys = [key for key in keys if key is None or not _is_lent(box.value_of(key), lent)]
        found += [box.path if key is None else f"{box.path}.{key}".strip(".") for key in keys]
    return [*found, *(path for _, path, _ in between.changed_arrays())]


class _Lent:
    """Copies that were made for calls, by the identity of their storages.

    Weak references keep an identity from being given to another storage.
    """

    def __init__(self) -> None:
        self.storages: dict[int, StorageWeakRef] = {}

    def add(self, copies: Iterable[Tensor]) -> None:
        """Note some."""
        for copy in copies:
            if (key := memory_of(copy)) != 0:
                self.storages[key] = StorageWeakRef(copy.untyped_storage())  # type: ignore[no-untyped-call]


def _is_lent(value: Any, lent: _Lent) -> bool:
    """Whether it is, or holds, a copy that was made for a call."""
    parts = [x for x in tree_leaves(value) if isinstance(x, Tensor)]
    return any(memory_of(part) in lent.storages for part in parts)


def _second(source: ModelSource, first: RealCall, lent: _Lent, *, training: bool) -> RealCall:
    """A call on other numbers, or on the same where the model does not take them."""
    random = torch.get_rng_state()
    with suppress(Exception):
        other = replace(source, inputs=_halved(source.inputs))
        return _call(other, first.members, lent, training=training)
    torch.set_rng_state(random)
    return _call(source, first.members, lent, training=training)


@contextmanager
def _undisturbed(source: ModelSource, *, training: bool) -> Iterator[None]:
    """Calls in a mode, which leave modes and random numbers as they are."""
    with (
        torch.set_grad_enabled(training),
        torch.random.fork_rng(devices=[]),
        python_generators_kept(),
        flags_kept(source.model),
    ):
        set_mode(source.model, training=training)
        yield


def _copied(whole: ModelAndLoss) -> Iterator[tuple[str, Tensor]]:
    """Copies of parameters and buffers by path."""
    for path, value in (*whole.named_parameters(), *whole.named_buffers()):
        yield path, _own(value)


def _call(
    source: ModelSource, members: Mapping[str, Tensor], lent: _Lent, *, training: bool
) -> RealCall:
    """One call, of a copy of the members; `lent` gets all copies."""
    state = {path: _own(value) for path, value in members.items()}
    forward: dict[str, Tensor] = {}

    def differentiated(outputs: Any, targets: Any) -> Any:
        """The loss; where buffers were changed, after the backward pass, which may change them.

        It computes parts of the forward pass again, of the members that are in place here.
        """
        loss = (source.loss_fn or default_loss)(outputs, targets)
        forward.update({p: x.clone() for p, x in _changed(state, members).items()})
        if forward:
            torch.autograd.backward(loss)
        return loss

    then = differentiated if training else _outputs
    whole = ModelAndLoss(source.model, source.loss_fn if training else None, then)
    whole.stand_in(state)
    lent.add(state.values())
    given = (source.arguments, source.targets)
    own = list(map(_once(_like), tensors_of(given)))
    lent.add(own)
    arguments = refilled(given, iter(own))
    with (source.recipe or TrainingRecipe()).casting():
        made = torch.func.functional_call(whole, state, arguments)
    outputs = [value.detach().clone() for value in tensors_of(made)]
    # What it has not changed is kept once.
    changed = _changed(state, members)
    again = [p for p, x in forward.items() if not torch.equal(state[p].detach(), x)]
    return RealCall(source, outputs, {**members, **changed}, again)


def _changed(state: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is different now. Versions do not tell: batch norm does not count them."""
    return {
        path: value.detach()
        for path, value in state.items()
        if not torch.equal(value.detach(), before[path].detach())
    }


def _outputs(outputs: Any, _targets: Any) -> Any:
    return outputs


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _like(tensor: Tensor) -> Tensor:
    """A copy of an argument that code takes for the argument, whatever it asks."""
    made = _own(tensor)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made.detach(), tensor.requires_grad)
    vars(made).update(vars(tensor))
    return made


def _once(make: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """One result for each tensor: a model that gets one twice may ask whether they are one."""
    made: dict[int, Tensor] = {}

    def of(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = make(tensor)
        return made[id(tensor)]

    return of


def _halved(inputs: Any) -> Any:
    """The inputs with half of each real number; whole numbers may be places, and stay."""

    def half(value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        made = _like(value)
        made.data.mul_(0.5)
        return made

    return refilled(inputs, map(_once(half), tensors_of(inputs)))


def _values(traced: Traced, source: ModelSource, members: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """What the placeholders stand for."""
    trees = {"input": source.arguments, "target": source.targets}
    given = {(role, key): leaf for role, tree in trees.items() for key, leaf in leaves_of(tree)}
    for entry in traced.inputs:
        if entry.path:
            yield members[entry.path]
        elif entry.role == "setting":
            yield torch.ones(())
        else:
            yield given[entry.role, entry.key].detach().clone()


class _Forward(fx.Interpreter):
    """Executes what the outputs of a step need, and what it changes in place: no backward pass."""

    def __init__(self, traced: Traced) -> None:
        super().__init__(traced.module)
        self.count, graph = len(traced.outputs), traced.module.graph
        last = next(iter(reversed(graph.nodes)))
        pending = [*last.args[0][: self.count]]
        pending += [node for node in graph.nodes if _changes(node) or _draws(node)]
        self.needed = set[fx.Node]()
        while pending:
            node = pending.pop()
            if isinstance(node, fx.Node) and node not in self.needed:
                self.needed.add(node)
                pending += node.all_input_nodes

    def outputs(self, values: Iterator[Tensor]) -> Sequence[Tensor]:
        """The outputs, given a value for every placeholder."""
        return list(self.run(*values)[: self.count])

    def run_node(self, n: fx.Node) -> Any:
        wanted = n.op in ("placeholder", "output") or n in self.needed
        return super().run_node(n) if wanted else None

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return value.constant if isinstance(value, FakeTensor) else value


def _changes(node: fx.Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _draws(node: fx.Node) -> bool:
    """Whether it advances the generator for the calls after it in the forward pass."""
    return is_random(node) and (node.meta.get("custom") or {}).get("phase") != "backward"


def _apart(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value; ``inf`` for other shapes or dtypes."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if found.layout is not torch.strided or not found.numel():
        return 0.0
    one, other = (x.resolve_conj().resolve_neg() for x in (found, expected))
    if torch.equal(one, other):
        return 0.0
    if not one.is_floating_point() and not one.is_complex():
        return float("inf")
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    same = (one == other) | (one.isnan() & other.isnan())
    apart = (one - other).abs().masked_fill(same, 0.0)
    size = other.abs()[other.abs().isfinite()]
    largest = float(size.max()) if size.numel() else 0.0
    return float(apart.nan_to_num(torch.inf).max()) / (largest or 1.0)


def _roundoff(traced: Traced) -> float:
    """Of the coarsest type that the step computes in."""
    made = [node.meta.get("val") for node in traced.module.graph.nodes]
    types = {x.dtype for x in made if isinstance(x, Tensor) and x.is_floating_point()}
    return max((torch.finfo(each).eps for each in types), default=torch.finfo(torch.float32).eps)
