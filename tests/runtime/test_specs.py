"""Worker specifications on the available hosts."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import UnsupportedError
from placewright.runtime.emulation import ShapedLink
from placewright.runtime.host import Host
from placewright.runtime.specs import (
    Driven,
    Layout,
    WorkerSpec,
    assign_processes,
    backend_of,
    check_can_run,
    emulated,
    worker_specs,
)
from placewright.testbed.record import NodeHandle

DUO = Cluster(
    (Device("a", node="x", cores=2), Device("b", node="y", cores=2, speed=0.5)),
    (Link("a", "b", 1e9, 1e-3),),
    name="duo",
)
HERE, THERE = Host("x", "boot-1", (0, 1)), Host("y", "boot-2", (4, 5))


def test_cores_are_those_of_each_host() -> None:
    """Two hosts pin all their cores; one host that has too few pins none and says so."""
    apart = worker_specs(DUO, [HERE, THERE])
    assert [s.cores for s in apart] == [(0, 1), (4, 5)]
    together = worker_specs(DUO, [HERE, HERE])
    assert [s.cores for s in together] == [(), ()]
    assert "more cores" not in emulated(DUO, [HERE, THERE])
    assert "2 more cores than this machine has by sharing" in emulated(DUO, [HERE, HERE])


def test_what_is_real_is_not_emulated() -> None:
    """Slow devices and links are emulated by waiting unless they are real; fast ones may be too."""
    slow, real = worker_specs(DUO, [HERE, THERE]), worker_specs(DUO, [HERE, THERE], emulate=False)
    assert [s.stretch for s in slow] == [1.0, 2.0]
    assert list(slow[0].links) == [1]
    assert [s.stretch for s in real] == [1.0, 1.0]
    assert not real[0].links
    assert emulated(DUO, [HERE, THERE], emulate=False) == ""
    fast = Cluster((Device("f", speed=2.0),))
    assert worker_specs(fast, [HERE], emulate=False)[0].stretch == 1.0


def test_gpus_are_handed_out_host_by_host() -> None:
    """Each GPU once; a launcher that shows every process one GPU of its own is understood."""
    gpus = Cluster((Device("g", kind="gpu"), Device("h", kind="gpu")), name="gpus")
    both = Host("x", "boot-1", (0, 1), ("0", "1"))
    whole = worker_specs(gpus, [both, both])[0].layout
    assert [d.torch_device for d in whole.devices] == ["cuda:0", "cuda:1"]
    own = [Host("x", "boot-1", (0, 1), (name,)) for name in ("0", "1")]
    each = worker_specs(gpus, own)[0].layout
    assert [d.torch_device for d in each.devices] == ["cuda:0", "cuda:0"]
    with pytest.raises(UnsupportedError, match="kind 'gpu'"):
        worker_specs(gpus, [own[0], own[0]])


def test_what_cannot_be_emulated_is_refused_and_what_is_emulated_is_said() -> None:
    """A GPU that is not here and a faster board are errors; a slower board is named."""
    with pytest.raises(UnsupportedError, match="kind 'gpu'"):
        check_can_run(Cluster((Device("g", kind="gpu"),)))
    with pytest.raises(UnsupportedError, match="faster than itself"):
        check_can_run(Cluster((Device("a", speed=2.0),)))
    assert "b at 0.5x" in emulated(Cluster((Device("a"), Device("b", speed=0.5))))


CPU, GPU, OTHER_GPU = Driven(0), Driven(1, "cuda:0"), Driven(2, "cuda:1")
FIRST, SECOND = Driven(3, "cuda:0", shares=True), Driven(3, "cuda:1", shares=True)


@pytest.mark.parametrize(
    ("source", "target", "way"),
    [
        (CPU, Driven(9), "gloo"),
        (CPU, GPU, "gloo"),
        (GPU, CPU, "gloo"),
        (GPU, OTHER_GPU, "nccl"),
        (FIRST, SECOND, "copy"),
        (FIRST, GPU, "gloo"),
        (Driven(4), Driven(4, "cuda:0"), "copy"),
    ],
)
def test_the_way_between_two_devices(source: Driven, target: Driven, way: str) -> None:
    """NCCL only between processes that drive one GPU each; without it, gloo."""
    assert backend_of(source, target) == way
    assert backend_of(source, target, nccl=False) == ("gloo" if way == "nccl" else way)


def test_both_ends_agree() -> None:
    """The way there is the way back, for any two devices."""
    for a, b in itertools.product((CPU, GPU, OTHER_GPU, FIRST, SECOND), repeat=2):
        assert backend_of(a, b) == backend_of(b, a)


def test_the_gpus_of_one_node_share_a_process_and_those_of_several_do_not() -> None:
    """CPUs never share; what is asked for overrides the rule."""
    gpu = [False, True, True]
    assert assign_processes(["a"] * 3, gpu) == [0, 1, 1]
    assert assign_processes(["a"] * 3, gpu, together=False) == [0, 1, 2]
    assert assign_processes(["a", "a", "b"], gpu) == [0, 1, 2]
    assert assign_processes(
        ["a", "a", "a", "b", "b"], [True, True, False, True, True], together=True
    ) == [
        0,
        0,
        1,
        2,
        2,
    ]


def test_a_layout_says_what_it_uses() -> None:
    """Numbers of links by way; the plain case keeps its plain words."""
    assert str(Layout.of([0, 1], ["cpu", "cpu"], nccl=True)) == "gloo, one process per device"
    together = Layout.of([0, 1, 1], ["cpu", "cuda:0", "cuda:1"], nccl=True)
    assert str(together) == "copies on 2 links, gloo on 4 links; 2 processes"
    assert together.device_group(1) == (1, 2)
    assert together.direct_processes == ()
    apart = Layout.of([0, 1, 2], ["cpu", "cuda:0", "cuda:1"], nccl=True)
    assert str(apart) == "NCCL on 2 links, gloo on 4 links; 3 processes"
    assert apart.direct_processes == (1, 2)


numbers = st.floats(0, 1e9, allow_nan=False)
shaped = st.builds(ShapedLink, numbers, numbers, st.integers(0, 99))
texts, cpus = st.text(max_size=9), st.lists(st.integers(0, 500), max_size=4).map(tuple)
handles = st.builds(
    NodeHandle, texts, texts, st.lists(texts, max_size=2).map(tuple), cpus, texts, texts
)
layouts = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(("cpu", "cuda:0", "cuda:1"))), min_size=1
).flatmap(
    lambda rows: st.builds(
        Layout.of,
        st.just([p for p, _ in rows]),
        st.just([t for _, t in rows]),
        nccl=st.booleans(),
    )
)
specs = st.builds(
    WorkerSpec,
    rank=st.integers(0, 99),
    world=st.integers(1, 99),
    rendezvous=texts,
    device_name=texts,
    layout=layouts,
    threads=st.integers(1, 64),
    stretch=numbers,
    links=st.dictionaries(st.integers(0, 9), shaped, max_size=3),
    cores=cpus,
    handle=st.none() | handles,
    session=texts,
    timeout_s=numbers,
)


@settings(max_examples=60)
@given(spec=specs)
def test_a_spec_is_plain_data(spec: WorkerSpec) -> None:
    """Pickled for processes and actors, or as JSON: what comes out is what went in."""
    kind = TypeAdapter(WorkerSpec)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert kind.validate_json(kind.dump_json(spec)) == spec
