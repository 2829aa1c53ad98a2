"""Request files: read back equal, and errors that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.errors import PlacewrightError
from placewright.io.stored import write_data
from placewright.planning.solving import solve
from placewright.requests.conformance import random_problem
from placewright.requests.files import read_problem, read_proposal, write_problem


def base() -> dict[str, Any]:
    """A small service with one arrival process."""
    return {
        "variants": [{"name": "small", "family": "f", "accuracy": 0.7}],
        "servers": [{"name": "a", "latency": {"small": ["8ms", "12ms", None]}}],
        "duration": 5,
        "arrivals": [{"family": "f", "rate": 20, "deadline": "0.1s"}],
    }


def process(**given: Any) -> dict[str, Any]:
    """An arrival process of `base`."""
    return {"family": "f", "rate": 20, "deadline": 1} | given


def test_a_problem_reads_back_equal(tmp_path: Path) -> None:
    """Every feature of random problems, to the last bit."""
    for seed in range(10):
        problem, links = random_problem(seed), np.random.default_rng(seed).uniform(1, 1e9, 3)
        service = problem.service.replace(seconds_per_byte=1 / links[: problem.service.servers])
        problem = problem.replace(
            service=service, rates_per_s=np.array([0.0, 1.0]), rate_variants=np.array([0, 1])
        )
        again = read_problem(write_problem(problem, tmp_path / "p.json"))
        assert again.hash() == problem.hash()


def test_a_plan_reads_back_equal(tmp_path: Path) -> None:
    """Policy, parameters and seed."""
    problem = random_problem(3)
    result = solve(problem, "rolling(price=2.0)", seed=4)
    result.save(tmp_path / "plan.json")
    assert read_proposal(tmp_path / "plan.json", problem).plan == result.plan
    assert dict(result.plan.parameters)["price"] == 2.0


@pytest.mark.parametrize("process", ["poisson", "mmpp", "gamma"])
def test_arrivals_are_drawn(tmp_path: Path, process: str) -> None:
    """About the rate; deadlines in their range; floors of the list; another seed differs."""
    entry = base()
    entry["arrivals"][0] |= {"process": process, "deadline": [0.1, 0.2], "min_accuracy": [0, 0.6]}
    path = write_data(entry | {"duration": 100}, tmp_path / "p.json")
    problem = read_problem(path)
    assert len(problem.stream) == pytest.approx(2000, rel=0.3)
    assert 0.1 <= problem.stream.deadline_s.min() <= problem.stream.deadline_s.max() <= 0.2
    assert set(problem.stream.min_accuracy.tolist()) == {0.0, 0.6}
    assert read_problem(path, 5).hash() != problem.hash()
    assert np.isinf(problem.service.latency_s[0, 0, 3])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"variants": [{"name": "small", "family": "f", "accuracy": 2}]}, "accuracy"),
        ({"servers": [{"name": "a", "latency": {"smal": [1]}}]}, "small"),
        ({"servers": [{"name": "a", "latency": {"small": [-1]}}]}, "latency"),
        ({"servers": [{"name": "a", "latency": {}}]}, "latency_s has the wrong shape"),
        ({"arrivals": [{"family": "g", "rate": 1, "deadline": 1}]}, "family 'g'"),
        ({"arrivals": [{"family": "f", "rate": 0, "deadline": 1}]}, "rate"),
        ({"arrivals": [{"family": "f", "rate": 1, "deadline": [2, 1]}]}, "deadline"),
        ({"arrivals": [{"family": "f", "rate": 1e12, "deadline": 1}]}, "too many requests"),
        ({"arrivals": [{"family": "f", "rate": 1, "deadline": [1, "1e999s"]}]}, "deadline"),
        ({"arrivals": [process(deadline=-1)]}, r"arrivals\[0\].deadline: a time must be"),
        ({"arrivals": [process(min_accuracy=[])]}, r"arrivals\[0\].min_accuracy: "),
        ({"arrivals": [process(burst=5)]}, r"\[0\].burst: burst is of the process mmpp"),
        ({"arrivals": [process(variation=5)]}, "variation is of the process gamma"),
        ({"arrivals": [process(file="t.csv")]}, "file is of the process azure"),
        ({"arrivals": [process(process="azure")]}, "the trace is missing"),
        ({"arrivals": []}, "at least one arrival process"),
        ({"arrivals": None}, "either arrivals or requests"),
        ({"duration": 0}, "duration"),
        ({"colour": 1}, "colour"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """The file, and the field or name."""
    path = write_data(base() | change, tmp_path / "wrong.json")
    with pytest.raises(PlacewrightError, match=says) as caught:
        read_problem(path)
    assert "wrong.json" in str(caught.value)


def test_a_trace_lasts_as_long_as_the_problem(tmp_path: Path) -> None:
    """40 requests at 20 a second are enough for two seconds, in whatever unit, and for no more."""
    (tmp_path / "t.csv").write_text("".join(f"{k * k}\n" for k in range(40)))
    entry = base() | {"arrivals": [process(process="azure", file="t.csv")]}
    for duration in ("2s", "2000ms", 2):
        problem = read_problem(write_data(entry | {"duration": duration}, tmp_path / "p.json"))
        assert (len(problem.stream), problem.duration_s) == (40, 2.0)
    path = write_data(entry | {"duration": 2.1}, tmp_path / "p.json")
    with pytest.raises(PlacewrightError, match=r"ends before the duration \(40 requests"):
        read_problem(path)


@pytest.mark.parametrize(
    ("policy", "parameters", "says"),
    [
        ("rollin", {}, "did you mean 'rolling'"),
        ("rolling", {"prize": 1}, "did you mean 'price'"),
        ("rolling", {"price": "high"}, "price must be a number .*got 'high'"),
        ("rolling", {"price": -1}, "price must be a number >= 0"),
        ("edf", {"choice": "best"}, "choice must be one of 'accurate', 'fastest'"),
        ("edf", {"batching": 2**63}, "batching must be True or False"),
        ("edf", {"quantile": -1}, "quantile must be a number >= 0"),
        ("ms", {"rates": [1.0], "variants": ["none"]}, "unknown variant 'none'"),
    ],
)
def test_a_wrong_plan_is_refused(
    tmp_path: Path, policy: str, parameters: dict[str, Any], says: str
) -> None:
    """An unknown policy, an unknown parameter, a value of the wrong kind or out of range."""
    data = {"plan": {"policy": policy, "parameters": parameters}}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(PlacewrightError, match=says):
        read_proposal(tmp_path / "plan.json", random_problem(0))


def test_a_link_without_bandwidth_is_refused(tmp_path: Path) -> None:
    """Zero was read as unlimited."""
    data = base()
    data["servers"][0]["bandwidth"] = 0
    path = write_data(data, tmp_path / "requests.json")
    with pytest.raises(PlacewrightError, match=r"servers\[0\].bandwidth.*greater than 0"):
        read_problem(path)
