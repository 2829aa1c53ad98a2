"""Servers and variants that change while something else happens, without any process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
import pytest

from placewright.errors import InputError, RunError
from placewright.requests.plan import RequestPlan
from placewright.requests.policies import start
from placewright.requests.serving.dispatcher import Dispatcher
from placewright.requests.serving.families import Variant
from placewright.requests.serving.models import Computed
from placewright.requests.serving.protocol import Needs
from placewright.requests.serving.workers import ServerProcess
from tests.requests.serving.models import family, scaled
from tests.requests.serving.test_fleet import Answering


@final
class Holding(Answering):
    """Answers batches of the variants that it holds; its start can be held up, or fail."""

    def __init__(self, name: str, lost: Callable[[str], None], hold: Hold) -> None:
        super().__init__(name, lost, lambda order: None)
        self.hold, self.held = hold, set[str]()

    async def start(self, models: Mapping[str, bytes]) -> None:
        """See `ServerProcess.start`."""
        self.held = set(models)
        await self.hold.open.wait()
        if self.hold.failures:
            raise self.hold.failures.pop()

    def give(self, name: str, *arguments: Any, limit_s: float) -> asyncio.Future[Any]:
        """See `ServerProcess.give`."""
        if name == "load":
            self.held.add(arguments[0])
        elif name == "unload":
            self.held.discard(arguments[0])
        elif arguments[0] not in self.held:
            answer = self.expect(limit_s)
            self.answered(Computed((), 0.0, f"KeyError: {arguments[0]}"))
            return answer
        self.hold.before(name, arguments[0])
        return super().give(name, *arguments, limit_s=limit_s)


class Hold:
    """An engine, and what happens in its processes.

    `beside`: see `ServerEngine`.
    """

    def __init__(self, *, beside: bool = False) -> None:
        self.beside = beside
        self.open = asyncio.Event()
        self.open.set()
        self.failures: list[Exception] = []
        self.before: Callable[[str, str], None] = lambda order, key: None

    def process(self, name: str, speed: float, on_loss: Callable[[str], None]) -> ServerProcess:
        """See `ServerEngine.process`."""
        return Holding(name, on_loss, self)

    async def dispatcher(self, *servers: str) -> Dispatcher:
        """A dispatcher with these servers."""
        made = Dispatcher(
            [family(matmuls=(0, 0))], lambda s: start(RequestPlan("edf"), s), engine=self
        )
        for name in servers:
            await made.fleet.add_server(name)
        return made


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it, for ten seconds at most."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_server_whose_start_meets_an_error_of_the_system_is_started_again() -> None:
    """No room for a folder, no free process: these pass, and it must not stay away for ever."""

    async def main() -> bool:
        hold = Hold()
        fleet = (await hold.dispatcher("a")).fleet
        hold.failures.append(OSError(28, "No space left on device"))
        fleet.slots[0].process.lose("it was killed")
        await until(lambda: fleet.slots[0].up)
        return not fleet.slots[0].restarting

    assert asyncio.run(main())


def test_a_variant_that_is_removed_while_a_server_is_timed_shifts_no_latency() -> None:
    """Positions of variants change while a restarted server measures those that it missed."""

    async def main() -> tuple[bool, bool]:
        hold = Hold()
        fleet = (await hold.dispatcher("a", "b")).fleet
        first, removals = fleet.slots[0], list[asyncio.Task[None]]()
        hold.open.clear()
        first.process.lose("it was killed")
        await until(lambda: first.restarts == 1)
        for name in ("third", "fourth"):
            await fleet.add_variant(0, Variant(name, 0.95, scaled(2.0)))

        def remove(order: str, key: str) -> None:
            if key == "double/third" and not removals:  # the first that is timed of the two
                task = asyncio.get_running_loop().create_task(fleet.remove_variant(0, "third"))
                removals.append(task)

        first.process.held |= {"double/third", "double/fourth"}  # type: ignore[attr-defined]
        hold.before = remove
        hold.open.set()
        await until(lambda: first.up)
        await removals[0]
        table = fleet.table.seconds[:, :, 1]
        return table.shape == (2, 3), bool(np.isfinite(table).all())

    assert asyncio.run(main()) == (True, True)


def test_a_server_that_comes_up_while_a_variant_is_added_gets_it_too() -> None:
    """Its start had begun before, and it was down when its turn to load the variant came."""

    async def main() -> bool:
        hold = Hold()
        fleet = (await hold.dispatcher("a", "b")).fleet
        first = fleet.slots[0]
        hold.open.clear()
        first.process.lose("it was killed")
        await until(lambda: first.restarts == 1)
        await asyncio.sleep(0)

        def come_up(order: str, key: str) -> None:
            hold.open.set()

        hold.before = come_up  # while the other one loads the variant
        await fleet.add_variant(0, Variant("best", 0.99, scaled(2.0)))
        await until(lambda: first.up)
        return bool(np.isfinite(fleet.table.seconds[0, 2, 1]))

    assert asyncio.run(main())


@pytest.mark.parametrize("losses", [2, 1000])
def test_a_variant_is_loaded_again_where_all_servers_are_lost_meanwhile(losses: int) -> None:
    """Each in its turn; one that servers die of is refused in the end."""

    async def main() -> tuple[bool, int]:
        hold = Hold()
        fleet = (await hold.dispatcher("a", "b")).fleet
        lost = list[str]()

        def lose(order: str, key: str) -> None:
            if order == "load" and len(lost) < losses:
                process = next(slot.process for slot in fleet.slots if slot.paused)
                lost.append(process.name)
                asyncio.get_running_loop().call_soon(process.lose, "it was killed")

        hold.before = lose
        adding = fleet.add_variant(0, Variant("best", 0.99, scaled(2.0)))
        if losses > 2:
            with pytest.raises(RunError, match="no server could load"):
                await adding
        else:
            await adding
        await until(lambda: all(slot.up for slot in fleet.slots))
        return bool(np.isfinite(fleet.table.seconds[:, :, 1]).all()), len(fleet.variants)

    assert asyncio.run(main()) == (True, 2 + (losses == 2))


def test_a_server_that_is_added_while_the_fleet_is_closed_is_closed_too() -> None:
    """Its process would be left to nobody."""

    async def main() -> tuple[list[str], int]:
        hold, ended = Hold(), list[str]()
        fleet = (await hold.dispatcher("a")).fleet
        hold.open.clear()
        adding = asyncio.create_task(fleet.add_server("b"))
        await until(lambda: fleet._starting is not None)
        process: Any = fleet._starting
        process.end = lambda: ended.append("b")
        fleet.close()
        hold.open.set()
        await asyncio.wait([adding])
        adding.exception()
        return ended, len(fleet.slots)

    assert asyncio.run(main()) == (["b"], 1)


def test_a_policy_that_cannot_serve_other_variants_refuses_the_change() -> None:
    """Parameters that were fitted to two variants: nothing changes, and requests are answered."""

    async def main() -> tuple[list[str], str]:
        plan = RequestPlan("opportunity", (("patience_s", (1.0, 1.0)), ("worth", (0.1, 0.1))))
        dispatcher = Dispatcher([family(matmuls=(0, 0))], lambda s: start(plan, s), engine=Hold())
        fleet = dispatcher.fleet
        await fleet.add_server("a")
        with pytest.raises(InputError, match="one number for each variant"):
            await fleet.add_variant(0, Variant("best", 0.99, scaled(2.0)))
        with pytest.raises(InputError, match="one number for each variant"):
            await fleet.remove_variant(0, "small")
        rows = [np.zeros((1, 4), np.float32)]
        (row,) = dispatcher.submit(0, rows, Needs(60.0, 0.85), time.monotonic())
        served = await asyncio.wait_for(row.done, 10)
        return [variant.name for _, variant in fleet.variants], served.variant

    assert asyncio.run(main()) == (["small", "large"], "large")


def test_a_busy_server_stays_expected_when_variants_change() -> None:
    """A policy that plans ahead must not take it for free."""

    async def main() -> float:
        hold = Hold()
        dispatcher = await hold.dispatcher("a", "b")

        def submit(order: str, key: str) -> None:
            if order == "load":  # its other server is busy for long when the variant is there
                servers = dispatcher._servers
                assert servers is not None
                servers.free_s[:] = 1e9

        hold.before = submit
        await dispatcher.fleet.add_variant(0, Variant("best", 0.99, scaled(2.0)))
        assert dispatcher._servers is not None
        return float(dispatcher._servers.free_s.min())

    assert asyncio.run(main()) == 1e9


def test_rows_of_a_refused_request_wait_no_more() -> None:
    """They would be computed for nobody, under a load that refuses some already."""

    async def main() -> tuple[int, int, dict[int, Any]]:
        dispatcher = await Hold().dispatcher("a")
        dispatcher.fleet.slots[0].up = False
        dispatcher.fleet.slots[0].restarting = True  # so that rows wait
        inputs = [np.zeros((3, 4), np.float32)]
        rows = dispatcher.submit(0, inputs, Needs(60.0), time.monotonic())
        waited = dispatcher.queue.count
        dispatcher.withdraw(rows[1:])
        dispatcher.withdraw(rows)
        return waited, dispatcher.queue.count, dispatcher._rows

    assert asyncio.run(main()) == (3, 0, {})


def test_a_batch_that_follows_another_takes_the_decision_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server waits for it; planned without, it would be said to carry more than it can."""

    async def main() -> list[float]:
        dispatcher, took_s = await Hold().dispatcher("a"), list[float]()

        def observe(server: int, variant: int, batch: int, seconds: float) -> None:
            took_s.append(seconds)

        monkeypatch.setattr(dispatcher.fleet.table, "observe", observe)
        dispatcher.on_decision = lambda seconds: time.sleep(0.5)
        inputs = [np.zeros((1, 4), np.float32)]
        rows = [dispatcher.submit(0, inputs, Needs(60.0), time.monotonic())[0] for _ in range(3)]
        await asyncio.gather(*(row.done for row in rows))
        return took_s

    first_s, *followers_s = asyncio.run(main())
    assert max(first_s, 0.5) <= min(followers_s)
