"""Moves of files between processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.errors import RunError
from placewright.samples.data import Shard, audit, checksum, deal
from placewright.samples.judge import judge
from placewright.samples.move import move, transfers_of
from placewright.samples.mover import Fault
from placewright.samples.plan import SamplePlan
from tests.samples.jobs import images
from tests.samples.tiny import tiny

FAST = 1e4


def plan() -> SamplePlan:
    """Node 0 gives to 1, who passes some of it on to 2; 2 gives to 0 as well."""
    return SamplePlan(np.array([0, 1, 2]), np.array([1, 2, 0]), np.array([60, 25, 5]))


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_when_processes_die_and_links_break(seed: int, tmp_path: Path) -> None:
    """Every sample ends on exactly one node, unharmed, where the plan wants it."""
    problem = tiny([80, 3, 20], relay=True)
    rng = np.random.default_rng(seed)
    faults = {
        node: Fault(int(rng.integers(1, 5)), bool(rng.random() < 0.5), bool(rng.random() < 0.5))
        for node in range(3)
        if rng.random() < 0.8
    }
    shards, digests = deal(problem, images(103, seed), tmp_path)
    moved = move(problem, plan(), shards, digests, speed=FAST, faults=faults)
    counts = [len(shard.samples()) for shard in shards]
    assert counts == judge(problem, plan()).held[:, 0].tolist()
    assert moved.restarts <= sum(fault.kill for fault in faults.values())


def test_a_node_that_cannot_store_samples_ends_the_move(tmp_path: Path) -> None:
    """By its number and the system's reason, at once: sending again would not help."""
    problem = tiny([4, 0])
    shards, digests = deal(problem, images(4), tmp_path)
    (shards[1].folder / "arriving").rmdir()
    few = SamplePlan(np.array([0]), np.array([1]), np.array([2]))
    with pytest.raises(RunError, match=r"node 1: .*cannot store .*arriving"):
        move(problem, few, shards, digests, speed=FAST, limit_s=60.0)


def test_a_relay_waits_for_what_it_passes_on() -> None:
    """The transfer from 1 to 2 names the transfer that brings its samples."""
    transfers = transfers_of(tiny([80, 3, 20], relay=True), plan())
    passed = [t for t in transfers if t.source == 1]
    first = next(t.number for t in transfers if t.source == 0)
    assert sum(len(t.samples) for t in passed) == 25
    assert first in {number for t in passed for number in t.brought_by}
    for transfer in transfers:
        assert all(number < transfer.number for number in transfer.brought_by)


@pytest.mark.parametrize("fault", [Fault(3, True, True), Fault(4, False, True)])
def test_samples_that_come_back_are_not_taken_for_those_that_left(
    fault: Fault, tmp_path: Path
) -> None:
    """Node 1 returns samples before node 0 has seen that they have arrived there."""
    problem = tiny([80, 3, 20], relay=True)
    there_and_back = SamplePlan(np.array([0, 1]), np.array([1, 0]), np.array([60, 25]))
    there, _, back = transfers_of(problem, there_and_back)
    returned = [s for s, by in zip(there.samples, there.brought_back_by, strict=True) if by >= 0]
    assert returned == list(back.samples)
    shards, digests = deal(problem, images(103, 0), tmp_path)
    move(problem, there_and_back, shards, digests, speed=FAST, faults={0: fault})
    assert [len(shard.samples()) for shard in shards] == [45, 38, 20]


def test_a_second_copy_is_thrown_away(tmp_path: Path) -> None:
    """What arrived once and went on does not come back."""
    shard = Shard(tmp_path / "a")
    shard.create()
    content = b"sample"
    shard.accept(0, 7, content, checksum(content))
    shard.drop(7)
    shard.accept(0, 7, content, checksum(content))
    assert shard.samples() == []
    with pytest.raises(RunError, match="damaged"):
        shard.accept(1, 8, b"other", checksum(content))


@pytest.mark.parametrize(
    ("harm", "message"), [("lose", "is lost"), ("double", "two nodes"), ("damage", "is damaged")]
)
def test_the_audit_finds_lost_doubled_and_damaged_samples(
    harm: str, message: str, tmp_path: Path
) -> None:
    """Lost, doubled, damaged."""
    shards, digests = deal(tiny([3, 2]), images(5), tmp_path)
    audit(shards, digests)
    first = shards[0].folder / "samples" / "0.npz"
    if harm == "double":
        (shards[1].folder / "samples" / "0.npz").write_bytes(first.read_bytes())
    elif harm == "damage":
        first.write_bytes(b"nothing")
    else:
        shards[0].drop(0)
    with pytest.raises(RunError, match=message):
        audit(shards, digests)


def test_classes_for_one_neighbour_share_a_connection() -> None:
    """Without relays what a node sends to another in a row is one transfer; nothing is left out."""
    problem = tiny([[20, 20], [5, 5], [1, 1]])
    two = SamplePlan(
        np.array([0, 0, 0, 0]), np.array([1, 1, 2, 2]), np.array([4, 3, 2, 1]), np.array([0, 1] * 2)
    )
    first, second = transfers_of(problem, two)
    assert (first.target, len(first.samples)) == (1, 7)
    assert (second.target, len(second.samples)) == (2, 3)
    assert len({*first.samples, *second.samples}) == 10
    assert len(transfers_of(problem.replace(relay=True), two)) == 4


def test_without_relays_nobody_waits_for_samples_of_others(tmp_path: Path) -> None:
    """Nodes that give to each other in a ring, both classes: all send what they held."""
    problem = tiny([[20, 20], [20, 20], [20, 20]])
    source, target = np.tile([0, 1, 2], 4), np.tile([1, 2, 0], 4)
    ring = SamplePlan(source, target, np.full(12, 9), np.repeat([0, 1, 0, 1], 3))
    sent = transfers_of(problem, ring)
    assert {first for transfer in sent for first in transfer.brought_by} == {-1}
    shards, digests = deal(problem, images(120, labels=np.repeat([0, 1], 60)), tmp_path)
    move(problem, ring, shards, digests, speed=FAST, limit_s=120.0)
    assert [len(shard.samples()) for shard in shards] == [40, 40, 40]
