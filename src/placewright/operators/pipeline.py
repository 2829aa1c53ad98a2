"""Options of pipelines beyond one stage per device; see `operators.simulation.loads`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from placewright.errors import InputError
from placewright.io.arguments import Range, checked


@checked
@dataclass(frozen=True, slots=True)
class Pipeline:
    """Questions about throughput, after Tarnawski et al., NeurIPS 2020, arXiv 2006.16423.

    Attributes
    ----------
    diffmaxima
        All forward passes come before all backward passes (GPipe, doi
        10.48550/arXiv.1811.06965): minimised is the largest forward load plus the largest
        backward load.
    replication
        A stage may be copied to several devices that are alike, each of which takes an equal
        share of the samples.
    by_speed
        With `replication`, over links: the devices of a stage may differ, and each takes a share
        of the samples in proportion to its speed.
    sync_seconds_per_byte
        What copies pay for keeping their weights equal, per resident byte and sample:
        2 (r - 1) / r times this on each of r copies. Zero where nothing is learned.
    cluster
        One entry per device, or none at all: the cluster that it is in, -1 for none.
    cluster_seconds_per_byte
        One entry per device, or none at all. STAR: what a device pays, instead of
        ``host_seconds_per_byte``, for a tensor that no operator outside its cluster touches.

    Raises
    ------
    InputError
        A price that is no number >= 0, a cluster below -1, tables of unlike length.
    """

    diffmaxima: bool = False
    replication: bool = False
    sync_seconds_per_byte: float = 0.0
    cluster: tuple[Annotated[int, Range(-1)], ...] = ()
    cluster_seconds_per_byte: tuple[float, ...] = ()
    by_speed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "cluster", tuple(int(x) for x in self.cluster))
        rates = tuple(float(x) for x in self.cluster_seconds_per_byte)
        object.__setattr__(self, "cluster_seconds_per_byte", rates)
        object.__setattr__(self, "sync_seconds_per_byte", float(self.sync_seconds_per_byte))
        for rate in (self.sync_seconds_per_byte, *rates):
            if not (math.isfinite(rate) and rate >= 0):
                raise InputError(
                    "seconds per byte must be a number >= 0", where="pipeline", by=f"got {rate}"
                )
        if self.by_speed and (not self.replication or self.diffmaxima):
            raise InputError(
                "by_speed is about the copies of stages",
                where="pipeline",
                hint="add replication, and leave diffmaxima out",
            )
        if min(self.cluster, default=0) < -1:
            raise InputError("a cluster is a number >= 0, or -1 for none", where="pipeline")
        if len(self.cluster) != len(rates):
            raise InputError(
                "cluster and cluster_seconds_per_byte need one entry per device each",
                where="pipeline",
                by=f"{len(self.cluster)} and {len(rates)}",
            )

    @property
    def plain(self) -> bool:
        """Whether one stage per device and one maximum is all there is."""
        return not (self.diffmaxima or self.replication or self.cluster)

    def described(self) -> str:
        """Text that names the options in use, empty if none is."""
        parts = (
            (self.diffmaxima, "diffmaxima"),
            (self.replication and not self.by_speed, "replicated stages"),
            (self.by_speed, "replicated stages on devices that differ"),
            (bool(self.cluster), "clusters of accelerators"),
        )
        return ", ".join(words for used, words in parts if used)


PLAIN = Pipeline()
