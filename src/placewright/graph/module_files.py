"""The modules of a model as data of a file: of a graph, or of a problem."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from placewright.graph.modules import Module, ModuleTensor, ModuleTree
from placewright.io.boundary import FileModel

Bytes = Annotated[int, Field(ge=0, le=2**62)]


class ModuleTensorEntry(FileModel):
    """A parameter or buffer of a module."""

    name: str
    bytes: Bytes
    dtype: str = ""
    buffer: bool = False
    same_as: str = ""
    operator: str = ""


class ModuleEntry(FileModel):
    """A module."""

    path: str
    kind: str = ""
    tensors: tuple[ModuleTensorEntry, ...] = ()


class ModuleTreeEntry(FileModel):
    """A model's modules."""

    modules: tuple[ModuleEntry, ...]
    no_split: tuple[str, ...] = ()

    def tree(self) -> ModuleTree:
        """As data."""
        modules = (
            Module(m.path, m.kind, tuple(ModuleTensor(**t.model_dump()) for t in m.tensors))
            for m in self.modules
        )
        return ModuleTree(tuple(modules), self.no_split)


def tree_json(tree: ModuleTree) -> dict[str, Any]:
    """What `ModuleTreeEntry` reads back equal; what says nothing is left out."""
    return {
        "no_split": list(tree.no_split),
        "modules": [
            {"path": m.path, "kind": m.kind, "tensors": [_tensor_json(t) for t in m.tensors]}
            for m in tree.modules
        ],
    }


def _tensor_json(tensor: ModuleTensor) -> dict[str, Any]:
    said = {key: getattr(tensor, key) for key in ModuleTensorEntry.model_fields}
    return {key: value for key, value in said.items() if value or key in ("name", "bytes")}
