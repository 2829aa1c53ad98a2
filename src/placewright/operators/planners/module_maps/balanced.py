"""Memory limits that make a device map use every GPU: accelerate's ``get_balanced_memory``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from placewright.operators.planners.module_maps.sizes import ModuleSizes


def balanced(
    sizes: ModuleSizes, gpu_bytes: Mapping[int, float], *, low_zero: bool = False
) -> dict[int, float]:
    """Bytes that each GPU may take of the model, so that all of them get about as much.

    A GPU's share is the model over the number of GPUs, and 1.25 times the largest module that is
    never split (the first of each class) or the mean last module with tensors, if that is more.
    The last GPU keeps what it has.

    Parameters
    ----------
    gpu_bytes
        What each GPU has, by number.
    low_zero
        Leave the first GPU as empty as the others allow.
    """
    limits = dict(gpu_bytes)
    used = sorted(d for d, room in limits.items() if room > 0)
    if not used:
        return limits
    low_zero = low_zero and len(used) > 1
    whole = sizes.bytes_of[""]
    share = whole // (len(used) - low_zero)
    share += int(1.25 * max(_largest_unsplit(sizes), _mean_last(sizes)))
    for d in used[:-1]:
        first = low_zero and d == 0
        limits[d] = min(limits[0] if first else share, limits[d])
    if low_zero:
        others = sum(limits[d] for d in range(1, len(used)))
        limits[0] = min(max(0, whole - others), limits[0])
    return limits


def _largest_unsplit(sizes: ModuleSizes) -> float:
    first: dict[str, float] = {}
    for name, size in sizes.bytes_of.items():
        kind = sizes.kinds.get(name, "")
        if name and kind in sizes.tree.no_split:
            first.setdefault(kind, size)
    return max(first.values(), default=0)


def _mean_last(sizes: ModuleSizes) -> int:
    """Mean bytes of what is left without children when tensors are left out."""
    tensors = set(_leaves(sizes.bytes_of))
    modules = [name for name in sizes.bytes_of if name not in tensors]
    last = _leaves(modules)
    return int(sum(sizes.bytes_of[name] for name in last) / max(len(last), 1))


def _leaves(names: Iterable[str]) -> list[str]:
    names = list(names)
    parents = {name.rpartition(".")[0] for name in names if "." in name}
    return [name for name in names if name and name not in parents]
