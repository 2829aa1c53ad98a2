"""A Sketch becomes a Graph with its Program: groups, order, tensors, costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from placewright.capturing.costs import bytes_accessed, held_bytes, signature, spec_bytes
from placewright.capturing.draft import Draft, Sketch, reads
from placewright.capturing.flow import Flow, flow_of, is_view, view_of
from placewright.capturing.groups import colocation
from placewright.capturing.ordering import orders
from placewright.errors import UnsupportedError
from placewright.graph.graph import Graph, Operator, Tensor
from placewright.graph.program import ORDER_ONLY, Program, ProgramInput


def assemble(sketch: Sketch, name: str, *, training: bool, optimizer: Mapping[str, Any]) -> Graph:
    """The graph to plan on and the program to run, operator by operator the same."""
    if not sketch.drafts:
        raise UnsupportedError(
            "the model computes nothing", where=f"model {name}", hint="there is nothing to place"
        )
    flow = flow_of(sketch)
    groups, homes = colocation(sketch, flow)
    resident = _resident_bytes(sketch, flow)
    operators = tuple(
        _operator(draft, sketch, groups[k], resident.get(k, 0))
        for k, draft in enumerate(sketch.drafts)
    )
    program = Program(
        inputs=_inputs(sketch, flow, homes),
        instructions=tuple(draft.call for draft in sketch.drafts),
        outputs=tuple(sketch.outputs),
        training=training,
        optimizer=dict(optimizer),
        constants=dict(sketch.constants),
    )
    return Graph(name, operators, (*_tensors(sketch, flow), *_order_only(flow)), program)


def _operator(draft: Draft, sketch: Sketch, group: str, resident_bytes: int) -> Operator:
    return Operator(
        name=draft.call.name,
        kind=draft.call.target,
        flops=draft.flops,
        elementwise_flops=draft.elementwise_flops,
        uncounted=draft.uncounted,
        bytes_accessed=0.0 if is_view(draft) else bytes_accessed(draft, sketch.specs),
        resident_bytes=resident_bytes,
        phase=draft.phase,
        module=draft.module,
        signature=signature(draft, sketch.specs),
        colocation=group,
        outputs=draft.outputs,
    )


def _resident_bytes(sketch: Sketch, flow: Flow) -> dict[int, int]:
    """Bytes of parameters, buffers and state, each counted once, where it is first touched."""
    size = {e.name: spec_bytes(e.spec) for e in sketch.resident()}
    found: dict[int, int] = {}
    for k, touched in enumerate(flow.touched):
        for name in touched:
            found[k] = found.get(k, 0) + size.pop(name, 0)
    return found


def _inputs(sketch: Sketch, flow: Flow, homes: Mapping[str, str]) -> tuple[ProgramInput, ...]:
    """All inputs that the program touches, and the model's own inputs and targets."""
    touched = {name for names in flow.touched for name in names}
    touched |= {output.value for output in sketch.outputs}
    changed = sketch.changed()
    return tuple(
        replace(e, colocation=homes.get(e.name, ""), mutated=e.name in changed)
        for e in sketch.inputs
        if e.name in touched or e.role in ("input", "target")
    )


def _tensors(sketch: Sketch, flow: Flow) -> list[Tensor]:
    names = [draft.call.name for draft in sketch.drafts]
    held = _held_bytes(sketch, flow)
    return [
        Tensor(
            value,
            names[flow.producer[value]],
            held[value],
            tuple(names[k] for k in flow.consumers[value]),
            view_of(sketch.drafts[flow.producer[value]], flow),
        )
        for value in flow.producer
        if value in flow.consumers
    ]


def _held_bytes(sketch: Sketch, flow: Flow) -> dict[str, int]:
    """Bytes of memory behind each value: gaps count, which do not travel; an upper limit of that.

    A view counts its elements, which is what is sent of it. ``aten.copy`` into a strided view
    copies all the memory that the view is in.
    """
    held: dict[str, int] = {}
    for value, k in flow.producer.items():
        draft, spec = sketch.drafts[k], sketch.specs[value]
        if view_of(draft, flow):
            held[value] = spec_bytes(spec)
            continue
        held[value] = held_bytes(spec)
        if draft.call.target == "aten.copy.default" and held[value] > spec_bytes(spec):
            base = reads(draft)[0]
            while base in flow.producer and view_of(sketch.drafts[flow.producer[base]], flow):
                base = view_of(sketch.drafts[flow.producer[base]], flow)
            held[value] = max(held[value], held.get(base, spec_bytes(sketch.specs[base])))
    return held


def _order_only(flow: Flow) -> list[Tensor]:
    names = [draft.call.name for draft in flow.drafts]
    return [
        Tensor(ORDER_ONLY + names[k], names[k], 0, tuple(names[c] for c in later))
        for k, later in orders(flow).items()
    ]
