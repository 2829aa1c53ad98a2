"""`Fleet`: the servers of a `Dispatcher`: started, changed, lost and started again.

New variants are loaded and timed by a second process of a server, which takes the place of the
first between two batches; where an engine has no place for two, the server is paused meanwhile: it
takes no more batches, ends the one that it computes, gets the order, and goes on.

So a model is replaced as a whole: its variants are there for policies from one decision to the
next, in the place of those before, which are unloaded once nothing is computed by them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from placewright.errors import InputError, PlacewrightError, RunError, UnknownNameError
from placewright.requests.serving.engines import ServerEngine, check_speed
from placewright.requests.serving.families import Family, Variant, make_family
from placewright.requests.serving.latencies import LatencyTable, VariantTimer, worker_key
from placewright.requests.serving.models import ServedModel
from placewright.requests.serving.observing import event
from placewright.requests.serving.rows import Row
from placewright.requests.serving.workers import ServerProcess

RESTART_S = (0.0, 0.5, 2.0, 10.0)
"""Waited before a server is started again after its first, second, ... failure in a row."""

ORDER_S = 60.0

LOADS = 3
"""Times that a variant is loaded where all servers are lost meanwhile."""


@dataclass(slots=True, eq=False)
class Slot:
    """A server: its process and the batch that it computes.

    Attributes
    ----------
    rows
        What it computes now, and behind it what it computes next.
    singly
        It computes its rows one by one.
    active
        It takes batches, or will again after a restart.
    up
        It takes batches now.
    paused
        It will in a moment, once it has ended its batch and obeyed an order.
    freed_s
        End of its last batch while the next one is decided, on the monotonic clock; else ``inf``.
    failures
        In a row.
    restarting
        A task starts it again, and goes on where it is lost meanwhile.
    """

    process: ServerProcess
    rows: list[Row] = field(default_factory=list)
    singly: bool = False
    active: bool = False
    up: bool = False
    paused: bool = False
    freed_s: float = math.inf
    failures: int = 0
    served: int = 0
    busy_s: float = 0.0
    restarts: int = 0
    restarting: bool = False


class Fleet:
    """Servers and the variants that all of them hold.

    `variants`: position of the family, and the variant; positions in it are those of the latency
    table.

    Parameters
    ----------
    most_batch
        Rows of the largest batch.
    engine
        Makes the processes of servers.
    check_variants
        Raises `InputError` where the variants that are to be served cannot be; called with them,
        and with the families where these change.
    on_loss
        Called with a server's position and the reason when its process is gone.
    on_change
        Called when servers or variants were added or removed.
    on_state
        Called when a server has come up or gone down.
    waits
        Whether a row of one of these families waits, by position.
    """

    def __init__(
        self,
        families: Sequence[Family],
        most_batch: int,
        engine: ServerEngine,
        *,
        check_variants: Callable[..., None],
        on_loss: Callable[[int, str], None],
        on_change: Callable[[], None],
        on_state: Callable[[], None],
        waits: Callable[[Collection[int]], bool],
    ) -> None:
        self.catalogue = {family.name: family for family in families}
        if len(self.catalogue) < len(families):
            names = [family.name for family in families]
            raise InputError(
                "two families have the same name",
                where="families",
                by=next(repr(name) for name in names if names.count(name) > 1),
                hint="give one of them another name; versions of a model are variants of one file",
            )
        self.families = [bucket for family in families for bucket in family.buckets()]
        self.variants = [(f, v) for f, fam in enumerate(self.families) for v in fam.variants]
        self.slots: list[Slot] = []
        self.table = LatencyTable(most_batch)
        self._engine, self._check_variants = engine, check_variants
        self._on_loss, self._on_change, self._on_state = on_loss, on_change, on_state
        self._waits, self._generation = waits, 0
        self._models = {
            worker_key(self.families[f], v): model_of(self.families[f], v) for f, v in self.variants
        }
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: ServerProcess | None = None
        self._timer = VariantTimer(most_batch)
        self._closed = False

    @property
    def returning(self) -> bool:
        """Whether a lost server is being started again, and has not failed to start since."""
        return any(slot.restarting and slot.failures <= 1 for slot in self.slots)

    @property
    def served(self) -> list[Family]:
        """Buckets of families that are there for clients."""
        return [family for family in self.families if not family.retired]

    @property
    def alone(self) -> dict[str, str]:
        """Why rows of a variant are computed by themselves, of variants of which they are."""
        return {
            f"{family.label}/{variant.name}": why
            for family in self.served
            for variant in family.variants
            if (why := self._timer.alone.get((family.label, variant)))
        }

    @property
    def labels(self) -> list[str]:
        """What services call the families; each bucket of one is planned by itself."""
        return [
            f"{family.label}~{k}" if family.retired else family.label
            for k, family in enumerate(self.families)
        ]

    def buckets(self, family: Family) -> list[int]:
        """Positions of the buckets of a family's version."""
        version = family.version
        return [k for k in self._positions(family.name) if self.families[k].version == version]

    def _positions(self, name: str) -> list[int]:
        """Positions of all buckets of a family that is served."""
        known = enumerate(self.families)
        return [k for k, each in known if each.name == name and not each.retired]

    def position(self, family: Family, sizes: Mapping[str, int]) -> int:
        """Position of the bucket of a family for inputs of these sizes.

        Raises `Refusal`: 400: there is none.
        """
        bucket = family.bucket_of(sizes)
        return next(k for k in self.buckets(family) if self.families[k].bucket == bucket)

    async def add_server(self, name: str, speed: float = 1.0) -> None:
        """Start a server, measure its latencies, and let it serve.

        One of the name of a removed server takes its place and goes on with its counters, once
        that one has ended.

        Raises
        ------
        InputError
            A server of this name is there, the speed is not in (0, 1], the engine has no place for
            it, or a variant's outputs are not one row for each of its input.
        RunError
            It does not start.
        """
        check_speed(name, speed)
        async with self._changing:
            names = [slot.process.name for slot in self.slots]
            position = names.index(name) if name in names else len(names)
            old = self.slots[position] if name in names else None
            if old is not None and old.active:
                raise InputError("a server of this name is there", where=f"server {name!r}")
            # Its last batch would be answered by the wrong process, its restart take the new one's
            # place.
            while old is not None and (old.rows or old.restarting):
                await asyncio.sleep(0.01)

            process = self._starting = self._process(position, name, speed)
            known = [k for k, (f, _) in enumerate(self.variants) if not self.families[f].retired]
            try:
                await process.start(self._models)
                samples = {k: await self._timer.timed(process, *self._variant(k)) for k in known}
                if self._closed:
                    raise RunError("the server is shutting down", where=f"server {name!r}")
            except BaseException:
                process.close()
                raise
            finally:
                self._starting = None
            if old is None:
                self.slots.append(Slot(process, active=True, up=True))
            else:
                old.process, old.active, old.up, old.failures = process, True, True, 0
            # All of it without an await, so that no decision sees a server without latencies.
            self.table.resize(len(self.slots), len(self.variants))
            for variant, taken in samples.items():
                self.table.measured(position, variant, taken)
            event("server-added", server=name, speed=speed, pid=process.pid)
            self._on_change()

    def remove_server(self, name: str) -> None:
        """Let a server end its batch and then its process.

        Raises `InputError`: there is none of this name, or it is the last.
        """
        active = {s.process.name: s for s in self.slots if s.active}
        if name not in active:
            raise UnknownNameError("server", name, active)
        if len(active) == 1:
            raise InputError("the last server cannot be removed", where=f"server {name!r}")
        slot = active[name]
        slot.active = slot.up = False
        event("server-removed", server=name)
        if not slot.rows:
            slot.process.close()
        self._on_state()

    async def add_variant(self, family: int, variant: Variant) -> None:
        """Load a variant on all servers, one after another, and let them serve it.

        Raises
        ------
        InputError
            Its name is taken, it is no ONNX file with the inputs and outputs of the family, its
            outputs are not one row for each of its input, or the policy is fitted to the variants
            that are there.
        RunError
            No server could load it.
        """
        async with self._changing:
            old = self.families[family]
            generation = old.variants[0].generation
            variant = replace(variant, version=old.version, generation=generation)
            known = [v.name for k in self._positions(old.name) for v in self.families[k].variants]
            if variant.name in known:
                where = f"variant {worker_key(old, variant)!r}"
                raise InputError("a variant of this name is there", where=where)
            loop = asyncio.get_running_loop()
            variants = [*old.variants, variant]
            await loop.run_in_executor(None, make_family, old.name, variants, old.layout)
            positions = self.buckets(old)
            self._check_variants([*self.variants, *((k, variant) for k in positions)])
            taken = await self._loaded([(self.families[k], variant) for k in positions])
            for k in positions:
                self.families[k] = replace(self.families[k], variants=tuple(variants))
            self._enter([(k, variant) for k in positions], taken)
            names = [self.slots[server].process.name for server in taken]
            key = worker_key(old, variant)
            event("variant-added", variant=key, accuracy=variant.accuracy, servers=names)
            self._on_change()
            await self._catch_up(taken, [key])

    async def load_family(self, name: str) -> None:
        """Serve a model as its file is now, in place of what is served of it, if anything is.

        Raises
        ------
        UnknownNameError
            The server was started without it.
        InputError
            The file or a variant is wrong, it takes other inputs than the one that is served, or
            the policy is fitted to the variants that are there.
        RunError
            No server could load it.
        """
        async with self._changing:
            made = await self._read(name)
            if not self._engine.beside and any(v.kind == "factory" for v in made.variants):
                raise InputError(
                    "a factory is loaded once in each process of this engine",
                    where=f"model {name!r}",
                    hint="start the server again: Python imports the modules of a factory once, "
                    "and would serve those of before; or serve the model as a file",
                )
            self._generation += 1
            fresh = tuple(replace(v, generation=self._generation) for v in made.variants)
            buckets = replace(made, variants=fresh).buckets()
            before = self._positions(name)
            places = self._places(buckets)
            added = [
                (k, v) for k, bucket in zip(places, buckets, strict=True) for v in bucket.variants
            ]
            kept = [each for each in self.variants if each[0] not in places]
            new = [b for k, b in zip(places, buckets, strict=True) if k >= len(self.families)]
            families = [*self.families, *new]
            self._check_variants([*kept, *added], families)
            taken = await self._loaded([(bucket, v) for bucket in buckets for v in bucket.variants])
            # From here on without an await, so that no decision sees half of it.
            gone = [each for each in self.variants if each[0] in before or each[0] in places]
            self.families = families
            for k, bucket in zip(places, buckets, strict=True):
                self.families[k] = bucket
            for each in [each for each in gone if each[0] in places]:
                self.table.remove_variant(self.variants.index(each))
                self.variants.remove(each)
            self._enter(added, taken)
            self.catalogue[name] = made
            event("model-loaded", model=name, variants=[v.name for v in fresh])
            self._on_change()
            await self._catch_up(taken, [worker_key(made, v) for v in fresh])
            await self._retire([k for k in before if k not in places])
            await self._forget({worker_key(made, v) for k, v in gone if k in places})
            self._timer.forget_others({v for _, v in self.variants})

    async def unload_family(self, name: str) -> None:
        """Serve a model no more, once the requests that are here are answered.

        Raises
        ------
        UnknownNameError
            It is not served.
        InputError
            It is the last.
        """
        async with self._changing:
            positions = self._positions(name)
            if not positions:
                raise UnknownNameError("model", name, sorted({f.name for f in self.served}))
            if len(positions) == len(self.served):
                raise InputError("the last model cannot be unloaded", where=f"model {name!r}")
            await self._retire(positions)
            event("model-unloaded", model=name)

    async def _read(self, name: str) -> Family:
        """The family of this name, of its file as it is now."""
        known = self.catalogue.get(name)
        if known is None:
            raise UnknownNameError("model", name, self.catalogue)
        if known.origin is None:
            return known
        made = await asyncio.get_running_loop().run_in_executor(None, known.origin)
        if made.name != name:
            raise InputError("its file has another name now", where=f"model {name!r}", by=made.name)
        return made

    def _places(self, buckets: Sequence[Family]) -> list[int]:
        """Positions for buckets of one model: those of buckets like them, else new ones.

        Rows that wait are computed by what stands there then.
        """
        served = self._positions(buckets[0].name)
        known = [k for k, f in enumerate(self.families) if f.name == buckets[0].name]
        found, following = list[int](), len(self.families)
        for bucket in buckets:
            like = [k for k in known if self.families[k].takes_like(bucket)]
            same = [
                k
                for k in served
                if (self.families[k].version, self.families[k].bucket)
                == (bucket.version, bucket.bucket)
            ]
            if same and not set(same) & set(like):
                raise InputError(
                    "takes other inputs, or returns other outputs, than what is served",
                    where=f"model {bucket.label!r}",
                    hint="unload it first, then load it; or give it another name",
                )
            found.append(max(like, key=lambda k: k in served, default=following))
            following += found[-1] == following
        return found

    async def _retire(self, positions: Collection[int]) -> None:
        """Serve these no more, and unload them once nothing of them is to be computed.

        They keep their places and latencies in services, where no request asks for them.
        """
        for k in positions:
            self.families[k] = replace(self.families[k], retired=True)
        while self._waits(positions) or any(
            r.family in positions for s in self.slots for r in s.rows
        ):
            await asyncio.sleep(0.005)
        await self._forget(
            {worker_key(self.families[k], v) for k in positions for v in self.families[k].variants}
        )

    async def _loaded(
        self, added: Sequence[tuple[Family, Variant]]
    ) -> dict[int, list[dict[int, list[float]]]]:
        """Load variants on servers, one after another; by server, what each of them takes there.

        Servers that are started meanwhile load them too.
        """
        models = {worker_key(*each): model_of(*each) for each in added}
        self._models |= models
        taken: dict[int, list[dict[int, list[float]]]] = {}
        failed, lost = "", True
        try:
            for _ in range(LOADS):
                if taken or not lost or not await self._any_up():
                    break
                lost = False
                for server, slot in enumerate(self.slots):
                    try:
                        taken[server] = await self._renewed(server, models, added)
                    except RunError as error:  # it is down: see `_catch_up`
                        failed = error.brief
                        lost = lost or slot.restarting or not slot.up
            if not taken:
                where = f"variant {', '.join(models)}"
                raise RunError("no server could load the variant", where=where, by=failed)
        except PlacewrightError:
            await self._forget(models)
            raise
        return taken

    async def _any_up(self) -> bool:
        """Whether a server is up, or comes back."""
        while self.returning and not any(slot.up for slot in self.slots):
            await asyncio.sleep(0.01)
        return any(slot.up for slot in self.slots)

    async def _renewed(
        self,
        server: int,
        models: Mapping[str, ServedModel],
        added: Sequence[tuple[Family, Variant]],
    ) -> list[dict[int, list[float]]]:
        """Load and time variants on a server, by a second process where there is room for it."""
        slot = self.slots[server]
        if not slot.up:
            raise RunError("the server is down", where=f"server {slot.process.name!r}")
        if not self._engine.beside:
            async with self._paused(slot):
                await slot.process.load(models)
                return [await self._timer.timed(slot.process, *each) for each in added]
        process = self._process(server, slot.process.name, slot.process.speed)
        self._starting = process
        try:
            await process.start(dict(self._models))
            taken = [await self._timer.timed(process, *each) for each in added]
            async with self._paused(slot):
                if slot.restarting or not slot.active:  # it was lost or removed meanwhile
                    raise RunError("the server is down", where=f"server {slot.process.name!r}")
                before, slot.process = slot.process, process
                before.close()
        except BaseException:
            process.close()
            raise
        finally:
            self._starting = None
        return taken

    def _process(self, position: int, name: str, speed: float) -> ServerProcess:
        """A process for the server of this position, which is its own once it is in its slot."""

        def lost(why: str) -> None:
            if position < len(self.slots) and self.slots[position].process is process:
                self._lost(position, why)  # else it has never served: its start raises

        process = self._engine.process(name, speed, lost)
        return process

    def _enter(
        self,
        added: Sequence[tuple[int, Variant]],
        taken: Mapping[int, Sequence[dict[int, list[float]]]],
    ) -> None:
        """Let policies know variants with what they take."""
        first = len(self.variants)
        self.variants += added
        self.table.resize(len(self.slots), len(self.variants))
        for server, samples in taken.items():
            for k, each in enumerate(samples):
                self.table.measured(server, first + k, each)

    async def _catch_up(self, taken: Collection[int], keys: Collection[str]) -> None:
        """Load and time variants on servers that were started again meanwhile.

        That start may have begun before these were known.
        """
        models = {key: self._models[key] for key in keys}
        for server, slot in enumerate(self.slots):
            if slot.up and server not in taken:
                with suppress(PlacewrightError):
                    async with self._paused(slot):
                        await slot.process.load(models)
                        await self._time_missing(server)

    def _variant(self, position: int) -> tuple[Family, Variant]:
        """The variant at a position of the table, with its family."""
        family, variant = self.variants[position]
        return self.families[family], variant

    async def remove_variant(self, family: int, name: str) -> None:
        """Serve a variant no more.

        Raises
        ------
        InputError
            There is none of this name, it is the last of its family, or the policy is fitted to the
            variants that are there.
        """
        async with self._changing:
            old = self.families[family]
            gone = next((v for v in old.variants if v.name == name), None)
            if gone is None:
                raise UnknownNameError("variant", name, [v.name for v in old.variants])
            rest = tuple(v for v in old.variants if v is not gone)
            if not rest:
                raise InputError("the last variant cannot be removed", where=f"family {old.name!r}")
            self._check_variants([each for each in self.variants if each[1] is not gone])
            key = worker_key(old, gone)
            # Served no more before it is unloaded: a server that is paused later may still hold it.
            for bucket in self.buckets(old):
                self.families[bucket] = replace(self.families[bucket], variants=rest)
                position = self.variants.index((bucket, gone))
                del self.variants[position]
                self.table.remove_variant(position)
            event("variant-removed", variant=key)
            self._on_change()
            await self._forget([key])

    async def _forget(self, keys: Collection[str]) -> None:
        """Free the memory of variants."""
        for key in keys:
            self._models.pop(key, None)
        for slot in self.slots if keys else ():
            with suppress(RunError):  # one that is down starts without them
                async with self._paused(slot):
                    for key in keys:
                        await slot.process.order("unload", key, limit_s=ORDER_S)

    def check(self) -> None:
        """Find servers that are stopped or silent."""
        if self._starting is not None:
            self._starting.check()
        for slot in self.slots:
            slot.process.check()

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for slot in self.slots:
            slot.active = slot.up = False
            slot.process.close()

    @asynccontextmanager
    async def _paused(self, slot: Slot) -> AsyncIterator[None]:
        if not slot.up:
            raise RunError("the server is down", where=f"server {slot.process.name!r}")
        slot.up, slot.paused = False, True
        self._on_state()
        try:
            while slot.rows:
                await asyncio.sleep(0.001)
            yield
        finally:
            slot.paused = False
            # Else it was removed or lost meanwhile, and stays down.
            if slot.active and slot.process.pid is not None:
                slot.up = True
            self._on_state()

    def _lost(self, server: int, reason: str) -> None:
        slot = self.slots[server]
        slot.up = False
        event("server-lost", server=slot.process.name, reason=reason, rows=len(slot.rows))
        self._on_loss(server, reason)
        if slot.active and not slot.restarting and not self._closed:
            slot.restarting = True
            self._task(self._restart(server))

    async def _restart(self, server: int) -> None:
        slot = self.slots[server]
        try:
            while slot.active and not await self._started_again(server):
                slot.process.close()
        finally:
            slot.restarting = False

    async def _started_again(self, server: int) -> bool:
        slot = self.slots[server]
        await asyncio.sleep(RESTART_S[min(slot.failures, len(RESTART_S) - 1)])
        slot.failures += 1
        slot.restarts += 1
        try:
            await self._start_with_all(server)
        except (PlacewrightError, OSError) as error:  # no room for its folder, say: that may pass
            reason = error.brief if isinstance(error, PlacewrightError) else str(error)
            event("server-not-restarted", server=slot.process.name, reason=reason)
            return False
        # Removed while it started.
        if not slot.active:
            slot.process.close()
        slot.up = slot.active
        name, pid = slot.process.name, slot.process.pid
        event("server-restarted", server=name, restarts=slot.restarts, pid=pid)
        self._on_state()
        return True

    async def _start_with_all(self, server: int) -> None:
        """Start a server's process with all variants, those that are added meanwhile too."""
        process, loaded, known = self.slots[server].process, dict(self._models), None
        await process.start(loaded)
        for f, variant in list(self.variants):
            if not self.families[f].retired and worker_key(self.families[f], variant) in loaded:
                await self._timer.demand_same_model(process, self.families[f], variant)
        while known != (now := (list(self.variants), set(self._models))):
            known = now
            later = {key: model for key, model in self._models.items() if key not in loaded}
            await process.load(later)
            loaded |= later
            await self._time_missing(server)

    async def _time_missing(self, server: int) -> None:
        """Time variants that were added while the server was down."""
        timed = np.isfinite(self.table.seconds[server, :, 1])
        unknown = [each for each, known in zip(self.variants, timed, strict=True) if not known]
        missing = [each for each in unknown if not self.families[each[0]].retired]
        for each in missing:
            process, made = self.slots[server].process, self.families[each[0]]
            taken = await self._timer.timed(process, made, each[1])
            if each in self.variants:  # else it was removed; others may have another position now
                self.table.measured(server, self.variants.index(each), taken)
        if missing:
            self._on_change()

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def model_of(family: Family, variant: Variant) -> ServedModel:
    """As it is sent to servers."""
    return ServedModel(variant.kind, variant.model, tuple(spec.name for spec in family.outputs))
