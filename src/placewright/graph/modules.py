"""ModuleTree: the modules of a model, their tensors, and which are never split."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from placewright.errors import InputError, UnknownNameError


@dataclass(frozen=True, slots=True)
class ModuleTensor:
    """A parameter or buffer that a module holds itself, not through a child.

    Attributes
    ----------
    name
        Within its module, for example ``weight``.
    bytes
        Of its values alone: no gradient, no optimizer state.
    dtype
        ``float32``, ``bfloat16``, ``bool``, ...
    buffer
        A buffer, not a parameter.
    same_as
        Qualified name of the first tensor that it is tied to, empty where it is the first or
        the only one.
    operator
        An operator that runs where the tensor lives, empty where none touches it.
    """

    name: str
    bytes: int
    dtype: str = ""
    buffer: bool = False
    same_as: str = ""
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """One module by its path; `kind` is the name of its class."""

    path: str
    kind: str = ""
    tensors: tuple[ModuleTensor, ...] = ()

    def key(self, tensor: ModuleTensor) -> str:
        """The qualified name of one of its tensors, for example ``lm_head.weight``."""
        return f"{self.path}.{tensor.name}" if self.path else tensor.name


@dataclass(frozen=True, slots=True)
class ModuleTree:
    """Modules in the order of ``named_modules``: the model itself (path ``""``) comes first.

    A module that is reached by two paths is in the tree twice, the second time with tensors tied
    to the first ones.

    `no_split`: classes whose modules run on one device (``_no_split_modules`` of transformers).
    """

    modules: tuple[Module, ...]
    no_split: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known: set[str] = set()
        keys: set[str] = set()
        for module in self.modules:
            where = f"module {module.path!r}"
            if module.path in known:
                raise InputError("a module is listed twice", where=where)
            if known and parent_of(module.path) not in known:
                raise InputError("a module stands before its parent", where=where)
            known.add(module.path)
            for tensor in module.tensors:
                self._check(module, tensor, keys)
        if "" not in known:
            raise InputError("the first module must be the model itself, with the path ''")

    def _check(self, module: Module, tensor: ModuleTensor, keys: set[str]) -> None:
        key = module.key(tensor)
        if not tensor.bytes >= 0:
            raise InputError("bytes must be >= 0", where=f"tensor {key!r}", by=f"{tensor.bytes}")
        if key in keys:
            raise InputError("a module holds a tensor twice", where=f"tensor {key!r}")
        if tensor.same_as and tensor.same_as not in keys:
            raise UnknownNameError("tensor", tensor.same_as, keys, where=f"tensor {key!r}: same_as")
        keys.add(key)

    def check_operators(self, operators: Collection[str], where: str) -> None:
        """Raise `UnknownNameError` where a tensor lives with an operator that is not there."""
        for module in self.modules:
            for tensor in module.tensors:
                if tensor.operator and tensor.operator not in operators:
                    place = f"{where}: modules: tensor {module.key(tensor)!r}"
                    raise UnknownNameError("operator", tensor.operator, operators, where=place)


def parent_of(path: str) -> str:
    """``model.layers`` of ``model.layers.3``."""
    return path.rpartition(".")[0]
