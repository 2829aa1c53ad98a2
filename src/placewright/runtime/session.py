"""A graph and a cluster on worker processes, ready to take placements.

`WorkerSession` has what sessions of any worker program share.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from safetensors.torch import load, load_file, save

from placewright.cluster.cluster import Cluster
from placewright.errors import InputError, RunError, UnsupportedError, WorkerError
from placewright.graph.graph import Graph, Program, TensorSpec
from placewright.io.scratch import Scratch, no_room
from placewright.io.tensor_files import AnyTensor, StoredTensor, size_of, write_tensors
from placewright.runtime import limits
from placewright.runtime.engines.engine import Engine, WorkerGroup
from placewright.runtime.engines.local import Local
from placewright.runtime.memory import explained
from placewright.runtime.probe import link_line
from placewright.runtime.specs import PLACED_STEPS, THROUGH_HOST, Layout, through_host
from placewright.runtime.step.devices import storable
from placewright.runtime.step.partition import (
    CallProgram,
    CallPrograms,
    Part,
    partition,
    random_home,
    state_moves,
    with_copies,
)
from placewright.runtime.step.sequence import Share, shares
from placewright.runtime.step_record import StepLog, StepRecord, step_record
from placewright.runtime.wire import wire_bytes

T = TypeVar("T")


class WorkerSession:
    """A context manager: starts the workers, and knows which of them drives which device.

    Parameters
    ----------
    program
        What the workers execute; see `placewright.runtime.program`.
    engine
        Starts the workers; children of this process by default.
    """

    def __init__(
        self, cluster: Cluster, program: str = PLACED_STEPS, engine: Engine | None = None
    ) -> None:
        self.cluster = cluster
        self.engine: Engine = Local() if engine is None else engine
        self.group: WorkerGroup = self.engine.group(cluster, program)

    def __enter__(self) -> Self:
        try:
            self.group.__enter__()
            self.begin()
        except BaseException:
            self.group.close()
            self.remove()
            raise
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            self.group.__exit__(kind, *rest)
        finally:
            self.remove()

    def begin(self) -> None:
        """What a program needs before its first order."""

    def remove(self) -> None:
        """Remove what is on the disk for the workers; twice is fine."""

    @property
    def layout(self) -> Layout:
        """Which process drives each device, and how tensors travel."""
        return self.group.specs[0].layout

    @property
    def emulated(self) -> str:
        """See `Engine.emulated`."""
        return self.engine.emulated(self.cluster, self.group.hosts)

    def order_all(self, name: str, *arguments: Any, limit_s: float | None = None) -> list[Any]:
        """Give every worker the same order."""
        return self.order(name, [arguments] * len(self.group.specs), limit_s=limit_s)

    def order(
        self, name: str, arguments: Sequence[tuple[Any, ...]], *, limit_s: float | None = None
    ) -> list[Any]:
        """Give every worker an order; see `WorkerGroup.order`."""
        return self.group.order(name, arguments, limit_s=limit_s)

    def lost(self) -> set[str]:
        """Names of the devices whose process is gone."""
        dead = set(self.group.dead())
        names = self.cluster.device_names
        return {n for n, p in zip(names, self.layout.processes, strict=True) if p in dead}

    def by_process(self, values: Sequence[T]) -> list[tuple[T, ...]]:
        """Values of devices as each process gets those of its own."""
        groups = map(self.layout.device_group, range(len(self.group.specs)))
        return [tuple(values[device] for device in own) for own in groups]

    def by_device(self, answers: Sequence[Iterable[T]]) -> list[T]:
        """Answers by process and device, in the cluster's order."""
        # A process answers for its devices in the cluster's order.
        by_process = [iter(answer) for answer in answers]
        return [next(by_process[process]) for process in self.layout.processes]


ROOM = 3.0
"""Times what a step makes beside what stays, on top of its peak: memory need not be watched."""


class Session(WorkerSession):
    """A context manager: starts the workers, loads placements, executes steps.

    Parameters
    ----------
    state
        A tensor, here or in a file, for every program input; inputs that are all zeros may be left
        out. Workers read what is in a file from there, each what lives on its devices.
    engine
        Starts the workers; children of this process by default.

    Attributes
    ----------
    executed
        Whether a step or a call was executed since the placement was loaded.

    Raises
    ------
    RunError
        The state does not fit into the temporary folder.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        state: Mapping[str, AnyTensor],
        engine: Engine | None = None,
    ) -> None:
        super().__init__(cluster, engine=engine)
        self.graph = graph
        try:
            self._files = StateFiles(state)
        except BaseException:
            self.group.close()
            raise
        self._initial = [""]
        # Of orders that move the whole state: load, migrate, collect.
        self.group.limit_s = limits.order_s(sum(map(size_of, state.values())))
        self.parts: tuple[Part, ...] = ()
        self.loads = 0
        self._expected: tuple[float, ...] = ()
        self._limits: tuple[float, ...] = ()
        self._loaded = graph
        self._programs = CallPrograms()
        self._step_s = math.nan
        self.serial = self._streamed = self.streaming = False
        self.executed = False

    def begin(self) -> None:
        """Give the workers the initial state."""
        self._initial = self.group.distribute(self._files.initial)

    def remove(self) -> None:
        """Remove the files of the state."""
        self._files.remove()

    def load(
        self,
        placement: Sequence[int],
        order: Sequence[int],
        seed: int = 0,
        *,
        step_s: float = math.nan,
        serial: bool = False,
        graph: Graph | None = None,
        peak_bytes: Sequence[float] = (),
        streamed: bool = False,
        stages: Sequence[Sequence[int]] = (),
    ) -> None:
        """Cut the program, hand out the parts and the initial state, set the seeds.

        Parameters
        ----------
        graph
            Another capture of the same model, in place of the session's own.
        peak_bytes
            By device what it is expected to need: an error says by how much that was wrong.
        step_s
            What a step is expected to take, until one has been measured: workers that take many
            times as long are given up.
        serial
            Do one operator or transfer at a time in the whole system, in this order; holds for
            later migrations too.
        streamed
            For a `placewright.runtime.stream.SampleStream`: tensors between processes go
            through host memory, where several of one kind can be on their way.
        stages
            With `streamed`: where some have copies, the devices of every stage, first the one that
            `placement` names.
        """
        self.refuse_while_streaming()
        self._step_s, self.serial, self._streamed = step_s, serial, streamed
        self._loaded = self.graph if graph is None else graph
        self._programs.clear()
        self.loads += 1
        self.executed = False
        self.parts, given = self._cut(self._loaded, placement, order, stages)
        self._expect(peak_bytes, self.parts)
        files = zip(given, self._initial, strict=True)
        self.order("load", [(share, file, self._files.weights) for share, file in files])
        self.order_all("seed", seed)

    def _expect(self, peak_bytes: Sequence[float], parts: Sequence[Part]) -> None:
        """Take what each device is expected to need for its part; see `load`.

        Workers keep freed memory for the next step. Where their devices do not have room on top of
        it for `ROOM` times what a step makes beside weights and other state, they watch what they
        hold: free pieces lie between used ones.
        """
        self._expected = tuple(peak_bytes)
        if not self._expected:
            return
        rooms = [
            device.memory_bytes >= peak + ROOM * max(peak - _stays_bytes(part), 0.0)
            for device, part, peak in zip(self.cluster.devices, parts, self._expected, strict=True)
        ]
        groups = map(self.layout.device_group, range(len(self.group.specs)))
        limits = tuple(
            math.inf
            if all(rooms[d] for d in own)
            else sum(self.cluster.devices[d].memory_bytes for d in own)
            for own in groups
        )
        # Workers begin without one, so the first order is left out where nothing changes.
        if limits != (self._limits or (math.inf,) * len(limits)):
            self.order("limit_memory", [(limit,) for limit in limits])
        self._limits = limits

    def migrate(
        self,
        placement: Sequence[int],
        order: Sequence[int],
        *,
        peak_bytes: Sequence[float] = (),
        limit_s: float | None = None,
    ) -> int:
        """Change the placement between two steps, nothing lost; bytes that moved.

        State travels from worker to worker over the links that carry tensors, and the
        sequence of random numbers goes on where its operators now are.

        Parameters
        ----------
        peak_bytes
            As of `load`.

        Raises
        ------
        WorkerError
            A worker was lost, or it took more than `limit_s` seconds.
        """
        self.refuse_while_streaming()
        self.select(None)
        self._programs.clear()
        self.loads += 1
        processes = self.layout.processes
        after, given = self._cut(self._loaded, placement, order)
        moves = state_moves(self.parts, after, processes)
        # Before the migration: `self.parts` are still the old ones, and the state is where they
        # draw.
        drawing = processes[random_home(self.parts)]
        if drawing != processes[random_home(after)]:
            state = self.order_all("random_state")[drawing]
            self.order_all("set_random_state", state)
        # Before the migration: it already needs memory as the new plan does.
        self._expect(peak_bytes, after)
        self.order("migrate", [(share, moves) for share in given], limit_s=limit_s)
        self._step_s = math.nan
        self.parts = after
        return sum(wire_bytes(m.spec) for m in moves)

    def feed(self, tensors: Mapping[str, torch.Tensor], random: bytes = b"") -> None:
        """Replace inputs and targets (by program input) from the next step on.

        `random`: what that step draws from, a `random_state`; its record has the one after it. By
        default the workers' own sequence goes on.
        """
        self.refuse_while_streaming()
        assert isinstance(self._loaded.program, Program)
        specs = {i.name: i.spec for i in self._loaded.program.inputs if i.name in tensors}
        batch = save(storable(tensors))
        given = [(batch, specs, own) for own in self._drawing(self.parts, random)]
        self.group.order_ahead("feed", given)

    def _drawing(self, parts: Sequence[Part], random: bytes) -> list[bytes]:
        """By rank: `random` for the one that draws, nothing for the others."""
        home = self.layout.processes[random_home(parts)]
        return [random if rank == home else b"" for rank in range(len(self.group.specs))]

    def select(self, program: CallProgram | None) -> None:
        """Do the steps of another program of the same model, or of the loaded one (``None``).

        It shares parameters, buffers and optimizer state with the others. The workers keep the
        `MOST_PROGRAMS` that were selected last.

        Raises
        ------
        RunError
            A tensor that steps change has another device in it.
        """
        self.refuse_while_streaming()
        if program is self._programs.selected:
            return
        if program is not None and program not in self._programs:
            self._add(program)
        else:
            self.order_all("select_program", self._programs.number(program))
        self._programs.select(program)
        self._step_s = math.nan

    def _add(self, program: CallProgram) -> None:
        """Hand another program out; the one that was used least recently may have to go."""
        parts, given = self._cut(program.graph, program.placement, program.order)
        if moved := state_moves(self.parts, parts, self.layout.processes):
            raise RunError(
                f"{moved[0].value!r} is changed by steps, and another program has it elsewhere",
                where=program.graph.name,
                hint="place the operators that use it where the loaded program has them",
            )
        number = self._programs.next_number()
        constants = save(storable(program.constants))
        self.order("add_program", [(number, share, constants) for share in given])
        oldest = self._programs.add(program, number, parts)
        if oldest is not None:
            self.order_all("remove_program", oldest)

    def refuse_while_streaming(self) -> None:
        """Raise if a stream is open: its samples would meet another program.

        Raises
        ------
        InputError
            The workers are executing a stream.
        """
        if self.streaming:
            raise InputError(
                "these workers are executing a stream",
                where=self.graph.name,
                hint="take what the stream delivers to its end first, or close it",
            )

    def call(
        self, tensors: Mapping[str, torch.Tensor], *, watched: bool = False, random: bytes = b""
    ) -> tuple[StepRecord, dict[str, torch.Tensor]]:
        """Execute one step of the selected program on a batch: one order, one answer.

        Parameters
        ----------
        tensors
            Inputs and targets by program input; workers get those that they read.
        random
            As of `feed`.

        Returns
        -------
        What the workers saw, and the outputs of the step by name.

        Raises
        ------
        WorkerError
            As of `run`.
        """
        self.refuse_while_streaming()
        limit_s = limits.steps_s(1, self._step_s)
        given = self._batches(self._programs.parts(self.parts), tensors, watched, random)
        answers = self.order("call", given, limit_s=limit_s)
        self.executed = True
        record = self._record([logs for logs, _ in answers])
        self._step_s = record.duration_s
        return record, {n: t for _, made in answers for n, t in load(made).items()}

    def _batches(
        self,
        parts: Sequence[Part],
        tensors: Mapping[str, torch.Tensor],
        watched: bool,
        random: bytes,
    ) -> list[tuple[bytes, dict[str, TensorSpec], bool, bytes]]:
        """The arguments of the order `call` by rank; equal batches are packed once."""
        packed: dict[tuple[str, ...], bytes] = {}
        found = []
        for rank, drawn in enumerate(self._drawing(parts, random)):
            own = [parts[d] for d in self.layout.device_group(rank)]
            specs = {i.name: i.spec for part in own for i in part.inputs if i.name in tensors}
            names = tuple(specs)
            if names not in packed:
                packed[names] = save(storable({name: tensors[name] for name in names}))
            found.append((packed[names], specs, watched, drawn))
        return found

    def random_state(self) -> bytes:
        """Where the sequence of random numbers stands."""
        states: list[bytes] = self.order_all("random_state")
        return states[self.layout.processes[random_home(self.parts)]]

    def set_random_state(self, state: bytes) -> None:
        """Continue a sequence that was noted before."""
        self.order_all("set_random_state", state)

    def probe_speeds(self) -> list[float]:
        """Seconds that the same small piece of work takes on each device, all at once."""
        return self.by_device(self.order_all("probe_speeds"))

    def probe_links(
        self, among: Collection[tuple[int, int]] | None = None
    ) -> list[tuple[int, int, float, float]]:
        """Source, target, latency in seconds and seconds per byte of links, as they are now.

        Links over gloo: what a GPU or a process keeps to itself does not change.

        Parameters
        ----------
        among
            Pairs of devices that are looked at; all that a link joins by default.
        """
        latency, *_ = self.cluster.link_arrays()
        finite = [(int(i), int(j)) for i, j in np.argwhere(np.isfinite(latency)) if i != j]
        pairs = [(i, j) for i, j in finite if self.layout.ways[i][j] in THROUGH_HOST]
        wanted = [pair for pair in pairs if among is None or pair in among]
        answers = self.order_all("probe_links", wanted)
        return [(*pair, *link_line(s)) for found in answers for pair, s in found.items()]

    def disturb(self, factors: Sequence[float]) -> None:
        """Emulate other slownesses from the next step on, one per device."""
        first = [self.layout.device_group(rank)[0] for rank in range(len(self.group.specs))]
        self.order("disturb", [(factors[device],) for device in first])

    def run(
        self, steps: int, *, watched: bool = False, limit_s: float | None = None
    ) -> list[StepRecord]:
        """Execute steps of the loaded placement.

        Raises
        ------
        WorkerError
            A worker died, raised, was stopped, or did not answer for `limit_s` seconds; by default
            those of `placewright.runtime.limits.steps_s`.
        """
        self.refuse_while_streaming()
        limit_s = limits.steps_s(steps, self._step_s) if limit_s is None else limit_s
        answers = self.order_all("steps", steps, watched, limit_s=limit_s)
        self.executed = self.executed or steps > 0
        records = [self._record(logs) for logs in zip(*answers, strict=True)]
        if records:
            self._step_s = max(record.duration_s for record in records)
        return records

    def _record(self, logs: Sequence[Sequence[StepLog]]) -> StepRecord:
        """What the processes saw of one step."""
        hosts = [self.group.hosts[p] for p in self.layout.processes]
        return step_record(self.by_device(logs), hosts)

    def outputs(self) -> dict[str, torch.Tensor]:
        """Outputs of the last step.

        Raises
        ------
        RunError
            They do not fit into the temporary folder.
        """
        return self._files.collect(self.group, "outputs")

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that the steps have changed: parameters, buffers, optimizer state.

        Raises
        ------
        RunError
            It does not fit into the temporary folder.
        """
        return self._files.collect(self.group, "state")

    def save_state(self, folder: Path) -> None:
        """What every worker holds of the state, into a file of `folder` each.

        Raises
        ------
        OSError
            A file cannot be written; the workers go on.
        """
        ranks = range(len(self.group.specs))
        self.group.collect("state", [folder / f"worker-{r}.safetensors" for r in ranks])

    def memory_peaks(self) -> list[int]:
        """By device, the most bytes that it has needed since its part was loaded.

        Of a GPU what PyTorch has allocated on it, of a CPU its process's memory, without what that
        had before.
        """
        return self.by_device(self.order_all("memory_peaks"))

    def order(
        self, name: str, arguments: Sequence[tuple[Any, ...]], *, limit_s: float | None = None
    ) -> list[Any]:
        """Give every worker an order; an error for want of memory says what was expected."""
        try:
            return self.group.order(name, arguments, limit_s=limit_s)
        except WorkerError as error:
            raise explained(error, self._expected_of(error.where)) from error

    def _expected_of(self, worker: str) -> float:
        """Bytes that the judge expected a worker to need; 0 if unknown."""
        selected = self._programs.selected
        by_device = self._expected if selected is None else selected.peak_bytes
        ranks = [r for r in range(len(self.group.names)) if self.group.worker_name(r) == worker]
        if not by_device or not ranks:
            return 0.0
        return sum(by_device[d] for d in self.layout.device_group(ranks[0]))

    def _cut(
        self,
        graph: Graph,
        placement: Sequence[int],
        order: Sequence[int],
        stages: Sequence[Sequence[int]] = (),
    ) -> tuple[tuple[Part, ...], list[Share]]:
        """Parts by device and shares by process."""
        devices, layout = len(self.cluster.devices), self.layout
        ways = through_host(layout.ways) if self._streamed else layout.ways
        parts = partition(graph, placement, order, devices, ways)
        if stages:
            self._check_copies([d for stage in stages for d in stage])
            parts = with_copies(parts, stages)
        assert isinstance(graph.program, Program)
        settings = graph.program.settings
        cut = shares(parts, order, layout.processes, serial=self.serial, settings=settings)
        return parts, cut

    def _check_copies(self, devices: Sequence[int]) -> None:
        """Each copy needs a process of its own, its samples are others, and keeps no state."""
        processes = [self.layout.processes[d] for d in devices]
        if len(set(processes)) < len(processes):
            raise UnsupportedError(
                "stages that have copies, in one process",
                where=self.graph.name,
                by=f"{len(devices)} devices in {len(set(processes))} processes",
                hint="give every GPU a process of its own: --gpus apart",
            )
        if isinstance(self._loaded.program, Program) and self._loaded.program.keeps_state:
            raise UnsupportedError(
                "copies of a model that keeps state from sample to sample",
                where=self.graph.name,
                by="it changes buffers or draws random numbers",
                hint="plan without --replication",
            )


def _stays_bytes(part: Part) -> int:
    """Bytes that a part holds from step to step."""
    return sum(wire_bytes(i.spec) for i in part.inputs if i.role not in ("input", "target"))


class StateFiles:
    """A temporary folder with the initial state, and with what workers give back.

    `weights`: what is in other files already, from which workers read it.
    Raises `RunError`: the state does not fit into the folder, which is removed.
    """

    def __init__(self, state: Mapping[str, AnyTensor]) -> None:
        self._folder = Scratch()
        self.weights = {n: t for n, t in state.items() if isinstance(t, StoredTensor)}
        here = {n: t for n, t in state.items() if not isinstance(t, StoredTensor)}
        self.initial = Path(self._folder.name) / "initial.safetensors"
        try:
            write_tensors(self.initial, here)
        except OSError as error:
            self.remove()
            raise no_room(
                "the initial state cannot be written", self._folder.name, error
            ) from error

    def collect(self, group: WorkerGroup, verb: str) -> dict[str, torch.Tensor]:
        """What every worker writes at the order `verb`.

        Raises `RunError`: it does not fit into the folder.
        """
        files = [Path(self._folder.name) / f"{verb}-{r}" for r in range(len(group.specs))]
        try:
            group.collect(verb, files)
        except OSError as error:
            what = f"the {verb.replace('_', ' ')} cannot be fetched"
            raise no_room(what, self._folder.name, error) from error
        found: dict[str, torch.Tensor] = {}
        for file in files:
            found.update(load_file(file))
            file.unlink()
        return found

    def distributed(self, group: WorkerGroup, state: Mapping[str, AnyTensor]) -> list[str]:
        """The paths at which workers find another state.

        Raises `RunError`: it does not fit into the folder.
        """
        file = Path(self._folder.name) / "resumed.safetensors"
        try:
            write_tensors(file, state)
        except OSError as error:
            raise no_room("the state cannot be written", self._folder.name, error) from error
        return group.distribute(file)

    def remove(self) -> None:
        """Remove the folder; twice is fine."""
        self._folder.cleanup()
