"""Messages without tags have one order at both ends, and no deadlock."""

from __future__ import annotations

import itertools
import os
import random
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from placewright.capturing.model import capture_source
from placewright.graph.graph import Graph, TensorSpec
from placewright.runtime import messages
from placewright.runtime.emulation import ShapedLink
from placewright.runtime.messages import (
    SMALL_BYTES,
    GlooReceiver,
    GlooSender,
    Timed,
    join,
    meeting_point,
    nccl_group,
    says_when,
)
from placewright.runtime.specs import Driven, Layout, Way, WorkerSpec
from placewright.runtime.step.partition import partition
from placewright.runtime.step.sequence import Share, shares
from placewright.runtime.wire import Message, Streams, message_key
from small_zoo import small
from tests.processes import listening_addresses
from tests.runtime.chain import diamond
from tests.runtime.rendezvous import Action, ends, script


def ways(untagged: int, devices: int) -> list[list[Way]]:
    """The first devices are GPUs of one process each; what touches another one has tags."""
    return [
        ["nccl" if max(a, b) < untagged else "gloo" for b in range(devices)] for a in range(devices)
    ]


def cut(graph: Graph, placement: list[int], order: list[int], gpus: int, n: int) -> list[Share]:
    """One share per device."""
    return shares(partition(graph, placement, order, n, ways(gpus, n)), order, range(n))


def any_order(graph: Graph, seed: int) -> list[int]:
    """A random order of the operators, producers first."""
    rng = random.Random(seed)
    place = {op.name: i for i, op in enumerate(graph.operators)}
    after: list[list[int]] = [[] for _ in graph.operators]
    missing = [0] * len(graph.operators)
    for tensor in graph.tensors:
        for consumer in tensor.consumers:
            after[place[tensor.producer]].append(place[consumer])
            missing[place[consumer]] += 1
    free, order = [i for i, m in enumerate(missing) if m == 0], []
    while free:
        order.append(free.pop(rng.randrange(len(free))))
        for i in after[order[-1]]:
            missing[i] -= 1
            if missing[i] == 0:
                free.append(i)
    return order


def named(share: Share, peer: int) -> list[tuple[int, int]]:
    """The messages between a process and another one, in the order in which it names them."""
    (part,) = share.parts
    for_peer = {
        message_key(m)
        for step in part.steps
        for m in (*step.sends, *step.waits)
        if m.way == "nccl" and peer in (m.source, m.target)
    }
    return [what for verb, what in script(share) if verb == "name" and what in for_peer]


def test_both_ends_of_every_pair_name_the_same_order() -> None:
    """All placements of the diamond on three GPUs."""
    graph, _ = diamond()
    for placement in itertools.product(range(3), repeat=4):
        parts = cut(graph, list(placement), list(range(4)), 3, 3)
        for a, b in itertools.combinations(range(3), 2):
            assert named(parts[a], b) == named(parts[b], a)


@pytest.mark.parametrize("name", ["alexnet", "rnnlm"])
def test_random_placements_in_random_orders_come_to_their_end(name: str) -> None:
    """Training steps on three GPUs and a CPU, operator by operator without regard to groups."""
    graph = capture_source(small(name), training=True)
    grouped = {op.colocation or op.name: k for k, op in enumerate(graph.operators)}
    rng = np.random.default_rng(0)
    for seed in range(6):
        place = rng.integers(0, 4, size=len(graph.operators))
        placement = [int(place[grouped[op.colocation or op.name]]) for op in graph.operators]
        parts = cut(graph, placement, any_order(graph, seed), 3, 4)
        actions = [list(script(share)) for share in parts]
        assert sum(verb == "name" for listed in actions for verb, _ in listed) > 8
        for blocking in (False, True):
            assert ends(actions, blocking=blocking)


def test_posting_all_receives_first_would_deadlock() -> None:
    """Two GPUs that both receive before they send: the oracle can tell."""
    graph, _ = diamond()
    parts = cut(graph, [0, 1, 0, 1], list(range(4)), 2, 2)
    crossed = cut(graph, [0, 1, 0, 0], list(range(4)), 2, 2)
    for shares_, hangs in ((parts, False), (crossed, True)):
        actions = [_receives_first(share) for share in shares_]
        assert ends(actions, blocking=False) is not hangs
        assert ends([list(script(share)) for share in shares_], blocking=True)


def _receives_first(share: Share) -> list[Action]:
    posts = [("name", message_key(m)) for part in share.parts for s in part.steps for m in s.posts]
    return posts + [action for action in script(share) if action not in posts]


LINK = ShapedLink(latency_s=1.0, seconds_per_byte=0.5, channel=0)
DEVICES = (Driven(0), Driven(1))


class Socket:
    """Takes what is sent and hands it to a receiver; a clock that stands still between sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.slept_until_s = 10.0, 0.0
        self.wire: dict[int, torch.Tensor] = {}
        self.buffers: dict[int, torch.Tensor] = {}
        monkeypatch.setattr(messages.time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(messages, "sleep_until", self._sleep)
        monkeypatch.setattr(messages.dist, "isend", self._sent)
        monkeypatch.setattr(messages.dist, "irecv", self._asked)

    def _sleep(self, deadline_s: float) -> None:
        self.slept_until_s = deadline_s

    def _sent(self, raw: torch.Tensor, dst: int, tag: int) -> Socket:
        self.wire[tag] = raw.clone()
        return self

    def _asked(self, raw: torch.Tensor, src: int, tag: int) -> Socket:
        self.buffers[tag] = raw
        return self

    def wait(self) -> None:
        """What was sent has arrived."""
        for tag, raw in self.wire.items():
            self.buffers[tag].copy_(raw)


def message(tag: int, count: int) -> Message:
    """Some bytes from device 0 to device 1 over the emulated link."""
    return Message(tag, f"t{tag}", TensorSpec((count,), "uint8", (1,)), 0, 1, "timed")


def test_messages_of_a_channel_are_due_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins when the first is through; the receiver waits for neither too long."""
    socket = Socket(monkeypatch)
    sender = GlooSender({1: LINK}, DEVICES, Streams(["cpu"]))
    messages = [message(0, 4), message(1, 6)]
    receiver = GlooReceiver(messages, DEVICES)
    receiver.post()
    sent = [torch.arange(m.spec.shape[0], dtype=torch.uint8) for m in messages]
    for each, tensor in zip(messages, sent, strict=True):
        sender.send(each, tensor)
    for each, tensor, due_s in zip(messages, sent, (13.0, 17.0), strict=True):
        assert torch.equal(receiver.take(each), tensor)
        assert socket.slept_until_s == due_s
    assert [(s.start_s, s.end_s) for s in sender.log] == [(10.0, 13.0), (13.0, 17.0)]


def test_a_channel_that_was_free_delivers_from_the_hand_over_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not from when the last message was through."""
    socket = Socket(monkeypatch)
    sender = GlooSender({1: LINK}, DEVICES, Streams(["cpu"]))
    sender.send(message(0, 2), torch.zeros(2, dtype=torch.uint8))
    socket.now_s = 100.0
    sender.send(message(1, 2), torch.zeros(2, dtype=torch.uint8))
    assert [(s.start_s, s.end_s) for s in sender.log] == [(10.0, 12.0), (100.0, 102.0)]


def test_a_large_tensor_takes_memory_from_its_arrival_to_its_last_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither when it is asked for nor once nobody refers to it; with `lasting` it stays."""
    socket, size = Socket(monkeypatch), 1 << 26
    large = message(0, size)
    for lasting, left in ((False, 0), (True, size)):
        receiver = GlooReceiver([large], DEVICES, lasting=lasting)
        before = resident_bytes()
        receiver.post()
        posted = resident_bytes()
        socket.wire[1] = torch.ones(1, dtype=torch.uint8).expand(size)
        tensor = receiver.take(large)
        arrived = resident_bytes()
        assert int(tensor[-1]) == 1
        del tensor
        socket.buffers.clear()
        found = [posted - before, arrived - before, resident_bytes() - before]
        assert found == pytest.approx([0, size, left], abs=size / 8)


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_pages_that_are_not_there_are_a_lack_of_memory() -> None:
    """It says of how much, as PyTorch does."""
    with pytest.raises(MemoryError, match="tried to allocate 4611686018427387904 bytes"):
        messages.own_pages(1 << 62)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4096])
def test_bytes_and_their_moment_share_memory_without_touching(size: int) -> None:
    """Whatever the padding."""
    timed = Timed(size)
    payload = torch.randint(0, 255, (size,), dtype=torch.uint8)
    timed.fill(payload, 1234.5)
    assert timed.due_s == 1234.5
    assert torch.equal(timed.bytes, payload)


def test_only_small_messages_over_emulated_links_say_when() -> None:
    """Large ones are held back by their senders, others are not held at all."""
    assert says_when(message(0, SMALL_BYTES))
    assert not says_when(message(0, SMALL_BYTES + 1))
    assert not says_when(replace(message(0, 4), way="gloo"))


def test_only_ways_through_host_memory_are_timed() -> None:
    """Copies within a process and links without emulation stay as they are."""
    layout = Layout.of([0, 0, 1], ["cpu"] * 3, nccl=False).timed({(0, 1), (0, 2)})
    assert layout.ways == (
        ("copy", "copy", "timed"),
        ("copy", "copy", "gloo"),
        ("gloo", "gloo", "copy"),
    )


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

    monkeypatch.setattr(messages, "rendezvous", meet)
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
