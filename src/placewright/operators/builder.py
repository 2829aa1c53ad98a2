"""Build a problem of wing 1 by name: operators, tensors and links, one call for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from placewright.errors import InputError, UnknownNameError, check_known, look_up
from placewright.io.arguments import AnyNumber, Unlimited, checked, described_value
from placewright.numerics.arrays import FloatArray, IntArray, check_names
from placewright.operators.sizes import NO_VIEW, OF_RESIDENT

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster
    from placewright.operators.problem import OperatorProblem

Seconds: TypeAlias = Sequence[AnyNumber] | Mapping[str, AnyNumber] | AnyNumber
"""Of an operator: by device or kind of device, in the order of the devices, or one number."""


class ProblemBuilder:
    """An `OperatorProblem` in the making, in which everything is called by its name.

    `OperatorProblem.builder` makes one. What is wrong is refused by the call that says it, with the
    nearest name where one is not known; a cycle, and costs that cannot be paid, by `build`.
    """

    @checked
    def __init__(
        self,
        make: Callable[..., Any],
        devices: Cluster | Mapping[str, Unlimited] | Sequence[str],
        name: str = "problem",
    ) -> None:
        self._make, self.name = make, name
        self._operators: dict[str, int] = {}
        self._seconds: list[Sequence[float]] = []
        self._columns: dict[str, list[Any]] = {key: [] for key in COLUMNS}
        self._group: list[int] = []
        self._tensors: dict[str, int] = {}
        self._producer: list[int] = []
        self._bytes: list[float] = []
        self._readers: list[list[int]] = []
        self._view_of: list[str | None] = []
        self._links: dict[tuple[int, int], tuple[float, float, int]] = {}
        self._channels: dict[str, int] = {}
        given: Any = devices
        self._devices: dict[str, int]
        self._cluster: Cluster | None = given if hasattr(given, "link_arrays") else None
        if self._cluster is not None:
            found = self._cluster.devices
            self._speed = [device.speed for device in found]
            self._kinds = tuple(device.kind for device in found)
            self._memory = [device.memory_bytes for device in found]
            self._devices = self._cluster.positions()
        else:
            names = list(given)
            self._devices = {each: d for d, each in enumerate(names)}
            self._speed, self._kinds = [1.0] * len(names), ()
            limits = given if isinstance(given, Mapping) else dict.fromkeys(names, math.inf)
            self._memory = list(limits.values())
            check_names("device", names, name, _OTHER_NAME)
        by_kind: dict[str, list[int]] = {}
        for d, kind in enumerate(self._kinds):
            by_kind.setdefault(kind, []).append(d)
        self._by_key = by_kind | {each: [d] for each, d in self._devices.items()}

    @property
    def device_names(self) -> tuple[str, ...]:
        """Names of the devices in order."""
        return tuple(self._devices)

    @property
    def keys(self) -> tuple[str, ...]:
        """What seconds may be called by: names of devices, and kinds where they are known."""
        return tuple(self._by_key)

    @checked
    def add_operator(
        self,
        name: str,
        seconds: Seconds,
        *,
        resident_bytes: float = 0.0,
        pin: str | None = None,
        kind: str = "",
        module: str = "",
        output_shape: tuple[int, ...] = (),
        micro_batch: int = 0,
        backward: bool = False,
    ) -> str:
        """Add an operator and return its name.

        Parameters
        ----------
        seconds
            By device, or by kind of device as the cluster has it; ``math.inf`` where it cannot run.
            Or in the order of the devices, or one number for all. What a kind takes, or all, is
            meant for a device of speed 1 and divided by the speed of each.
        resident_bytes
            That live where the operator lives, always: weights, optimizer states.
        pin
            The only device allowed.
        kind, module, output_shape, micro_batch, backward
            What the fields of `OperatorProblem` of these names mean.
        """
        where = f"{self.name}: operator {name!r}"
        if name in self._operators:
            raise InputError("is there twice", where=where, hint=_OTHER_NAME)
        row = self._row(seconds, where)
        pinned = -1 if pin is None else self._device(pin, where)
        self._operators[name] = position = len(self._seconds)
        self._seconds.append(row)
        self._group.append(position)
        values = (resident_bytes, pinned, kind, module, output_shape, micro_batch, backward)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        return name

    @checked
    def add_tensor(
        self,
        producer: str,
        consumers: Sequence[str] | str,
        nbytes: float,
        *,
        name: str | None = None,
        view_of: str | None = None,
    ) -> str:
        """Add a tensor that one operator makes and others read, and return its name.

        A device with several readers receives it once.

        Parameters
        ----------
        name
            ``producer->consumer`` where there is one consumer, else the producer's name, with a
            number where that is taken.
        view_of
            The tensor that it shares memory with where it is made, or ``""`` for a view of a
            weight or an input.
        """
        given = [consumers] if isinstance(consumers, str) else list(consumers)
        label = f"{producer}->{given[0]}" if len(given) == 1 else producer
        where = f"{self.name}: tensor {name or label!r}"
        source = self._operator(producer, where)
        readers = list(dict.fromkeys([self._operator(reader, where) for reader in given]))
        if source in readers:
            raise InputError("its producer reads it", where=where, hint="leave it out there")
        if name is None:
            name = label if label not in self._tensors else f"{label}#{len(self._producer)}"
        if name in self._tensors:
            raise InputError("is there twice", where=where, hint=_OTHER_NAME)
        self._tensors[name] = len(self._producer)
        self._producer.append(source)
        self._bytes.append(nbytes)
        self._readers.append(readers)
        self._view_of.append(view_of)
        return name

    @checked
    def add_link(
        self,
        source: str,
        target: str,
        *,
        bandwidth: Unlimited = math.inf,
        latency_s: float = 0.0,
        channel: str | None = None,
        duplex: bool = True,
    ) -> None:
        """Let two devices send tensors to each other.

        Parameters
        ----------
        bandwidth, latency_s
            Bytes per second, and seconds before the first byte.
        channel
            What a transfer holds; links of one channel wait for each other. One of its own for
            each direction where left out.
        duplex
            Both ways; else only from `source` to `target`.
        """
        where = f"{self.name}: link {source!r} to {target!r}"
        if self._cluster is not None:
            hint = f"add it to the cluster {self._cluster.name!r}, or give names of devices"
            raise InputError("the cluster has its own links", where=where, hint=hint)
        if not bandwidth > 0:
            by = f"got {bandwidth}"
            raise InputError("bandwidth must be above 0", where=where, by=by, hint=_NO_LINK)
        ends = self._device(source, where), self._device(target, where)
        if source == target:
            raise InputError("joins a device with itself", where=where, hint="leave it out")
        for i, j in (ends, ends[::-1])[: 1 + duplex]:
            if (i, j) in self._links:
                raise InputError("is there twice", where=where, hint="keep one of them")
            names = self.device_names
            held = channel or f"{names[i]}->{names[j]}"
            index = self._channels.setdefault(held, len(self._channels))
            self._links[i, j] = latency_s, 1.0 / bandwidth, index

    @checked
    def link_all(self, *, bandwidth: Unlimited = math.inf, latency_s: float = 0.0) -> None:
        """Link every two devices that are not linked yet, alike, each way with its own channel."""
        names = self.device_names
        for i, source in enumerate(names):
            for j, target in enumerate(names):
                if i != j and (i, j) not in self._links:
                    self.add_link(
                        source, target, bandwidth=bandwidth, latency_s=latency_s, duplex=False
                    )

    @checked
    def pin(self, operator: str, device: str) -> None:
        """Let an operator run on one device only."""
        where = f"{self.name}: pin"
        index = self._operator(operator, where)
        self._columns["pinned"][index] = self._device(device, where)

    @checked
    def colocate(self, *operators: str) -> None:
        """Keep operators on one device, and with them those that they are together with already."""
        where = f"{self.name}: colocate"
        for name in operators:
            if not isinstance(name, str):
                by, hint = f"got {described_value(name)}", "give names one by one: colocate(*names)"
                raise InputError("must be names of operators", where=where, by=by, hint=hint)
        roots = [self._root(self._operator(name, where)) for name in operators]
        for root in roots:
            self._group[root] = min(roots)

    @checked
    def limit_memory(self, device: str, nbytes: Unlimited) -> None:
        """Set the bytes that a device has."""
        self._memory[self._device(device, f"{self.name}: limit_memory")] = nbytes

    def build(self, **options: Any) -> OperatorProblem:
        """The problem. `options`: its other fields, such as ``objective``, ``links``, ``overlap``.

        Raises `InputError`: the operators form a cycle, no device can run one, or one reads what
        another makes and there is no link at all: not even for tensors without bytes.
        """
        known = [each.name for each in fields(self._make) if each.init]  # type: ignore[arg-type]
        for key in options:
            check_known("option", key, known, where=f"{self.name}: build")
        own_links = self._links or "seconds_per_byte" in options or self._cluster is not None
        if not own_links and options.get("communication", "pairwise") == "pairwise":
            self._check_unlinked()
        made: OperatorProblem = self._make(**(self._fields() | options))
        return made

    def _fields(self) -> dict[str, Any]:
        """The arguments of `OperatorProblem`, as far as they were said."""
        latency, per_byte, channel, channel_names = self._link_arrays()
        columns = {key: values for key, values in self._columns.items() if any(values)}
        for key in ("resident_bytes", "pinned"):
            columns[key] = self._columns[key]
        return columns | {
            "name": self.name,
            "operator_names": tuple(self._operators),
            "device_names": self.device_names,
            "compute_s": np.array(self._seconds, dtype=np.float64),
            "tensor_names": tuple(self._tensors),
            "tensor_producer": np.array(self._producer, dtype=np.int64),
            "tensor_bytes": np.array(self._bytes, dtype=np.float64),
            "consumer_offsets": np.cumsum([0, *map(len, self._readers)]),
            "consumers": np.array([j for some in self._readers for j in some], dtype=np.int64),
            "latency_s": latency,
            "seconds_per_byte": per_byte,
            "channel": channel,
            "channel_names": channel_names,
            "memory_bytes": np.array(self._memory),
            "colocation": self._colocation(),
            "alias_of": np.array([self._alias(k) for k in range(len(self._view_of))], np.int64),
            "device_kinds": self._kinds,
        }

    def _check_unlinked(self) -> None:
        """Raise if something is read, though not a single link was said."""
        read = sum(bool(readers) for readers in self._readers)
        if read and len(self._devices) > 1:
            raise InputError(
                "operators read tensors, and no link says how long those take",
                where=self.name,
                by=f"{read} tensor{'s' * (read > 1)}",
                hint="link the devices (bandwidth=math.inf where it takes no time), or give a "
                "cluster",
            )

    def _link_arrays(self) -> tuple[FloatArray, FloatArray, IntArray, tuple[str, ...]]:
        """As `Cluster.link_arrays`."""
        if self._cluster is not None:
            return self._cluster.link_arrays()
        m = len(self._devices)
        latency, per_byte = np.full((m, m), np.inf), np.full((m, m), np.inf)
        channel = np.full((m, m), -1)
        np.fill_diagonal(latency, 0.0)
        np.fill_diagonal(per_byte, 0.0)
        for pair, (seconds, of_byte, index) in self._links.items():
            latency[pair], per_byte[pair], channel[pair] = seconds, of_byte, index
        return latency, per_byte, channel, tuple(self._channels)

    def _colocation(self) -> IntArray:
        """A number per group, in the order of their first operators."""
        numbers: dict[int, int] = {}
        roots = [self._root(i) for i in range(len(self._group))]
        return np.array([numbers.setdefault(root, len(numbers)) for root in roots], dtype=np.int64)

    def _root(self, operator: int) -> int:
        """The operator that stands for a group."""
        while self._group[operator] != operator:
            self._group[operator] = operator = self._group[self._group[operator]]
        return operator

    def _alias(self, tensor: int) -> int:
        name = self._view_of[tensor]
        if not name:
            return NO_VIEW if name is None else OF_RESIDENT
        if name not in self._tensors:
            where = f"{self.name}: tensor {list(self._tensors)[tensor]!r}"
            raise UnknownNameError("tensor", name, self._tensors, where=where)
        return self._tensors[name]

    def _row(self, seconds: Any, where: str) -> Sequence[float]:
        """Seconds on every device, all of them zero or more."""
        if isinstance(seconds, Mapping):
            row = self._named_row(seconds, where)
        elif isinstance(seconds, Sequence):
            row = list(seconds)
        else:
            row = [seconds / speed for speed in self._speed]
        if len(row) != len(self._devices):
            by, hint = f"{len(row)} for {len(self._devices)} devices", "give one for each device"
            raise InputError("has the wrong number of seconds", where=where, by=by, hint=hint)
        for device, value in zip(self._devices, row, strict=True):
            if not value >= 0:
                place, hint = f"{where} on {device!r}", "give seconds, or math.inf"
                raise InputError("seconds must be >= 0", where=place, by=f"got {value}", hint=hint)
        return row

    def _named_row(self, seconds: Mapping[str, float], where: str) -> list[float]:
        row: list[float | None] = [None] * len(self._devices)
        for key in sorted(seconds, key=self._devices.__contains__):  # a device's own time is last
            if key not in self._by_key:
                kind = "device or kind" if self._kinds else "device"
                raise UnknownNameError(kind, key, self._by_key, where=where)
            for d in self._by_key[key]:
                row[d] = seconds[key] / (1.0 if key in self._devices else self._speed[d])
        if None in row:
            device = self.device_names[row.index(None)]
            raise InputError(
                f"has no seconds on device {device!r}",
                where=where,
                by=f"got those on {', '.join(seconds) or 'none'}",
                hint="give them, or math.inf where it cannot run there",
            )
        return row  # type: ignore[return-value]

    def _operator(self, name: str, where: str) -> int:
        return look_up("operator", name, self._operators, where=where)

    def _device(self, name: str, where: str) -> int:
        return look_up("device", name, self._devices, where=where)


COLUMNS = (
    "resident_bytes",
    "pinned",
    "operator_kinds",
    "operator_modules",
    "output_shapes",
    "micro_batch",
    "is_backward",
)
"""Fields of a problem with an entry for each operator."""

_OTHER_NAME = "call one of them something else"
_NO_LINK = "leave the link out where nothing can be sent, math.inf where it takes no time"
