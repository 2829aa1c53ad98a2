"""Queue and servers: orders, reused slots, replaced variants."""

from __future__ import annotations

import numpy as np

from placewright.requests.conformance import two_servers
from placewright.requests.queue import Queue, Servers


def test_orders_equal_a_plain_list() -> None:
    """After a thousand random additions and removals, both orders are those of a sorted list."""
    rng, queue, plain = np.random.default_rng(0), Queue(), {}
    for id in range(1000):
        arrival_s, due_s = rng.integers(0, 50) / 10, rng.integers(0, 50) / 10
        plain[id] = (arrival_s, due_s)
        queue.add(id, id % 2, arrival_s, due_s)
        if rng.random() < 0.3:
            slots = rng.choice(queue.by_arrival, min(queue.count, 3), replace=False)
            for gone in queue.take(slots):
                del plain[gone]
        by_arrival = sorted(plain, key=lambda k: (plain[k][0], k))
        by_deadline = sorted(plain, key=lambda k: (plain[k][1], k))
        assert queue.id[queue.by_arrival].tolist() == by_arrival
        assert queue.id[queue.by_deadline].tolist() == by_deadline
    assert queue.total == 1000
    assert queue.id[queue.slots_of([by_arrival[3], 5000])].tolist() == [by_arrival[3]]
    assert queue.arrivals_since(4.0) == 0 or queue.arrivals_since(0.0) == 1000


def test_requests_that_come_again_are_no_arrivals() -> None:
    """A request of a failed server keeps its place and does not raise the estimated rate."""
    queue = Queue()
    queue.add(5, 0, 1.0, 2.0)
    queue.add(3, 0, 0.5, 3.0, again=True)
    assert queue.total == 1
    assert queue.id[queue.by_arrival].tolist() == [3, 5]


def test_a_variant_is_loaded_in_place_of_the_one_used_longest_ago() -> None:
    """One byte of memory, variants of one byte: each change loads; the same again does not."""
    service = two_servers(
        memory_bytes=np.ones(2), server_memory_bytes=np.ones(2), load_s=np.full((2, 2), 0.5)
    )
    servers = Servers.of(service)
    assert [servers.start(service, 0, v, k) for k, v in enumerate([0, 0, 1, 0])] == [
        0.5,
        0.0,
        0.5,
        0.5,
    ]
    assert servers.resident.tolist() == [[True, False], [False, False]]
