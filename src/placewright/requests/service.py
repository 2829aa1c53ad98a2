"""What serves requests: servers, model variants with accuracy and latency, memory, access links."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from placewright.errors import InputError
from placewright.numerics.arrays import (
    FloatArray,
    IntArray,
    axes,
    check_axes,
    check_names,
    freeze_arrays,
)
from placewright.report.text import size

MOST_ENTRIES = 50_000_000
"""Servers x variants x batch sizes that a file may have."""

DEVIATIONS, LEAST_SHARE = 3.0, 0.1
"""Standard deviations of noise that a batch's time has at most, fewer where noise is so large that
it would fall below this share of its table's."""


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """Servers and the variants that each can run: all that a policy knows beside its requests.

    With n servers, m variants of all families and batches of at most B requests:

    Attributes
    ----------
    server_names, variant_names, family_names
        Names; positions in them are the indices used everywhere else.
    family
        Shape (m,): the family of each variant.
    accuracy
        Shape (m,): share of right answers, in [0, 1].
    latency_s
        Shape (n, m, B + 1): seconds of a batch by its number of requests; ``inf`` where the server
        cannot run the variant or the batch, 0 for no requests. Larger batches may take less time.
    memory_bytes
        Shape (m,): what a loaded variant holds.
    server_memory_bytes
        Shape (n,): what a server has for variants; ``inf`` where that is no limit.
    load_s
        Shape (n, m): seconds to load a variant that is not in the server's memory.
    round_trip_s, seconds_per_byte
        Shape (n,): access link; the inputs of a batch are sent when it is dispatched, one after
        another, and the server is held meanwhile.
    noise
        Relative standard deviation of service times; a policy plans with an upper quantile.
    """

    server_names: tuple[str, ...]
    variant_names: tuple[str, ...]
    family_names: tuple[str, ...]
    family: IntArray = field(metadata=axes("m"))
    accuracy: FloatArray = field(metadata=axes("m"))
    latency_s: FloatArray
    memory_bytes: FloatArray = field(metadata=axes("m"))
    server_memory_bytes: FloatArray = field(metadata=axes("n"))
    load_s: FloatArray = field(metadata=axes("nm"))
    round_trip_s: FloatArray = field(metadata=axes("n"))
    seconds_per_byte: FloatArray = field(metadata=axes("n"))
    noise: float = 0.0

    def __post_init__(self) -> None:
        freeze_arrays(self)
        _check(self)

    @property
    def servers(self) -> int:
        """Number of servers."""
        return len(self.server_names)

    @property
    def variants(self) -> int:
        """Number of variants."""
        return len(self.variant_names)

    @property
    def families(self) -> int:
        """Number of families."""
        return len(self.family_names)

    @property
    def max_batch(self) -> int:
        """Requests in the largest batch of any server."""
        return int(self.latency_s.shape[2]) - 1

    @property
    def deviations(self) -> float:
        """Most standard deviations by which a batch's time differs from its table's."""
        most = 1.0 - LEAST_SHARE
        return DEVIATIONS if self.noise * DEVIATIONS <= most else most / self.noise

    @property
    def least_factor(self) -> float:
        """What noise multiplies a batch's time with at least."""
        return 1.0 - self.deviations * self.noise

    def planned_s(self, quantile: float = 2.0) -> FloatArray:
        """`latency_s` with `quantile` standard deviations of noise on top, and the round trip.

        Raises `InputError`: a negative quantile, or an infinite one.
        """
        if not 0 <= quantile < np.inf:
            raise InputError("quantile must be a number >= 0", by=f"got {quantile}")
        noisy_s = self.latency_s * (1.0 + quantile * self.noise)
        planned: FloatArray = noisy_s + self.round_trip_s[:, None, None]
        return planned

    def kinds(self) -> IntArray:
        """Shape (kinds,): the first server of each kind; servers of one kind differ in nothing."""
        n = self.servers
        columns = (
            self.latency_s.reshape(n, -1),
            self.load_s,
            self.server_memory_bytes[:, None],
            self.round_trip_s[:, None],
            self.seconds_per_byte[:, None],
        )
        return np.sort(np.unique(np.concatenate(columns, axis=1), axis=0, return_index=True)[1])

    def replace(self, **changes: Any) -> Service:
        """The same service with some fields replaced, for example a measured `latency_s`."""
        return replace(self, **changes)

    def subset(
        self, servers: IntArray, variants: IntArray, server_names: tuple[str, ...] | None = None
    ) -> Service:
        """The service of some servers and variants, in this order; all families stay.

        `server_names`: new names, where a server is taken twice.
        """
        kept = server_names or tuple(self.server_names[i] for i in servers.tolist())
        return Service(
            kept,
            tuple(self.variant_names[v] for v in variants.tolist()),
            self.family_names,
            self.family[variants],
            self.accuracy[variants],
            self.latency_s[np.ix_(servers, variants)],
            self.memory_bytes[variants],
            self.server_memory_bytes[servers],
            self.load_s[np.ix_(servers, variants)],
            self.round_trip_s[servers],
            self.seconds_per_byte[servers],
            self.noise,
        )


def service_of(
    server_names: tuple[str, ...],
    variant_names: tuple[str, ...],
    accuracy: Any,
    latency_s: Any,
    **given: Any,
) -> Service:
    """A service of one family (unless `given`) whose memory and network are no limit."""
    n, m = len(server_names), len(variant_names)
    usual: dict[str, Any] = {
        "family_names": ("all",),
        "family": np.zeros(m, dtype=np.int64),
        "memory_bytes": np.zeros(m),
        "server_memory_bytes": np.full(n, np.inf),
        "load_s": np.zeros((n, m)),
        "round_trip_s": np.zeros(n),
        "seconds_per_byte": np.zeros(n),
    }
    return Service(
        server_names, variant_names, accuracy=accuracy, latency_s=latency_s, **usual | given
    )


def _check(s: Service) -> None:
    """Raise where sizes or values are wrong.

    Raises `InputError`, which names the field, the server or variant, and the value.
    """
    n, m = s.servers, s.variants
    if not n or not m or not s.families:
        raise InputError("a service needs servers, variants and families", where="service")
    for kind in ("server", "variant", "family"):
        check_names(kind, getattr(s, f"{kind}_names"), "service")
    _check_shapes(s, n, m)
    if not ((s.family >= 0) & (s.family < s.families)).all():
        raise InputError("a variant names a family that does not exist", where="service: family")
    unfamiliar = np.setdiff1d(np.arange(s.families), s.family)
    if len(unfamiliar):
        name = s.family_names[int(unfamiliar[0])]
        raise InputError(f"family {name!r} has no variant", where="service")
    _check_values(s)


def _check_shapes(s: Service, n: int, m: int) -> None:
    if s.latency_s.ndim != 3 or s.latency_s.shape[:2] != (n, m) or s.latency_s.shape[2] < 2:
        by = f"{s.latency_s.shape}, expected ({n}, {m}, largest batch + 1)"
        raise InputError("latency_s has the wrong shape", where="service", by=by)
    check_axes(s, {"n": n, "m": m}, "service")


def _check_values(s: Service) -> None:
    for v in np.flatnonzero(~((s.accuracy >= 0) & (s.accuracy <= 1))).tolist():
        raise InputError(
            "accuracy must be in [0, 1]",
            where=f"variant {s.variant_names[v]!r}",
            by=f"got {s.accuracy[v]}",
        )
    bad = np.argwhere(~(s.latency_s[:, :, 1:] > 0))
    for server, variant, batch in bad.tolist():
        raise InputError(
            "latency must be a number above 0",
            where=f"server {s.server_names[server]!r}, variant {s.variant_names[variant]!r}, "
            f"batch {batch + 1}",
            by=f"got {s.latency_s[server, variant, batch + 1]}",
        )
    for v in np.flatnonzero(~np.isfinite(s.latency_s[:, :, 1:]).any(axis=(0, 2))).tolist():
        raise InputError(
            f"no server runs variant {s.variant_names[v]!r}",
            where="service",
            hint="leave the variant out, or add its latency",
        )
    finite = ("memory_bytes", "load_s", "round_trip_s", "seconds_per_byte")
    for key in ("server_memory_bytes", *finite):
        if not (getattr(s, key) >= 0).all():
            raise InputError(f"{key} must be a number >= 0", where="service")
    for key in finite:
        if not np.isfinite(getattr(s, key)).all():
            raise InputError(f"{key} must be finite", where="service")
    runs = np.isfinite(s.latency_s[:, :, 1:]).any(axis=2)
    big = np.argwhere(runs & (s.memory_bytes > s.server_memory_bytes[:, None]))
    for server, variant in big.tolist():
        raise InputError(
            f"variant {s.variant_names[variant]!r} does not fit server {s.server_names[server]!r}",
            where="service",
            by=f"{size(s.memory_bytes[variant])} of {size(s.server_memory_bytes[server])}",
            hint="leave its latency on that server out",
        )
    if not 0 <= s.noise < 0.5:
        raise InputError("noise must be in [0, 0.5)", where="service", by=f"got {s.noise}")
