"""Make a blueprint: control groups, namespaces, the link table, the emulator."""

from __future__ import annotations

import subprocess
import time

from placewright.errors import RunError
from placewright.interpreter import python_command, python_environment
from placewright.testbed import namespaces
from placewright.testbed.blueprint import Blueprint, Slot
from placewright.testbed.groups import Trees
from placewright.testbed.link_table import LinkTable
from placewright.testbed.record import LINKS, LOG, Record
from placewright.testbed.teardown import emulator_pid, end_emulator

_TIMEOUT_S = 20.0
_PAUSE_S = 0.02


def intact(record: Record, plan: Blueprint, trees: Trees) -> bool:
    """Whether all of it exists; the emulator may be dead."""
    return (record.folder / LINKS).exists() and all(
        namespaces.exists(slot.namespace) and _grouped(slot, trees) for slot in plan.slots
    )


def make(record: Record, plan: Blueprint, trees: Trees) -> LinkTable:
    """Make what does not exist yet; limits and links of what exists stay as they are."""
    for slot in plan.slots:
        if not _grouped(slot, trees):
            trees.make(slot.group)
            trees.limit_cpu(slot.group, slot.cpu_share)
            trees.limit_memory(slot.group, slot.memory_bytes)
    lost = [k for k, slot in enumerate(plan.slots) if not namespaces.exists(slot.namespace)]
    for position in lost:
        namespaces.make(plan.slots[position].namespace, position, _routes(plan, position))
    if not (record.folder / LINKS).exists():
        fill(LinkTable.create(record.folder / LINKS, len(plan.slots)), plan)
    if lost:
        end_emulator(record)  # it holds devices that do not exist any more
    if not emulator_pid(record):
        _start_emulator(record)
    return LinkTable(record.folder / LINKS)


def _grouped(slot: Slot, trees: Trees) -> bool:
    return all(path.exists() for path in trees.group(slot.group))


def _routes(plan: Blueprint, position: int) -> list[namespaces.Route]:
    """To every reachable device, with a TCP window for the link and the pause of a late process."""
    ways = [way for way in plan.ways if way.source == position]
    return [namespaces.Route(w.target, w.rate * (2 * w.delay_s + _PAUSE_S)) for w in ways]


def fill(table: LinkTable, plan: Blueprint) -> None:
    """Write every way of the blueprint into the table."""
    for way in plan.ways:
        table.set("rate", way.source, way.target, way.rate)
        table.set("delay_s", way.source, way.target, way.delay_s)
        table.set("channel", way.source, way.target, way.channel)


def _start_emulator(record: Record) -> None:
    """Start it detached, so that it may outlive this process, and wait until it runs."""
    # The new one writes its number when it runs; the number of a dead one must not be taken for it.
    LinkTable(record.folder / LINKS).emulator_pid = 0
    program = python_command("-m", "placewright.testbed.emulator", str(record.folder))
    with (record.folder / LOG).open("wb") as log:
        subprocess.run(
            ["setsid", "--fork", *program],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=python_environment(),
            check=True,
        )
    deadline = time.monotonic() + _TIMEOUT_S
    while not emulator_pid(record):
        output = (record.folder / LOG).read_text(errors="replace").strip()
        if output or time.monotonic() > deadline:
            raise RunError(
                "the link emulator did not start",
                where=record.id,
                by=output.splitlines()[-1] if output else f"no answer in {_TIMEOUT_S:g} s",
                hint=f"its output:\n{output}" if output else "is the machine overloaded?",
            )
        time.sleep(0.005)
