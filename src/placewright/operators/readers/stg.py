"""``stg:FILE.stg``: task graphs of the Standard Task Graph Set, on devices of your choice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from placewright.errors import InputError
from placewright.io.arguments import Range, checked
from placewright.io.boundary import placed
from placewright.io.stored import stem, stored_text
from placewright.operators.problem import Links, OperatorProblem

if TYPE_CHECKING:
    from placewright.cluster.cluster import Cluster

Devices = Annotated[int, Range(1, 1024)]


@checked
def read_stg(
    path: str | Path,
    cluster: Cluster | None = None,
    *,
    devices: Devices = 2,
    bytes_per_unit: float = 1.0,
) -> OperatorProblem:
    """Read a task graph in the format of Tobita and Kasahara (doi 10.1002/jos.116).

    The first number is that of the tasks without the dummies at both ends. A line per task has its
    number, its time, the number of its predecessors, and those, each followed by the units that it
    sends where the file has communication. What follows ``#`` is a comment.

    Parameters
    ----------
    cluster
        Times are divided by the speed of each device.
    devices
        Without a cluster: so many devices alike, between which a unit takes one unit of time.
    bytes_per_unit
        Of communication.

    Raises
    ------
    InputError
        A line with too few or too many numbers, a task that is missing; names file and line.
    """
    where, alike = str(path), [f"p{d}" for d in range(devices)]
    builder = OperatorProblem.builder(alike if cluster is None else cluster, stem(path))
    if cluster is None:
        builder.link_all(bandwidth=bytes_per_unit)
    lines = list(_lines(stored_text(path), where))
    if not lines or len(lines[0][1]) != 1:
        raise InputError("must begin with the number of tasks", where=where, hint=_LOOK)
    count = int(lines[0][1][0])
    if len(lines) - 1 not in (count, count + 2):
        by = f"{len(lines) - 1} lines for {count} tasks and two dummies"
        raise InputError("has the wrong number of tasks", where=where, by=by, hint=_LOOK)
    sent = dict(_predecessors(lines))
    try:
        for _, row in lines[1:]:
            builder.add_operator(f"t{int(row[0])}", row[1])
        for (source, target), units in sent.items():
            builder.add_tensor(f"t{source}", f"t{target}", units * bytes_per_unit)
        return builder.build(links=Links.FREE, dimensionless=cluster is None)
    except InputError as error:
        raise placed(error, where) from None


def _lines(text: str, where: str) -> Iterator[tuple[str, list[float]]]:
    """Where each line is, and its numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        at = f"{where}:{number}"
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            by = line.strip()[:60]
            raise InputError("must be numbers", where=at, by=by, hint=_LOOK) from None
        if any(not 0 <= x < 2**53 for x in numbers):
            raise InputError("must be numbers >= 0", where=at, by=line.strip()[:60], hint=_LOOK)
        if numbers:
            yield at, numbers


def _predecessors(
    lines: list[tuple[str, list[float]]],
) -> Iterator[tuple[tuple[int, int], float]]:
    """What each task sends to which, in the order of the lines."""
    for at, row in lines[1:]:
        rest = row[3:]
        parts = int(row[2]) if len(row) > 2 else -1
        if len(rest) not in (parts, 2 * parts):
            by = f"{len(rest)} numbers after {max(parts, 0)} predecessors"
            raise InputError("has the wrong length", where=at, by=by, hint=_LOOK)
        units = rest[1::2] if len(rest) == 2 * parts else [0.0] * parts
        before = rest[::2] if len(rest) == 2 * parts else rest
        for source, size in zip(before, units, strict=True):
            yield (int(source), int(row[0])), size


_LOOK = "compare with the format: number, time, number of predecessors, predecessors"
