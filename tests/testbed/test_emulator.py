"""The link emulator, with sockets for devices and a simulated clock."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.testbed.emulator import DROP_BYTES, DROP_S, HEADER, OWN_S, Emulator
from placewright.testbed.namespaces import LinkTable
from tests.testbed.test_packet import packet

RATES = (1e4, 1e6, 1e9)
NEAR_S, ROUNDING_S = 1e-9, 1e-11


class Bench:
    """Two or more devices, the emulator between them, and a clock."""

    def __init__(self, path: Path, count: int = 2) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
        self.sockets = [end for pair in pairs for end in pair]
        for end in self.sockets:
            end.setblocking(False)
        self.devices = [theirs for _, theirs in pairs]
        self.table = LinkTable.create(path, count)
        self.now_s = 100.0
        files = [ours.fileno() for ours, _ in pairs]
        self.emulator = Emulator(files, self.table, lambda: self.now_s)
        self.files = files

    def send(self, source: int, data: bytes) -> None:
        """A device sends, and the emulator takes it in."""
        self.devices[source].send(data)
        self.emulator.take(self.files[source])

    def at(self, now_s: float) -> list[bytes]:
        """Everything that device 1 has received at `now_s`."""
        self.now_s = now_s
        self.emulator.deliver()
        got = []
        while True:
            try:
                got.append(self.devices[1].recv(70_000))
            except BlockingIOError:
                return got

    def close(self) -> None:
        """Leave no file open, also where a test fails."""
        for end in self.sockets:
            end.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Two devices that are not linked yet."""
    with closing(Bench(tmp_path / "links")) as made:
        yield made


@given(
    sent=st.lists(
        st.tuples(st.floats(0, 0.3), st.sampled_from((0, 2)), st.integers(0, 1400)),
        min_size=1,
        max_size=12,
    ),
    rates=st.tuples(st.sampled_from(RATES), st.sampled_from(RATES)),
    delay_s=st.sampled_from((0.0, 0.001, 0.05)),
    shared=st.booleans(),
)
def test_arrivals_are_those_of_the_judges_link(
    tmp_path_factory: pytest.TempPathFactory,
    sent: list[tuple[float, int, int]],
    rates: tuple[float, float],
    delay_s: float,
    shared: bool,
) -> None:
    """Packets wait for their channel, hold it for their payload, and arrive the delay later."""
    with closing(Bench(tmp_path_factory.mktemp("emulator") / "links", 3)) as bench:
        carry(bench, sent, rates, delay_s, shared)


def carry(
    bench: Bench,
    sent: list[tuple[float, int, int]],
    rates: tuple[float, float],
    delay_s: float,
    shared: bool,
) -> None:
    """Send, and look just before and just after every arrival."""
    for source, rate in zip((0, 2), rates, strict=True):
        bench.table.set("rate", source, 1, rate)
        bench.table.set("delay_s", source, 1, delay_s)
        bench.table.set("channel", source, 1, 0 if shared else source)
    expected, free_s = [], {0: 0.0, 2: 0.0}
    now_s = bench.now_s
    for pause_s, source, payload in sent:
        now_s += pause_s
        bench.now_s = now_s
        bench.send(source, packet(payload))
        channel = 0 if shared else source
        free_s[channel] = max(now_s, free_s[channel]) + payload / rates[0 if source == 0 else 1]
        expected.append(free_s[channel] + delay_s - OWN_S)
    looks = sorted(e + side for e in expected for side in (-NEAR_S, NEAR_S))
    for look_s in looks:
        bench.at(look_s)
        least, most = (
            sum(e <= look_s + side for e in expected) for side in (-ROUNDING_S, ROUNDING_S)
        )
        assert least <= sum(bench.table.square("packets")) <= most
    assert sum(bench.table.square("packets")) == len(sent)
    assert sum(bench.table.square("bytes")) == sum(payload for *_, payload in sent)


def test_what_has_no_way_is_lost(bench: Bench) -> None:
    """No link, an unknown address, another protocol: counted or ignored, never delivered."""
    bench.send(0, packet(10))
    bench.send(0, packet(10, to=9))
    bench.send(0, bytes(HEADER) + b"\x60" + bytes(60))
    assert bench.at(200.0) == []
    assert bench.table.get("dropped", 0, 1) == 1


def test_a_cut_loses_what_is_on_its_way(bench: Bench) -> None:
    """And nothing more once it is restored."""
    bench.table.set("rate", 0, 1, 1e6)
    bench.table.set("delay_s", 0, 1, 0.1)
    bench.send(0, packet(10))
    bench.table.set("cut", 0, 1, 1)
    bench.send(0, packet(10))
    assert bench.at(101.0) == []
    assert bench.table.get("dropped", 0, 1) == 2
    bench.table.set("cut", 0, 1, 0)
    bench.send(0, packet(10))
    assert len(bench.at(102.0)) == 1


def test_a_shorter_delay_does_not_reorder(bench: Bench) -> None:
    """A packet never overtakes its predecessor on the same way."""
    bench.table.set("rate", 0, 1, 1e9)
    bench.table.set("delay_s", 0, 1, 1.0)
    bench.send(0, packet(100))
    bench.table.set("delay_s", 0, 1, 0.0)
    bench.send(0, packet(200))
    assert bench.at(100.5) == []
    assert [len(data) for data in bench.at(101.1)] == [len(packet(100)), len(packet(200))]


def test_a_full_queue_marks_then_drops(bench: Bench) -> None:
    """Congestion is marked long before packets are dropped."""
    rate, payload = 1e6, 50_000
    bench.table.set("rate", 0, 1, rate)
    for _ in range(40):
        bench.send(0, packet(payload, service=2))
    waiting = max(DROP_S * rate, DROP_BYTES)
    admitted = int(waiting // payload) + 1
    assert bench.table.get("dropped", 0, 1) == 40 - admitted
    assert bench.table.get("marked", 0, 1) == admitted - 1
    arrived = [data for k in range(60) for data in bench.at(100.0 + payload / rate * k)]
    marks = [data[HEADER + 1] & 3 for data in arrived]
    assert marks == [2] + [3] * (admitted - 1)


def test_the_emulator_stops_on_an_event_of_its_owners(bench: Bench) -> None:
    """As when the process that owns the testbed ends."""
    read, write = os.pipe()
    os.write(write, b"!")
    bench.emulator.run((read,))
    os.close(read)
    os.close(write)
