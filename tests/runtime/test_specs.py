"""Worker specifications on the available hosts."""

from __future__ import annotations

import pytest

from placewright.cluster.cluster import Cluster, Device, Link
from placewright.errors import UnsupportedError
from placewright.runtime.host import Host
from placewright.runtime.specs import check_can_run, emulated, worker_specs

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
