"""A probe measures the link, without the wake-up time of its processes."""

from __future__ import annotations

import time

from placewright.testbed.probe import arrival_ns, datagram_socket


def test_a_datagram_has_arrived_when_the_kernel_has_it() -> None:
    """Read half a second late, it is not late."""
    with datagram_socket(("127.0.0.1", 0)) as letters:
        # The kernel begins to note arrivals some time after it is asked to.
        for seconds in (*[0.1] * 20, 0.5):
            sent_ns = time.time_ns()
            letters.sendto(b"?", letters.getsockname())
            time.sleep(seconds)
            arrived_ns, sender = arrival_ns(letters)
            assert sender == letters.getsockname()
    assert 0 <= arrived_ns - sent_ns < 0.4e9
