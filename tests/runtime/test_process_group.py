"""Workers join their own session, and waiting is limited."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from placewright.runtime import process_group
from placewright.runtime.messages.layout import Driven, Layout
from placewright.runtime.process_group import join, meeting_point, nccl_group
from placewright.runtime.specs import WorkerSpec
from tests.processes import listening_addresses


def spec(folder: Path, world: int = 1, session: str = "0") -> WorkerSpec:
    """The first of so many workers, which meet in a file."""
    layout = Layout.of(range(world), ["cpu"] * world, nccl=False)
    return WorkerSpec(
        0, world, f"file://{folder}/meet", "a", layout, session=session, timeout_s=0.3
    )


@contextmanager
def member(of: WorkerSpec) -> Iterator[None]:
    """Joined for as long as the block lasts."""
    join(of)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_sessions_that_meet_at_one_place_do_not_meet_each_other(tmp_path: Path) -> None:
    """What one writes there the other does not see."""
    first, second = (meeting_point(spec(tmp_path, session=name)) for name in ("1", "2"))
    first.set("key", "mine")
    assert first.check(["key"])
    assert not second.check(["key"])


def test_a_worker_whose_others_do_not_come_gives_up(tmp_path: Path) -> None:
    """After its own timeout, and it is a member of nothing afterwards."""
    with pytest.raises(RuntimeError, match="timeout"):
        join(spec(tmp_path, world=2))
    assert not dist.is_initialized()


def test_the_meeting_point_is_waited_for_no_longer_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own limit, for a first worker that is not there, is half an hour."""
    limits = []

    def meet(*arguments: object, timeout: timedelta) -> Iterator[tuple[dist.Store, int, int]]:
        limits.append(timeout)
        yield dist.HashStore(), 1, 2

    monkeypatch.setattr(process_group, "rendezvous", meet)
    meeting_point(spec(tmp_path, world=2))
    assert limits == [timedelta(seconds=0.3)]


def test_a_store_over_the_network_listens_on_one_address_only(tmp_path: Path) -> None:
    """Two workers meet at it; no other interface is listened to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    one = replace(spec(tmp_path, world=2), rendezvous=place, timeout_s=20.0)
    before = set(listening_addresses(os.getpid()))
    with ThreadPoolExecutor() as pool:
        stores = list(pool.map(meeting_point, (one, replace(one, rank=1))))
    assert {host for host, _ in set(listening_addresses(os.getpid())) - before} == {"127.0.0.1"}
    stores[0].set("key", "mine")
    assert stores[1].get("key") == b"mine"


def test_a_place_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """The scheme of the address is named."""
    with pytest.raises(RuntimeError, match="nowhere"):
        join(replace(spec(tmp_path), rendezvous="nowhere://here"))


def test_one_worker_is_a_group(tmp_path: Path) -> None:
    """Its sum is its own, and without GPUs there is no second group to join."""
    one = spec(tmp_path)
    with member(one):
        value = torch.tensor([3.0])
        dist.all_reduce(value)
        assert value.item() == 3.0
        assert dist.get_world_size() == 1
        assert nccl_group(one) is None


def test_only_processes_with_untagged_messages_join_the_second_group(tmp_path: Path) -> None:
    """By the layout's ways, over the backend that it names."""
    devices = (Driven(0), Driven(0))
    layout = Layout(devices, (("copy", "nccl"), ("nccl", "copy")), direct="gloo")
    one = replace(spec(tmp_path), layout=layout)
    with member(one):
        group = nccl_group(one)
        assert group is not None
        assert dist.get_process_group_ranks(group) == [0]
        assert dist.get_backend(group) == "gloo"
        assert nccl_group(replace(one, rank=1)) is None
