"""A group of actors that answer, raise, hang or die, with a stand-in for Ray."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError, WorkerError
from placewright.runtime.engines.ray_group import RayGroup
from placewright.runtime.host import Host

DUO = Cluster((Device("a", node="x"), Device("b", node="y")), name="duo")


class RayError(Exception):
    """Base of Ray's errors."""


class RayTaskError(RayError):
    """A call has raised."""


class RayActorError(RayError):
    """An actor is gone."""


@dataclass(eq=False)
class Call:
    """What a call answers, or raises; `late` turns it is not ready yet."""

    answer: Any = None
    late: float = 0


@dataclass(eq=False)
class Actor:
    """Answers by method and records the calls."""

    need: dict[str, Any]
    says: dict[str, Call]
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Call:
            self.calls.append((name, *arguments))
            return self.says.get(name) or Call()

        return SimpleNamespace(remote=remote)


class Rays:
    """As much of Ray as a group asks for."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, RayActorError=RayActorError
    )

    def __init__(self, *says: dict[str, Call]) -> None:
        self.says = list(says)
        self.actors: list[Actor] = []
        self.killed: list[Actor] = []

    def available_resources(self) -> dict[str, float]:
        """All of them: no actor has any."""
        return self.cluster_resources()

    def cluster_resources(self) -> dict[str, float]:
        """Two CPUs."""
        return {"CPU": 2.0, "node:10.0.0.1": 1.0}

    def remote(self, kind: type) -> Any:
        """A class of actors."""

        def options(**need: Any) -> Any:
            return SimpleNamespace(remote=lambda _: self._started(need))

        return SimpleNamespace(options=options)

    def _started(self, need: dict[str, Any]) -> Actor:
        rank = len(self.actors)
        usual = {
            "host": Call(Host(f"h{rank}", f"boot-{rank}", (0,))),
            "meeting_point": Call(f"tcp://h{rank}:1"),
        }
        self.actors.append(Actor(need, usual | (self.says[rank] if self.says else {})))
        return self.actors[-1]

    def wait(
        self, calls: list[Call], *, num_returns: int, timeout: float
    ) -> tuple[list[Call], list[Call]]:
        """Those that are ready, up to so many."""
        done = [call for call in calls if call.late <= 0][:num_returns]
        for call in calls:
            call.late -= 1
        return done, [call for call in calls if call not in done]

    def get(self, call: Call) -> Any:
        """The answer."""
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def kill(self, actor: Actor) -> None:
        """End it."""
        self.killed.append(actor)


def group(rays: Rays) -> RayGroup:
    """Of two devices."""
    return RayGroup(rays, DUO, emulate=True)


def test_every_actor_is_told_who_it_is_and_where_all_meet() -> None:
    """At the first one's address; hosts are those that Ray has chosen; all end with the group."""
    rays = Rays()
    with group(rays) as started:
        assert [host.name for host in started.hosts] == ["h0", "h1"]
        assert [actor.calls[-1][0] for actor in rays.actors] == ["begin", "begin"]
        assert [actor.calls[-1][1] for actor in rays.actors] == list(started.specs)
        assert [spec.rank for spec in started.specs] == [0, 1]
        assert {spec.rendezvous for spec in started.specs} == {"tcp://h0:1"}
        assert {actor.need["num_cpus"] for actor in rays.actors} == {1}
        assert rays.killed == []
    assert rays.killed == rays.actors


def test_answers_are_in_order_whoever_is_first() -> None:
    """The first device answers last."""
    rays = Rays({"obey": Call("from a", late=3)}, {"obey": Call("from b")})
    with group(rays) as started:
        assert started.order("steps", [(1,), (2,)]) == ["from a", "from b"]
    assert [actor.calls[-1] for actor in rays.actors] == [
        ("obey", "steps", (1,)),
        ("obey", "steps", (2,)),
    ]


def test_only_silent_actors_are_named() -> None:
    """After the order's own limit."""
    rays = Rays({"obey": Call("here")}, {"obey": Call("never", late=float("inf"))})
    with group(rays) as started, pytest.raises(WorkerError, match="no answer in time") as caught:
        started.order_all("steps", limit_s=0.02)
    assert caught.value.where == "device 'b'"


def test_an_error_is_the_actors_own_without_colours() -> None:
    """Its last line, and its traceback as what to read next."""
    words = "\x1b[36mray::RayWorker.obey()\x1b[39m\nKeyError: 'verb'"
    rays = Rays({"obey": Call(RayTaskError(words))}, {})
    with group(rays) as started, pytest.raises(WorkerError, match="raised an error") as caught:
        started.order_all("verb")
    assert caught.value.where == "device 'a'"
    assert caught.value.by == "KeyError: 'verb'"
    assert "\x1b" not in str(caught.value)


def test_a_neighbours_death_is_the_cause_of_an_error() -> None:
    """The living one raises because the other is gone: the dead one is named."""
    rays = Rays({"obey": Call(RayTaskError("connection reset"))}, {})
    with group(rays) as started:
        rays.actors[1].says["host"] = Call(RayActorError("gone"))
        assert started.dead() == (1,)
        with pytest.raises(WorkerError, match="the worker process died") as caught:
            started.order_all("steps")
    assert caught.value.where == "device 'b'"


def test_a_dead_actor_is_reported_with_rays_message() -> None:
    """The first sentence of the last paragraph; an actor that is busy is not dead."""
    error = RayActorError("The actor died.\n\nIts process was killed. Check the logs. And more.")
    rays = Rays({"host": Call(Host("h", "boot", (0,)))}, {"obey": Call(error)})
    with group(rays) as started:
        rays.actors[0].says["host"] = Call(None, late=float("inf"))
        assert started.dead() == ()
        with pytest.raises(WorkerError) as caught:
            started.order_all("steps")
    assert caught.value.where == "device 'b'"
    assert caught.value.by == "Its process was killed"


def test_a_device_without_a_machine_is_named_with_its_needs() -> None:
    """Ray has not placed it in time: what it needs, what there is; the others are let go."""
    rays = Rays({}, {"host": Call(None, late=float("inf"))})
    with pytest.raises(InputError, match="finds no machine") as caught, group(rays):
        pass
    assert caught.value.where == "duo: device 'b'"
    assert "num_cpus 1" in caught.value.by
    assert "CPU 2.0" in caught.value.by
    assert "node:" not in caught.value.by
    assert rays.killed == rays.actors
