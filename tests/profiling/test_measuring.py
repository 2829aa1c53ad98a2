"""Measurement of single operators on generated inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from placewright.capturing.model import capture
from placewright.cluster.cluster import Cluster, Device
from placewright.errors import InputError
from placewright.graph.files import read_graph, write_graph
from placewright.graph.graph import Graph, Instruction, Operator, Program, ProgramOutput, TensorSpec
from placewright.graph.graph import Tensor as GraphTensor
from placewright.numerics.arrays import FloatArray
from placewright.profiling import measuring
from placewright.profiling.measuring import (
    LEAST_KEPT,
    LEAST_STEPS,
    MOST_STEPS,
    OperatorTimer,
    dispatch_seconds,
    in_place_seconds,
    isolated_seconds,
    scaled_to_step,
    without_marks,
)
from placewright.profiling.profiler import profile
from placewright.runtime.step.partition import partition
from placewright.runtime.step_record import StepLog, StepRecord
from tests.cli.run_cli import run_cli
from tests.runtime.chain import diamond


def test_a_recurrent_backward_has_a_real_workspace() -> None:
    """Its kernel reads a workspace whose size no spec knows; an empty one ends the process."""
    graph = capture(nn.LSTM(5, 7, num_layers=2), torch.randn(11, 3, 5), training=True)
    seconds = isolated_seconds(graph, repeats=1)
    kinds = [op.kind for op in graph.operators]
    backward = [k for k, kind in enumerate(kinds) if "mkldnn_rnn_layer_backward" in kind]
    assert len(backward) == 2
    assert (seconds[backward] > 0).all()


def test_operators_without_a_signature_have_costs_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal signatures are measured once, unknown ones each."""
    measured: list[str] = []

    def seconds(bench: OperatorTimer, instruction: Instruction) -> float:
        measured.append(instruction.name)
        return float(len(measured))

    monkeypatch.setattr(OperatorTimer, "seconds", seconds)
    monkeypatch.setattr(measuring, "dispatch_seconds", lambda: 0.0)
    graph, _ = diamond()
    assert isolated_seconds(graph).tolist() == [1.0, 2.0, 3.0, 4.0]
    alike = [replace(op, signature="s" * (op.name in "bd")) for op in graph.operators]
    measured.clear()
    found = isolated_seconds(replace(graph, operators=tuple(alike)))
    assert (measured, found.tolist()) == (["a", "b", "c"], [1.0, 2.0, 3.0, 2.0])


def test_what_refuses_made_up_inputs_is_not_a_number() -> None:
    """A factorisation of a matrix that is not square has no time; the others do."""
    graph, _ = diamond("aten.linalg_cholesky.default")
    assert np.isnan(isolated_seconds(graph)).tolist() == [True, False, False, False]


def test_what_the_executor_does_around_a_call_is_added_once_to_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And stays unknown with an operator that could not be measured."""
    known = iter([1.0, float("nan"), 3.0, 4.0])
    monkeypatch.setattr(OperatorTimer, "seconds", lambda bench, instruction: next(known))
    monkeypatch.setattr(measuring, "dispatch_seconds", lambda: 0.5)
    found = isolated_seconds(diamond()[0])
    assert np.array_equal(found, [1.5, np.nan, 3.5, 4.5], equal_nan=True)


def test_dispatch_is_the_steps_share_less_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred copies in 300 s, each a second by itself: two more around each call."""
    monkeypatch.setattr(OperatorTimer, "seconds", lambda bench, instruction: 1.0)
    monkeypatch.setattr(OperatorTimer, "median", lambda bench, call: 300.0)
    assert dispatch_seconds() == 2.0
    monkeypatch.setattr(OperatorTimer, "median", lambda bench, call: 50.0)
    assert dispatch_seconds() == 0.0


def test_a_graph_file_that_would_write_files_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``aten.from_file`` with ``shared=True`` creates its file; the error names both."""
    touched = tmp_path / "touched"
    call = Instruction("op", "aten.from_file.default", (str(touched), True, 4), {}, ("op",))
    program = Program((), (call,), (ProgramOutput("output", "op"),))
    operator = Operator("op", call.target, outputs=(TensorSpec((4,), "float32"),))
    graph = Graph("hostile", (operator,), (GraphTensor("op", "op", 16, ()),), program)
    path = write_graph(graph, tmp_path / "graph.json")
    named = r"graph\.json: operator 'op': the operation 'aten\.from_file\.default' acts on"
    with pytest.raises(InputError, match=named):
        profile(read_graph(path), Cluster((Device("cpu"),)), method="isolated")
    with pytest.raises(InputError, match=named):
        partition(read_graph(path), [0], [0], 1)
    found = run_cli(capsys, "operators", "plan", path)
    assert found.code != 0
    assert "aten.from_file.default" in found.err
    assert not touched.exists()
    profile(read_graph(path), Cluster((Device("cpu", peak_flops=1e9),)), method="analytic")


PLAIN_S, GAP_S = 0.9, 0.1
CALLS_S = np.array([0.1, 0.2, 0.3, 0.4])


class Workers:
    """A session on which the calls of the diamond take `CALLS_S`, with gaps after each."""

    steps: list[bool]

    def __init__(self, *arguments: Any) -> None:
        Workers.steps = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def load(self, *arguments: Any) -> None:
        """Nothing to do."""

    def run(self, steps: int, *, watched: bool = False) -> list[StepRecord]:
        """A watched step takes longer than others; the first of each kind has a burst."""
        burst_s = 5.0 if watched not in Workers.steps[2:] else 0.0
        Workers.steps += [watched] * steps
        if not watched:
            return [StepRecord(0.0, PLAIN_S + burst_s, ())] * steps
        starts = burst_s + np.concatenate([[0.0], np.cumsum(CALLS_S + GAP_S)[:-1]])
        spans = np.stack([starts, starts + CALLS_S], axis=1)
        end_s = float(spans[-1, 1] + GAP_S)
        log = StepLog(0.0, end_s, (0, 1, 2, 3), tuple(spans.ravel()))
        return [StepRecord(0.0, end_s, (log,))] * steps


def test_what_lies_between_operators_is_in_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per operator, and the whole is the median of the steps that nobody watched."""
    monkeypatch.setattr(measuring, "Session", Workers)
    found = in_place_seconds(*diamond(), seconds=0.0)
    assert found.sum() == pytest.approx(PLAIN_S)
    assert found == pytest.approx((CALLS_S + GAP_S) * PLAIN_S / (CALLS_S + GAP_S).sum())


def test_steps_of_both_kinds_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a machine that changes its speed does so for both; a few at least, not for ever."""
    monkeypatch.setattr(measuring, "Session", Workers)
    for seconds, count in ((0.0, LEAST_STEPS), (1e9, MOST_STEPS)):
        in_place_seconds(*diamond(), seconds=seconds)
        assert Workers.steps == [False, False, *[True, False] * count]


def test_a_step_without_time_stays_so() -> None:
    """Nothing to scale."""
    assert scaled_to_step(np.zeros(3), 1.0).tolist() == [0.0] * 3


@given(
    st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30).map(np.array),
    st.floats(0.01, 1.5),
)
def test_marks_take_the_same_off_each_operator(seconds: FloatArray, part: float) -> None:
    """They add up to the step; none has less than a tenth left unless all are scaled further."""
    step_s = float(part * seconds.sum())
    found = without_marks(seconds, step_s)
    assert found.sum() == pytest.approx(step_s)
    assert (np.diff(found[np.argsort(seconds)]) >= -1e-12).all()
    if LEAST_KEPT < part < 1.0:
        off = seconds - found
        whole = found > LEAST_KEPT * seconds * (1 + 1e-9)
        assert off[whole] == pytest.approx(off.max(), abs=1e-9)
        assert (found >= LEAST_KEPT * seconds * (1 - 1e-9)).all()
