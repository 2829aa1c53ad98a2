"""The worker program as a Ray actor: the same worker, whose orders are calls."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from placewright.runtime.host import Host
from placewright.runtime.worker import Worker
from placewright.runtime.worker_spec import WorkerSpec


class RayWorker:
    """One device. Ray makes an actor of it; see `placewright.runtime.engines.ray_engine`."""

    def host(self) -> Host:
        """The machine that Ray has chosen."""
        return Host.here()

    def meeting_point(self) -> str:
        """Where the others find this worker: an address and a port that is free now."""
        from ray.util import get_node_ip_address

        address: str = get_node_ip_address()  # type: ignore[no-untyped-call]
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"tcp://{address}:{probe.getsockname()[1]}"

    def begin(self, spec: WorkerSpec) -> None:
        """Become the worker; returns when all have met."""
        self._worker = Worker(spec)

    def obey(self, verb: str, arguments: Sequence[Any]) -> Any:
        """Carry out one order and answer it."""
        return self._worker.obey(verb, arguments)
