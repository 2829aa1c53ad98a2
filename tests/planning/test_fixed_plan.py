"""Planning options beside a given plan are refused by both wings."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewright.planning.fixed_plan import refuse_beside_plan
from tests.cli.run_cli import run_cli


@pytest.mark.parametrize(("option", "value"), [("--planner", "heft"), ("--time-limit", 0)])
def test_a_run_does_not_plan_what_is_planned(
    option: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names the option and the plan."""
    command = ("operators", "run", "zoo:alexnet", "plan.json", "--on", "edge-duo", option, value)
    output = run_cli(capsys, *command)
    assert output.code == 1
    assert f"{option}: a plan that is given is not made again" in output.err
    assert "plan.json" in output.err


def test_either_alone_is_fine() -> None:
    """A plan, or how to make one."""
    refuse_beside_plan(Path("plan.json"), None, None)
    refuse_beside_plan(None, "lp", 0.0)
