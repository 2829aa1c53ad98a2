"""A checked file becomes a problem: names become indices, bandwidths seconds per sample."""

from __future__ import annotations

import math

import numpy as np

from placewright.errors import InputError, UnknownNameError
from placewright.numerics.arrays import IntArray
from placewright.samples.checks import check_size
from placewright.samples.formats.network import network_of, ring_s
from placewright.samples.formats.schema import NodeEntry, SampleFile
from placewright.samples.problem import Batches, SampleProblem


@np.errstate(divide="ignore", over="ignore")  # what is not finite then is refused with a name
def problem_of(entry: SampleFile, name: str) -> SampleProblem:
    """The problem of a file; `name` is used where the file has none."""
    if not 0 < entry.sample_bytes < math.inf:
        raise InputError(
            "must be a size above 0", where="sample_bytes", by=f"got {entry.sample_bytes:g}"
        )
    check_size(len(entry.nodes), where="nodes")
    index = _indices([node.name for node in entry.nodes])
    classes = _classes(entry.nodes)
    samples = np.array([_samples(node, classes) for node in entry.nodes])
    network = network_of(entry, index)
    send_s, receive_s = entry.sample_bytes / network.send, entry.sample_bytes / network.receive
    steps = _steps(entry, int(samples.sum()))
    own_s = np.array([node.seconds_per_sample for node in entry.nodes])
    batch_s = np.array([node.seconds_per_batch for node in entry.nodes])
    fixed_s = np.array([node.fixed_s for node in entry.nodes])
    if entry.batches is Batches.EQUAL:
        own_s = own_s + batch_s / (entry.batch or 1)
    else:
        fixed_s = fixed_s + steps * batch_s
    storage = [math.inf if node.storage is None else node.storage for node in entry.nodes]
    return SampleProblem(
        node_names=tuple(index),
        samples=samples,
        seconds_per_sample=own_s,
        send_s=send_s,
        receive_s=receive_s,
        latency_s=network.latency_s,
        storage=np.array(storage, dtype=np.float64),
        keep=_keep(entry, classes, samples),
        price_s=network.price_per_byte * entry.sample_bytes,
        fixed_s=fixed_s,
        class_names=classes,
        epochs=entry.epochs,
        sync_s=entry.sync_s + steps * ring_s(entry.gradient_bytes, network),
        overlap=entry.overlap,
        duplex=entry.duplex,
        batches=entry.batches,
        ports=entry.ports,
        relay=entry.relay,
        label_mix=math.inf if entry.label_mix is None else entry.label_mix,
        sample_bytes=entry.sample_bytes,
        name=entry.name or name,
    )


def _indices(names: list[str]) -> dict[str, int]:
    index = {name: i for i, name in enumerate(names)}
    if len(index) < len(names):
        twice = next(name for i, name in enumerate(names) if index[name] != i)
        raise InputError(f"the node {twice!r} is there twice", where="nodes")
    return index


def _classes(nodes: list[NodeEntry]) -> tuple[str, ...]:
    named = [node for node in nodes if node.classes is not None]
    if not named:
        return ("samples",)
    if len(named) < len(nodes):
        bare = next(node.name for node in nodes if node.classes is None)
        raise InputError("has no classes while other nodes have", where=f"nodes: {bare!r}")
    return tuple(dict.fromkeys(c for node in named for c in node.classes or ()))


def _samples(node: NodeEntry, classes: tuple[str, ...]) -> list[int]:
    where = f"nodes: {node.name!r}"
    if node.classes is None:
        if node.samples is None:
            raise InputError("samples is missing", where=where)
        return [node.samples]
    counts = [node.classes.get(c, 0) for c in classes]
    if node.samples is not None and node.samples != sum(counts):
        raise InputError(
            "samples and classes differ", where=where, by=f"{node.samples} and {sum(counts)}"
        )
    return counts


def _keep(entry: SampleFile, classes: tuple[str, ...], samples: IntArray) -> IntArray:
    """Shape (n, k): what must stay; protected classes stay as a whole."""
    for name in entry.protected:
        if name not in classes:
            raise UnknownNameError("class", name, classes, where="protected")
    kept = np.array([[c in entry.protected for c in classes]]) * samples
    for i, node in enumerate(entry.nodes):
        where = f"nodes: {node.name!r}: keep"
        if node.keep == "all":
            kept[i] = samples[i]
        elif isinstance(node.keep, dict):
            for name, count in node.keep.items():
                if name not in classes:
                    raise UnknownNameError("class", name, classes, where=where)
                c = classes.index(name)
                kept[i, c] = max(int(kept[i, c]), count)
        elif len(classes) == 1:
            kept[i, 0] = max(int(kept[i, 0]), int(node.keep))
        elif node.keep:
            raise InputError(
                "must say how many of which class", where=where, hint="keep: {cat: 10, dog: 0}"
            )
    return kept


def _steps(entry: SampleFile, total: int) -> int:
    """Steps of an epoch where a batch is given, else 0."""
    needed = entry.gradient_bytes or any(node.seconds_per_batch for node in entry.nodes)
    if entry.batch is None:
        if needed:
            raise InputError("is needed to count the steps of an epoch", where="batch")
        return 0
    per_step = entry.batch * (len(entry.nodes) if entry.batches is Batches.EQUAL else 1)
    return math.ceil(total / per_step)
