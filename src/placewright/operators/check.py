"""Compare a placed run with plain eager PyTorch: outputs, parameters and buffers of every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from placewright.capturing.containers import leaves_of, refilled, tensors_of
from placewright.capturing.source import as_arguments
from placewright.cluster.cluster import Device
from placewright.errors import InputError
from placewright.graph.graph import INPUT_MARK, Graph
from placewright.graph.program import Program
from placewright.measurement.check import LISTED, Check, Difference, Role, Tolerance
from placewright.operators.exactness import tolerance
from placewright.runtime.eager import EagerRun, EagerSteps, parts_apart

if TYPE_CHECKING:
    from placewright.capturing.source import ModelSource
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
