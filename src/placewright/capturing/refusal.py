"""What ended a trace, in words that somebody who wrote the model can act on."""

from __future__ import annotations

from torch import fx

from placewright.errors import InputError, PlacewrightError, UnsupportedError

OUTSIDE = "mutating a non-functional tensor"
"""PyTorch's words for a plain tensor that is changed in place by what the step computes."""


def changed_in_place(node: fx.Node) -> UnsupportedError:
    """A call changes a tensor that the program neither keeps nor gives back."""
    module = (node.meta.get("custom") or {}).get("module", "")
    return UnsupportedError(
        "a tensor that is no parameter and no buffer is changed in place",
        where=f"operator {node.name!r}" + (f" of module {module!r}" if module else ""),
        by=str(node.target),
        hint="register it with register_buffer, or use the out-of-place form of the operation",
    )


def refusal(error: BaseException, module: str, model: str) -> PlacewrightError:
    """What an error of PyTorch's means, raised in `module` of `model`."""
    where = f"model {model}" + (f", module {module!r}" if module else "")
    said = " ".join(str(error).split())[:300]
    kind = type(error).__name__
    if "DataDependent" in kind or "data-dependent" in said or "DynamicOutputShape" in kind:
        return UnsupportedError(
            "what it computes depends on values, not on shapes alone",
            where=where,
            by=f"{kind}: {said}",
            hint="replace `.item()`, `if tensor:` and boolean indexing by torch.where, or capture "
            "a part of the model that has none",
        )
    if "UnsupportedOperator" in kind:
        return UnsupportedError(
            "an operator has no shape rule for fake tensors",
            where=where,
            by=said,
            hint="register one with torch.library.register_fake",
        )
    return InputError(
        f"calling it raised {kind}: {said}",
        where=where,
        hint="check that model(*inputs) and loss_fn(outputs, targets) run in plain PyTorch on the "
        "CPU; if they do, an operation has no shape rule for fake tensors there",
    )
