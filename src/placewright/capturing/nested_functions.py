"""Functions in model files: what a graph becomes when their bodies take the place of calls.

A function that calls another twice, which calls a third twice, and so on, is a file of kilobytes
that becomes a graph without end. So the size is computed, from the inside out, before any is
inlined.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

from placewright.errors import UnsupportedError

MOST_NODES = 200_000
"""Of an inlined graph; large language models have a tenth."""

MOST_BYTES = 256 << 20
"""Of an inlined graph's description, without the weights of the file."""

Key = TypeVar("Key", bound=Hashable)


def refuse_expansion(
    graph: Iterable[Any],
    bodies: Mapping[Key, Iterable[Any]],
    calls: Callable[[Any], Iterable[Key]],
    where: str,
) -> None:
    """Raise if a graph becomes too large, or never ends, when its functions are inlined.

    Parameters
    ----------
    graph
        Its nodes, as messages of protocol buffers.
    bodies
        The nodes of each function.
    calls
        Returns the functions that a node calls, of those in `bodies`.

    Raises
    ------
    UnsupportedError
        It does.
    """
    found: dict[Any, tuple[list[Key], int, int]] = {}
    for key, nodes in (*bodies.items(), (None, graph)):
        listed = list(nodes)
        called = [callee for node in listed for callee in calls(node) if callee in bodies]
        found[key] = called, len(listed), sum(node.ByteSize() for node in listed)
    sizes: dict[Any, tuple[int, int]] = {}
    try:
        for key in TopologicalSorter({k: set(v[0]) for k, v in found.items()}).static_order():
            called, nodes_of, size = found[key]
            sizes[key] = (
                nodes_of + sum(sizes[callee][0] for callee in called),
                size + sum(sizes[callee][1] for callee in called),
            )
    except CycleError as error:
        name = error.args[1][0]
        raise UnsupportedError(
            "a function of the model calls itself",
            where=f"{where}: function {name!s:.100}",
            hint="export the model without recursive functions",
        ) from None
    nodes_of, size = sizes[None]
    if nodes_of > MOST_NODES or (size > MOST_BYTES and bodies and size > 2 * found[None][2]):
        raise UnsupportedError(
            "the model becomes too large when its functions are inlined",
            where=where,
            by=f"{nodes_of:.3g} nodes, at most {MOST_NODES}; {size:.3g} bytes, at most "
            f"{MOST_BYTES} or twice the graph's",
            hint="export the model without nested functions",
        )


def refuse_expansion_of_onnx(model: Any, where: str) -> None:
    """Raise if an ``onnx.ModelProto`` becomes too large when it is inlined; see above.

    Branches and loops count as calls of what is in them.
    """
    if not model.functions:
        return
    refuse_expansion(
        model.graph.node,
        {(f.domain, f.name, getattr(f, "overload", "")): f.node for f in model.functions},
        lambda node: [
            (each.domain, each.op_type, getattr(each, "overload", "")) for each in _inner(node)
        ],
        where,
    )


def _inner(node: Any) -> list[Any]:
    """A node and the nodes of the graphs in its attributes, at every level."""
    found, waiting = [], [node]
    while waiting:
        found.append(each := waiting.pop())
        for attribute in each.attribute:
            for graph in (attribute.g, *attribute.graphs):
                waiting += graph.node
    return found
