"""The public names of ``import placewright``."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placewright
from placewright.operators.conformance import tiny
from placewright.operators.plan import OperatorPlan
from placewright.operators.run import best_single
from placewright.solvers.pbqp import solve_pbqp

HEAVY = ("torch", "numba", "numpy", "pydantic", "rich", "typer", "ortools", "yaml")


def test_the_one_list_is_read_whole() -> None:
    """Each line of the stub imports a name "as" itself; there are about forty."""
    stub = Path(placewright.__file__).with_suffix(".pyi").read_text()
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    assert {a.name: n.module for n in imports for a in n.names} == placewright._HOME
    assert all(a.name == a.asname for n in imports for a in n.names)
    assert dir(placewright) == placewright.__all__ == sorted(placewright._HOME)
    assert 35 <= len(placewright.__all__) <= 48


def test_the_reference_lists_them_all() -> None:
    """In the table at the top of its page, and no other."""
    root = Path(__file__).resolve().parents[1]
    page = (root / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    table = page.split("| for | names |", 1)[1].split("\n\n", 1)[0]
    names = re.findall(r"`(\w+)`", table)
    assert sorted([*names, "__version__"]) == placewright.__all__


@pytest.mark.parametrize("name", placewright.__all__)
def test_each_name_can_be_had(name: str) -> None:
    """Every promised name is really there and has a docstring."""
    value = getattr(placewright, name)
    assert isinstance(value, str) or value.__doc__


def test_no_module_of_the_package_has_a_public_name() -> None:
    """Once imported, it would stand in the function's place."""
    modules = {module.name for module in pkgutil.iter_modules(placewright.__path__)}
    assert modules.isdisjoint(placewright.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As with any module."""
    with pytest.raises(AttributeError, match="no attribute 'plaace'"):
        placewright.plaace  # noqa: B018


def test_import_is_light() -> None:
    """Nothing heavy is loaded before it is needed."""
    code = f"import sys, placewright; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda problem: placewright.judge(problem, None), "plan: must be of type OperatorPlan"),
        (
            lambda problem: placewright.judge(problem, OperatorPlan(np.array([5, 5]))),
            "wrong length",
        ),
        (
            lambda problem: placewright.solve(problem, time_limit_s=None),
            "time_limit_s of solve.*must be a number >= 0",
        ),
        (
            lambda problem: best_single(5),
            "problem of best_single.*must be a OperatorProblem",
        ),
        (lambda problem: placewright.load_model(5), "source of load_model.*must be a text"),
        (lambda problem: placewright.capture("nope", ()), "model of capture.*must be a Module"),
        (lambda problem: placewright.profile({}, problem), "graph of profile.*must be a Graph"),
        (lambda problem: placewright.Cluster("nope"), "devices of Cluster: must be a tuple"),
        (lambda problem: placewright.Cluster((5,)), r"devices\[0\] of Cluster: must be a Device"),
        (lambda problem: solve_pbqp(None), "problem of solve_pbqp.*must be a Pbqp"),
    ],
)
def test_arguments_of_another_type_are_refused_by_name(call: Any, words: str) -> None:
    """Not by a traceback from inside."""
    with pytest.raises(placewright.InputError, match=words):
        call(tiny([[1.0, 2.0]], []))
