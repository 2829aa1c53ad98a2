"""CPUs, addresses and links that a cluster takes of one machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.cluster.cluster import LOCAL_BANDWIDTH, Cluster, Device, Link
from placewright.errors import InputError
from placewright.testbed.blueprint import FULL, blueprint, fitted, id_of

text = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
names = st.lists(st.text(text, min_size=1, max_size=30), min_size=1, max_size=6, unique=True)


@given(cluster=st.text(text), devices=names)
def test_any_name_becomes_names_that_a_kernel_takes(cluster: str, devices: list[str]) -> None:
    """Odd characters, long names, names that differ in case only: plain, short, all different."""
    plan = blueprint(Cluster(tuple(map(Device, devices)), name=cluster), (0,))
    made = [slot.namespace for slot in plan.slots]
    assert len(set(made)) == len(devices)
    assert len({slot.group for slot in plan.slots}) == len(devices)
    for name in made:
        assert name.startswith(plan.id + "-")
        assert len(name) < 100
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_names_that_look_alike_stay_apart() -> None:
    """Two clusters whose names differ in a character that file names cannot have."""
    assert id_of("a b") != id_of("a/b") != id_of("A b")


def test_every_pair_of_devices_has_one_path() -> None:
    """Links as given, a way back for one-way links, copies within a node."""
    devices = tuple(Device(n, node=node) for n, node in (("a", "x"), ("b", "x"), ("c", "y")))
    links = (Link("a", "c", 1e6, 1e-3, "bus"), Link("c", "b", 2e6, 2e-3, "bus"))
    ways = blueprint(Cluster(devices, links), (0, 1)).ways
    assert [(w.source, w.target, w.rate, w.delay_s, w.channel, w.given) for w in ways[:4]] == [
        (0, 2, 1e6, 1e-3, 0, True),
        (2, 1, 2e6, 2e-3, 0, True),
        (2, 0, 1e6, 1e-3, 1, False),
        (1, 2, 2e6, 2e-3, 2, False),
    ]
    assert [(w.source, w.target, w.rate) for w in ways[4:]] == [
        (0, 1, LOCAL_BANDWIDTH),
        (1, 0, LOCAL_BANDWIDTH),
    ]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(0.05, 1.0)), min_size=1, max_size=8),
    st.integers(4, 9),
)
def test_devices_are_spread_over_the_cpus(wanted: list[tuple[int, float]], cpus: int) -> None:
    """As many CPUs as cores, and no CPU gets a second device while another has none."""
    devices = tuple(
        Device(str(k), cores=cores, speed=speed) for k, (cores, speed) in enumerate(wanted)
    )
    plan = blueprint(Cluster(devices), range(cpus))
    slots, load = plan.slots, dict.fromkeys(range(cpus), 0.0)
    used = [cpu for slot in slots for cpu in slot.cpus]
    for device, slot in zip(devices, slots, strict=True):
        assert len(set(slot.cpus)) == device.cores
        for cpu in slot.cpus:
            load[cpu] += device.speed
        assert slot.cpu_share == pytest.approx(device.cores * device.speed) or device.speed == 1
    assert len(set(used)) == min(cpus, len(used))
    assert load[plan.links_cpu] <= min(load.values()) + 1e-9


def test_what_the_machine_cannot_be_is_refused() -> None:
    """Faster than itself, or more cores than it has; too much at once is reported."""
    with pytest.raises(InputError, match=r"speed 1\.5"):
        blueprint(Cluster((Device("a", speed=1.5),)), (0, 1))
    with pytest.raises(InputError, match="3 of 2"):
        blueprint(Cluster((Device("a", cores=3),)), (0, 1))
    crowded = Cluster(tuple(Device(str(k)) for k in range(3)))
    assert "3 cores of 2" in blueprint(crowded, (0, 1)).notes[0]
    assert blueprint(crowded, (0, 1, 2)).notes == ()


def test_a_cluster_that_asks_for_too_much_is_emulated_slower_in_proportion() -> None:
    """Every ratio stays, and no CPU that devices share is asked for more than is given away."""
    four = Cluster.preset("edge-quad")
    slower, factor = fitted(four, (0, 1))
    assert factor == pytest.approx(1.25 / FULL)
    for asked_for, found in zip(four.devices, slower.devices, strict=True):
        assert found.speed == pytest.approx(asked_for.speed / factor)
        assert found.memory_bytes == asked_for.memory_bytes
    for link, found_link in zip(four.links, slower.links, strict=True):
        assert found_link.bandwidth == pytest.approx(link.bandwidth / factor)
        assert found_link.latency_s == pytest.approx(link.latency_s * factor)
    speeds = dict.fromkeys((0, 1), 0.0)
    for slot, device in zip(blueprint(slower, (0, 1)).slots, slower.devices, strict=True):
        for cpu in slot.cpus:
            speeds[cpu] += device.speed
    assert max(speeds.values()) <= FULL + 1e-9
    two = Cluster.preset("edge-duo")
    assert fitted(two, (0, 1)) == (two, 1.0)
    assert fitted(four, range(8)) == (four, 1.0)
