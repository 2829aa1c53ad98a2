"""Changes of a fleet, with simulated processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np
import pytest

from placewright.errors import InputError, RunError
from placewright.requests.plan import RequestPlan
from placewright.requests.policies import start
from placewright.requests.serving.dispatcher import Dispatcher
from placewright.requests.serving.families import FamilyLayout, Variant, make_family
from placewright.requests.serving.models import Computed
from placewright.requests.serving.protocol import Needs, Refusal
from placewright.requests.serving.tensors import TensorSpec
from placewright.requests.serving.workers import ServerProcess
from tests.requests.serving.models import family, scaled


@final
class Answering(ServerProcess):
    """Answers every order in the next turn of the loop; `heard` is called with its name."""

    pid = 1

    def __init__(self, name: str, lost: Callable[[str], None], heard: Callable[[str], None]):
        super().__init__(name, 1.0, lost)
        self.heard = heard

    async def start(self, models: Mapping[str, bytes]) -> None:
        """Nothing to start."""

    def give(self, name: str, *arguments: Any, limit_s: float) -> asyncio.Future[Any]:
        """See `ServerProcess.give`."""
        self.heard(name)
        answer = self.expect(limit_s)
        rows = len(arguments[1]["x"]) if name == "compute" else 1
        values = (np.zeros((rows, 4), np.float32),)
        asyncio.get_running_loop().call_soon(self.answered, Computed(values, 0.0))
        return answer

    def failure(self) -> str:
        """Never."""
        return ""

    def end(self) -> None:
        """Nothing to end."""


class Engine:
    """Makes such processes."""

    beside = False

    def __init__(self) -> None:
        self.heard: Callable[[str], None] = lambda name: None

    def process(self, name: str, speed: float, on_loss: Callable[[str], None]) -> ServerProcess:
        """See `ServerEngine.process`."""
        return Answering(name, on_loss, lambda order: self.heard(order))


def test_latencies_may_change_while_a_variant_is_loaded() -> None:
    """The policy sees the variants that are served, not one that is being loaded."""

    async def run_changes() -> tuple[int, int]:
        engine = Engine()
        dispatcher = Dispatcher(
            [family(matmuls=(0, 0))], lambda s: start(RequestPlan("edf"), s), engine=engine
        )
        fleet = dispatcher.fleet
        await fleet.add_server("a")

        def revise(order: str) -> None:
            if order == "load":
                for _ in range(50):
                    fleet.table.observe(0, 0, 1, 9.0)
                dispatcher._revise()
                during.append(dispatcher.service.variants)

        during: list[int] = []
        engine.heard = revise
        await fleet.add_variant(0, Variant("best", 0.99, scaled(2.0)))
        return during[0], dispatcher.service.variants

    assert asyncio.run(run_changes()) == (2, 3)


def test_a_factory_is_not_loaded_again_by_a_process_that_has_imported_it() -> None:
    """It would be served as it was, whatever its files are then."""
    spec = TensorSpec("x", "FP32", (-1, 4))
    layout = FamilyLayout(inputs=(spec,), outputs=(replace(spec, name="y"),))
    made = make_family("m", [Variant("v", 0.5, b"", "factory")], layout)

    async def load() -> None:
        dispatcher = Dispatcher([made], lambda s: start(RequestPlan("edf"), s), engine=Engine())
        await dispatcher.fleet.add_server("a")
        await dispatcher.fleet.load_family("m")

    with pytest.raises(InputError, match="loaded once in each process") as caught:
        asyncio.run(load())
    assert "start the server again" in caught.value.hint


def test_an_answer_of_a_server_that_is_lost_in_the_same_turn_is_not_counted() -> None:
    """Its row waits again and is computed once more; no time of an empty batch is noted."""

    async def run_changes() -> tuple[int, list[int]]:
        engine = Engine()
        dispatcher = Dispatcher(
            [family(matmuls=(0, 0))], lambda s: start(RequestPlan("edf"), s), engine=engine
        )
        fleet = dispatcher.fleet
        await fleet.add_server("a")
        process, times = fleet.slots[0].process, [0]

        def lose(order: str) -> None:
            times[0] += 1
            if times[0] == 1:  # after the answer, before those who wait for it
                loop = asyncio.get_running_loop()
                loop.call_soon(lambda: loop.call_soon(process.lose, "it was killed"))

        engine.heard = lose
        noted: list[int] = []
        fleet.table.observe = lambda *arguments: noted.append(arguments[2])  # type: ignore[method-assign]
        needs = Needs(60.0)
        (row,) = dispatcher.submit(0, [np.zeros((1, 4), np.float32)], needs, time.monotonic())
        served = await asyncio.wait_for(row.done, 30)
        return served.attempts, noted

    assert asyncio.run(run_changes()) == (2, [1])


def test_a_server_that_is_restarted_while_a_variant_is_loaded_serves_it_too() -> None:
    """It comes up with the variant, before anybody knows its latencies."""

    async def run_changes() -> bool:
        engine = Engine()
        dispatcher = Dispatcher(
            [family(matmuls=(0, 0))], lambda s: start(RequestPlan("edf"), s), engine=engine
        )
        fleet = dispatcher.fleet
        for name in ("a", "b"):
            await fleet.add_server(name)
        process, lost = fleet.slots[0].process, list[str]()

        def lose(order: str) -> None:
            if order == "load" and not lost:
                lost.append(order)
                asyncio.get_running_loop().call_soon(process.lose, "it was killed")

        engine.heard = lose
        await fleet.add_variant(0, Variant("best", 0.99, scaled(2.0)))
        return bool(np.isfinite(dispatcher.service.latency_s[:, 2, 1]).all())

    assert asyncio.run(run_changes())


def test_requests_wait_for_a_server_that_is_started_again() -> None:
    """No request is refused while the only server restarts; a failed restart is reported."""

    class Returning(Answering):
        async def start(self, models: Mapping[str, bytes]) -> None:
            await started.wait()
            if broken:
                raise RunError("it does not start")

    class Own(Engine):
        def process(self, name: str, speed: float, on_loss: Callable[[str], None]) -> ServerProcess:
            return Returning(name, on_loss, lambda order: None)

    def lose() -> None:
        started.clear()
        fleet.slots[0].process.lose("it was killed")

    async def ask(deadline_s: float) -> Any:
        rows = [np.zeros((1, 4), np.float32)]
        (row,) = dispatcher.submit(0, rows, Needs(deadline_s), time.monotonic())
        return await asyncio.wait_for(row.done, 30)

    async def run_changes() -> tuple[int, list[str]]:
        started.set()
        watching = asyncio.create_task(dispatcher.watch())
        await fleet.add_server("a")
        lose()
        waiting = asyncio.create_task(ask(60.0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert not dispatcher.ready
        started.set()
        served = (await waiting).attempts
        lose()
        refused = []
        for wanted in ("its deadline passes", "it has failed to start"):
            with pytest.raises(Refusal) as why:
                await ask(0.1)
            refused.append(why.value.code)
            broken.append(wanted)
            started.set()
            await asyncio.sleep(0.05)
        watching.cancel()
        return served, refused

    started, broken = asyncio.Event(), list[str]()
    dispatcher = Dispatcher(
        [family(matmuls=(0, 0))], lambda s: start(RequestPlan("rolling"), s), engine=Own()
    )
    fleet = dispatcher.fleet
    assert asyncio.run(run_changes()) == (1, ["no-server", "no-server"])


def test_a_row_that_servers_die_of_takes_no_other_with_it() -> None:
    """The third server computes it alone; rows of its batches are answered, with few attempts."""

    class Fragile(Answering):
        def give(self, name: str, *arguments: Any, limit_s: float) -> asyncio.Future[Any]:
            if name == "compute" and (arguments[1]["x"] == 99).any():
                asyncio.get_running_loop().call_soon(self.lose, "it crashed")
                return self.expect(limit_s)
            return super().give(name, *arguments, limit_s=limit_s)

    class Own(Engine):
        def process(self, name: str, speed: float, on_loss: Callable[[str], None]) -> ServerProcess:
            return Fragile(name, on_loss, lambda order: None)

    async def run_rows() -> list[str]:
        plan = RequestPlan("edf", (("batching", True),))
        dispatcher = Dispatcher([family(matmuls=(0, 0))], lambda s: start(plan, s), engine=Own())
        await dispatcher.fleet.add_server("a")
        inputs = np.zeros((8, 4), np.float32)
        inputs[3] = 99
        rows = dispatcher.submit(0, [inputs], Needs(60.0), time.monotonic())
        await asyncio.wait([row.done for row in rows], timeout=30)
        return [
            error.code if isinstance(error := row.done.exception(), Refusal) else "answered"
            for row in rows
        ]

    assert asyncio.run(run_rows()) == ["answered"] * 3 + ["server-lost"] + ["answered"] * 4
