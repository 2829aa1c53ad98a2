"""Messages between devices of one process: a copy, made as soon as the tensor is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from placewright.runtime.messages.streams import Moved, Streams
from placewright.runtime.messages.ways import Driven
from placewright.runtime.messages.wire import tensor_of, wire
from placewright.runtime.step.partition import Message, turn


class Copies:
    """What was copied and has not been asked for yet.

    Parameters
    ----------
    devices
        All devices of the cluster.

    Attributes
    ----------
    log
        Messages of the step, with the marks of their sources' timers.
    """

    def __init__(self, devices: Sequence[Driven], streams: Streams) -> None:
        self._places = [torch.device(d.torch_device) for d in devices]
        self._streams = streams
        self._moved: dict[tuple[int, int], Moved] = {}
        self.log: list[tuple[Message, tuple[Any, Any]]] = []

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Start the copy; returns at once between GPUs."""
        moved = self._streams.copy(wire(tensor, message.spec), self._places[message.target])
        self._moved[turn(message)] = moved
        self.log.append((message, moved.span))

    def take(self, message: Message) -> torch.Tensor:
        """The copy; kernels that are started afterwards find it complete."""
        return tensor_of(self._moved.pop(turn(message)).join(), message.spec)
