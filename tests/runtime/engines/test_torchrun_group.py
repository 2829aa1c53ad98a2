"""The workers of a session under torchrun, as far as the lead alone can see them."""

from __future__ import annotations

import socket
from dataclasses import replace
from multiprocessing import Pipe

import pytest

from placewright.errors import WorkerError
from placewright.runtime.connections.authentication import LOOPBACK, Listener
from placewright.runtime.connections.channel import Channel
from placewright.runtime.engines.connecting import dial
from placewright.runtime.engines.torchrun_group import TorchrunGroup
from placewright.runtime.host import Host
from placewright.runtime.orders import ORDERS
from placewright.runtime.specs import worker_specs
from tests.runtime.test_session import DUO


def test_who_does_not_dial_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for the start; a call for the session before is none for this one."""
    for variable in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.setenv(variable, "2")
    door = Listener(socket.create_server((LOOPBACK, 0)), b"secret", ORDERS)
    hosts = [Host.here()] * 2
    specs = [replace(spec, session="2") for spec in worker_specs(DUO, hosts)]
    keepers = [[Channel(end, ORDERS) for end in Pipe()] for _ in specs]
    group = TorchrunGroup(specs, hosts, [lead for lead, _ in keepers], door)
    monkeypatch.setattr(TorchrunGroup, "start_limit_s", 0.5)
    calls = [dial(door.port, b"secret", who) for who in (("1", 0), ("2", 1))]
    with pytest.raises(WorkerError, match="devices 'a': no answer in time"):
        group.start()
    assert [theirs.recv() for _, theirs in keepers] == specs
    for end in [*calls, *(end for both in keepers for end in both)]:
        end.close()
    door.close()
