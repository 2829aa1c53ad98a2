"""A placed program becomes one list of steps per device: wait, call, send, free.

`CallPrograms` are other captures of a session's model that its workers hold beside the loaded one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import torch

from placewright.capturing.program_calls import check_read_program
from placewright.errors import InputError
from placewright.graph.graph import (
    ORDER_ONLY,
    Graph,
    Instruction,
    Program,
    ProgramInput,
    TensorSpec,
)
from placewright.runtime.specs import Way
from placewright.runtime.wire import Message, message_key


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction on one device.

    Attributes
    ----------
    operator
        Position of the operator in the graph.
    waits
        Messages that must have arrived.
    sends
        Messages that leave afterwards.
    frees
        Values that are not needed on this device any more.
    posts
        Messages without tags whose receives are posted before, in this order.
    made_bytes
        Of its results but views, and what it holds while it runs.
    """

    operator: int
    instruction: Instruction
    waits: tuple[Message, ...]
    sends: tuple[Message, ...]
    frees: tuple[str, ...]
    posts: tuple[Message, ...] = ()
    made_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker does in a step.

    Attributes
    ----------
    inputs
        Program inputs that live here: the state of its operators, and the inputs,
        targets and constants that they read.
    receives
        All messages that arrive, in the order of their first use.
    outputs
        Output name -> value, for the outputs made here.
    """

    device: int
    steps: tuple[Step, ...]
    inputs: tuple[ProgramInput, ...]
    receives: tuple[Message, ...]
    outputs: Mapping[str, str]


def partition(
    graph: Graph,
    placement: Sequence[int],
    order: Sequence[int],
    devices: int,
    ways: Sequence[Sequence[Way]] | None = None,
) -> tuple[Part, ...]:
    """Cut a program by device.

    Parameters
    ----------
    placement
        Device index of every operator of the graph.
    order
        Every operator once, producers before consumers; each device keeps this order, so
        that no two workers can wait for each other.
    ways
        How tensors go from one device to another; over gloo by default.
    """
    program = _program(graph)
    messages = _messages(graph, program, placement)
    if ways is not None:
        messages = [replace(m, way=ways[m.source][m.target]) for m in messages]
    outputs = _outputs(program, placement, devices)
    by_device: list[list[int]] = [[] for _ in range(devices)]
    for i in order:
        by_device[placement[i]].append(i)
    made = _made_bytes(graph)
    return tuple(
        _part(program, d, by_device[d], messages, outputs[d], made) for d in range(devices)
    )


def _program(graph: Graph) -> Program:
    if not isinstance(graph.program, Program):
        raise InputError(
            "the graph has no program, so it can be planned and not run",
            where=graph.name,
            hint="capture it from a model: placewright capture MODEL -o graph.json",
        )
    check_read_program(graph.program)
    return graph.program


def _made_bytes(graph: Graph) -> Counter[str]:
    """`Step.made_bytes` by operator."""
    made = Counter[str]()
    for tensor in graph.tensors:
        if not tensor.view_of:
            made[tensor.producer] += tensor.bytes
    return made


def _messages(graph: Graph, program: Program, placement: Sequence[int]) -> list[Message]:
    """Every tensor that leaves its device, once per other device."""
    home = {op.name: placement[i] for i, op in enumerate(graph.operators)}
    specs = _specs(graph, program)
    found = []
    for tag, tensor in enumerate(graph.tensors):
        source = home[tensor.producer]
        targets = sorted({home[c] for c in tensor.consumers} - {source})
        if targets and tensor.name.startswith(ORDER_ONLY):
            raise InputError(
                f"{tensor.producer!r} and {tensor.consumers[0]!r} must share a device",
                where=graph.name,
                hint="keep colocation groups together",
            )
        found += [Message(tag, tensor.name, specs[tensor.name], source, d) for d in targets]
    return found


def _specs(graph: Graph, program: Program) -> dict[str, TensorSpec]:
    pairs = zip(graph.operators, program.instructions, strict=True)
    return {
        value: spec
        for operator, instruction in pairs
        for value, spec in zip(instruction.results, operator.outputs, strict=True)
        if value
    }


def _outputs(program: Program, placement: Sequence[int], devices: int) -> list[dict[str, str]]:
    """Each device's outputs.

    A program input that is an output belongs to the first device that reads it, which has it and
    changes it if any does; one that nobody reads to the first device with operators.
    """
    home: dict[str, int] = {}
    for i, instruction in enumerate(program.instructions):
        for value in instruction.reads():
            home.setdefault(value, placement[i])
        home |= dict.fromkeys(instruction.results, placement[i])
    outputs: list[dict[str, str]] = [{} for _ in range(devices)]
    for output in program.outputs:
        outputs[home.get(output.value, min(placement))][output.name] = output.value
    return outputs


def _part(
    program: Program,
    device: int,
    order: Sequence[int],
    messages: Sequence[Message],
    outputs: Mapping[str, str],
    made_bytes: Counter[str],
) -> Part:
    """The steps of one device, with every wait before its first use and frees after the last."""
    arriving = {m.value: m for m in messages if m.target == device}
    leaving = defaultdict(list)
    for message in messages:
        if message.source == device:
            leaving[message.value].append(message)
    instructions = [program.instructions[i] for i in order]
    reads = [instruction.reads() for instruction in instructions]
    last_use = {value: k for k, values in enumerate(reads) for value in values}
    inputs = {i.name: i for i in program.inputs}
    keep = {*inputs, *outputs.values()}
    steps, waited = [], set[str]()
    for k, instruction in enumerate(instructions):
        # A message is waited for once, by the first that reads it; the register keeps it until the
        # last.
        due = [arriving[v] for v in reads[k] if v in arriving and v not in waited]
        waited.update(m.value for m in due)
        made = [r for r in instruction.results if r]
        # Also results that nobody here reads: what is only sent is freed right behind the send.
        dead = [v for v in (*reads[k], *made) if last_use.get(v, k) == k and v not in keep]
        steps.append(
            Step(
                operator=order[k],
                instruction=instruction,
                waits=tuple(due),
                sends=tuple(sorted((m for v in made for m in leaving[v]), key=message_key)),
                frees=tuple(dict.fromkeys(dead)),
                made_bytes=made_bytes[instruction.name],
            )
        )
    used = {v for values in reads for v in values} | set(outputs.values())
    return Part(
        device=device,
        steps=tuple(steps),
        inputs=tuple(i for name, i in inputs.items() if name in used),
        receives=tuple(m for step in steps for m in step.waits),
        outputs=dict(outputs),
    )


def with_copies(parts: Sequence[Part], stages: Sequence[Sequence[int]]) -> tuple[Part, ...]:
    """Give every device of a stage the part of the first one.

    A message between two stages names their first devices as its ends, but for the one where it is
    handled; a stream puts that of each sample's route in the place of the other.

    `stages`: devices of every stage, the one in the placement first.
    """
    parts = list(parts)
    copied = {d for stage in stages if len(stage) > 1 for d in stage}
    for stage in stages:
        # The first one last, as the others are made from its part before it is changed.
        for device in reversed(stage):
            parts[device] = _copied(parts[stage[0]], device, copied)
    return tuple(parts)


def _copied(part: Part, device: int, copied: set[int]) -> Part:
    """The part on another device; what a copy sends or receives goes by one way alone."""

    def way(message: Message) -> Message:
        ends = {message.source, message.target}
        # The other end may be named by another device of its stage: both ends decide alike, as
        # either all devices of a stage are copied or it has one.
        return replace(message, way="gloo") if ends & copied else message

    def taken(messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(way(replace(m, target=device)) for m in messages)

    def given(messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(way(replace(m, source=device)) for m in messages)

    steps = [replace(s, waits=taken(s.waits), sends=given(s.sends)) for s in part.steps]
    return replace(part, device=device, steps=tuple(steps), receives=taken(part.receives))


def state_moves(
    before: Sequence[Part], after: Sequence[Part], processes: Sequence[int] | None = None
) -> tuple[Message, ...]:
    """Every tensor that the steps change and that is needed where it is not.

    What the steps do not change (frozen parameters, inputs, constants) every worker has in the
    file that it was loaded from. A move between two processes goes through host memory: there is
    time between two steps, and tags keep it simple.

    `processes`: the process of every device; one each by default.
    """
    rank = range(len(after)) if processes is None else processes
    home = {i.name: part.device for part in before for i in part.inputs if i.mutated}
    # Also for a program that does not change it: what it was loaded with is out of date.
    missing = [
        (item, part.device)
        for part in after
        for item in part.inputs
        if home.get(item.name, part.device) != part.device
    ]
    return tuple(
        Message(
            tag,
            item.name,
            item.spec,
            home[item.name],
            target,
            "copy" if rank[home[item.name]] == rank[target] else "gloo",
        )
        for tag, (item, target) in enumerate(missing)
    )


def random_home(parts: Sequence[Part]) -> int:
    """The device that draws random numbers; all operators that do share one. 0 if none does."""
    drawing = (p.device for p in parts if any(s.instruction.random for s in p.steps))
    return next(drawing, 0)


MOST_PROGRAMS = 8
"""Beside the loaded one."""


@dataclass(frozen=True, slots=True, eq=False)
class CallProgram:
    """Another capture of a session's model, with its placement: for inputs of another shape.

    Attributes
    ----------
    placement, order
        As of `Session.load`, for the operators of `graph`.
    constants
        Tensors of its own by program input, which no two captures share.
    peak_bytes
        As of `Session.load`.
    """

    graph: Graph
    placement: Sequence[int]
    order: Sequence[int]
    constants: Mapping[str, torch.Tensor]
    peak_bytes: Sequence[float] = ()


@dataclass(slots=True)
class CallPrograms:
    """The programs by which workers know them, least recently selected first.

    `selected`: whose steps are done; ``None`` for the loaded one, whose number is 0.
    """

    selected: CallProgram | None = None
    _held: OrderedDict[CallProgram, tuple[int, tuple[Part, ...]]] = field(
        default_factory=OrderedDict
    )
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def __contains__(self, program: CallProgram | None) -> bool:
        return program is None or program in self._held

    def __iter__(self) -> Iterator[CallProgram]:
        return iter(self._held)

    def number(self, program: CallProgram | None) -> int:
        """By which workers know a program that they hold."""
        return 0 if program is None else self._held[program][0]

    def parts(self, loaded: tuple[Part, ...]) -> tuple[Part, ...]:
        """Parts of the selected program, where those of the loaded one are `loaded`."""
        return loaded if self.selected is None else self._held[self.selected][1]

    def next_number(self) -> int:
        """A number that no program had."""
        return next(self._numbers)

    def add(self, program: CallProgram, number: int, parts: tuple[Part, ...]) -> int | None:
        """Note one that workers have taken; the number of one that they have to forget for it."""
        self._held[program] = number, parts
        if len(self._held) <= MOST_PROGRAMS:
            return None
        _, (oldest, _) = self._held.popitem(last=False)
        return oldest

    def select(self, program: CallProgram | None) -> None:
        """Note whose steps are done from now on."""
        if program is not None:
            self._held.move_to_end(program)
        self.selected = program

    def clear(self) -> None:
        """Forget all; workers that load or migrate do so too."""
        self._held.clear()
        self.selected = None
