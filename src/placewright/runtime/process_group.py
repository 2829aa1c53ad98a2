"""How a worker joins the others: where they meet, the group of all, the group that NCCL joins."""

from __future__ import annotations

import datetime
import socket
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from placewright.runtime.specs import WorkerSpec


def join(spec: WorkerSpec) -> None:
    """Become a member of the session's process group; returns when all have."""
    dist.init_process_group(
        "gloo",
        store=meeting_point(spec),
        rank=spec.rank,
        world_size=spec.world,
        timeout=_limit(spec),
    )


def nccl_group(spec: WorkerSpec) -> dist.ProcessGroup | None:
    """The processes that NCCL joins, if this is one of them; every process has to call it."""
    ranks = spec.layout.direct_processes
    if not ranks:
        return None
    group = dist.new_group(list(ranks), timeout=_limit(spec), backend=spec.layout.direct)
    return group if spec.rank in ranks else None


def meeting_point(spec: WorkerSpec) -> Any:
    """The store in which the workers of one session, and of no other, find each other."""
    place, limit = urlsplit(spec.rendezvous), _limit(spec)
    if place.scheme == "tcp" and place.hostname is not None and place.port is not None:
        store = _store_at(place.hostname, place.port, spec)
    else:
        store, *_ = next(iter(rendezvous(spec.rendezvous, spec.rank, spec.world, timeout=limit)))
    return PrefixStore(f"placewright/{spec.session}", store)


def _store_at(host: str, port: int, spec: WorkerSpec) -> Any:
    """A store that the first worker opens on this one address.

    By itself a `TCPStore` listens on every interface of the machine, to anybody.
    """
    first = spec.rank == 0
    # The store takes the file descriptor over and closes it.
    listening = socket.create_server((host, port)).detach() if first else None
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, spec.world, first, _limit(spec), master_listen_fd=listening
    )


def _limit(spec: WorkerSpec) -> datetime.timedelta:
    """How long the others are waited for."""
    return datetime.timedelta(seconds=spec.timeout_s)
