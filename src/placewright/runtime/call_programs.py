"""Other captures of a session's model that its workers hold beside the loaded one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from placewright.graph.graph import Graph
from placewright.runtime.step.partition import Part

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
