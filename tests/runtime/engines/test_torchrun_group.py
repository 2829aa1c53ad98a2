"""The workers of a session under torchrun, as the coordinator sees them."""

from __future__ import annotations

import socket
from dataclasses import replace
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from placewright.errors import WorkerError
from placewright.runtime.connections import LOOPBACK, AuthenticatedListener, Channel
from placewright.runtime.engines import torchrun
from placewright.runtime.engines.torchrun import Agent, TorchrunGroup
from placewright.runtime.engines.torchrun_agent import call_coordinator
from placewright.runtime.host import Host
from placewright.runtime.program import CONTROL
from placewright.runtime.specs import worker_specs
from tests.runtime.test_session import DUO


def test_a_worker_that_does_not_connect_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for the start; a call for the session before is none for this one."""
    for variable in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.setenv(variable, "2")
    listener = AuthenticatedListener(socket.create_server((LOOPBACK, 0)), b"secret", CONTROL)
    hosts = [Host.here()] * 2
    specs = [replace(spec, session="2") for spec in worker_specs(DUO, hosts)]
    agents = [[Channel(end, CONTROL) for end in Pipe()] for _ in specs]
    group = TorchrunGroup(specs, hosts, [Agent(coordinator) for coordinator, _ in agents], listener)
    monkeypatch.setattr(TorchrunGroup, "start_limit_s", 3.0)
    calls = [call_coordinator(listener.port, b"secret", who) for who in (("1", 0), ("2", 1))]
    with pytest.raises(WorkerError, match="device 'a': no answer in time"):
        group.start()
    assert [theirs.recv() for _, theirs in agents] == specs
    for end in [*calls, *(end for both in agents for end in both)]:
        end.close()
    listener.close()


def test_agents_that_do_not_answer_are_waited_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after another they took 10 s each, while torchrun kills after 30 s."""
    now, limits_s = [100.0], []

    def silent(limit_s: float) -> bool:
        limits_s.append(limit_s)
        now[0] += max(0.0, limit_s)
        return False

    monkeypatch.setattr(torchrun, "time", SimpleNamespace(monotonic=lambda: now[0]))
    hosts = [Host.here()] * 2
    agents: list[Any] = [SimpleNamespace(end=lambda: None, settled=silent) for _ in hosts]
    listener: Any = None
    TorchrunGroup(worker_specs(DUO, hosts), hosts, agents, listener).close()
    assert limits_s == [torchrun._END_S, 0.0]


def test_an_agent_that_answers_late_is_waited_for() -> None:
    """Its answer belongs to the session before; the death before it was nobody's request."""
    ours, theirs = (Channel(end, CONTROL) for end in Pipe())
    agent = Agent(ours)
    agent.end()
    theirs.send(("died", 1))
    assert not agent.settled(0.01)
    theirs.send(("ended", None))
    theirs.send(("died", -9))  # in the session that follows
    assert agent.settled(1.0)
    assert agent.report() == ("died", -9)
    agent.end()
    theirs.close()
    assert agent.settled(1.0)
    ours.close()


def test_an_agent_that_is_stopped_does_not_end() -> None:
    """One that is told that nothing more will be asked ends, whatever it still reports."""
    ours, theirs = (Channel(end, CONTROL) for end in Pipe())
    agent = Agent(ours)
    agent.leave()
    with pytest.raises(EOFError):
        theirs.recv()
    theirs.send(("died", 1))
    assert not agent.gone(0.01)
    theirs.close()
    assert agent.gone(1.0)
    ours.close()
