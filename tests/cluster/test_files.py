"""Cluster files in YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewright.cluster.cluster import Cluster
from placewright.cluster.devices import WORK, Device, Link
from placewright.cluster.files import (
    cluster_data,
    cluster_to_text,
    error_line,
    load_cluster,
    read_cluster,
    write_cluster,
)
from placewright.cluster.schema import ClusterFile, preset_names
from placewright.errors import InputError, UnknownNameError

DUO = """
devices:
  - {name: a, kind: cpu, cores: 1, memory: 2GiB, speed: 1.0, node: a}
  - {name: b, kind: npu, memory: 1GiB, peak_flops: 1.5TFLOPS, memory_bandwidth: 20GB/s, node: b,
     launch_overhead: 12us, speed_by_kind: {conv: 2.0}, efficiency: {attention: 0.4}}
links:
  - {from: a, to: b, bandwidth: 1Gbps, latency: 200us}
"""

names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1)
positive = st.floats(min_value=1e-6, max_value=1e15)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Any cluster at all."""
    chosen = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    devices = tuple(
        Device(
            name,
            kind=draw(names),
            node=draw(names),
            cores=draw(st.integers(1, 64)),
            speed=draw(positive),
            memory_bytes=draw(positive | st.just(float("inf"))),
            peak_flops=draw(positive | st.none()),
            launch_overhead_s=draw(st.floats(0, 1) | st.none()),
            disk_bandwidth=draw(positive | st.none()),
            efficiency=draw(st.dictionaries(st.sampled_from(WORK), st.floats(0.01, 1))),
        )
        for name in chosen
    )
    pairs = [(a, b) for a in chosen for b in chosen if a != b]
    linked = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    links = tuple(
        Link(a, b, draw(positive), draw(st.floats(0, 1)), draw(st.just("") | names))
        for a, b in linked
    )
    return Cluster(devices, links, draw(names))


@given(clusters())
def test_written_is_read_back_equal(cluster: Cluster) -> None:
    """No field, order or channel is lost."""
    assert Cluster.from_text(cluster_to_text(cluster), where="text") == cluster


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_read_back_equal(name: str, tmp_path: Path) -> None:
    """What ships can be kept as a file."""
    cluster = load_cluster(name)
    assert read_cluster(write_cluster(cluster, tmp_path / "c.yaml")) == cluster


def test_reads_every_field() -> None:
    """Strings with units become bytes, bytes per second, FLOP/s and seconds."""
    cluster = Cluster.from_text(DUO, where="duo.yaml", name="duo")
    assert cluster.name == "duo"
    assert cluster.devices[0] == Device("a", "cpu", "a", 1, 1.0, 2.0 * 2**30)
    assert cluster.devices[1] == Device(
        "b", "npu", "b", 1, 1.0, 2.0**30, 1.5e12, 20e9, 12e-6, {"conv": 2.0}, {"attention": 0.4}
    )
    assert [(k.source, k.target, k.channel) for k in cluster.links] == [
        ("a", "b", "a->b"),
        ("b", "a", "b->a"),
    ]
    assert {(k.bandwidth, k.latency_s) for k in cluster.links} == {(125e6, 2e-4)}


def test_every_field_is_optional() -> None:
    """A device is called after its kind and position; a link is Gigabit Ethernet."""
    cluster = Cluster.from_text(
        "devices: [{}, {kind: gpu}]\nlinks: [{from: cpu0, to: gpu1}]", where="t"
    )
    assert cluster.device_names == ("cpu0", "gpu1")
    assert cluster.links[0].bandwidth == 125e6


def test_one_way_links_and_shared_channels() -> None:
    """``duplex: false`` is this way only; a named channel is shared, both ways."""
    text = (
        "devices: [{name: a}, {name: b}, {name: c}]\n"
        "links: [{from: a, to: b, duplex: false}, {from: b, to: c, channel: bus}]"
    )
    links = Cluster.from_text(text, where="t").links
    assert [(k.source, k.target, k.channel) for k in links] == [
        ("a", "b", "a->b"),
        ("b", "c", "bus"),
        ("c", "b", "bus"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices:\n  - {name: a, memry: 2GiB}", "c.yaml, line 2: devices[0].memry: unknown key"),
        ("devices:\n  - {name: a, memry: 2GiB}", "did you mean 'memory'?"),
        ("device: []", "did you mean 'devices'?"),
        ("devices:\n- {name: a}\n- {memory: 2Gib}", "c.yaml, line 3: devices[1].memory: 'Gib'"),
        ("devices: [{name: a, memory: -1GiB}]", "devices[0].memory: a size must be"),
        ("devices: [{name: a, speed: .nan}]", "devices[0].speed: must be a finite number"),
        ("devices: [{name: a, speed: -1}]", "devices[0].speed: must be greater than 0"),
        ("devices: [{name: a, cores: 0}]", "devices[0].cores"),
        ("devices: [{name: a, memory: 0B}]", "c.yaml: device 'a': memory_bytes"),
        ("devices: [{name: a, speed_by_kind: {conv: .nan}}]", "speed_by_kind.conv"),
        (
            "devices: [{name: a, efficiency: {attention: 1.5}}]",
            "efficiency.attention must be above 0",
        ),
        ("devices: [{name: a, efficiency: 0}]", "efficiency.matmul must be above 0"),
        ("devices: [{name: a, efficiency: {atention: 0.4}}]", "did you mean 'attention'"),
        ("devices: [{name: a, efficiency: high}]", "efficiency"),
        ("devices: []", "at least one device"),
        ("devices: [{name: a}, {name: a}]", "c.yaml: c: device name 'a' is used twice"),
        ("devices: [{name: a}]\nlinks: [{from: a, to: aa}]", "unknown device 'aa'"),
        ("devices: [{name: a}]\nlinks: [{from: a, to: a}]", "must join two devices"),
        ("devices: [{name: a}]\nlinks: [{to: a}]", "c.yaml, line 2: links[0].from: is missing"),
        ("devices: [{}, {}]\nlinks: [{from: cpu0, to: cpu1}, {from: cpu1, to: cpu0}]", "two links"),
        ("links: 3", "links: must be a list"),
        ("devices: [{name: a}]\ndevices: []", "the key 'devices' is given twice"),
        ("devices: [{name: a}]\nname: {{ name }}", "a key must be a scalar"),
        ("[a]: 1", "a key must be a scalar"),
        ("schema_version: 2\ndevices: [{}]", "schema_version: must be 1"),
        ("- a", "must be a mapping"),
        ("devices: [", "is not valid YAML"),
        ("devices: !!python/object/apply:os.system [ls]", "is not valid YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_file_and_field(text: str, message: str) -> None:
    """What is wrong, where, by how much, and what next."""
    with pytest.raises(InputError) as caught:
        Cluster.from_text(text, where="c.yaml", name="c")
    assert message in str(caught.value)
    assert str(caught.value).startswith("c.yaml")


def test_a_missing_file_and_an_unknown_preset(tmp_path: Path) -> None:
    """A path is a path; anything else is a preset and has a nearest one."""
    with pytest.raises(InputError, match="No such file"):
        load_cluster(str(tmp_path / "none.yaml"))
    with pytest.raises(UnknownNameError, match="did you mean 'edge-duo'"):
        load_cluster("edge-dou")


def test_a_preset_is_none_of_the_files_that_lie_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name means the same in every folder; the file of that name is called by its path."""
    monkeypatch.chdir(tmp_path)
    Path("edge-duo").write_text("devices: [{name: other}]\n")
    assert load_cluster("edge-duo") == Cluster.preset("edge-duo")
    assert load_cluster("./edge-duo").device_names == ("other",)


def test_schema_allows_text_and_numbers() -> None:
    """The published schema knows that sizes may be written with units."""
    schema = ClusterFile.model_json_schema()
    memory = schema["$defs"]["DeviceEntry"]["properties"]["memory"]["anyOf"]
    assert {entry["type"] for entry in memory} == {"string", "number", "null"}


def test_data_is_what_the_text_says() -> None:
    """The JSON form of a cluster is its file."""
    import yaml

    cluster = Cluster.from_text(DUO, where="duo.yaml", name="duo")
    assert yaml.safe_load(cluster_to_text(cluster)) == cluster_data(cluster)


def test_the_line_of_an_error_that_names_none() -> None:
    """There is none where nothing is named either."""
    error = InputError("a cluster needs at least one device", where="cluster")
    assert error_line(error, "x: 1") is None
    assert error_line(InputError("unknown device 'b'"), "x: a\ny: b\n") == 2
