"""A functional fx graph becomes a Sketch: calls on named values, nothing of fx left."""

from __future__ import annotations

import base64
import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from placewright.capturing.arguments import plain
from placewright.capturing.draft import ABSENT, RESIDENT, Draft, Sketch, input_name, spec_of
from placewright.capturing.draws import is_draw
from placewright.capturing.fills import without_source
from placewright.capturing.flops import work
from placewright.capturing.refusal import changed_in_place
from placewright.capturing.tracing import KEPT, Traced
from placewright.errors import UnsupportedError
from placewright.graph.graph import INPUT_MARK
from placewright.graph.program import Instruction, ProgramInput, ProgramOutput, Ref

aten = torch.ops.aten

NOTHING = (aten.detach.default, aten.alias.default, aten.lift_fresh.default)
"""Calls that hand on their argument: values never change, so an alias is the value."""


_MAY_CHANGE = (*RESIDENT, "input", "target")


def lower(traced: Traced) -> Sketch:
    """Lower every node; getitem becomes its producer's result, aliases disappear."""
    lowering = _Lowering(traced)
    for node in traced.module.graph.nodes:
        getattr(lowering, node.op)(node)
    return lowering.sketch


class _Lowering:
    """One method per kind of fx node."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.slots = iter(traced.slots)
        self.sketch = Sketch()
        self.values: dict[fx.Node, str] = {}

    def placeholder(self, node: fx.Node) -> None:
        slot = next(self.slots)
        name = input_name(slot.role, slot.key)
        entry = ProgramInput(name, slot.role, slot.key, spec_of(slot.value))
        self.values[node] = self.sketch.add_input(entry)

    def get_attr(self, node: fx.Node) -> None:
        key = str(node.target)
        name = self.values[node] = input_name("constant", key)
        if name in self.sketch.specs:  # every use of a tensor has a node of its own
            return
        value = getattr(self.traced.module, key)
        if not isinstance(value, Tensor):
            raise UnsupportedError(
                "control flow inside the graph (torch.cond, while_loop)",
                where=f"constant {key!r}",
                hint="only tensor operations can be placed; write it with torch.where",
            )
        self.sketch.constants[name] = _data(value, key)
        self.sketch.add_input(ProgramInput(name, "constant", key, spec_of(value.contiguous())))

    def call_function(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            self._take(node)
        elif _hands_on(node):
            self.values[node] = self._value(node.args[0])
        else:
            self._call(node)

    def output(self, node: fx.Node) -> None:
        names = [self._value(value) for value in node.args[0]]  # type: ignore[union-attr]
        wanted = self.traced.outputs
        pairs = zip(wanted, names, strict=False)
        self.sketch.outputs = [ProgramOutput(name, value) for name, value in pairs]
        gradients = zip(self.traced.gradients, names[len(wanted) :], strict=True)
        self.sketch.gradients = dict(gradients)

    def _value(self, node: Any) -> str:
        return self.values[node]

    def _take(self, node: fx.Node) -> None:
        producer, position = node.args
        self.values[node] = f"{self.values[producer]}.{position}"  # type: ignore[index]

    def _call(self, node: fx.Node) -> None:
        if not isinstance(node.target, torch._ops.OpOverload):
            raise UnsupportedError(
                f"{node.target} is not a tensor operation",
                where=f"operator {node.name!r}",
                hint="control flow and symbolic sizes cannot be placed; capture fixed shapes",
            )
        target, arguments, keywords = without_source(node)
        args = plain(arguments, self.values, node.name)
        kwargs = {key: plain(value, self.values, node.name) for key, value in keywords.items()}
        call = Instruction(
            name=node.name,
            target=target,
            args=args,
            kwargs=kwargs,
            results=_results(node),
            mutates=_mutates(node, args),
            random=is_draw(node),
        )
        phase, module = _origin(node, call.mutates)
        draft = Draft(call, _outputs(node), phase, module, *work(node))
        self.values[node] = self.sketch.add(draft)
        if call.mutates:
            self.values[node] = call.mutates[0]


def _origin(node: fx.Node, mutates: tuple[str, ...]) -> tuple[str, str]:
    """Phase and module of a node; a write-back, which has none, is its buffer's."""
    custom = node.meta.get("custom") or {}
    if not custom and mutates:
        return "forward", mutates[0].partition(":")[2].rpartition(".")[0]
    return custom.get("phase", ""), custom.get("module", "")


def _hands_on(node: fx.Node) -> bool:
    if node.target in NOTHING or (node.meta.get("custom") or {}).get(KEPT):
        return True
    lifted = node.target is aten.lift_fresh_copy.default
    view = getattr(node.target, "is_view", False)
    return lifted or (view and _same_layout(node.meta["val"], node.args[0]))


def _same_layout(made: Any, source: Any) -> bool:
    if not isinstance(made, Tensor) or not isinstance(source, fx.Node):
        return False
    given = source.meta["val"]
    return spec_of(made) == spec_of(given) and made.storage_offset() == given.storage_offset()


def _results(node: fx.Node) -> tuple[str, ...]:
    made = node.meta["val"]
    if not isinstance(made, tuple | list):
        # A call that changes a program input answers with that input, under its own name.
        unread = made is None or not node.users or _is_mutable(node)
        return ("",) if unread else (node.name,)
    read = {user.args[1] for user in node.users if user.target is operator.getitem and user.users}
    return tuple(f"{node.name}.{k}" if k in read else "" for k in range(len(made)))


def _outputs(node: fx.Node) -> tuple[Any, ...]:
    made = node.meta["val"]
    parts = made if isinstance(made, tuple | list) else (made,)
    return tuple(spec_of(part) if isinstance(part, Tensor) else ABSENT for part in parts)


def _mutates(node: fx.Node, args: tuple[Any, ...]) -> tuple[str, ...]:
    if not _is_mutable(node):
        return ()
    schema = node.target._schema  # type: ignore[union-attr]
    changed = [
        argument
        for argument, declared in zip(args, schema.arguments, strict=False)
        if declared.alias_info is not None and declared.alias_info.is_write
    ]
    if not changed or not all(_is_resident(a) for a in changed):
        raise changed_in_place(node)
    return tuple(argument.name for argument in changed)


def _is_resident(argument: Any) -> bool:
    """Whether it is a program input that may be changed: the next step starts from it."""
    return isinstance(argument, Ref) and argument.name.partition(INPUT_MARK)[0] in _MAY_CHANGE


def _is_mutable(node: fx.Node) -> bool:
    return bool(node.target._schema.is_mutable)  # type: ignore[union-attr]


def _data(value: Tensor, key: str) -> str:
    real = getattr(value, "constant", None) if isinstance(value, FakeTensor) else value
    if real is None or real.is_meta:
        raise UnsupportedError(
            "a tensor that is no parameter and no buffer has no data",
            where=f"constant {key!r}",
            hint="register it with register_buffer, or build the model off the meta device",
        )
    raw = real.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return base64.b64encode(raw).decode("ascii")
