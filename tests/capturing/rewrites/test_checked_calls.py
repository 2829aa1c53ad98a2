"""Linear algebra that cannot be done is an error in a program, as it is in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from placewright.capturing.model import capture_source
from placewright.capturing.source import ModelSource
from placewright.capturing.state import initial_state
from tests.capturing.against_eager import inference_differences
from tests.capturing.reference_interpreter import run

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "cholesky": torch.linalg.cholesky,
    "inverse": torch.linalg.inv,
    "solution": lambda x: torch.linalg.solve(x, torch.ones(3)),
    "LU factors": lambda x: torch.linalg.lu_factor(x)[0],
    "LDL factors": lambda x: torch.linalg.ldl_factor(x)[0],
}


class Scaled(nn.Module):
    """Applies a function to a matrix."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale, self.function = nn.Parameter(torch.ones(())), function

    def forward(self, x: Tensor) -> Tensor:
        """As the function, scaled."""
        return self.function(x) * self.scale


@pytest.mark.parametrize("name", CALLS)
def test_a_matrix_that_does_not_do_is_an_error(name: str) -> None:
    """And the result of one that does is eager's."""
    source = ModelSource(Scaled(CALLS[name]), (3 * torch.eye(3),))
    graph = capture_source(source)
    assert inference_differences(source, graph) == {}
    singular = torch.zeros(3, 3)
    with pytest.raises(RuntimeError, match="linalg"):
        source.model(singular)
    state = initial_state(source, graph.program) | {"input:0": singular}
    with pytest.raises(RuntimeError, match="linalg"):
        run(graph, state)
