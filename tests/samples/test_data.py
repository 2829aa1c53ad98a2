"""A node's samples on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.samples.data import Shard, checksum, counted, deal, held_by, numbered
from placewright.samples.move import transfers_of
from placewright.samples.plan import SamplePlan
from tests.samples.jobs import images
from tests.samples.tiny import tiny


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """By the file that was written, which the command line says."""
    shard = Shard(tmp_path)
    shard.create()
    (tmp_path / "arriving" / "7.npz").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*arriving/7.npz'"):
        shard.put(7, [np.zeros((8, 8), dtype=np.uint8)], 1)


def test_a_line_of_the_journal_that_was_cut_off_is_no_arrival(tmp_path: Path) -> None:
    """Sample 12 is not taken for one that has come because 123 was noted in part."""
    first = Shard(tmp_path)
    first.create()
    first.accept(0, 5, b"five", checksum(b"five"))
    with (tmp_path / "journal" / "0").open("ab") as note:
        note.write(b"12")
    again = Shard(tmp_path)
    assert again.arrived(0, 5)
    assert not again.arrived(0, 12)
    for sample in (12, 123):
        again.accept(0, sample, b"x", checksum(b"x"))
        again.drop(sample)
        again.accept(0, sample, b"x", checksum(b"x"))  # a second copy, after it was sent on
        assert not again.has(sample)
    assert all(Shard(tmp_path).arrived(0, sample) for sample in (5, 12, 123))
    again.forget()
    assert not again.arrived(0, 5)


def test_classes_are_labels_from_the_deal_to_the_transfer(tmp_path: Path) -> None:
    """Each node has the labels that the problem says, and a move takes those of its class."""
    problem = tiny([[5, 0, 2], [1, 7, 0]])
    data = images(15, labels=np.repeat([0, 1, 2], [6, 7, 2]))
    shards, _ = deal(problem, data, tmp_path, file_bytes=4_000)
    held = held_by(problem, shards)
    assert (counted(held) == problem.samples).all()
    assert held == numbered(problem)
    plan = SamplePlan(np.array([0, 1]), np.array([1, 0]), np.array([2, 6]), np.array([2, 1]))
    for transfer in transfers_of(problem, plan, held=held):
        labels = {int(shards[transfer.source].read(s)[1]) for s in transfer.samples}
        assert labels == {2 if transfer.source == 0 else 1}
    assert len(shards[0].content(0) or b"") == pytest.approx(4_000, abs=200)


def test_a_class_of_which_there_are_too_few_is_named(tmp_path: Path) -> None:
    """And by how many."""
    data = images(6, labels=np.array([0, 0, 0, 0, 1, 1]))
    with pytest.raises(InputError, match="2 for 3 samples of class c1"):
        deal(tiny([[2, 2], [1, 1]]), data, tmp_path)


def test_names_of_nodes_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    """A file of nodes may come from anywhere."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    problem = tiny([1, 1], node_names=("../../c", "d" * 300))
    shards, _ = deal(problem, images(2), folder)
    assert all(shard.folder.parent == folder for shard in shards)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
