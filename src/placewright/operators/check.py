"""Compare a placed run with plain eager PyTorch: outputs, parameters and buffers of every step.

`run_eager` shares as little as it can with capture, so that no mistake is in both: modes, copies of
optimizers, autocast and the parameters that are updated are PyTorch's own here. Where it has to
share (copies of inputs, parts of a batch), what it got is compared with what the user gave.
"""

from __future__ import annotations

import copy
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from placewright.capturing.containers import (
    MicroBatch,
    StepBatch,
    leaves_of,
    micro_batches,
    refilled,
    tensors_of,
)
from placewright.capturing.source import (
    ModelAndLoss,
    ModelSource,
    TrainingRecipe,
    as_arguments,
    copied,
    modules_in,
    recipe_of,
)
from placewright.capturing.split_loss import (
    STILL,
    CountedMeans,
    LossSplit,
    split_rows,
    whole_counts,
)
from placewright.capturing.update_rule import PLAIN
from placewright.cluster.cluster import Device
from placewright.errors import CheckError, InputError
from placewright.graph.graph import INPUT_MARK, Graph, Program
from placewright.measurement import LISTED, Check, Difference, Role, Tolerance
from placewright.operators.exactness import tolerance

if TYPE_CHECKING:
    from placewright.runtime.session import Session


State = Mapping[str, torch.Tensor]

Outputs = Mapping[str, torch.Tensor | float]


def check_session(
    session: Session, source: ModelSource, *, seed: int, steps: int, devices: Sequence[Device]
) -> Check:
    """Execute steps of what was just loaded beside eager steps from the same state and seed.

    `devices`: that the placement uses.
    Every other step is done on other inputs. Raises `RunError`: outputs or state do not fit into
    the temporary folder.
    """
    comparison = Comparison.of(session.graph, source, seed=seed, devices=devices)
    limit = comparison.tolerance.steps
    batches = _batches(source, comparison.program)
    for k in range(steps if limit is None else min(steps, limit)):
        if k > 0 and batches:
            inputs = batches[k % 2]
            session.feed({f"input:{n}": x for n, x in leaves_of(inputs) if isinstance(x, Tensor)})
            comparison.eager.feed(inputs)
        session.run(1)
        comparison.step(session.outputs(), session.state())
    return comparison.check()


def _batches(source: ModelSource, program: Program) -> tuple[Any, ...]:
    """The example's inputs and others; none where steps change their inputs.

    A tensor of an earlier step that is read again goes unseen where all steps compute the same.
    """
    if any(item.mutated for item in program.inputs if item.role == "input"):
        return ()
    return tuple(as_arguments(varied(source.inputs, k), "") for k in range(2))


def varied(inputs: Any, k: int) -> Any:
    """The inputs with the elements of every tensor in another order; for 0 as they are.

    Values stay those that the model has been given: an index stays one that it knows. A list of
    whole numbers stays as it is: it may be one of offsets, which ascend.
    """
    generator = torch.Generator().manual_seed(k)

    def shuffled(tensor: torch.Tensor) -> torch.Tensor:
        listed = tensor.dim() < 2 and not (tensor.is_floating_point() or tensor.is_complex())
        if k == 0 or listed or tensor.numel() < 2 or 0 in tensor.stride():
            return tensor
        order = torch.randperm(tensor.numel(), generator=generator)
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return made.copy_(tensor.reshape(-1)[order].reshape(tensor.shape))

    return refilled(inputs, iter([shuffled(t.detach()) for t in tensors_of(inputs)]))


@dataclass(slots=True)
class Comparison:
    """Eager steps, each compared with what a placed step gave.

    Attributes
    ----------
    initial
        Parameters and buffers before the first step: what the program has none of must stay so.
    failed
        Of the first step in which any differed by too much.
    """

    program: Program
    eager: EagerSteps
    tolerance: Tolerance
    initial: State
    steps: int = 0
    largest: float = 0.0
    failed: list[Difference] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(
        cls, graph: Graph, source: ModelSource, *, seed: int, devices: Sequence[Device]
    ) -> Comparison:
        """Before the first step of either side."""
        program = graph.program
        assert isinstance(program, Program)
        eager = EagerSteps(
            source,
            training=program.training,
            seed=seed,
            threads=devices[0].cores,
            optimizer=program.optimizer.get("name", "adam"),
            lr=program.optimizer.get("lr", 1e-3),
        )
        initial = {name: tensor.clone() for name, tensor in eager.state().items()}
        made = cls(program, eager, tolerance(graph, devices, source), initial)
        if program.training and source.recipe is not None and source.recipe.micro_batches > 1:
            off, most = parts_apart(source, seed)
            if not off <= most:
                name = "loss of the whole batch, as a part of it"
                made.failed, made.largest = [Difference(0, "output", name, off, most)], off
        return made

    def step(self, outputs: Outputs, state: State | None) -> None:
        """Do the eager step that belongs to what is given.

        Parameters
        ----------
        outputs
            By output of the program, a tensor, or a number for an output of one element; those
            that are missing are not compared.
        state
            By program input, what the steps have changed; ``None``: not compared.
        """
        self.steps += 1
        self._compare(self.eager.step(), outputs, state)

    def after_last(self, state: State) -> None:
        """Compare the state after the steps so far, as `step` does."""
        self._compare(EagerRun((), self.eager.state(), ()), {}, state)

    def _compare(self, expected: EagerRun, outputs: Outputs, state: State | None) -> None:
        found = list(self._differences(expected, outputs, state))
        self.compared |= Counter(difference.role for difference in found)
        self.largest = max([self.largest, *(d.max_abs_error for d in found)])
        if not self.failed:
            self.failed = sorted((d for d in found if not d.passed), key=_furthest)

    def check(self, note: str = "") -> Check:
        """Result of the comparison of all steps so far."""
        return Check(
            steps=self.steps,
            tolerance=self.tolerance,
            compared={
                role: self.compared[role]
                for role in ROLES
                if role != "input" or self.compared[role]
            },
            max_abs_error=self.largest,
            failed=tuple(self.failed[:LISTED]),
            beyond=len(self.failed),
            note=note,
        )

    def _differences(
        self, expected: EagerRun, outputs: Outputs, state: State | None
    ) -> Iterator[Difference]:
        for name, tensor in self._named_outputs(expected).items():
            if name in outputs:
                yield self._difference("output", name, _like(outputs[name], tensor), tensor)
        if state is None:
            return
        inputs = self.program.inputs
        keys = {i.key: i.name for i in inputs if i.role in ("parameter", "buffer")}
        keys |= {i.name: i.name for i in inputs if i.role in ("input", "target")}
        parameters = self.eager.parameters()
        aliases = _aliases(expected.state)
        for name, tensor in expected.state.items():
            given = [keys[alias] for alias in aliases[name] if alias in keys]
            unchanged = self.initial.get(name, _MISSING)
            found = next((state[key] for key in given if key in state), unchanged)
            role: Role = "input" if INPUT_MARK in name else "buffer"
            role = "parameter" if name in parameters else role
            yield self._difference(role, name, found, tensor)

    def _named_outputs(self, expected: EagerRun) -> dict[str, torch.Tensor]:
        names = [output.name for output in self.program.outputs]
        if len(names) < len(expected.outputs):
            raise InputError(
                "the captured program has fewer outputs than the model",
                where=f"outputs {', '.join(names)}",
                by=f"{len(names)} and {len(expected.outputs)} tensors",
                hint="capture the model again from this source",
            )
        return dict(zip(names, expected.outputs, strict=False))

    def _difference(
        self, role: Role, name: str, found: torch.Tensor, expected: torch.Tensor
    ) -> Difference:
        largest = _largest(expected) if self.tolerance.relative else 0.0
        allowed = self.tolerance.absolute(role, largest, self.steps)
        return Difference(self.steps, role, name, difference(found, expected), allowed)


_MISSING = torch.empty(0)
"""Stands for what a placed run has not kept: an input that eager changes in place."""

ROLES: tuple[Role, ...] = ("output", "parameter", "buffer", "input")


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference; ``inf`` for other shapes, types, or a NaN on one side only."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    found, expected = found.cpu(), expected.cpu()
    if not found.numel() or torch.equal(found, expected):
        return 0.0
    if found.is_complex():
        found, expected = torch.view_as_real(found), torch.view_as_real(expected)
    found, expected = found.double(), expected.double()
    same = (found == expected) | (found.isnan() & expected.isnan())
    apart = (found - expected).abs().nan_to_num(nan=float("inf"))
    return float(apart.masked_fill(same, 0.0).max())


def _like(found: torch.Tensor | float, expected: torch.Tensor) -> torch.Tensor:
    """A number as a tensor of the expected shape and type."""
    if isinstance(found, torch.Tensor):
        return found
    return torch.full(expected.shape, found, dtype=expected.dtype)


def _largest(tensor: torch.Tensor) -> float:
    """Largest finite magnitude."""
    if not tensor.numel():
        return 0.0
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return float(values.double().abs().nan_to_num(nan=0.0, posinf=0.0).max())


def _aliases(state: State) -> dict[str, list[str]]:
    """Every name with all names of the same tensor: tied weights are one."""
    names: dict[tuple[int, tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for name, tensor in state.items():
        names.setdefault(_identity(tensor), []).append(name)
    return {name: names[_identity(tensor)] for name, tensor in state.items()}


def _identity(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    if not tensor.numel():
        return id(tensor), (), ()
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _furthest(found: Difference) -> tuple[float, int]:
    """Sorts the tensor that is furthest beyond its tolerance first, outputs before others."""
    beyond = found.max_abs_error / found.tolerance if found.tolerance else found.max_abs_error
    return -beyond, 0 if found.role == "output" else 1


@dataclass(frozen=True, slots=True, eq=False)
class EagerRun:
    """Outputs of the last step, parameters and buffers after it, seconds of every step.

    ``state`` has a tensor that the model holds under several names under each of them, those of
    the loss as ``loss_fn.NAME``, and inputs that were changed in place as ``input:0``.
    """

    outputs: tuple[torch.Tensor, ...]
    state: Mapping[str, torch.Tensor]
    step_s: tuple[float, ...]


class EagerSteps:
    """Plain steps on a copy of the model and its inputs, one at a time.

    Parameters
    ----------
    threads
        Intra-operator threads; results depend on it in the last bit.
    optimizer
        ``adam`` is ``torch.optim.Adam(fused=True)``, ``sgd`` is ``torch.optim.SGD``. A recipe of
        the source goes before it; its optimizer is copied.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        training: bool,
        seed: int = 0,
        threads: int = 1,
        optimizer: str = "adam",
        lr: float = 1e-3,
    ) -> None:
        self.model, loss_fn = copied(source.model, source.loss_fn)
        own = replace(source, model=self.model, loss_fn=loss_fn)
        self._source = replace(own, recipe=_own_recipe(source, own))
        self._threads = threads
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._random = torch.get_rng_state()
        self._step = Stepper(self._source, training=training, optimizer=optimizer, lr=lr)
        self._times: list[float] = []

    def step(self) -> EagerRun:
        """Execute one step; the caller's random numbers and threads stay as they were."""
        with _threads(self._threads), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            start = time.perf_counter()
            outputs = self._step()
            self._times.append(time.perf_counter() - start)
            self._random = torch.get_rng_state()
        found = tuple(x.detach() for x in tensors_of(outputs))
        return EagerRun(found, self.state(), tuple(self._times))

    def feed(self, inputs: Any, targets: Any = None) -> None:
        """Take other inputs from the next step on, and other targets if they are given."""
        targets = self._source.targets if targets is None else targets
        self._step.batch = StepBatch(as_arguments(inputs, ""), targets)

    def draw_from(self, random: torch.Tensor) -> None:
        """Draw from this state of the generator in the next step."""
        self._random = random

    def settings_of(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over what a loop may change in an optimizer: learning rates and the like."""
        for own, given in zip(self._step.updates.param_groups, optimizer.param_groups, strict=True):
            own |= {key: value for key, value in given.items() if key != "params"}

    def take_over(self, model: torch.nn.Module) -> None:
        """Take over what a loop has changed in a model: modes, attributes, frozen parameters.

        Its weights too: they are the newest where a trainer has taken them over.
        """
        for own, given in zip(self.model.modules(), model.modules(), strict=True):
            plain = {k: v for k, v in vars(given).items() if isinstance(v, PLAIN)}
            vars(own).update(plain)
        members = ((self.model.parameters, model.parameters), (self.model.buffers, model.buffers))
        with torch.no_grad():
            for theirs, ours in members:
                for mine, its in zip(theirs(), ours(), strict=True):
                    mine.requires_grad_(its.requires_grad)

    def parameters(self) -> set[str]:
        """All names of parameters."""
        whole = ModelAndLoss(self.model, self._source.loss_fn)
        return {n.removeprefix("model.") for n, _ in whole.named_parameters(remove_duplicate=False)}

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by every name that they have, and inputs that were changed."""
        whole = ModelAndLoss(self.model, self._source.loss_fn)
        named = (
            *whole.named_parameters(remove_duplicate=False),
            *whole.named_buffers(remove_duplicate=False),
            *self._step.batch.changed().items(),
        )
        return {name.removeprefix("model."): tensor.detach() for name, tensor in named}


def run_eager(
    source: ModelSource,
    *,
    training: bool,
    steps: int,
    seed: int = 0,
    threads: int = 1,
    optimizer: str = "adam",
    lr: float = 1e-3,
) -> EagerRun:
    """Execute plain steps on a copy of the model, at least one; see `EagerSteps`."""
    eager = EagerSteps(
        source, training=training, seed=seed, threads=threads, optimizer=optimizer, lr=lr
    )
    for _ in range(steps):
        run = eager.step()
    return run


class Stepper:
    """Does plain steps of a model on the source's batch, and changes the model.

    Calling it answers with the outputs, or with the loss.
    """

    def __init__(
        self, source: ModelSource, *, training: bool, optimizer: str = "adam", lr: float = 1e-3
    ) -> None:
        self.source, self.training = source, training
        name = type(source.model).__name__
        self.batch = StepBatch(source.arguments, source.targets)
        _demand_same((source.inputs, source.targets), self.batch.arguments(), name)
        _set_mode(source.model, training=training)
        if training:
            self.parameters = _parameters(source)
            self.recipe = source.recipe or recipe_of(optimizer, lr)
            self.updates = _optimizer(source, self.recipe)
            self.steps = 0
            own = replace(source, recipe=self.recipe)
            self.split = split_rows(own) if self.recipe.micro_batches > 1 else LossSplit()
            self.counts: list[torch.Tensor] | None = None

    def __call__(self) -> Any:
        """One step."""
        return self._train() if self.training else self._infer()

    @torch.enable_grad()
    def _train(self) -> torch.Tensor:
        assert self.source.loss_fn is not None
        recipe = self.recipe
        # Gradients are added up over several steps: they are cleared before the first of them
        # alone.
        if self.steps % recipe.accumulate == 0:
            self.updates.zero_grad(set_to_none=True)
            for parameter in self.parameters:
                parameter.grad = None
        scaler = recipe.scaler if recipe.scales else None
        loss = self.backward(scaler)
        self.steps += 1
        if self.steps % recipe.accumulate == 0:
            self._update(scaler)
        return loss

    def backward(self, scaler: torch.amp.GradScaler | None = None) -> torch.Tensor:
        """Forward and backward pass of the batch, or of its parts; the loss."""
        if self.recipe.micro_batches == 1:
            return self._backward(*self.batch.arguments(), None, scaler)
        return self._micro_batches(scaler)

    def _backward(
        self,
        inputs: Any,
        targets: Any,
        part: MicroBatch | None,
        scaler: torch.amp.GradScaler | None,
    ) -> torch.Tensor:
        """Forward and backward pass; the loss, times the share of a micro-batch."""
        loss_fn = self.source.loss_fn
        assert loss_fn is not None
        with _casting(self.recipe):
            outputs = self._forward(inputs)
            if part is None:
                loss = loss_fn(outputs, targets)
            else:
                if self.counts is None:
                    whole = self.batch.arguments()[1]
                    self.counts = whole_counts(self.split, loss_fn, outputs, whole, part)
                with CountedMeans(self.split.divisors(self.counts, part.share)):
                    loss = loss_fn(outputs, targets) * part.share
        (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        return loss

    def _micro_batches(self, scaler: torch.amp.GradScaler | None) -> torch.Tensor:
        """The plain loop: gradients of one micro-batch after the other are added up."""
        recipe, given = self.recipe, tensors_of(self.batch.whole)
        losses, self.counts = [], None
        for part in micro_batches(given, recipe.micro_batches, recipe.reduction):
            inputs, targets = map(part.parts, self.batch.arguments())
            losses.append(self._backward(inputs, targets, part, scaler).detach())
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def _update(self, scaler: torch.amp.GradScaler | None) -> None:
        if scaler is not None:
            scaler.unscale_(self.updates)
        self._clip()
        if scaler is None:
            self.updates.step()
        else:
            scaler.step(self.updates)
            scaler.update()

    def _clip(self) -> None:
        if self.recipe.clip_value is not None:
            torch.nn.utils.clip_grad_value_(self.parameters, self.recipe.clip_value)
        if self.recipe.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_norm)

    @torch.no_grad()
    def _infer(self) -> Any:
        return self._forward(self.batch.arguments()[0])

    def _forward(self, inputs: Any) -> Any:
        model = self.source.model
        return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def _set_mode(model: nn.Module, *, training: bool) -> None:
    """``model.train(training)``, unless the model is in that mode: its modules stay as they are."""
    if model.training != training:
        try:
            model.train(training)
        except NotImplementedError:  # of torch.export: it stays in the mode of its export
            if not isinstance(model, fx.GraphModule):
                raise


def _parameters(source: ModelSource) -> list[nn.Parameter]:
    """Of the model and its loss, each once."""
    return list(nn.ModuleList([source.model, *modules_in(source.loss_fn)]).parameters())


def _casting(recipe: TrainingRecipe) -> AbstractContextManager[object]:
    if recipe.autocast is None:
        return nullcontext()
    return torch.autocast("cpu", dtype=recipe.autocast_dtype)


def _demand_same(given: Any, copies: Any, model: str) -> None:
    """Raise unless the copies that a step is called with have the values that were given."""
    pairs = list(zip_longest(tree_leaves(given), tree_leaves(copies)))
    alike = all(
        a.is_meta or torch.equal(a, b) or torch.equal(a[a == a], b[b == b])
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        else type(a) is type(b)
        for a, b in pairs
    )
    if not alike:
        raise CheckError(
            "copies of the inputs differ from the inputs",
            where=f"model {model}",
            hint="report this model with its inputs",
        )


def parts_apart(source: ModelSource, seed: int = 0) -> tuple[float, float]:
    """By how much micro-batches, added up, are not the whole batch, and what rounding makes.

    The largest difference of the loss and of any gradient, as a part of the largest of them.
    Dropout and batch norm, which treat parts in another way by design, are off; where a model
    draws other random numbers nothing can be compared, and both are 0.
    """
    recipe = source.recipe or TrainingRecipe()

    def computed(seed: int, parts: int) -> list[torch.Tensor]:
        model, loss_fn = copied(source.model, source.loss_fn)
        plain = TrainingRecipe(
            micro_batches=parts, autocast=recipe.autocast, reduction=recipe.reduction
        )
        own = replace(source, model=model, loss_fn=loss_fn, recipe=plain)
        stepper = Stepper(own, training=True)
        for module in model.modules():
            module.training = module.training and not isinstance(module, STILL)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            loss = stepper.backward()
        found = [p.grad for p in stepper.parameters if p.grad is not None]
        return [loss.detach(), *(g.to_dense() if g.is_sparse else g for g in found)]

    whole, again = computed(seed, 1), computed(seed + 1, 1)
    if not torch.equal(whole[0], again[0]):
        return 0.0, 0.0
    parts = computed(seed, recipe.micro_batches)
    largest = max((float(g.abs().max()) for g in whole[1:] if g.numel()), default=0.0)
    sizes = [float(whole[0].abs()), *[largest] * (len(whole) - 1)]
    off = [
        float((a - b).abs().max()) / max(size, 1e-30)
        for a, b, size in zip(whole, parts, sizes, strict=True)
        if a.numel()
    ]
    dtypes = [*(g.dtype for g in whole), recipe.autocast_dtype or whole[0].dtype]
    return max(off), max(torch.finfo(d).eps for d in dtypes) ** (2 / 3)


def _optimizer(source: ModelSource, recipe: TrainingRecipe) -> torch.optim.Optimizer:
    trained = _parameters(source)
    if isinstance(recipe.optimizer, torch.optim.Optimizer):
        return recipe.optimizer
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=recipe.lr)
    return torch.optim.Adam(trained, lr=recipe.lr, fused=True)


def _own_recipe(source: ModelSource, own: ModelSource) -> TrainingRecipe | None:
    """The recipe with a copy of its optimizer for the copy of the model."""
    recipe = source.recipe
    if recipe is None or isinstance(recipe.optimizer, str):
        return recipe
    pairs = zip(_parameters(source), _parameters(own), strict=True)
    return replace(
        recipe,
        optimizer=rebound(recipe.optimizer, {id(old): new for old, new in pairs}),
        scaler=copy.deepcopy(recipe.scaler),
    )


def rebound(
    optimizer: torch.optim.Optimizer, replaced: Mapping[int, torch.Tensor]
) -> torch.optim.Optimizer:
    """A copy of the optimizer, state and settings included, for other parameters.

    `replaced`: ``id`` of a parameter -> the one in its place.
    """
    made, memo = type(optimizer).__new__(type(optimizer)), dict[int, Any](replaced)
    # A scheduler puts a `step` of its own into the object, which would step the original.
    vars(made).update({k: v for k, v in vars(optimizer).items() if k != "step"})
    made.param_groups = copy.deepcopy(optimizer.param_groups, memo)
    made.state = defaultdict(dict, copy.deepcopy(dict(optimizer.state), memo))
    return made


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
