"""Settings of the process go with a program: into files, and back into a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture
from placewright.capturing.settings import apply_settings, current_settings
from placewright.graph.files import read_graph, write_graph
from placewright.graph.program import Program


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    apply_settings({})


class _Thirds(nn.Module):
    def forward(self, i: Tensor) -> Tensor:
        return i / 3


def _settings(graph: object) -> object:
    program = graph.program  # type: ignore[attr-defined]
    assert isinstance(program, Program)
    return program.settings


def test_a_program_has_the_settings_that_differ(tmp_path: Path) -> None:
    """In a file too; most have none."""
    assert _settings(capture(_Thirds(), torch.arange(3))) == {}
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.set_flags(False)
    torch.use_deterministic_algorithms(True)
    graph = capture(_Thirds(), torch.arange(3))
    wanted = {
        "default_dtype": "float64",
        "float32_matmul_precision": "medium",
        "mkldnn": False,
        "deterministic": 2,
    }
    assert _settings(graph) == wanted
    assert _settings(read_graph(write_graph(graph, tmp_path / "graph.json"))) == wanted
    apply_settings({})
    assert current_settings() == {}
    apply_settings(wanted)
    assert current_settings() == wanted
