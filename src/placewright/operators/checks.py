"""Checks of a problem of wing 1, made once where it is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import InputError
from placewright.operators.sizes import OF_RESIDENT, UNLIMITED

if TYPE_CHECKING:
    from placewright.operators.problem import OperatorProblem

FLOATS = (
    "compute_s",
    "tensor_bytes",
    "latency_s",
    "seconds_per_byte",
    "resident_bytes",
    "memory_bytes",
    "host_seconds_per_byte",
)
"""Fields of a problem that are arrays of numbers >= 0."""


def check_problem(p: OperatorProblem) -> None:
    """Raise `InputError` where a field has a shape or a value that makes no sense."""
    _check_shapes(p)
    _check_values(p)


def _check_shapes(p: OperatorProblem) -> None:
    n, m, t = p.n, p.m, p.t
    if n == 0 or m == 0:
        raise InputError(
            "a problem needs operators and devices", where=p.name, by=f"{n} operators, {m} devices"
        )
    links = len(p.consumers)
    expected = {
        "compute_s": (n, m),
        "tensor_producer": (t,),
        "tensor_bytes": (t,),
        "consumer_offsets": (t + 1,),
        "consumers": (links,),
        "latency_s": (m, m),
        "seconds_per_byte": (m, m),
        "channel": (m, m),
        "resident_bytes": (n,),
        "memory_bytes": (m,),
        "colocation": (n,),
        "pinned": (n,),
        "host_seconds_per_byte": (m,),
        "is_backward": (n,),
        "alias_of": (t,),
        "micro_batch": (n,),
    }
    for key, shape in expected.items():
        if getattr(p, key).shape != shape:
            raise InputError(
                f"{key} has the wrong shape",
                where=p.name,
                by=f"{getattr(p, key).shape}, expected {shape}",
            )
    if p.pipeline.cluster and len(p.pipeline.cluster) != m:
        raise InputError(
            "pipeline.cluster has the wrong length",
            where=p.name,
            by=f"{len(p.pipeline.cluster)} for {m} devices",
        )
    lengths = {"device_kinds": m, "operator_modules": n, "operator_kinds": n, "output_shapes": n}
    for key, size in lengths.items():
        given = getattr(p, key)
        if given and len(given) != size:
            by = f"{len(given)}, expected {size}"
            raise InputError(f"{key} has the wrong length", where=p.name, by=by)
    for name, output in zip(p.operator_names, p.output_shapes, strict=False):
        if any(size < 0 for size in output):
            where = f"{p.name}: output_shapes[{name!r}]"
            raise InputError("a size must not be negative", where=where, by=f"got {output}")
    for key, names in (("operator", p.operator_names), ("device", p.device_names)):
        if len(set(names)) < len(names):
            raise InputError(f"{key} names must differ from each other", where=p.name)


def _check_values(p: OperatorProblem) -> None:
    for key in FLOATS:
        bad = np.argwhere(~(getattr(p, key) >= 0))
        if len(bad):
            at = tuple(int(x) for x in bad[0])
            raise InputError(
                f"{key} must be a number >= 0",
                where=f"{p.name}: {_named(p, key, at)}",
                by=f"got {getattr(p, key)[at]}",
            )
    unsupported = np.flatnonzero(~np.isfinite(p.compute_s).any(axis=1))
    if len(unsupported):
        raise InputError(
            "no device can run it",
            where=f"{p.name}: {p.operator_names[unsupported[0]]!r}",
            hint="give it seconds on one of them",
        )
    for key in ("tensor_bytes", "resident_bytes", "host_seconds_per_byte"):
        if not np.isfinite(getattr(p, key)).all():
            raise InputError(f"{key} must be finite", where=p.name)
    _check_bytes(p)
    for key, array, top in (
        ("tensor_producer", p.tensor_producer, p.n),
        ("consumers", p.consumers, p.n),
    ):
        if len(array) and not (array.min() >= 0 and array.max() < top):
            raise InputError(f"{key} names an operator that does not exist", where=p.name)
    offsets = p.consumer_offsets
    if offsets[0] != 0 or offsets[-1] != len(p.consumers) or (np.diff(offsets) < 0).any():
        raise InputError(
            "consumer_offsets must rise from 0 to the number of consumers", where=p.name
        )
    if p.channel.max(initial=-1) >= len(p.channel_names):
        raise InputError("channel names a channel that does not exist", where=p.name)
    missing = np.isfinite(p.seconds_per_byte) & (p.channel < 0) & ~np.eye(p.m, dtype=np.bool_)
    if missing.any():
        raise InputError("a pair of devices with a bandwidth has no channel", where=p.name)
    if p.pinned.min() < -1 or p.pinned.max() >= p.m:
        raise InputError("pinned names a device that does not exist", where=p.name)
    _check_views(p)
    if p.modules is not None:
        p.modules.check_operators(set(p.operator_names), p.name)
    if p.calls < 1:
        raise InputError("calls must be at least 1", where=p.name, by=f"got {p.calls}")


def _named(p: OperatorProblem, key: str, at: tuple[int, ...]) -> str:
    """The name of the entry `at` of the field `key`."""
    rows = {
        "compute_s": p.operator_names,
        "resident_bytes": p.operator_names,
        "tensor_bytes": p.tensor_names,
    }.get(key, p.device_names)
    column = f", {p.device_names[at[1]]!r}" if len(at) > 1 else ""
    return f"{key}[{rows[at[0]]!r}{column}]"


def _check_views(p: OperatorProblem) -> None:
    """Raise where a view is of no tensor, or of one that its producer does not read."""
    alias = p.alias_of
    if len(alias) and (alias.min() < OF_RESIDENT or alias.max() >= p.t):
        raise InputError("alias_of names a tensor that does not exist", where=p.name)
    for k in np.flatnonzero(alias >= 0).tolist():
        base = int(alias[k])
        readers = p.readers(base)
        if p.tensor_producer[k] not in readers:
            raise InputError(
                "a view must be made by an operator that reads what it is a view of",
                where=f"{p.name}: tensor {p.tensor_names[k]!r}",
                by=f"{p.operator_names[p.tensor_producer[k]]!r} does not read "
                f"{p.tensor_names[base]!r}",
            )


def _check_bytes(p: OperatorProblem) -> None:
    """Raise where 64 bits might not count what a plan holds, every tensor on every device."""
    with np.errstate(over="ignore"):  # infinity is refused as any other large number
        most = float(np.ceil(p.resident_bytes).sum() + p.m * np.ceil(p.tensor_bytes).sum())
    if not most < UNLIMITED:
        raise InputError(
            "more bytes than can be counted",
            where=p.name,
            by=f"up to {most:.3g} resident and in tensors, must be below 2^62",
            hint="give resident_bytes and tensor_bytes in bytes",
        )
