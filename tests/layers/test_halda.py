"""Layers in a ring: Halda's formula against enumeration and published results."""

from __future__ import annotations

import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from placewright.errors import InfeasibleError, InputError
from placewright.files import read, write
from placewright.layers.conformance import (
    random_ring,
    ring_device,
    ring_instances,
    ring_model,
    tiny_ring,
)
from placewright.layers.halda import HALDA
from placewright.layers.halda.files import read_problem
from placewright.layers.halda.problem import (
    RingPlan,
    RingProblem,
    judge,
    layer_bytes,
    physical_bound_s,
)
from placewright.planning.candidates import Outcome, Status
from placewright.planning.solving import compare, solve
from placewright.testing import PlannerConformance, WingConformance
from tests.cli.run_cli import run_cli
from tests.published import published


def plans(p: RingProblem) -> Any:
    """Every plan of a tiny problem."""
    for rounds in p.rounds:
        each = p.model.num_layers // rounds
        for layers in itertools.product(range(1, each + 1), repeat=len(p.devices)):
            if sum(layers) != each:
                continue
            gpus = (
                range(w + 1) if d.gpu is not None else (0,)
                for d, w in zip(p.devices, layers, strict=True)
            )
            for on_gpu in itertools.product(*gpus):
                yield RingPlan(rounds, layers, on_gpu)


@pytest.mark.parametrize("seed", range(60))
def test_rounds_finds_the_optimum(seed: int) -> None:
    """Every plan of up to three devices and eight layers, of all kinds."""
    p = random_ring(seed)
    values = [j.value for plan in plans(p) if (j := judge(p, plan)).feasible]
    if not values:
        with pytest.raises(InfeasibleError):
            solve(p)
        return
    result = solve(p)
    assert result.value == pytest.approx(min(values), rel=1e-12)
    assert result.status is Status.OPTIMAL
    assert result.bound <= result.value


class TestWing(WingConformance):
    wing = HALDA


class TestRounds(PlannerConformance):
    named, wing = "rounds", HALDA


def test_the_formula_by_hand() -> None:
    """One Linux device, two rounds of two layers: from disk, and the next round's fetch."""
    p = tiny_ring(4, ring_device("d0"))
    each = layer_bytes(p)
    assert each == int(115 + 33 / 32 * 16)
    busy = 2 * (50 / 100 + each / 1000)
    spare = (400 - 24) / each  # a row of the embedding and the output layer are there, too
    assert spare > 2
    kappa = 10 / 100 + 24 / 1000 + 24 / 200 - 400 / 200
    cycle = busy + 0.05 + each / 200
    expected = busy + 0.05 + kappa + cycle
    assert judge(p, RingPlan(2, (2,), (0,))).value == pytest.approx(expected)
    # Two of four layers are too many in one round; a fetch of b' each.
    small = tiny_ring(4, ring_device("d0", ram_bytes=24 + 2.5 * each))
    kappa += (400 - 24 - 2.5 * each) / 200
    one = 2 * busy + 2 * each / 200 + 0.05 + kappa
    assert judge(small, RingPlan(1, (4,), (0,))).value == pytest.approx(one)


def test_a_mac_pays_twice_for_its_shared_memory() -> None:
    """Overflow counts in RAM and on the GPU, by the bytes of weights alone."""
    p = tiny_ring(4, ring_device("d0", "mac_metal", 300.0))
    each = layer_bytes(p)
    room, card = (300 - 24) / each, (300 - 20) / each
    over = math.ceil(4 - room) + math.ceil(4 - card)
    on_gpu = 50 / 500 + each / 2000
    kappa = 10 / 100 + 24 / 1000 + 24 / 200
    expected = 4 * on_gpu + over * 100 / 200 + 0.05 + kappa
    assert judge(p, RingPlan(1, (4,), (4,))).value == pytest.approx(expected)


def test_plans_that_are_none_are_refused() -> None:
    """Rounds, layers and GPU layers by name."""
    p = tiny_ring(8, ring_device("d0"), ring_device("d1", gpu_bytes=400.0))
    for plan, match in (
        (RingPlan(8, (1, 0), (0, 0)), "no number of rounds"),
        (RingPlan(3, (1, 1), (0, 0)), "no number of rounds"),
        (RingPlan(1, (8,), (0,)), "must name each device"),
        (RingPlan(1, (8, 0), (0, 0)), "plan of d1: cannot be its layers"),
        (RingPlan(1, (4, 4), (1, 0)), "plan of d0: cannot be its layers"),
        (RingPlan(2, (4, 4), (0, 0)), "other layers than the model"),
    ):
        with pytest.raises(InputError, match=match):
            judge(p, plan)
    many = ring_instances()["more-devices-than-layers"]
    with pytest.raises(InfeasibleError, match="every device a layer"):
        solve(many)


def test_the_physical_bound() -> None:
    """Memory first, the rest from all disks at once; a slow second device is left out."""
    alone = tiny_ring(8, ring_device("d0", ram_bytes=300.0))
    assert physical_bound_s(alone) == pytest.approx(max(800 / 1000, 500 / 200))
    fits = tiny_ring(2, ring_device("d0"), ring_device("d1", hop_s=9.0, disk_bytes_per_s=1.0))
    assert physical_bound_s(fits) == pytest.approx(200 / 1000)  # alone, without a hop
    two = tiny_ring(8, ring_device("d0", ram_bytes=300.0), ring_device("d1", "mac_metal", 300.0))
    memory = 400 / 2000 + 0.1  # the Mac's larger memory is all it has, and at its GPU's speed
    memory += 300 / 1000 + 100 / 2000
    assert physical_bound_s(two) == pytest.approx(max(memory, 100 / 400))
    many = tiny_ring(40, *(ring_device(f"d{k}") for k in range(13)))  # hops are left out
    assert physical_bound_s(many) == pytest.approx(4000 / 1000)


def test_baselines_are_compared() -> None:
    """By count and by memory; the exact plan is no worse."""
    p = tiny_ring(8, ring_device("d0", ram_bytes=200.0), ring_device("d1", gpu_bytes=600.0))
    found = compare(p)
    plan = {c.planner: c.plan for c in found.candidates}
    assert plan["equal"] == RingPlan(1, (4, 4), (0, 4))
    assert plan["memory"] == RingPlan(1, (3, 5), (0, 5))
    assert found.planner == "rounds"


def test_files_are_read_planned_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A problem, written, is equal; the command prints what was asked."""
    p = tiny_ring(8, ring_device("d0", "mac_metal", 300.0), ring_device("d1", "mac_metal", 900.0))
    path, plan = write(p, tmp_path / "p.json"), tmp_path / "plan.json"
    assert read(path).hash() == p.hash() == read(f"halda:{path}").hash()
    ran = run_cli(capsys, "layers", "plan", f"halda:{path}", "-o", plan, "-f", "json")
    assert ran.code == 0
    found = ran.data
    assert found["value"] == pytest.approx(found["lower_bound"])
    assert sum(found["plan"]["layers"].values()) * found["plan"]["rounds"] == 8
    assert found["plan"]["gpu_layers"].keys() == {"d0", "d1"}
    assert found["plan"]["physical_bound_s"] > 0
    ran = run_cli(capsys, "layers", "simulate", f"halda:{path}", plan)
    assert ran.code == 0
    assert "physical bound" in ran.out
    result = solve(p)
    result.report(tmp_path / "page.html")
    assert "Layers in the ring" in (tmp_path / "page.html").read_text()
    text = json.loads(plan.read_text())
    text["plan"]["layers"]["d7"] = 1
    plan.write_text(json.dumps(text))
    with pytest.raises(InputError, match="unknown device 'd7'"):
        read(plan, problem=p)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d["devices"][0].update(disk_bytes_per_s=0), "disk_bytes_per_s"),
        (lambda d: d["devices"][0].update(ram_bytes=-1), "ram_bytes"),
        (lambda d: d["devices"][0].update(cpu_flops_per_s=math.nan), "cpu_flops_per_s"),
        (lambda d: d["devices"][0].update(speed=3), "speed"),
        (lambda d: d["devices"][0].update(os="plan9"), "os"),
        (lambda d: d["devices"][0].update(is_head=False), "exactly one device must be the head"),
        (lambda d: d["devices"].append(d["devices"][0]), "device 'd0' is there twice"),
        (lambda d: d["model"].update(num_layers=10**9), "num_layers"),
        (lambda d: d["model"].pop("layer_bytes"), "layer_bytes"),
        (lambda d: d["model"].update(layer_bytes=1e300), "layer_bytes"),
        (lambda d: d.update(kv_cache="2bit"), "kv_cache"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, change: Any, match: str) -> None:
    """With the file and the field."""
    path = write(tiny_ring(4, ring_device("d0")), tmp_path / "p.json")
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=match) as raised:
        read_problem(path)
    assert str(path) in str(raised.value)


def test_a_negative_value_is_not_the_best_because_zero_is_not_below_it() -> None:
    """Free memory counts as time saved, so that the formula bounds nothing by itself."""
    p = tiny_ring(4, ring_device("d0", ram_bytes=9000.0), ring_device("d1", ram_bytes=9000.0))
    result = solve(p, "equal", bounds=False)
    assert result.value < 0
    assert result.bound == -math.inf
    assert result.status is Status.FEASIBLE
    assert solve(p, bounds=False).status is Status.OPTIMAL


def test_a_worse_plan_of_negative_value_is_not_called_optimal() -> None:
    """All devices and layers differ, so that equal parts are not the best."""
    for seed in range(60):
        p = random_ring(seed)
        values = [j.value for plan in plans(p) if (j := judge(p, plan)).feasible]
        if not values or min(values) >= 0:
            continue
        for candidate in compare(p).candidates:
            if candidate.outcome is Outcome.OPTIMAL:
                assert candidate.value == pytest.approx(min(values), rel=3e-6)


@pytest.mark.parametrize("name", ["llama3_70b_4bit_two_macs", "llama3_70b_4bit_one_mac"])
def test_published_profiles(name: str) -> None:
    """The published solver's plan and value, at once; physics says otherwise of one of them."""
    path = published(f"llm/distilp/{name}.json")
    known = json.loads(path.read_text())["solver_result"]
    p = read_problem(path)
    result = solve(p)
    assert result.value == pytest.approx(known["objective_s"], rel=1e-8)
    assert result.plan.rounds == known["rounds"]
    assert list(result.plan.layers) == list(known["layers"].values())
    assert list(result.plan.gpu_layers) == list(known["gpu_layers"].values())
    disk_s = {"llama3_70b_4bit_two_macs": 1.27, "llama3_70b_4bit_one_mac": 19.06}[name]
    assert result.judgement.physical_s == pytest.approx(disk_s, abs=0.005)


def test_sixteen_devices_take_seconds_at_most() -> None:
    """Some 0.5 s of CPU; enumeration, which grows with devices and layers, would take hours."""
    kinds = ("mac_metal", "linux", "android")
    devices = [
        ring_device(f"d{k}", kinds[k % 3], 200.0 + 10 * k if k % 3 < 2 else 0.0, hop_s=0.01 * k)
        for k in range(16)
    ]
    p = tiny_ring(96, *devices, model=ring_model(96))
    began_s = time.process_time()
    assert solve(p).status is Status.OPTIMAL
    assert time.process_time() - began_s < 10
