"""Execute placed models by ONNX Runtime and OpenVINO.

`PlacedFile` is a model that one of them has loaded under a placement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from placewright.capturing.files.model_file import Array, ModelFile
from placewright.cluster.cluster import Cluster, Device
from placewright.cluster.devices import cpu_cores


@dataclass(frozen=True, slots=True, eq=False)
class FilePlacement:
    """A model, devices, and which of them runs which operator in what order.

    Attributes
    ----------
    device
        Index of a device by operator name.
    order
        Names of all operators, first come first, producers before consumers.
    emulate
        Wait where devices and links are slower than what is here.
    """

    file: ModelFile
    cluster: Cluster
    device: Mapping[str, int]
    order: Sequence[str]
    emulate: bool = True


class PlacedFile(Protocol):
    """A model under a placement, ready to run; a context manager that gives everything back."""

    @property
    def engine(self) -> str:
        """The runtime and its settings, for people."""
        ...

    @property
    def emulated(self) -> str:
        """What was emulated, empty if nothing was."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What was changed so that the runtime takes the placement."""
        ...

    def infer(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One step: outputs by name."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


RUNS, WARM_UP, LONGEST_S = 40, 3, 2.0
"""Measured runs, runs before them, and seconds after which no further one starts."""

LEAST = 3
"""Measured runs, however long they take."""


def run_seconds(run: Callable[[], object]) -> list[float]:
    """Seconds of runs after the warm-up."""
    found: list[float] = []
    while len(found) < WARM_UP + RUNS:
        if len(found) >= WARM_UP + LEAST and sum(found) > LONGEST_S:
            break
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return found[WARM_UP:]


def threads_of(device: Device) -> int:
    """Threads that a device computes with: its cores, at most those that are here."""
    return max(1, min(device.cores, cpu_cores()))
