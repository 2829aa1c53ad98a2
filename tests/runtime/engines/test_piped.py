"""A worker that reads nothing delays neither an order nor the end."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from placewright.errors import WorkerError
from placewright.runtime.engines.local import Local
from tests.runtime.test_session import DUO

UNREAD = bytes(4 << 20)
"""More than a connection takes."""


@pytest.mark.parametrize("noticed", [True, False])
def test_a_worker_that_dies_idle_does_not_disturb_the_end(noticed: bool) -> None:
    """Nothing is raised where the block ends, whether its error was swallowed or nobody saw it."""
    with Local().group(DUO) as group:
        group.processes[0].kill()
        group.processes[0].join()
        if noticed:
            with pytest.raises(WorkerError, match="killed by signal 9"):
                group.order_all("random_state")
    assert not any(p.is_alive() for p in group.processes)


def test_a_stopped_worker_is_given_up_however_much_it_is_told() -> None:
    """The limit holds for giving the order too; the other worker had its own, and both end."""
    with Local().group(DUO) as group:
        group.order_all("begin_file")
        stopped = group.processes[1]
        os.kill(stopped.pid or 0, signal.SIGSTOP)
        rescue = threading.Timer(20.0, stopped.kill)  # fails the test, instead of hanging in it
        rescue.start()
        with pytest.raises(WorkerError, match="device 'b': no answer in time"):
            group.order_all("append_file", UNREAD, limit_s=2.5)
        rescue.cancel()
    assert not any(p.is_alive() for p in group.processes)


def test_a_worker_that_dies_is_named_while_another_reads_nothing() -> None:
    """The first death ends the wait, without any limit, also before all orders are given."""
    with Local().group(DUO) as group:
        group.order_all("begin_file")
        for process in group.processes:
            os.kill(process.pid or 0, signal.SIGSTOP)
        death = threading.Timer(0.2, group.processes[1].kill)
        rescue = threading.Timer(20.0, group.processes[0].kill)
        death.start()
        rescue.start()
        with pytest.raises(WorkerError, match="device 'b': the worker process died"):
            group.order_all("append_file", UNREAD)
        rescue.cancel()
    assert not any(p.is_alive() for p in group.processes)
