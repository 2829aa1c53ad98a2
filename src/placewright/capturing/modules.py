"""The modules of a PyTorch model as data: the tree, its tensors, what is never split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from placewright.graph.modules import Module, ModuleTensor, ModuleTree


def module_tree(model: nn.Module, homes: Mapping[str, str]) -> ModuleTree:
    """The modules of `model`.

    Parameters
    ----------
    homes
        Qualified name of a parameter or buffer -> an operator that runs where it lives.
    """
    first: dict[int, str] = {}
    modules = tuple(_module(path, m, homes, first) for path, m in _walk("", model, ()))
    no_split = getattr(model, "_no_split_modules", None) or ()
    return ModuleTree(modules, tuple(sorted({str(kind) for kind in no_split})))


def _walk(
    path: str, module: nn.Module, above: tuple[nn.Module, ...]
) -> Iterator[tuple[str, nn.Module]]:
    """Every path of every module; a module that contains itself is entered once."""
    yield path, module
    for name, child in module.named_children():
        if all(child is not other for other in (*above, module)):
            yield from _walk(f"{path}.{name}" if path else name, child, (*above, module))


def _module(
    path: str, module: nn.Module, homes: Mapping[str, str], first: dict[int, str]
) -> Module:
    parameters = module.named_parameters(recurse=False)
    held: list[tuple[str, Tensor, bool]] = [(name, value, False) for name, value in parameters]
    held += [(name, value, True) for name, value in module.named_buffers(recurse=False)]
    tensors = []
    for name, value, buffer in held:
        key = f"{path}.{name}" if path else name
        origin = first.setdefault(id(value), key)
        tensors.append(
            ModuleTensor(
                name,
                _bytes(value),
                str(value.dtype).removeprefix("torch."),
                buffer,
                "" if origin == key else origin,
                homes.get(origin, ""),
            )
        )
    return Module(path, type(module).__name__, tuple(tensors))


def _bytes(value: Tensor) -> int:
    return int(value.numel() * value.element_size())
