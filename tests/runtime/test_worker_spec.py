"""Worker specifications survive every way of passing them."""

from __future__ import annotations

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from placewright.runtime.emulation import ShapedLink
from placewright.runtime.messages.layout import Layout
from placewright.runtime.specs import WorkerSpec
from placewright.testbed.node_handle import NodeHandle

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
