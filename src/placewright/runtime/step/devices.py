"""The devices of one worker: the state that lives on them and the step that they do."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch

from placewright.capturing.program_calls import apply_settings
from placewright.graph.graph import TensorSpec
from placewright.io.tensor_files import StoredTensor, stored_tensors
from placewright.runtime.emulation import Stretch
from placewright.runtime.memory import MemoryUse
from placewright.runtime.messages import Exchange
from placewright.runtime.step.partition import Part
from placewright.runtime.step.sequence import CompiledShare, Share, Spans, compile_share
from placewright.runtime.step.slots import CompiledPart
from placewright.runtime.step_record import StepLog
from placewright.runtime.wire import Message

RESIDENT = ("parameter", "buffer", "state")
"""Roles of program inputs that all programs of one model share."""


class PlacedDevices:
    """Takes parts, one per device, and does their steps.

    `exchange`: carries what comes from other devices and goes to them.
    `memory`: what this process may hold.
    """

    def __init__(self, exchange: Exchange, memory: MemoryUse) -> None:
        self.exchange, self._memory = exchange, memory
        self._share = Share((), ())
        self._compiled = CompiledShare((), (), ())
        self._programs: dict[int, tuple[Share, CompiledShare]] = {}
        self._selected = 0
        self._stored: dict[str, StoredTensor] = {}
        self._fed: dict[str, torch.Tensor] = {}
        # Of the step before a migration: parts that were taken anew have made nothing.
        self._made: dict[str, torch.Tensor] = {}

    @property
    def share(self) -> Share:
        """The parts that were taken."""
        return self._share

    @property
    def compiled(self) -> CompiledShare:
        """The same parts, ready to be executed."""
        return self._compiled

    def clear(self) -> None:
        """Forget every program and its state; their memory is free."""
        self._programs, self._selected = {}, 0
        self._share, self._compiled = Share((), ()), CompiledShare((), (), ())
        self._stored, self._fed, self._made = {}, {}, {}
        self.exchange.expect(())

    def load(self, share: Share, state_file: str, weights: Mapping[str, StoredTensor]) -> None:
        """Take parts and the initial state that lives here; other programs are forgotten.

        `state_file`: initial values by program input; what it has none of starts from zeros.
        `weights`: values in other files.
        """
        self._stored, self._fed = {**stored_tensors(state_file), **weights}, {}
        self._made = {}
        self._programs, self._selected = {}, 0
        self._take(share, {})

    def add(self, key: int, share: Share, constants: Mapping[str, torch.Tensor]) -> None:
        """Take another program of the same model beside those that are here, and select it.

        Parameters
        ----------
        key
            Its number; the one that `load` took is 0.
        constants
            Its own by program input. Parameters, buffers and optimizer state are the tensors that
            the other programs have; inputs and targets are zeros until they are fed.
        """
        # The loaded one is entered when a second one comes: until then it is the only one.
        self._programs[0] = self._programs.get(0, (self._share, self._compiled))
        here = {
            (part.device, item.name): compiled.registers[compiled.index[item.name]]
            for known, programs in self._programs.values()
            for part, compiled in zip(known.parts, programs.parts, strict=True)
            for item in part.inputs
            if item.role in RESIDENT
        }
        for part in share.parts:
            own = {i.name: i.spec for i in part.inputs if i.role not in RESIDENT}
            for name, spec in own.items():
                here[part.device, name] = self._placed(part, laid_out(constants.get(name), spec))
        self._take(share, here)
        self._programs[key], self._selected = (self._share, self._compiled), key

    def select(self, key: int) -> None:
        """Do the steps of another program from now on."""
        if key in self._programs:  # else no other one was ever added
            self._share, self._compiled = self._programs[key]
            self._selected = key
            apply_settings(self._share.settings)
            self.exchange.expect(m for part in self._share.parts for m in part.receives)

    def remove(self, key: int) -> None:
        """Forget a program that was added."""
        del self._programs[key]

    def migrate(self, share: Share, moves: Sequence[Message]) -> None:
        """Take other parts between two steps; state that both have in common stays as it is.

        `moves`: what changes its device, here and elsewhere.
        """
        self._made = self.outputs()
        self._programs, self._selected = {}, 0
        own = {part.device for part in share.parts}
        here = self._state()
        arriving = [m for m in moves if m.target in own]
        self.exchange.expect(arriving)
        self.exchange.start()
        for message in moves:
            if message.source in own:
                self.exchange.send(message, here[message.source, message.value])
        # Everybody has asked before it sends, and gloo keeps a send until it is asked for: no
        # barrier is needed. All have flushed before the next order, which may use the tags again.
        here |= {(m.target, m.value): self.exchange.take(m) for m in arriving}
        # Tensors that leave are sent from where they are: nobody may change them before.
        self.exchange.flush()
        self._take(share, here)

    def feed(self, batch: Mapping[str, torch.Tensor], specs: Mapping[str, TensorSpec]) -> None:
        """Replace inputs and targets (by program input, with their layouts) from now on."""
        for name, tensor in batch.items():
            given = laid_out(tensor, specs[name])
            if self._selected == 0:  # what a migration of the loaded program starts from
                self._fed[name] = given
            for part, compiled in self._pairs():
                if name in compiled.index:
                    compiled.registers[compiled.index[name]] = self._placed(part, given)

    def step(self, watched: bool, stretch: Stretch | None) -> tuple[StepLog, ...]:
        """One step; a log per device. What all devices begin together begins now."""
        spans: Spans = ()
        if self._selected == 0:
            self._made = {}
        start = time.perf_counter()
        if watched:
            spans = self._compiled.run_watched(self.exchange, stretch)
        else:
            self._compiled.run(self.exchange, stretch)
        end = time.perf_counter()
        # Behind `end`: what is still leaving delays the next step, not this one's operators.
        self.exchange.flush()
        if not watched:
            return tuple(StepLog(start, end, scalars=_scalars(p)) for p in self._compiled.parts)
        moved = self._transfers()
        return tuple(
            StepLog(
                start,
                end,
                tuple(slot.operator for slot in compiled.slots),
                seen,
                tuple(t[1:] for t in moved if t[0] == part.device),
                _scalars(compiled),
            )
            for (part, compiled), seen in zip(self._pairs(), spans, strict=True)
        )

    def outputs(self) -> dict[str, torch.Tensor]:
        """Outputs of the selected program's last step that were made here."""
        made = self._made if self._selected == 0 else {}
        found = {
            name: compiled.registers[k]
            for compiled in self._compiled.parts
            for name, k in compiled.outputs.items()
        }
        return made | {name: tensor for name, tensor in found.items() if tensor is not None}

    def state(self) -> dict[str, torch.Tensor]:
        """The state that lives here and changes."""
        return {name: tensor for (_, name), tensor in self._state().items()}

    def _state(self) -> dict[tuple[int, str], torch.Tensor]:
        return {
            (part.device, item.name): compiled.registers[compiled.index[item.name]]
            for part, compiled in self._pairs()
            for item in part.inputs
            if item.mutated
        }

    def _take(self, share: Share, here: Mapping[tuple[int, str], torch.Tensor]) -> None:
        """Make parts ready: inputs that are here, else what was fed, else what was loaded."""
        state: dict[int, dict[str, torch.Tensor]] = {}
        for part in share.parts:
            state[part.device] = known = {}
            for item in part.inputs:
                name = item.name
                if (part.device, name) in here:
                    known[name] = here[part.device, name]
                elif name in self._fed:
                    known[name] = self._placed(part, self._fed[name])
                else:
                    given = self._stored.get(name)
                    if given is not None and item.role not in RESIDENT:
                        # Of another capture, which is fed before it is used.
                        given = given if tuple(given.shape) == item.spec.shape else None
                    known[name] = self._placed(part, initial(given, item.spec))
        self._share, layout = share, self.exchange.layout
        apply_settings(share.settings)
        self._compiled = compile_share(share, state, layout, self._memory)
        self.exchange.expect(m for part in share.parts for m in part.receives)

    def _pairs(self) -> list[tuple[Part, CompiledPart]]:
        return list(zip(self._share.parts, self._compiled.parts, strict=True))

    def _placed(self, part: Part, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.exchange.layout.devices[part.device].torch_device)

    def _transfers(self) -> list[tuple[int, int, int, float, float]]:
        """Source, tensor, target, start and end of what left in the last step."""
        timers = {
            part.device: timer
            for part, timer in zip(self._share.parts, self._compiled.timers, strict=True)
        }
        return self.exchange.sent(timers)


def _scalars(compiled: CompiledPart) -> dict[str, float]:
    values = {name: compiled.registers[k] for name, k in compiled.outputs.items()}
    return {name: float(v) for name, v in values.items() if v is not None and v.numel() == 1}


def laid_out(tensor: torch.Tensor | None, spec: TensorSpec) -> torch.Tensor:
    """A copy with the strides that `spec` promises, zeros where there is none."""
    made = torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype))
    # An expanded tensor: a stride of 0 repeats its elements, which can be written once only.
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in spec.stride)
    if tensor is None:
        made[once].zero_()
    else:
        made[once].copy_(tensor[once])
    return made


def initial(stored: StoredTensor | None, spec: TensorSpec) -> torch.Tensor:
    """An initial value with the strides that `spec` promises, zeros where no file has it.

    Never a view of a file's bytes: those are not aligned, and kernels round by that.
    """
    if stored is None or 0 in spec.stride:
        return laid_out(None if stored is None else stored.read(), spec)
    made = torch.empty_strided(spec.shape, spec.stride, dtype=getattr(torch, spec.dtype))
    return stored.read_into(made)


def storable(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same values on the CPU, each contiguous, no two in one piece of memory.

    Copies only what must be copied: weights are large, and their writer has little memory to spare.
    """
    seen: set[int] = set()
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        # Safetensors refuses tensors that share memory.
        if own.untyped_storage().data_ptr() in seen:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        found[name] = own
    return found
