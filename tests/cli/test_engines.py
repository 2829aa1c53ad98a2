"""``placewright operators run --engine``: serving ranks, and refusals before any work."""

from __future__ import annotations

import pytest

from placewright.deployment.workers import shared_process
from placewright.errors import UnknownNameError
from placewright.runtime.engines import torchrun_agent
from tests.cli.run_cli import run_cli

RUN = ("operators", "run", "tests.cli.models:tower", "--on", "edge-duo", "--engine")


def test_ranks_beyond_the_first_only_serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They capture nothing, say nothing and end well."""
    served = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(torchrun_agent, "serve", lambda: served.append(True))
    output = run_cli(capsys, *RUN, "torchrun")
    assert (output.code, output.out, output.err, served) == (0, "", "", [True])


def test_without_torchrun_the_command_to_start_it_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once: nothing is captured or profiled first."""
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    output = run_cli(capsys, *RUN, "torchrun")
    assert (output.code, output.out) == (1, "")
    assert "torchrun --master-port 29500 --nproc-per-node 2 -m placewright ... " in output.err


def test_an_unknown_engine_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The four that there are, are named."""
    output = run_cli(capsys, *RUN, "slurm")
    assert output.code == 2
    for name in ("local", "testbed", "torchrun", "ray"):
        assert name in output.err


@pytest.mark.parametrize("engine", ["testbed", "ray"])
def test_one_process_for_all_gpus_is_refused_where_each_has_its_own(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started or captured first; `apart` is what they do."""
    output = run_cli(capsys, *RUN, engine, "--gpus", "together")
    assert (output.code, output.out) == (1, "")
    assert f"engine {engine}: one process for all GPUs" in output.err
    assert "leave out --gpus together" in output.err


def test_an_unknown_number_of_processes_for_gpus_is_named() -> None:
    """From Python; the command line knows its two words."""
    with pytest.raises(UnknownNameError, match=r"(?s)gpus: unknown .*'apar'.*did you mean 'apart'"):
        shared_process("apar")
    assert [shared_process(each) for each in (None, "together", "apart")] == [None, True, False]


def test_contiguous_plans_are_about_throughput(capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for with latency, they would change nothing."""
    output = run_cli(capsys, *RUN, "local", "--contiguous", "--objective", "latency")
    assert (output.code, output.out) == (1, "")
    assert "--contiguous is for throughput (got --objective latency)" in output.err
