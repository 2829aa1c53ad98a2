"""FLOPs of TensorFlow operators against counting by hand."""

from __future__ import annotations

from itertools import product

import pytest

from placewright.capturing.tensorflow.formulas import flops


def test_products_are_counted_as_loops_do() -> None:
    """Two operations for every term that a product adds up."""
    assert flops("MatMul", [(3, 4), (4, 5)], [(3, 5)], {}) == (2 * 3 * 4 * 5, 0)
    assert flops("MatMul", [(4, 3), (4, 5)], [(3, 5)], {"transpose_a": True})[0] == 2 * 3 * 4 * 5
    shapes = [(2, 3, 4), (2, 4, 5)]
    assert flops("BatchMatMulV2", shapes, [(2, 3, 5)], {})[0] == 2 * 2 * 3 * 4 * 5
    assert flops("Einsum", shapes, [(2, 3, 5)], {"equation": "bij,bjk->bik"})[0] == 2 * 120
    assert flops("Einsum", shapes, [(2, 3, 5)], {"equation": "...ij,...jk->...ik"})[0] == 2 * 120


@pytest.mark.parametrize("size", [(5, 3), (4, 2)])
def test_convolutions_and_their_gradients_do_the_same_products(size: tuple[int, int]) -> None:
    """Valid padding: every output adds a window over all input channels."""
    side, window = size
    out = side - window + 1
    terms = sum(1 for _ in product(range(out), range(out), range(window), range(window)))
    x, w, y = (2, side, side, 3), (window, window, 3, 7), (2, out, out, 7)
    expected = 2.0 * 2 * 3 * 7 * terms
    assert flops("Conv2D", [x, w], [y], {}) == (expected, 0)
    assert flops("Conv2DBackpropInput", [(4,), w, y], [x], {}) == (expected, 0)
    assert flops("Conv2DBackpropFilter", [x, (4,), y], [w], {}) == (expected, 0)
    deep = (window, window, 3, 1)
    y = (2, out, out, 3)
    assert flops("DepthwiseConv2dNative", [x, deep], [y], {})[0] == 2.0 * 2 * 3 * terms


def test_other_operators_work_per_element_or_not_at_all() -> None:
    """Reductions read their input once, pools every window, views nothing."""
    assert flops("Sum", [(6, 7), (1,)], [(6,)], {}) == (0, 42)
    assert flops("MaxPool", [(1, 4, 4, 2)], [(1, 2, 2, 2)], {"ksize": [1, 2, 2, 1]}) == (0, 32)
    assert flops("Reshape", [(6, 7), (1,)], [(42,)], {}) == (0, 0)
    assert flops("NoOp", [], [], {}) == (0, 0)
