"""Calls of a placed model: arguments become a batch, outputs become what the model returns."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from placewright.capturing.containers import constants_of, layouts_of, leaves_of, refilled
from placewright.capturing.guards import Guards, changed_model
from placewright.capturing.model import Captured, capture_call
from placewright.capturing.real_calls import called
from placewright.capturing.source import as_arguments
from placewright.cluster.cluster import Cluster
from placewright.errors import InfeasibleError, InputError, UnsupportedError
from placewright.graph.graph import Program, TensorSpec
from placewright.operators.adaptive.step_forms import (
    carried_placement,
    demand_members,
    same_program,
)
from placewright.operators.judge import judge
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import execution_order
from placewright.profiling.profiler import profile
from placewright.runtime.session import Session
from placewright.runtime.step.devices import laid_out
from placewright.runtime.step.partition import MOST_PROGRAMS, CallProgram

Signature: TypeAlias = tuple[Any, ...]

Batch: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class CallForm:
    """A program of the model for arguments of one signature, ready for any session.

    Attributes
    ----------
    inputs
        Program input by the key of a tensor in the arguments, with its layout.
    outputs
        Layout of every output by name, in the order of `structure`.
    structure
        What the model returns, with empty tensors.
    changed
        Buffers that it changes, by their names in the model.
    """

    program: CallProgram
    inputs: Mapping[str, tuple[str, TensorSpec]]
    outputs: Mapping[str, TensorSpec]
    structure: Any
    changed: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        captured: Captured,
        placement: Sequence[int],
        order: Sequence[int],
        peak_bytes: Sequence[float] = (),
    ) -> CallForm:
        """The form of a captured and placed forward pass.

        Raises `UnsupportedError`: it changes an input in place.
        """
        refuse_changed_arguments(captured)
        graph, program = captured.graph, captured.program
        specs = {item.name: item.spec for item in program.inputs}
        for operator, call in zip(graph.operators, program.instructions, strict=True):
            specs |= {n: s for n, s in zip(call.results, operator.outputs, strict=True) if n}
        return cls(
            CallProgram(graph, placement, order, captured.constants(), peak_bytes),
            {i.key: (i.name, i.spec) for i in program.inputs if i.role == "input"},
            {output.name: specs[output.value] for output in program.outputs},
            captured.structure,
            tuple(i.key for i in program.inputs if i.role == "buffer" and i.mutated),
        )

    def does_as(self, other: CallForm) -> bool:
        """Whether its program is that of another form."""
        return same_program(self.program.graph, other.program.graph)

    def batch(self, arguments: Any) -> Batch:
        """The arguments' tensors by program input."""
        given = {key: leaf for key, leaf in leaves_of(arguments) if isinstance(leaf, Tensor)}
        return {
            name: given[key].detach().cpu().resolve_conj().resolve_neg()
            for key, (name, _) in self.inputs.items()
        }

    @property
    def draws(self) -> bool:
        """Whether a call draws random numbers."""
        program = self.program.graph.program
        return isinstance(program, Program) and program.draws

    def returned(self, outputs: Mapping[str, Tensor]) -> Any:
        """What the model returns, with these outputs."""
        values = (laid_out(outputs[name], spec) for name, spec in self.outputs.items())
        return refilled(self.structure, values)


@dataclass(slots=True, eq=False)
class Calls:
    """Turns arguments into batches of a placed model, and outputs into what it returns.

    Arguments of other shapes than the example's are captured when they first come, and placed like
    the example: what holds a parameter, where the parameter is. The last `MOST_PROGRAMS` are kept.

    Attributes
    ----------
    captured, plan, order
        What is loaded on the workers, and where: the forward pass or a training step.
    guards
        What captures of the forward pass assume of the model and the process.
    """

    captured: Captured
    cluster: Cluster
    plan: OperatorPlan
    order: Sequence[int]
    guards: Guards
    _forms: OrderedDict[Signature, CallForm] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        """A loaded forward pass serves calls like the example."""
        if not self.captured.program.training and self.captured.structure is not None:
            made = CallForm.of(self.captured, self.plan.placement.tolist(), self.order)
            self._forms[self._key(self.captured.source.arguments)] = made

    def arguments(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """The arguments of a call in the form of the example's: positional or by keyword.

        Raises `InputError`: the model does not take them, or a tensor has another dtype than the
        example's.
        """
        example = self.captured.source.arguments
        arguments = self._bound(args, keywords, by_keyword=isinstance(example, dict))
        known = _tensors_of_arguments(example)
        for where, value in _tensors_of_arguments(arguments).items():
            self._check(where, value, known.get(where))
        return arguments

    def form(self, arguments: Any) -> CallForm:
        """The program for such arguments, captured and placed if it is not known.

        Raises `InfeasibleError`: the model does not fit with arguments of this size.
        """
        key = self._key(arguments)
        if key not in self._forms:
            self._forms[key] = self._known(key, self._captured(arguments))
            while len(self._forms) > MOST_PROGRAMS:
                self._forms.popitem(last=False)
        self._forms.move_to_end(key)
        return self._forms[key]

    def demand_unchanged(self, where: str) -> None:
        """Raise `InputError` where the model or a setting has changed since it was followed."""
        if not self.guards.unchanged() and (by := str(self.guards.changes())):
            raise changed_model(by, where, "change it before or after, not meanwhile")

    def _key(self, arguments: Any) -> Signature:
        """By which a form is found again: a mode or a setting may be as it was before."""
        return (len(self.guards.since), self.guards.key, *_signature(arguments))

    def _known(self, key: Signature, made: CallForm) -> CallForm:
        """The form that does the same: what has changed may be no matter for the program."""
        for other, form in reversed(self._forms.items()):
            if other[2:] == key[2:] and form.does_as(made):
                return form
        return made

    def select(self, session: Session, form: CallForm) -> None:
        """Have the session do the steps of a form; it has this model loaded."""
        session.select(None if form.program.graph is self.captured.graph else form.program)

    def _captured(self, arguments: Any) -> CallForm:
        source, loaded = self.captured.source, self.captured.graph
        other = replace(source, inputs=arguments, recipe=None)
        captured = capture_call(other, real=called(other, training=False))
        graph = captured.graph
        hint = "place the changed model, with an example that uses all of it"
        demand_members(loaded, graph, f"placed {loaded.name}", hint)
        placement = carried_placement(loaded, self.plan.placement.tolist(), graph)
        plan = OperatorPlan(np.array(placement, dtype=np.int64))
        problem = profile(graph, self.cluster, method="analytic")
        judgement = judge(problem, plan)
        if not judgement.feasible:
            raise InfeasibleError(
                "the model does not fit with arguments of this size, placed like the example",
                where=f"{graph.name}: {judgement.violation}",
                by=f"example {_shapes(source.inputs)}, called with {_shapes(arguments)}",
                hint="place it with an example of this size",
            )
        order, peak_bytes = execution_order(problem, judgement), judgement.peak_bytes.tolist()
        return CallForm.of(captured, placement, order, peak_bytes)

    def _bound(self, args: Sequence[Any], keywords: Mapping[str, Any], *, by_keyword: bool) -> Any:
        if not keywords and not by_keyword:
            return tuple(args)
        if not args and by_keyword:
            return dict(keywords)
        source, name = self.captured.source, self.captured.graph.name
        forward = source.model.forward
        try:
            bound = inspect.signature(forward).bind(*args, **keywords)
        except TypeError as error:
            raise InputError(
                f"the model does not take these arguments: {error}",
                where=f"placed {name}",
                by=f"called with {len(args)} by position and {', '.join(keywords)} by keyword",
                hint=f"call it like the example: {_shapes(source.inputs)}",
            ) from error
        if not by_keyword and not bound.kwargs:
            return bound.args
        kinds = inspect.signature(forward).parameters
        named = {k: v for k, v in bound.arguments.items() if kinds[k].kind not in _VARIADIC}
        for argument, value in bound.arguments.items():
            if kinds[argument].kind is inspect.Parameter.VAR_KEYWORD:
                named |= value
            elif kinds[argument].kind is inspect.Parameter.VAR_POSITIONAL:
                raise InputError(
                    f"*{argument} and keywords cannot be given together",
                    where=f"placed {name}",
                    hint="give all arguments by position, or all by keyword",
                )
        return named

    def _check(self, argument: str, value: Tensor, example: Tensor | None) -> None:
        where = f"placed {self.captured.graph.name}, argument {argument}"
        if value.device.type not in ("cpu", "cuda") or isinstance(value, FakeTensor):
            raise InputError(
                "the tensor has no values that workers could be sent",
                where=where,
                by=f"a {type(value).__name__} on the device {value.device}",
                hint="give it on the CPU, or on a GPU of this machine",
            )
        if example is not None and value.dtype != example.dtype:
            raise InputError(
                "the tensor has another dtype than the example that the model was placed with",
                where=where,
                by=f"{value.dtype}, the example has {example.dtype}",
                hint=f"convert it with .to({example.dtype}), or place the model with such an "
                "example",
            )


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def refuse_changed_arguments(captured: Captured) -> None:
    """Raise `UnsupportedError` where a forward pass changes an argument in place.

    A call leaves it as it is, and steps that are repeated to be measured would go on from there.
    """
    for item in captured.program.inputs:
        if item.role == "input" and item.mutated:
            raise UnsupportedError(
                "the model changes an argument in place, which a placed call leaves as it is",
                where=f"model {captured.graph.name}, argument {item.key}",
                hint="return the changed tensor from forward instead; of transformers, give a "
                "DynamicCache, which is returned, instead of a StaticCache",
            )


def _tensors(tree: Any) -> dict[str, Tensor]:
    return {key: leaf for key, leaf in leaves_of(tree) if isinstance(leaf, Tensor)}


def _tensors_of_arguments(arguments: Any) -> dict[str, Tensor]:
    """By name or position of the argument: a call may leave some out that the example has."""
    pairs = arguments.items() if isinstance(arguments, Mapping) else enumerate(arguments)
    return {
        str(name) if value is leaf else f"{name}, tensor {key}": leaf
        for name, value in pairs
        for key, leaf in _tensors(value).items()
    }


def _signature(arguments: Any) -> Signature:
    """What a capture depends on: layouts, the containers and all that is no tensor."""
    # As text: 2, 2.0 and True are equal in Python, as are 0.0 and -0.0.
    return (*layouts_of(arguments), repr(constants_of(arguments)))


def _shapes(tree: Any) -> str:
    found = _tensors(as_arguments(tree, "")).values()
    return ", ".join(f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in found)
