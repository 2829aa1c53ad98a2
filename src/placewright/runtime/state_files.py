"""StateFiles: a session's state in files, on its way to the workers and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from placewright.errors import RunError
from placewright.io.tensor_files import AnyTensor, StoredTensor, write_tensors
from placewright.runtime.engines.group import WorkerGroup
from placewright.runtime.scratch import Scratch


class StateFiles:
    """A temporary folder with the initial state, and with what workers give back.

    `weights`: what is in other files already, from which workers read it.
    Raises `RunError`: the state does not fit into the folder, which is removed.
    """

    def __init__(self, state: Mapping[str, AnyTensor]) -> None:
        self._folder = Scratch()
        self.weights = {n: t for n, t in state.items() if isinstance(t, StoredTensor)}
        here = {n: t for n, t in state.items() if not isinstance(t, StoredTensor)}
        self.initial = Path(self._folder.name) / "initial.safetensors"
        try:
            write_tensors(self.initial, here)
        except OSError as error:
            self.remove()
            raise self._no_room("the initial state cannot be written", error) from error

    def collect(self, group: WorkerGroup, verb: str) -> dict[str, torch.Tensor]:
        """What every worker writes at the order `verb`.

        Raises `RunError`: it does not fit into the folder.
        """
        files = [Path(self._folder.name) / f"{verb}-{r}" for r in range(len(group.specs))]
        try:
            group.collect(verb, files)
        except OSError as error:
            raise self._no_room(f"the {verb} cannot be fetched", error) from error
        found: dict[str, torch.Tensor] = {}
        for file in files:
            found.update(load_file(file))
            file.unlink()
        return found

    def remove(self) -> None:
        """Remove the folder; twice is fine."""
        self._folder.cleanup()

    def _no_room(self, what: str, error: OSError) -> RunError:
        return RunError(
            f"{what}: {error.strerror or error}",
            where=self._folder.name,
            hint="free space there, or name another temporary folder in TMPDIR",
        )
