"""The images that a run trains on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InputError, RunError, UnknownNameError
from placewright.samples.data.dealing import counted, deal, held_by, numbered
from placewright.samples.data.images import pictures
from placewright.samples.moving.move import transfers_of
from placewright.samples.plan import SamplePlan
from tests.samples.tiny import tiny


def test_classes_are_labels_from_the_deal_to_the_transfer(tmp_path: Path) -> None:
    """Each node has the labels that the problem says, and a move takes those of its class."""
    problem = tiny([[5, 0, 2], [1, 7, 0]])
    data, _ = pictures(problem, "synthetic")
    shards, _ = deal(problem, data, tmp_path, file_bytes=4_000)
    held = held_by(problem, shards)
    assert (counted(held) == problem.samples).all()
    assert held == numbered(problem)
    plan = SamplePlan(np.array([0, 1]), np.array([1, 0]), np.array([2, 6]), np.array([2, 1]))
    for transfer in transfers_of(problem, plan, held=held):
        labels = {shards[transfer.source].read(s)[1] for s in transfer.samples}
        assert labels == {2 if transfer.source == 0 else 1}
    assert len(shards[0].content(0) or b"") == pytest.approx(4_000, abs=200)


def test_digits_where_there_are_enough() -> None:
    """Real ones of ten classes in a frame; synthetic ones where a class runs out."""
    pytest.importorskip("sklearn")
    data, test = pictures(tiny([[20] * 10, [30] * 10]))
    assert len(data) + len(test) == 1797
    assert not data.pixels[:, 0].any()
    assert data.pixels.max() == 255
    many, _ = pictures(tiny([[500] + [1] * 9, [0] * 10]))
    assert np.bincount(many.labels).tolist() == [500] + [1] * 9


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    """Another kind; a class of which there are too few."""
    with pytest.raises(UnknownNameError, match="digits"):
        pictures(tiny([3, 3]), "digit")
    with pytest.raises(InputError, match="11 classes, at most 10"):
        pictures(tiny([[1] * 11, [1] * 11]), "synthetic")
    data, _ = pictures(tiny([[3, 1], [1, 1]]), "synthetic")
    with pytest.raises(RunError, match="of class c1"):
        deal(tiny([[2, 2], [1, 1]]), data, tmp_path)


def test_names_of_nodes_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    """A file of nodes may come from anywhere."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    problem = tiny([1, 1], node_names=("../../c", "d" * 300))
    shards, _ = deal(problem, pictures(problem, "synthetic")[0], folder)
    assert all(shard.folder.parent == folder for shard in shards)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
