"""From a blueprint to what it asks for: groups, namespaces, the link table, the emulator."""

from __future__ import annotations

import subprocess
import sys
import time

from placewright.errors import RunError
from placewright.testbed import namespaces
from placewright.testbed.blueprint import Blueprint, Slot
from placewright.testbed.groups import Trees
from placewright.testbed.link_table import LinkTable
from placewright.testbed.record import LINKS, LOG, Record
from placewright.testbed.removal import emulator_pid, end_emulator

_PATIENCE_S = 20.0
_PAUSE_S = 0.02


def intact(record: Record, plan: Blueprint, trees: Trees) -> bool:
    """Whether all of it is there, whatever the emulator does."""
    return (record.folder / LINKS).exists() and all(
        namespaces.exists(slot.namespace) and _grouped(slot, trees) for slot in plan.slots
    )


def make(record: Record, plan: Blueprint, trees: Trees) -> LinkTable:
    """Make what is not there yet; limits and links of what is there stay as they are.

    Raises
    ------
    RunError
        The kernel, ``ip`` or the emulator refused; says which and why.
    """
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
        end_emulator(record)  # it holds devices that are no more
    if not emulator_pid(record):
        _start_emulator(record)
    return LinkTable(record.folder / LINKS)


def _grouped(slot: Slot, trees: Trees) -> bool:
    return all(path.exists() for path in trees.group(slot.group))


def _routes(plan: Blueprint, position: int) -> list[namespaces.Route]:
    """To every device it can send to, with what fills the link and a late process's pause."""
    ways = [way for way in plan.ways if way.source == position]
    return [namespaces.Route(w.target, w.rate * (2 * w.delay_s + _PAUSE_S)) for w in ways]


def fill(table: LinkTable, plan: Blueprint) -> None:
    """Write every way of the blueprint into the table."""
    for way in plan.ways:
        table.set("rate", way.source, way.target, way.rate)
        table.set("delay_s", way.source, way.target, way.delay_s)
        table.set("channel", way.source, way.target, way.channel)


def _start_emulator(record: Record) -> None:
    """Start it as nobody's child, so that it outlives us where it should, and wait for it."""
    LinkTable(record.folder / LINKS).emulator_pid = 0
    program = [sys.executable, "-m", "placewright.testbed.emulator", str(record.folder)]
    with (record.folder / LOG).open("wb") as log:
        subprocess.run(
            ["setsid", "--fork", *program],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=True,
        )
    deadline = time.monotonic() + _PATIENCE_S
    while not emulator_pid(record):
        words = (record.folder / LOG).read_text(errors="replace").strip()
        if words or time.monotonic() > deadline:
            raise RunError(
                "the link emulator did not start",
                where=record.id,
                by=words.splitlines()[-1] if words else f"no word in {_PATIENCE_S:g} s",
                hint=f"its words:\n{words}" if words else "is the machine overloaded?",
            )
        time.sleep(0.005)
