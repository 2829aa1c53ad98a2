"""Parameters of planners as text, mapping, file and object, and their errors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from placewright.errors import InputError, UnknownNameError
from placewright.operators.conformance import tiny
from placewright.operators.plan import OperatorPlan
from placewright.operators.planners.search import Search
from placewright.planning.contract import Context, Count, Range, Share
from placewright.planning.parameters import Auto, auto_of, choose, label
from placewright.planning.solving import compare, solve


@dataclass(frozen=True, slots=True)
class Knobs:
    """Fields of every kind."""

    effort: float = 1e6
    rounds: int = 3
    heats: tuple[float, ...] = (0.5, 0.1)
    engine: Literal["a", "b"] = "a"
    file: str = ""
    exact: bool = False
    limit: int | None = None
    share: Share = 0.5
    count: Count | None = None
    slope: Annotated[float, Range(-1, 1)] = -1.0
    array: Any = None
    name: str = "knobs"

    def __post_init__(self) -> None:
        if self.rounds == 13:
            raise ValueError("rounds must not be 13")

    def unsupported_reason(self, problem: Any) -> str | None:
        """None."""
        return None

    def __call__(self, problem: Any, context: Context) -> OperatorPlan:
        """Everything on the first device; without heats it fails."""
        self.heats[0]
        return OperatorPlan(np.zeros(problem.n))


KNOWN = {"knobs": Knobs(), "only:GPU (0)": Knobs(name="only:GPU (0)"), "search": Search()}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("knobs", {}),
        ("knobs()", {}),
        ("knobs(effort=2e7)", {"effort": 2e7}),
        ("knobs(effort=5, rounds=2e1)", {"effort": 5.0, "rounds": 20}),
        ("knobs( heats = (0.2, .1,), engine='b' )", {"heats": (0.2, 0.1), "engine": "b"}),
        ("knobs(heats=[1], exact=True, limit=7)", {"heats": (1.0,), "exact": True, "limit": 7}),
        ("knobs(limit=None, rounds=3)", {}),
        (
            "knobs(engine=b, file=post.v2.safetensors)",
            {"engine": "b", "file": "post.v2.safetensors"},
        ),
        ("only:GPU (0)(rounds=4)", {"rounds": 4, "name": "only:GPU (0)"}),
    ],
)
def test_text(text: str, changed: dict[str, Any]) -> None:
    """Literals become the fields' types, and the label reads back as the same planner."""
    name, planner = choose(KNOWN, text)
    assert planner == Knobs(**changed)
    assert choose(KNOWN, name) == (name, planner)
    assert (name in KNOWN) == (not set(changed) - {"name"})


def test_labels_say_what_is_no_default() -> None:
    """Of objects too; a planner that is not in the list has its name only."""
    assert choose(KNOWN, "knobs(rounds=4, effort=1e6)")[0] == "knobs(rounds=4)"
    assert label(KNOWN, Search(effort=5.0)) == "search(effort=5.0)"
    assert label({}, Search(effort=5.0)) == "search"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("knobs(rounds=2.5)", "rounds must be a whole number >= 0 (got 2.5)"),
        ("knobs(rounds=True)", "rounds must be a whole number >= 0 (got True)"),
        ("knobs(rounds=1e300)", "rounds must be a whole number >= 0 (got 1e+300)"),
        ("knobs(rounds='3')", "rounds must be a whole number >= 0 (got '3')"),
        ("knobs(effort='9')", "effort must be a number >= 0 (got '9')"),
        ("knobs(effort=None)", "effort must be a number >= 0 (got None)"),
        ("knobs(effort=b'9')", "effort must be a number"),
        ("knobs(effort={1: 2})", "effort must be a number"),
        ("knobs(effort=2j)", "effort must be a number"),
        ("knobs(exact=1)", "exact must be True or False (got 1)"),
        ("knobs(limit='x')", "limit must be a whole number >= 0 or None"),
        ("knobs(heats=0.1)", "heats must be a list of which each is a number >= 0"),
        ("knobs(heats=('a',))", "heats must be a list of which each is a number >= 0"),
        ("knobs(engine='c')", "engine must be one of 'a', 'b' (got 'c')"),
        ("knobs(rounds=13)", "refuses its parameters (ValueError: rounds must not be 13)"),
        ("knobs(rounds=-1)", "rounds must be a whole number >= 0 (got -1)"),
        ("knobs(effort=-1)", "effort must be a number >= 0 (got -1)"),
        ("knobs(effort=1e999)", "effort must be a number >= 0 (got inf)"),
        ("knobs(share=1.01)", "share must be a number >= 0 and <= 1 (got 1.01)"),
        ("knobs(count=0)", "count must be a whole number >= 1 or None (got 0)"),
        ("knobs(heats=(1, -0.1))", "heats must be a list of which each is a number >= 0"),
        ("auto(tolerance=-1)", "tolerance must be a number >= 0 or None (got -1)"),
        ("knobs(effort=1", "unknown planner"),
        ("knobs(effort)", "without the name"),
        ("knobs(**{'effort': 1})", "without the name"),
        ("knobs(effort=x)", "no number, quoted text"),
        ("knobs(effort=x.y)", "no number, quoted text"),
        ("knobs(file=x().y)", "no number, quoted text"),
        ("knobs(file=/tmp/x)", "cannot be read"),
        ("knobs(effort=__import__('os').system('true'))", "no number, quoted text"),
        ("knobs(effort=9**9**9)", "no number, quoted text"),
        ("knobs(effort=[k for k in (1,)])", "no number, quoted text"),
        ("knobs(effort=1, effort=2)", "given twice"),
        ("knobs(effort=1)(rounds=2)", "no single call"),
        ("knobs()+knobs()", "no single call"),
        ("knobs(effort=1\0)", "cannot be read"),
        ("knobs(effort=" + "(" * 5000 + ")" * 5000 + ")", "too long"),
        ("knobs(effort=" + "(" * 4000 + ")" * 4000 + ")", "cannot be read"),
        ("knobs(effort=" + "-" * 9000 + "1)", "(?:cannot be read|no number)"),
        ("knobs(rounds=" + "9" * 6000 + ")", "(?:cannot be read|whole number)"),
        ("nobs(effort=1)", "did you mean 'knobs'"),
        ("auto(effort=1)", "unknown parameter 'effort'"),
        ("", "unknown planner ''"),
        ("()", "unknown planner ''"),
    ],
)
def test_hostile_text(text: str, words: str) -> None:
    """Nothing is evaluated, nothing crashes: one error that says what is wrong."""
    with pytest.raises(InputError) as raised:
        auto_of(text) or choose(KNOWN, text)
    message = str(raised.value)
    assert any(part in message for part in words.strip("(?:)").split("|")), message
    assert len(message) < 10_500


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (Search(effort=-1.0), r"'search': effort must be a number >= 0 \(got -1.0\)"),
        (Search(effort=float("nan")), "effort must be a number >= 0"),
        (Search(heats=(0.1, float("inf"))), "heats must be a list"),
        (Knobs(rounds="many"), "rounds must be a whole number"),  # type: ignore[arg-type]
        (Knobs(slope=-2), "slope must be a number >= -1 and <= 1"),
        (Auto(tolerance=-1), "tolerance must be a number >= 0"),
        (Search, r"is no planner \(got Search\)"),
        (5, r"is no planner \(got int\)"),
    ],
)
def test_objects_are_checked_too(parameters: Any, words: str) -> None:
    """By the same ranges, and what is no planner at all is refused."""
    with pytest.raises(InputError, match=words):
        auto_of(parameters) or choose(KNOWN, parameters)
    assert (
        choose(KNOWN, Knobs(array=np.ones(1), slope=-0.5))[0]
        == "knobs(slope=-0.5, array=array([1.]))"
    )


def test_an_unknown_parameter_offers_the_nearest_and_lists_all() -> None:
    """With their defaults."""
    with pytest.raises(UnknownNameError) as raised:
        choose(KNOWN, "knobs(efort=1)")
    assert "unknown parameter 'efort'" in str(raised.value)
    assert "did you mean 'effort'" in str(raised.value)
    assert "it has: effort=1000000.0, rounds=3, heats=(0.5, 0.1), engine='a'" in str(raised.value)
    with pytest.raises(UnknownNameError, match="unknown parameter 'name'"):
        choose(KNOWN, "knobs(name='other')")


def test_mappings_and_files(tmp_path: Path) -> None:
    """YAML, JSON; under the key ``planner`` or at the top; a text or a mapping."""
    wanted = Knobs(effort=2e7, heats=(1.0,))
    mapping = {"name": "knobs", "effort": 2e7, "heats": [1]}
    assert choose(KNOWN, mapping)[1] == wanted
    for name, text in {
        "a.yaml": "planner: {name: knobs, effort: 2.0e+7, heats: [1]}",
        "b.yaml": "{name: knobs, effort: 2.0e+7, heats: [1]}",
        "c.yaml": "planner: knobs(effort=2e7, heats=[1])",
        "d.json": '{"planner": {"name": "knobs", "effort": 2e7, "heats": [1]}}',
    }.items():
        (tmp_path / name).write_text(text)
        assert choose(KNOWN, f"@{tmp_path / name}")[1] == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "must be a planner"),
        ("planner: 3", "must be a planner"),
        ("planner: {effort: 1}", "needs its name"),
        ("{name: [knobs]}", "needs its name"),
        ("planner: {name: knobs, effort: .nan}", "effort must be a number"),
        ("planner: {name: knobs, rounds: .inf}", "rounds must be a whole number"),
        ("planner: {name: knobs, effort: 2026-01-01}", "effort must be a number"),
        ("planner: {name: knobs, 3: 4}", "unknown parameter '3'"),
        ("planner: '@again.yaml'", "unknown planner '@again.yaml'"),
        ("planner: {name: knobs", "not valid YAML"),
    ],
)
def test_hostile_files(text: str, words: str, tmp_path: Path) -> None:
    """The error names the file and the key."""
    path = tmp_path / "planner.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        choose(KNOWN, f"@{path}")


TWO = tiny([[2.0, 5.0], [4.0, 3.0], [2.0, 2.0]], [(0, 1.0, [1]), (1, 1.0, [2])], name="two")


def test_solve_and_compare_take_them_and_the_result_says_so(tmp_path: Path) -> None:
    """Two of one planner are two candidates; the file says the parameters."""
    result = solve(TWO, "search(effort=1e3)")
    assert result.planner == "search(effort=1000.0)"
    assert result.as_json()["planner"] == "search(effort=1000.0)"
    assert solve(TWO, {"name": "auto"}).note
    both = compare(TWO, ["search(effort=1e3)", {"name": "search", "effort": 2e3}, "heft"])
    names = [c.planner for c in both.candidates]
    assert names == ["search(effort=1000.0)", "search(effort=2000.0)", "heft"]
    assert len(compare(TWO, "heft").candidates) == 1


def test_parameters_with_which_a_planner_breaks_are_named() -> None:
    """Not a traceback, which is for defects of planners as they are."""
    with pytest.raises(InputError, match=r"(?s)search\(heats=\(\)\): fails.*ZeroDivisionError"):
        solve(TWO, "search(heats=())")
