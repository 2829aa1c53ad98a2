"""Arrival times of messages over an emulated link."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from placewright.graph.graph import TensorSpec
from placewright.runtime.emulation import ShapedLink
from placewright.runtime.messages import gloo
from placewright.runtime.messages.gloo import (
    SMALL_BYTES,
    GlooReceiver,
    GlooSender,
    Timed,
    says_when,
)
from placewright.runtime.messages.layout import Driven, Layout
from placewright.runtime.messages.streams import Streams
from placewright.runtime.messages.wire import Message

LINK = ShapedLink(latency_s=1.0, seconds_per_byte=0.5, channel=0)
DEVICES = (Driven(0), Driven(1))


class Socket:
    """Takes what is sent and hands it to a receiver; a clock that stands still between sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.slept_until_s = 10.0, 0.0
        self.wire: dict[int, torch.Tensor] = {}
        self.buffers: dict[int, torch.Tensor] = {}
        monkeypatch.setattr(gloo.time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(gloo, "sleep_until", self._sleep)
        monkeypatch.setattr(gloo.dist, "isend", self._sent)
        monkeypatch.setattr(gloo.dist, "irecv", self._asked)

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
        gloo.own_pages(1 << 62)


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
