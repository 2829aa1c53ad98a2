"""The processes of devices, and the transports between them."""

from __future__ import annotations

import itertools

import pytest

from placewright.runtime.messages.layout import Driven, Layout, assign_processes, backend_of

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
