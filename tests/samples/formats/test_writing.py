"""Files survive being read and written, to the last bit."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from placewright.errors import InputError
from placewright.samples.files import problem_from, read_problem, write_problem
from placewright.samples.formats.writing import FEW_NODES, problem_json
from placewright.samples.problem import Batches, Duplex, Overlap, Ports
from tests.samples.relaxation.clouds import cloud
from tests.samples.tiny import tiny

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
