"""Published scenarios: arrivals to the last digit, and the plain baselines' published values."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from benchmarks.fuzz_seeds import SERVING

from placewright.errors import InputError
from placewright.io.stored import read_data, write_data
from placewright.requests.policies.edf import Edf
from placewright.requests.readers import read_arrivals, serving_catalogue, serving_problem
from placewright.requests.simulation import simulate
from tests.published import published


@pytest.mark.parametrize(
    ("file", "scenario", "requests", "first"),
    [
        ("ramsis_image", "w60_slo150_r400", 12_088, [0.001700, 0.004249, 0.004298]),
        ("proteus_a", "twitter_4", 40_545, [0.000308, 0.004052, 0.007975]),
    ],
)
def test_arrivals_of_seed_0(file: str, scenario: str, requests: int, first: list[float]) -> None:
    """Number of requests and the first three times, as published with the data."""
    problem = serving_problem(published(f"serving/{file}.json"), scenario)
    assert len(problem.stream) == requests
    assert problem.stream.arrival_s[:3].round(6).tolist() == first


@pytest.mark.parametrize(
    ("policy", "success", "effective"),
    [
        (Edf("fastest", batching=True), 0.996276, 0.803878),
    ],
)
def test_plain_baselines_reach_their_published_values(
    policy: Edf, success: float, effective: float
) -> None:
    """On three kinds of server and four families, to six digits."""
    problem = serving_problem(published("serving/proteus_a.json"), "twitter_4")
    answers = simulate(problem, policy.start(problem.service))
    kept = answers.end_s <= problem.stream.due_s
    accuracy = np.where(kept, problem.service.accuracy[answers.variant], 0.0)
    assert (kept.mean().round(6), accuracy.mean().round(6)) == (success, effective)


def test_a_catalogue_has_what_a_scenario_lacks() -> None:
    """All three kinds of server, and the scenario's own at the same places."""
    path = published("serving/proteus_a.json")
    own, every = serving_problem(path, "medium_3").service, serving_catalogue(path, "medium_3")
    assert every.server_names[: own.servers] == own.server_names
    assert {name.rsplit("-", 1)[0] for name in every.server_names} == {
        "cpu",
        "gpu-ampere",
        "gpu-pascal",
    }
    assert set(own.variant_names) <= set(every.variant_names)


def test_tables_that_fill_the_memory_are_refused(tmp_path: Path) -> None:
    """10,000 servers of 4,096 batch sizes."""
    data, _ = read_data(published("serving/proteus_a.json"))
    data["scenarios"]["medium_3"] |= {"servers": {"cpu": 10_000}, "max_batch": 4096}
    with pytest.raises(InputError, match="too many latencies"):
        serving_problem(write_data(data, tmp_path / "p.json"), "medium_3")


def test_a_policy_of_a_variant_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """By the name of the variant."""
    scenario = SERVING["scenarios"]["s"] | {
        "policies": {"rates_per_s": [1.0], "ms_variant": {"1": "x"}}
    }
    path = write_data(SERVING | {"scenarios": {"s": scenario}}, tmp_path / "p.json")
    with pytest.raises(InputError, match="unknown variant 'x'"):
        serving_problem(path, "s")


HEAD = "ContextTokens,TIMESTAMP\n"


def test_seconds_from_the_first_request(tmp_path: Path) -> None:
    """In order, with seven digits of a second; empty lines hold none."""
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD}1,2023-11-16 18:17:04.5000000\n\n2,2023-11-16 18:17:03.0000000\n")
    assert read_arrivals(path).tolist() == [0.0, 1.5]


def test_times_do_not_depend_on_the_zone_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on how the column is written; offsets count behind seven digits, too."""
    path = tmp_path / "t.csv"
    path.write_text("id, timestamp\n1,2024-03-31 01:30:00\n2,2024-03-31 05:30:00.0000000+02:00\n")
    for zone in ("UTC", "Europe/Berlin"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert read_arrivals(path).tolist() == [0.0, 7200.0]
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "holds no requests"),
        (HEAD, "holds no requests"),
        (f"{HEAD}1\n", r"line 2: has no time \(got '1'"),
        (f"{HEAD}1,x\n", r"line 2: has no time \(got '1,x'"),
        ("x" * 200_000, "line 1: is not valid CSV"),
    ],
)
def test_files_that_are_no_trace_are_refused(tmp_path: Path, text: str, match: str) -> None:
    """With the line; a field that is too long is refused, too."""
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=match):
        read_arrivals(path)
