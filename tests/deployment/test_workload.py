"""A captured model on a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from placewright.capturing.source import ModelSource, default_loss
from placewright.deployment.workload import profiled
from placewright.errors import InfeasibleError
from placewright.planning.contract import Listener
from placewright.profiling import profiler
from placewright.profiling.profiler import ProfileTable
from tests.operators.test_run import DUO

SMALL = replace(DUO, devices=tuple(replace(d, memory_bytes=2.0**20) for d in DUO.devices))
"""1 MiB each."""


def test_nothing_is_measured_where_no_plan_can_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile takes minutes; what the weights need is known before. A profile alone is made."""
    model = ModelSource(nn.Linear(1024, 1024), (torch.ones(1, 1024),), default_loss, None, "wide")

    def measures(*_: Any, **__: Any) -> None:
        raise AssertionError("measured")

    def on_small(*, planned: bool) -> Any:
        return profiled(
            model,
            SMALL,
            training=False,
            method="auto",
            table=ProfileTable(),
            monitor=Listener(),
            planned=planned,
        )

    assert on_small(planned=False).problem.memory_bytes.tolist() == [2.0**20] * 2
    monkeypatch.setattr(profiler, "profile", measures)
    with pytest.raises(InfeasibleError, match="MiB more than") as raised:
        on_small(planned=True)
    assert raised.value.where.startswith("wide")
