"""A captured graph read back from a file executes as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.capturing.model import capture_source
from placewright.graph.files import read_graph, write_graph
from small_zoo import small
from tests.capturing.against_eager import differences, inference_differences
from tests.capturing.models import unseen
from tests.capturing.small_graphs import small_graph


@pytest.mark.parametrize("name", ["gnmt", "gpt2"])
def test_a_training_step_from_a_file_equals_eager(tmp_path: Path, name: str) -> None:
    """Written, read, run."""
    path = write_graph(small_graph(name, training=True), tmp_path / "graph.json.gz")
    assert differences(small(name), read_graph(path)) == {}


def test_constants_travel_with_the_file(tmp_path: Path) -> None:
    """Values that are neither parameter nor buffer."""
    source = unseen("counting")
    graph = read_graph(write_graph(capture_source(source), tmp_path / "graph.json"))
    assert graph.program.constants
    assert inference_differences(unseen("counting"), graph) == {}
