"""Arrays of a service as compiled functions take them: what policies plan with, and what is true.

Each policy object builds its `Tables` once for a service, each simulation its `TrueTimes`, and
hands them whole to every kernel; `direct` makes that cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from placewright.numerics.arrays import FloatArray, IntArray, thawed
from placewright.requests.service import Service

F = TypeVar("F", bound=Callable[..., Any])


def direct(kernel: F) -> F:
    """A kernel for Python, which recognises the types of its arguments at the first call only.

    Numba looks at every array of every tuple at each call, which takes 0.15 us for each: as long
    as a short decision. Later calls must have the types of the first one, which are not checked:
    contiguous arrays of the kinds that the named tuples declare.
    """
    compiled: Any = None

    def call(*arguments: Any) -> Any:
        nonlocal compiled
        if compiled is not None:
            return compiled(*arguments)
        found, dispatcher = kernel(*arguments), cast(Any, kernel)
        types = tuple(dispatcher.typeof_pyval(each) for each in arguments)
        compiled = dispatcher.overloads[types].entry_point
        return found

    return cast(F, call)


class Tables(NamedTuple):
    """What policies plan with.

    Attributes
    ----------
    planned_s
        Shape (servers, variants, batch + 1): seconds of a batch, the round trip included.
    shortest_s
        Shape (servers, variants): of any batch; a larger one may take less time than a smaller one.
    load_s
        Shape (servers, variants): seconds of loading.
    family, accuracy
        Shape (variants,).
    kind
        Shape (servers,): servers of one kind have equal `planned_s`.
    limited
        Whether some server cannot hold all variants at once.
    """

    planned_s: FloatArray
    shortest_s: FloatArray
    load_s: FloatArray
    family: IntArray
    accuracy: FloatArray
    kind: IntArray
    limited: bool


def planning_tables(service: Service, quantile: float) -> Tables:
    """The tables of a policy that plans for `quantile` standard deviations of noise."""
    planned_s = np.ascontiguousarray(service.planned_s(quantile))
    _, kind = np.unique(planned_s.reshape(service.servers, -1), axis=0, return_inverse=True)
    return Tables(
        planned_s,
        np.ascontiguousarray(planned_s[:, :, 1:].min(axis=2)),
        thawed(service.load_s),
        thawed(service.family),
        thawed(service.accuracy),
        kind.reshape(-1).astype(np.int64),
        bool((service.memory_bytes.sum() > service.server_memory_bytes).any()),
    )


def alone(tables: Tables) -> tuple[IntArray, FloatArray]:
    """Shape (servers,): how many variants each runs, and their seconds for one request in all."""
    alone_s = tables.planned_s[:, :, 1]
    runs = np.isfinite(alone_s)
    return runs.sum(axis=1), alone_s.sum(axis=1, where=runs)


class TrueTimes(NamedTuple):
    """What batches really take, but for noise: fields of `placewright.requests.service.Service`."""

    latency_s: FloatArray
    load_s: FloatArray
    round_trip_s: FloatArray
    seconds_per_byte: FloatArray
    memory_bytes: FloatArray
    server_memory_bytes: FloatArray
    family: IntArray


def true_times(service: Service) -> TrueTimes:
    """The service as it is simulated."""
    return TrueTimes(*(thawed(getattr(service, name)) for name in TrueTimes._fields))
