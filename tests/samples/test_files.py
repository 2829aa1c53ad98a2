"""Files of nodes and links, and the messages about wrong ones."""

from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from placewright.errors import InfeasibleError, InputError, PlacewrightError, UnknownNameError
from placewright.planning.solving import solve
from placewright.samples.files import (
    FEW_NODES,
    problem_from,
    problem_json,
    read_problem,
    read_proposal,
    write_problem,
)
from placewright.samples.judge import judge
from placewright.samples.plan import nothing
from placewright.samples.problem import REGIMES, Batches, Duplex, Overlap, Ports, generate
from tests.samples.clouds import cloud
from tests.samples.tiny import random_tiny, tiny

GOOD = """
nodes:
  - {name: n0, samples: 1200, seconds_per_sample: 0.004, storage: 5000}
  - {name: n1, samples: 300, seconds_per_sample: 2ms}
links:
  - {from: n0, to: n1, bandwidth: 100Mbps, latency: 1ms}
sample_bytes: 60000
epochs: 10
overlap: B
relay: false
duplex: full
sync_s: 0.5
"""


def test_every_field_of_a_file_is_read(tmp_path: Path) -> None:
    """Units, both directions, defaults."""
    problem = read_problem(_kept(tmp_path, GOOD))
    assert problem.node_names == ("n0", "n1")
    assert problem.held.tolist() == [1200, 300]
    assert problem.send_s[0, 1] == problem.receive_s[1, 0] == 60000 / 12.5e6
    assert problem.storage.tolist() == [5000, float("inf")]
    assert problem.seconds_per_sample.tolist() == [0.004, 0.002]
    assert (problem.epochs, problem.sync_s, str(problem.overlap)) == (10, 0.5, "B")


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("samples: 300", "samples: -3", "whole numbers"),
        ("samples: 300", "samples: 2.5", "whole numbers"),
        ("to: n1", "to: n7", "unknown node 'n7'"),
        ("seconds_per_sample: 2ms", "seconds_per_sample: -2ms", "nodes\\[1\\].seconds_per_sample"),
        ("sync_s: 0.5", "sync_s: 0.5\nepoch: 3", "did you mean 'epochs'"),
        ("overlap: B", "overlap: D", "overlap"),
        ("sync_s: 0.5", "sync_s: 0.5\nforbid: [{from: n0, to: n9}]", "unknown node 'n9'"),
        ("name: n1,", "name: n0,", "there twice"),
        ("bandwidth: 100Mbps", "bandwidth: 0", "above 0"),
        ("storage: 5000", "keep: 1300", "'n0' must keep more samples than it has"),
        ("storage: 5000", "keep: 500, storage: 400", "'n0' must keep more samples than it may"),
        (
            "relay: false",
            "relay: true\nforbid: [{from: n0, to: n1}]",
            "'n0' to 'n1' is forbidden, but relays are allowed",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, wrong: str, right: str, message: str) -> None:
    """The field, the node, the nearest name."""
    assert wrong in GOOD
    with pytest.raises(InputError, match=message) as caught:
        read_problem(_kept(tmp_path, GOOD.replace(wrong, right)))
    assert "nodes.yaml" in str(caught.value)


def test_an_unreachable_node_is_named(tmp_path: Path) -> None:
    """No link leads to it."""
    text = GOOD.replace("links:", "  - {name: far, samples: 1, seconds_per_sample: 1}\nlinks:")
    with pytest.raises(InputError, match="'far' cannot be reached"):
        read_problem(_kept(tmp_path, text))


def test_too_little_storage_says_by_how_many(tmp_path: Path) -> None:
    """1,500 samples for 1,100 places."""
    text = GOOD.replace("5000", "600").replace("2ms}", "2ms, storage: 500}")
    with pytest.raises(InfeasibleError, match="400 samples too many") as caught:
        read_problem(_kept(tmp_path, text))
    assert caught.value.exit_code == 3


def test_access_links_stand_for_all_pairs(tmp_path: Path) -> None:
    """Without links nodes reach each other at the pace of their ends."""
    text = """
nodes:
  - {name: a, samples: 9, seconds_per_sample: 1, uplink: 8kbps}
  - {name: b, samples: 1, seconds_per_sample: 1, downlink: 4kbps}
  - {name: c, samples: 1, seconds_per_sample: 1}
sample_bytes: 1000
"""
    problem = read_problem(_kept(tmp_path, text))
    assert problem.send_s[0].tolist()[1:] == [1.0, 1.0]
    assert problem.receive_s[0].tolist()[1:] == [2.0, 0.0]


def test_classes_protection_and_mix(tmp_path: Path) -> None:
    """Counts by class, a class that stays, a node's own minimum."""
    text = """
nodes:
  - {name: a, classes: {cat: 30, dog: 10}, seconds_per_sample: 1, keep: {cat: 5}}
  - {name: b, classes: {dog: 40}, seconds_per_sample: 1}
links: [{from: a, to: b, bandwidth: 1Mbps}]
sample_bytes: 1000
protected: [dog]
label_mix: 0.2
"""
    problem = read_problem(_kept(tmp_path, text))
    assert problem.class_names == ("cat", "dog")
    assert problem.keep.tolist() == [[5, 10], [0, 40]]
    with pytest.raises(UnknownNameError, match="did you mean 'dog'"):
        read_problem(_kept(tmp_path, text.replace("[dog]", "[dogs]")))


def test_gradient_exchange_is_a_ring(tmp_path: Path) -> None:
    """2 (N - 1) / N of the gradients over the slowest link per step, and as many latencies."""
    text = GOOD.replace("sync_s: 0.5", "gradient_bytes: 1250000\nbatch: 100")
    problem, exchange_s = read_problem(_kept(tmp_path, text)), 0.1 + 2 * 0.001
    assert problem.sync_s == pytest.approx(15 * exchange_s)
    # Nodes with equal batches exchange until the fullest one has done: 12 steps, not 8.
    text += "batches: equal\n"
    equal = read_problem(_kept(tmp_path, text))
    alone_s = judge(read_problem(_kept(tmp_path, text.replace("1250000", "0"))), nothing()).value
    assert judge(equal, nothing()).value == pytest.approx(alone_s + 10 * 12 * exchange_s)


@pytest.mark.parametrize("suffix", ["yaml", "json", "json.gz"])
def test_problems_are_read_back_equal(tmp_path: Path, suffix: str) -> None:
    """Of every regime, small and large, and with every option."""
    problems = [generate(regime, nodes, 2) for regime in REGIMES for nodes in (5, 40)]
    problems += [tiny([[3, 4], [5, 6]], label_mix=0.5, sample_bytes=1e3)]
    for problem in problems:
        back = read_problem(write_problem(problem, tmp_path / f"p.{suffix}"))
        assert back.hash() == problem.hash()


@pytest.mark.parametrize("suffix", ["json", "yaml", "json.gz", "yml.gz"])
def test_plans_are_read_back_equal(tmp_path: Path, suffix: str) -> None:
    """What `save` wrote is what the planner answered, whatever the file's name ends in."""
    problem = generate("moderate", 10, 1)
    result = solve(problem, "lp")
    path = result.save(tmp_path / f"plan.{suffix}")
    proposal = read_proposal(path, problem)
    back = proposal.plan
    assert back.source.tolist() == result.plan.source.tolist()
    assert back.count.tolist() == result.plan.count.tolist()
    assert proposal.bound == result.proposal.bound == result.bound
    other = random_tiny(0).replace(node_names=("n0", "n1", "x"))
    with pytest.raises(PlacewrightError, match="plan"):
        read_proposal(path, other)


def test_what_was_proved_of_another_problem_is_no_bound(tmp_path: Path) -> None:
    """The same names, half the work."""
    problem = generate("moderate", 10, 1)
    path = solve(problem, "lp").save(tmp_path / "plan.json")
    other = problem.replace(seconds_per_sample=problem.seconds_per_sample / 2)
    assert read_proposal(path, other).bound is None


def test_a_packed_file_has_the_name_of_what_is_in_it(tmp_path: Path) -> None:
    """Where the file says none."""
    path = tmp_path / "nodes.yaml.gz"
    path.write_bytes(gzip.compress(GOOD.encode()))
    assert read_problem(path).name == "nodes"


def _kept(folder: Path, text: str) -> Path:
    path = folder / "nodes.yaml"
    path.write_text(text, encoding="utf-8")
    return path


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)
counts = st.integers(3, 10**6)
few = st.integers(0, 3)
room = st.integers(3 * 10**6, 10**9)
seconds = st.floats(0, 1e6, allow_subnormal=False)
rates = st.floats(1e-3, 1e12) | st.integers(1, 10**12)
maybe_rates = st.none() | rates
prices = st.floats(0, 1.0, allow_subnormal=False)


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Everything that a file may say."""
    node_names = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    classes = draw(st.none() | st.lists(names, min_size=1, max_size=3, unique=True))
    nodes = [draw(node(name, classes)) for name in node_names]
    nodes[0] |= {"classes": dict.fromkeys(classes, 3)} if classes else {"samples": 3}
    nodes[0] |= {"keep": 0, "storage": None}
    data: dict[str, Any] = {"nodes": nodes, "sample_bytes": draw(st.floats(1.0, 1e9))}
    return data | draw(links(node_names)) | draw(st.fixed_dictionaries({}, optional=MODES))


def node(name: str, classes: list[str] | None) -> st.SearchStrategy[dict[str, Any]]:
    """One node."""
    held = {"samples": counts}
    keep = few | st.just("all")
    if classes:
        held = {"classes": st.fixed_dictionaries(dict.fromkeys(classes, counts))}
        keep = st.dictionaries(st.sampled_from(classes), few) | st.just("all")
    needed = {"name": st.just(name), "seconds_per_sample": seconds} | held
    more = {"fixed_s": seconds, "seconds_per_batch": seconds, "storage": room, "keep": keep}
    return st.fixed_dictionaries(needed, optional=more | {"uplink": rates, "downlink": rates})


@st.composite
def links(draw: st.DrawFn, node_names: list[str]) -> dict[str, Any]:
    """One by one, as tables, or none but access links."""
    n, kind = len(node_names), draw(st.sampled_from(("links", "table", "tables")))
    if kind == "links":
        more = {
            "latency": seconds,
            "price_per_byte": prices,
            "send_bandwidth": rates,
            "receive_bandwidth": rates,
        }
        one = st.fixed_dictionaries({"bandwidth": maybe_rates}, optional=more)
        both = draw(st.booleans())
        pairs = [(i, j) for i in range(n) for j in range(n) if (i < j if both else i != j)]
        ends = [{"from": node_names[i], "to": node_names[j], "duplex": both} for i, j in pairs]
        return {"links": [end | draw(one) for end in ends]}
    table = st.lists(st.lists(maybe_rates, min_size=n, max_size=n), min_size=n, max_size=n)
    found = {"bandwidth": draw(table), "latency": draw(seconds), "price_per_byte": draw(prices)}
    return found | ({"receive_bandwidth": draw(table)} if kind == "tables" else {})


MODES: dict[str, st.SearchStrategy[Any]] = {
    "epochs": st.integers(1, 50),
    "overlap": st.sampled_from([str(o) for o in Overlap]),
    "duplex": st.sampled_from([str(d) for d in Duplex]),
    "batches": st.sampled_from([str(b) for b in Batches]),
    "ports": st.sampled_from([str(p) for p in Ports]),
    "relay": st.booleans(),
    "sync_s": seconds,
    "gradient_bytes": st.floats(0, 1e9),
    "batch": st.integers(1, 100),
    "label_mix": st.floats(0, 1),
    "name": names,
}


@settings(max_examples=150)
@given(data=files(), suffix=st.sampled_from(("yaml", "json")))
def test_whatever_a_file_says_survives(data: dict[str, Any], suffix: str) -> None:
    """Read, written, read again: the same hash, which covers every number and every name."""
    try:
        problem = problem_from({"batch": 7} | data, where="f", name="f")
    except InputError as error:
        assume("takes too long" not in str(error))
        raise
    with TemporaryDirectory() as folder:
        back = read_problem(write_problem(problem, Path(folder) / f"f.{suffix}"))
    assert back.hash() == problem.hash()


@pytest.mark.parametrize("seed", range(24))
def test_made_up_times_survive_to_the_last_bit_but_one(seed: int) -> None:
    """No bytes over a bandwidth gave them: limits and modes are equal, times nearly so."""
    problem = cloud(seed, sample_bytes=1234.5)
    back = problem_from(problem_json(problem), where="f", name="f")
    for key in ("send_s", "receive_s", "price_s"):
        np.testing.assert_allclose(getattr(back, key), getattr(problem, key), rtol=1e-15)
    same = {key: getattr(problem, key) for key in ("send_s", "receive_s", "price_s")}
    assert back.replace(**same).hash() == problem.hash()


def test_few_links_are_for_people_and_many_are_a_table() -> None:
    """Both ways in one line up to 24 nodes; above, a row and a column per node."""
    few = problem_json(tiny([5] * FEW_NODES, sample_bytes=1e3))
    assert len(few["links"]) == FEW_NODES * (FEW_NODES - 1) // 2
    many = problem_json(tiny([5] * (FEW_NODES + 1), sample_bytes=1e3))
    assert np.array(many["bandwidth"]).tolist() == (20_000 * (1 - np.eye(25))).tolist()


def test_samples_without_a_size_have_no_bandwidths_to_write() -> None:
    """A file that could not be read back is not written."""
    with pytest.raises(InputError, match=r"samples have no size.*\(sample_bytes is 0\)"):
        problem_json(tiny([3, 4]))
