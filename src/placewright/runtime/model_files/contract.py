"""PlacedFile: a model that another runtime has loaded under a placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from placewright.capturing.files.model_file import Array, ModelFile
from placewright.cluster.cluster import Cluster


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
