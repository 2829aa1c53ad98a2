"""A group of Ray actors: orders and answers are calls, deaths are Ray's to tell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, WorkerError
from placewright.runtime import file_transfer as parcels
from placewright.runtime import limits
from placewright.runtime.engines.actors import RayWorker
from placewright.runtime.engines.group import STARTING, WorkerGroup, doing
from placewright.runtime.engines.ray_needs import JOIN, needed, told
from placewright.runtime.specs import worker_specs

PLACED_S = 60.0
"""An actor that Ray has not placed by then finds no machine."""

_SETTLE_S = 1.0
"""Until Ray knows which actor has died."""


class RayGroup(WorkerGroup):
    """One actor per device. Ray ends them with the process that made them."""

    def __init__(self, ray: Any, cluster: Cluster, *, emulate: bool) -> None:
        self._ray, self._cluster, self._emulate = ray, cluster, emulate
        self.names = cluster.device_names
        self.actors: list[Any] = []

    def start(self) -> None:
        """See `WorkerGroup.start`."""
        offered = self._ray.cluster_resources()
        kind = self._ray.remote(RayWorker)
        needs = needed(self._cluster, offered)
        self.actors = [kind.options(**need).remote() for need in needs]
        self.hosts = tuple(self._placed([a.host.remote() for a in self.actors], needs, offered))
        specs = worker_specs(self._cluster, self.hosts, emulate=self._emulate)
        call = self.actors[0].meeting_point.remote()
        (meeting,) = self._answers([call], self.start_limit_s, STARTING)
        self.specs = tuple(replace(spec, rendezvous=meeting) for spec in specs)
        pairs = zip(self.actors, self.specs, strict=True)
        begun = [actor.begin.remote(spec) for actor, spec in pairs]
        self._answers(begun, self.start_limit_s, STARTING)

    def order(
        self, verb: str, arguments: Sequence[tuple[Any, ...]], *, limit_s: float | None = None
    ) -> list[Any]:
        """See `WorkerGroup.order`."""
        pairs = zip(self.actors, arguments, strict=True)
        calls = [actor.obey.remote(verb, values) for actor, values in pairs]
        return self._answers(calls, self.limit_s if limit_s is None else limit_s, doing(verb))

    def hand_out(self, file: Path) -> list[str]:
        """A copy for every worker, sent in pieces."""
        return parcels.hand_out(self, file)

    def collect(self, verb: str, files: Sequence[Path]) -> None:
        """What workers write comes back in pieces."""
        parcels.collect(self, verb, files)

    def dead(self) -> tuple[int, ...]:
        """See `WorkerGroup.dead`; an actor that is busy is not dead."""
        calls = [actor.host.remote() for actor in self.actors]
        done, _ = self._ray.wait(calls, num_returns=len(calls), timeout=_SETTLE_S)
        return tuple(rank for rank, call in enumerate(calls) if call in done and self._lost(call))

    def dismiss(self) -> None:
        """See `WorkerGroup.dismiss`; nothing of theirs is left to be done."""

    def close(self) -> None:
        """See `WorkerGroup.close`."""
        for actor in self.actors:
            self._ray.kill(actor)

    def _answers(self, calls: Sequence[Any], limit_s: float, task: str) -> list[Any]:
        """One answer per actor; the first death or error ends the wait, and so does the limit."""
        answers: dict[int, Any] = {}
        countdown = limits.Countdown(limit_s)
        waiting = list(calls)
        while waiting:
            done, waiting = self._ray.wait(waiting, num_returns=1, timeout=countdown.next_s)
            countdown.look()
            if not done and countdown.over:
                raise self.silent([calls.index(call) for call in waiting], limit_s, task)
            for call in done:
                answers[calls.index(call)] = self._answer(calls.index(call), call)
        return [answers[rank] for rank in range(len(calls))]

    def _answer(self, rank: int, call: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.RayTaskError as error:
            words = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Ray's colours
            raise self._first_cause(rank, words) from None
        except errors.RayError as error:
            raise self._death(rank, error) from None

    def _first_cause(self, rank: int, words: str) -> WorkerError:
        """A peer's death makes the others raise too: blame the dead one if there is one."""
        gone = self.dead()
        return self.died(gone[0], "Ray has lost its process") if gone else self.raised(rank, words)

    def _death(self, rank: int, error: Exception) -> WorkerError:
        """Ray explains at length; the first sentence of its last paragraph is what happened."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        how = lines[-1].partition(". ")[0] if lines else type(error).__name__
        return self.died(rank, how)

    def _lost(self, call: Any) -> bool:
        try:
            self._ray.get(call)
        except self._ray.exceptions.RayActorError:
            return True
        return False

    def _placed(
        self,
        calls: Sequence[Any],
        needs: Sequence[Mapping[str, Any]],
        offered: Mapping[str, float],
    ) -> list[Any]:
        """The hosts, or an error that says which device finds none."""
        limit_s = limits.patience(PLACED_S)
        _, waiting = self._ray.wait(list(calls), num_returns=len(calls), timeout=limit_s)
        if not waiting:
            return [self._answer(rank, call) for rank, call in enumerate(calls)]
        rank = calls.index(waiting[0])
        raise InputError(
            "Ray finds no machine for a device",
            where=f"{self._cluster.name}: device {self._cluster.device_names[rank]!r}",
            by=f"needs {told(needs[rank])}; all of Ray's machines have {told(offered)}, "
            f"waited {limit_s:.0f} s",
            hint=f"`ray status` shows what is free; another machine joins by `{JOIN} ...`",
        )
